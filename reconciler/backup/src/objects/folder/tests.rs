//! The folder on a real file system.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::{BackupId, DiskId, Repository};

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A folder with a repository.
async fn folder() -> (tempfile::TempDir, Folder) {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = Folder::new(&temporary.path().join("backups")).expect("absolute");
    assert!(folder.create(repository_file::NAME, body("{}")).await.expect("it is created"));
    (temporary, folder)
}

async fn names(folder: &Folder, of: &str) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut visit = |name: &str, length| {
        found.push((name.to_owned(), length));
        Ok(())
    };
    folder.list(of, &mut visit).await.expect("it is listed");
    found.sort_unstable();
    found
}

#[tokio::test]
async fn objects_are_files_that_only_their_owner_reads() {
    let (_temporary, folder) = folder().await;
    folder.put("disks/a/blocks/00/x", body("1")).await.expect("written");
    folder.put("disks/a/blocks/00/x", body("12")).await.expect("replaced");
    folder.put("disks/a/backups/b", body("")).await.expect("written");
    assert_eq!(folder.get("disks/a/blocks/00/x", 2).await.expect("read"), Some(b"12".to_vec()));
    assert!(matches!(folder.get("disks/a/blocks/00/x", 1).await, Err(Error::Damaged { .. })));
    assert_eq!(folder.get("disks/a/blocks/00/y", 2).await.expect("read"), None);
    assert_eq!(names(&folder, "disks/a").await, [("backups/b".to_owned(), 0), ("blocks/00/x".to_owned(), 2)]);
    assert_eq!(folder.folders("disks", 1).await.expect("listed"), ["a"]);
    assert!(matches!(folder.folders("disks/a", 1).await, Err(Error::TooMany { limit: 1, .. })));
    for (path, mode) in [("disks/a/blocks/00/x", 0o600), ("disks/a/blocks/00", 0o700), ("", 0o700)] {
        let metadata = fs::metadata(folder.path(path)).expect("it exists");
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path}");
    }
}

#[tokio::test]
async fn a_delete_removes_the_folders_of_the_disk_with_the_last_object() {
    let (_temporary, folder) = folder().await;
    for name in ["disks/a/blocks/00/x", "disks/a/blocks/01/y"] {
        folder.put(name, body("1")).await.expect("written");
    }
    folder.delete("disks/a/blocks/00/x").await.expect("deleted");
    assert!(!folder.path("disks/a/blocks/00").exists() && folder.path("disks/a/blocks/01/y").exists());
    folder.delete("disks/a/blocks/01/y").await.expect("deleted");
    folder.delete("disks/a/blocks/01/y").await.expect("it is absent already");
    assert!(!folder.path("disks/a").exists() && folder.path("disks").exists());
}

#[tokio::test]
async fn a_folder_that_is_not_mounted_is_an_error_and_is_not_written_to() {
    let (_temporary, folder) = folder().await;
    folder.put("disks/a/blocks/00/x", body("1")).await.expect("written");
    let (mounted, away) = (folder.path(""), folder.path("").with_extension("away"));
    fs::rename(&mounted, &away).expect("unmounted");
    fs::create_dir(&mounted).expect("the mount point");
    let mut visit = |_: &str, _| Ok(());
    for result in [
        folder.get("disks/a/blocks/00/x", 9).await.map(drop),
        folder.put("disks/a/blocks/00/x", body("1")).await,
        folder.delete("disks/a/blocks/00/x").await,
        folder.list("disks", &mut visit).await,
        folder.folders("disks", 9).await.map(drop),
        folder.remove_partial("disks/a").await,
    ] {
        assert!(matches!(result, Err(Error::NoRepository { .. })), "{result:?}");
    }
    assert_eq!(fs::read_dir(&mounted).expect("it exists").count(), 0);
}

#[tokio::test]
async fn of_two_creates_one_writes() {
    let (_temporary, folder) = folder().await;
    let creates = (0..8).map(|_| folder.create("new", body("1")));
    let created = futures::future::try_join_all(creates).await.expect("no error");
    assert_eq!(created.into_iter().filter(|created| *created).count(), 1);
    let link = folder.path("linked");
    fs::write(&link, "2").expect("written");
    assert!(!folder.create("linked", body("1")).await.expect("no error"));
    assert_eq!(fs::read(&link).expect("read"), b"2");
    assert_eq!(names(&folder, "").await.len(), 3, "no partial files");
}

#[tokio::test]
async fn a_full_disk_leaves_the_former_file_and_nothing_else() {
    let (_temporary, folder) = folder().await;
    folder.put("disks/a/backups/b", body("old")).await.expect("written");
    let root = folder.path("");
    for name in ["disks/a/backups/b", "disks/a/backups/c"] {
        let error = write(&root, &folder.path(name), Existing::Replace, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        });
        let error = error.expect_err("the disk is full");
        assert!(error.is_transient() && error.to_string().contains("cannot write"), "{error}");
    }
    let entries: Vec<_> = fs::read_dir(folder.path("disks/a/backups")).expect("it exists").collect();
    assert_eq!(entries.len(), 1);
    assert_eq!(folder.get("disks/a/backups/b", 9).await.expect("read"), Some(b"old".to_vec()));
}

#[tokio::test]
async fn what_an_interrupted_write_left_is_no_object_and_is_removed() {
    let (_temporary, folder) = folder().await;
    folder.put("disks/a/blocks/00/x", body("1")).await.expect("written");
    let partial = folder.path("disks/a/blocks/00/.y.0.partial");
    fs::write(&partial, "1").expect("written");
    fs::write(folder.path(".repository.json.0.partial"), "1").expect("written");
    assert_eq!(names(&folder, "disks").await, [("a/blocks/00/x".to_owned(), 1)]);
    let copied = folder.path("disks/a/blocks/00/z.4f2a.partial");
    fs::write(&copied, "1").expect("another program copies an object");
    folder.remove_partial("disks/a").await.expect("removed");
    assert!(!partial.exists() && folder.path("disks/a/blocks/00/x").exists() && copied.exists());
}

#[tokio::test]
async fn a_file_that_another_site_takes_for_a_leftover_is_written_again() {
    let (_temporary, folder) = folder().await;
    let (root, path) = (folder.path(""), folder.path("disks/a/blocks/00/x"));
    let mut attempts = 0;
    let written = replace(&root, &path, |file| {
        attempts += 1;
        if attempts < 3 {
            fs::remove_dir_all(root.join("disks/a"))?;
        }
        file.write_all(b"1")
    });
    written.expect("written");
    assert_eq!((attempts, fs::read(&path).expect("read")), (3, b"1".to_vec()));
    let gone = replace(&root, &path, |_| fs::remove_dir_all(root.join("disks/a")));
    assert!(gone.is_err_and(|error| error.is_transient()));
}

/// Makes a file one that its medium does not give: address 0 of this process cannot be read, with the same error.
fn make_unreadable(path: &Path) {
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink("/proc/self/mem", path).expect("made");
}

#[tokio::test]
async fn a_file_that_its_medium_does_not_give_is_damaged_and_can_be_replaced() {
    let (_temporary, folder) = folder().await;
    folder.put("disks/a/blocks/00/x", body("1")).await.expect("written");
    make_unreadable(&folder.path("disks/a/blocks/00/x"));
    let error = folder.get("disks/a/blocks/00/x", 9).await.expect_err("it cannot be read");
    assert!(matches!(&error, Error::Damaged { detail, .. } if detail.contains("cannot be read")), "{error}");
    folder.put("disks/a/blocks/00/x", body("1")).await.expect("replaced");
    assert_eq!(folder.get("disks/a/blocks/00/x", 9).await.expect("read"), Some(b"1".to_vec()));
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_file_holds_up_nothing() {
    let (_temporary, folder) = folder().await;
    folder.put("disks/a/blocks/00/x", body("1")).await.expect("written");
    let pipe = folder.path("disks/a/blocks/00/y");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
    assert_eq!(folder.get("disks/a/blocks/00/y", 9).await.expect("read"), Some(Vec::new()));
    assert_eq!(names(&folder, "disks/a").await, [("blocks/00/x".to_owned(), 1)]);
}

#[tokio::test]
async fn a_medium_that_gives_nothing_is_no_damage() {
    let (_temporary, folder) = folder().await;
    folder.put("disks/a/blocks/00/x", body("1")).await.expect("written");
    for name in [repository_file::NAME, "disks/a/blocks/00/x"] {
        make_unreadable(&folder.path(name));
        let error = folder.get(name, 9).await.expect_err("it cannot be read");
        assert!(matches!(error, Error::Folder { .. }) && error.is_transient(), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_delete_waits_for_a_late_write_of_a_backup_that_was_cancelled() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let root = temporary.path().join("backups");
    let folder = Folder::new(&root).expect("absolute");
    let objects = Arc::new(Folder::new(&root).expect("absolute"));
    let iterations = std::num::NonZeroU32::new(10);
    let repository = Repository::open_in(objects, &"correct horse".into(), iterations).await.expect("made");
    let (disk, backup) = (DiskId::new("a").expect("valid"), BackupId::new("one").expect("valid"));
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let late = folder.run("disks/a/backups/one", move |root, path| {
        let _ = begun.send(());
        let _ = wait.recv();
        write(root, path, Existing::Replace, |file| file.write_all(b"manifest")).map(drop)
    });
    let delete = async {
        has_begun.await.expect("the write has begun");
        let release = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(release);
        };
        tokio::join!(repository.delete(&disk, &backup), release).0
    };
    let (written, deleted) = tokio::join!(late, delete);
    written.expect("written after all");
    deleted.expect("deleted");
    assert!(!folder.path("disks/a/backups/one").exists(), "nothing would delete it any more");
}

#[tokio::test]
async fn a_new_folder_may_be_the_root_of_a_file_system() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = Folder::new(temporary.path()).expect("absolute");
    fs::create_dir(temporary.path().join("lost+found")).expect("created");
    fs::write(temporary.path().join(".repository.json.0.partial"), "1").expect("written");
    assert_eq!(folder.first().await.expect("listed"), None);
    fs::write(temporary.path().join("other"), "1").expect("written");
    assert_eq!(folder.first().await.expect("listed").as_deref(), Some("other"));
    assert!(matches!(Folder::new(Path::new("relative")), Err(Error::Location { .. })));
    let nowhere = Folder::new(&temporary.path().join("not/there")).expect("absolute");
    let error = nowhere.create("x", body("1")).await.expect_err("the parent is missing").to_string();
    assert!(error.contains("cannot create the folder") && error.contains("not/there"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_file_server_that_is_gone_is_an_error_and_uses_few_threads() {
    let (_temporary, folder) = folder().await;
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    for _ in 0..CONCURRENCY + 2 {
        let wait = Arc::clone(&wait);
        let hung = folder.run("x", move |_, _| {
            let _ = wait.lock().map(|wait| wait.recv());
            Ok(())
        });
        // Blocking tasks keep paused time from advancing by itself.
        let (found, ()) = tokio::join!(hung, tokio::time::advance(TIMEOUT + Duration::from_secs(1)));
        assert!(matches!(found, Err(Error::FolderStalled { seconds: 120, .. })), "{found:?}");
    }
    assert_eq!(folder.permits.available_permits(), 0);
    let again = Folder::new(&folder.root).expect("absolute");
    let waits = again.remove_partial("disks/a");
    let (found, ()) = tokio::join!(waits, tokio::time::advance(TIMEOUT + Duration::from_secs(1)));
    assert!(matches!(found, Err(Error::FolderStalled { .. })), "a late write is waited for: {found:?}");
    drop(release);
}
