mod image;

use std::os::unix::fs::MetadataExt;

use super::*;
use image::tree;

fn copy(tree: &Tree, from: &str, to: &Path, recursive: bool, force: bool) -> anyhow::Result<Copied> {
    let target = Target::new(from, to, recursive, force)?;
    run(tree, from.as_bytes(), &target, &Alive::default())
}

#[test]
fn a_file_keeps_content_permissions_and_time_and_loses_set_user_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(tree) = tree(&folder) else { return };
    let to = folder.path().join("copy");
    let copied = copy(&tree, "/etc/link", &to, false, false).expect("copied");
    assert_eq!((copied.files, copied.bytes, fs::read(&to).expect("there").as_slice()), (1, 5, &b"hello"[..]));
    let metadata = fs::symlink_metadata(&to).expect("there");
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o751, 1_000_000_000));
    let hidden = |folder: &Path| {
        let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().contains(".berth-")).count()
    };
    assert_eq!(hidden(folder.path()), 0);
    let refused =
        |from: &str, to: &Path| copy(&tree, from, to, false, false).expect_err("refused").to_string();
    assert!(refused("/etc/motd", &to).contains("--force"));
    copy(&tree, "/etc/motd", &to, false, true).expect("replaced");
    assert!(refused("/etc", &folder.path().join("other")).contains("-r"));
    assert!(refused("/etc/none", &folder.path().join("other")).contains("there is no /etc/none"));
    assert!(
        refused("/etc/outwards", &folder.path().join("other")).contains("there is no"),
        "not this machine's"
    );
    assert!(refused("/", folder.path()).contains("name the copy"));
    assert!(refused("/etc/..", folder.path()).contains("name the copy"));
    assert!(refused("/etc/motd", &folder.path().join("none/..")).contains("ends with .."));
    assert!(refused("/etc/motd", &folder.path().join("none/motd")).contains("there is no folder"));
    let within = copy(&tree, "/etc/motd", folder.path(), false, false).expect("copied");
    assert_eq!(within.to, folder.path().join("motd"));
}

#[test]
fn a_folder_is_copied_with_links_as_such_holes_and_without_pipes() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(tree) = tree(&folder) else { return };
    let to = folder.path().join("copy");
    let copied = copy(&tree, "/etc", &to, true, false).expect("copied");
    assert_eq!((copied.files, copied.notes.len()), (2, 1), "{:?}", copied.notes);
    assert!(copied.notes[0].contains("/etc/pipe"), "{:?}", copied.notes);
    assert_eq!(fs::read_link(to.join("outwards")).expect("a link"), Path::new("/etc/passwd"));
    let sparse = fs::read(to.join("deep/sparse")).expect("there");
    assert!(sparse.len() == 300_003 && sparse.ends_with(b"end"));
    assert!(fs::metadata(to.join("deep/sparse")).expect("there").blocks() * 512 < 200_000, "it has holes");
    assert_eq!(fs::metadata(to.join("deep")).expect("there").mode() & 0o777, 0o500);
    // So that the folder can be removed.
    fs::set_permissions(to.join("deep"), Permissions::from_mode(0o700)).expect("set");
    let within = copy(&tree, "/etc/deep", &to, true, false).expect_err("it is there").to_string();
    assert!(within.contains("deep is a folder"), "{within}");
}

#[test]
fn a_folder_that_cannot_be_copied_whole_does_not_get_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(tree) = tree(&folder) else { return };
    let to = folder.path().join("copy");
    let target = Target::new("/etc", &to, true, false).expect("a target");
    // It appears after the target was looked at.
    fs::create_dir(&to).expect("made");
    let error = run(&tree, b"/etc", &target, &Alive::default()).expect_err("refused");
    let text = format!("{error:#}");
    assert!(text.contains("was created by another program") && text.contains(".copy.berth-"), "{text}");
    assert_eq!(fs::read_dir(&to).expect("a folder").count(), 0);
    // So that the folder can be removed.
    let mut entries =
        fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
    let part = entries.find(|path| path.to_string_lossy().contains(".copy.berth-")).expect("it stays");
    fs::set_permissions(part.join("deep"), Permissions::from_mode(0o700)).expect("set");
}
