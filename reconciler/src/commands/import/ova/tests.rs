//! Whole imports: archives and folders on a file system.

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

const DISK: &[u8] = b"KDMV and the rest of a disk";

/// A descriptor with one disk in this file.
fn descriptor(href: &str) -> String {
    format!(
        "<Envelope xmlns:ovf=\"http://schemas.dmtf.org/ovf/envelope/1\"><References><File ovf:id=\"f1\" ovf:href=\"{href}\"/>\
         </References><DiskSection><Disk ovf:capacity=\"1073741824\" ovf:diskId=\"d1\" ovf:fileRef=\"f1\" ovf:format=\"vmdk\"/>\
         </DiskSection><VirtualSystem ovf:id=\"box\"><VirtualHardwareSection>\
         <Item><ResourceType>3</ResourceType><VirtualQuantity>1</VirtualQuantity></Item>\
         <Item><ResourceType>4</ResourceType><VirtualQuantity>512</VirtualQuantity></Item>\
         <Item><ResourceType>17</ResourceType><HostResource>/disk/d1</HostResource></Item>\
         </VirtualHardwareSection></VirtualSystem></Envelope>"
    )
}

fn sha256(data: &[u8]) -> String {
    hex(&digest::digest(&digest::SHA256, data))
}

fn sha1(data: &[u8]) -> String {
    hex(&digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, data))
}

/// Names of files with their contents.
type Members<'a> = &'a [(&'a str, &'a [u8])];

/// The file of an archive with these members, in a folder of its own.
fn archive(members: Members<'_>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a new folder");
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in members {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        builder.append_data(&mut header, name, Cursor::new(data)).expect("it is in memory");
    }
    let path = folder.path().join("box.ova");
    fs::write(&path, builder.into_inner().expect("it is in memory")).expect("a new file");
    (folder, path)
}

fn import_of(file: &Path) -> (PathBuf, anyhow::Result<()>) {
    let out = file.with_file_name("out");
    let result = run(&OvaOptions { file: file.to_owned(), out: out.clone() });
    (out, result)
}

fn refusal(file: &Path) -> String {
    let (out, result) = import_of(file);
    assert!(!out.exists(), "something is left of a refused import");
    format!("{:#}", result.expect_err("it is refused"))
}

#[test]
fn an_ova_is_verified_extracted_and_described() {
    let text = descriptor("box-disk1.vmdk");
    let manifest =
        format!("SHA256(box.ovf)= {}\nSHA1(box-disk1.vmdk)= {}\n", sha256(text.as_bytes()), sha1(DISK));
    let (_folder, file) = archive(&[
        ("box.ovf", text.as_bytes()),
        ("box.mf", manifest.as_bytes()),
        ("box.cert", b"a signature"),
        ("box-disk1.vmdk", DISK),
    ]);
    let (out, result) = import_of(&file);
    result.expect("it is imported");
    assert_eq!(fs::read(out.join("box-disk1.vmdk")).expect("it is extracted"), DISK);
    let written = fs::read_to_string(out.join("main.tf")).expect("it is written");
    for part in [
        "file   = \"${path.module}/box-disk1.vmdk\"",
        &*sha256(DISK),
        "size          = \"1Gi\"",
        "# - its appliance is signed (.cert): the signature was not verified\n",
    ] {
        assert!(written.contains(part), "no {part} in:\n{written}");
    }
    assert!(!written.contains("no manifest"), "{written}");
    // A second import replaces nothing.
    let before = fs::read_to_string(out.join("main.tf")).expect("it is there");
    let (_, again) = import_of(&file);
    let error = format!("{:#}", again.expect_err("it is refused"));
    assert!(error.contains("box-disk1.vmdk exists: remove it, or give another folder"), "{error}");
    assert_eq!(fs::read_to_string(out.join("main.tf")).expect("it is there"), before);
    assert_eq!(fs::read(out.join("box-disk1.vmdk")).expect("it is there"), DISK);
}

#[test]
fn an_ova_without_a_manifest_says_so_and_a_foreign_file_in_the_folder_stays() {
    let text = descriptor("box-disk1.vmdk");
    let (folder, file) = archive(&[("box.ovf", text.as_bytes()), ("box-disk1.vmdk", DISK)]);
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("a new folder");
    fs::write(out.join("notes"), "mine").expect("a new file");
    import_of(&file).1.expect("it is imported");
    let written = fs::read_to_string(out.join("main.tf")).expect("it is written");
    assert!(written.contains("no manifest (.mf): its files were not verified"), "{written}");
    assert_eq!(fs::read_to_string(out.join("notes")).expect("it is there"), "mine");
}

#[test]
fn a_descriptor_beside_its_disks_names_them_where_they_are() {
    let folder = tempfile::tempdir().expect("a new folder");
    let (file, disk) = (folder.path().join("box.ovf"), folder.path().join("my disk.vmdk"));
    fs::write(&file, descriptor("my%20disk.vmdk")).expect("a new file");
    fs::write(&disk, DISK).expect("a new file");
    let (out, result) = import_of(&file);
    result.expect("it is imported");
    let written = fs::read_to_string(out.join("main.tf")).expect("it is written");
    let real = fs::canonicalize(&disk).expect("it exists");
    assert!(written.contains(&format!("\"{}\"", real.display())), "{written}");
    assert!(written.contains(&sha256(DISK)), "{written}");
    assert_eq!(fs::read_dir(&out).expect("it exists").count(), 1, "nothing is copied");
}

#[test]
fn links_beside_a_descriptor_are_not_followed() {
    let folder = tempfile::tempdir().expect("a new folder");
    let (file, disk) = (folder.path().join("box.ovf"), folder.path().join("a.vmdk"));
    fs::write(&file, descriptor("a.vmdk")).expect("a new file");
    std::os::unix::fs::symlink("/etc/passwd", &disk).expect("a new link");
    assert!(refusal(&file).contains("may be no link"));
    fs::remove_file(&disk).expect("it is there");
    assert!(refusal(&file).contains("not in the package"));
    fs::create_dir(&disk).expect("a new folder");
    assert!(refusal(&file).contains("no regular file"));
}

#[test]
fn another_digest_is_refused_and_leaves_nothing() {
    let text = descriptor("a.vmdk");
    let of_descriptor = format!("SHA256(box.ovf)= {}\n", sha256(text.as_bytes()));
    for (manifest, expected) in [
        (format!("{of_descriptor}SHA256(a.vmdk)= {}\n", sha256(b"other")), "its SHA-256 is another one"),
        (format!("{of_descriptor}SHA1(a.vmdk)= {}\n", sha1(b"other")), "its SHA-1 is another one"),
        (of_descriptor.clone(), "its manifest has no digest of \"a.vmdk\""),
        (format!("SHA256(a.vmdk)= {}\n", sha256(DISK)), "its manifest has no digest of \"box.ovf\""),
        (
            format!("SHA256(box.ovf)= {}\n", sha256(b"")),
            "its descriptor \"box.ovf\": its SHA-256 is another one",
        ),
        (format!("MD5(a.vmdk)= {}\n", sha256(DISK)), "its manifest \"box.mf\": its line 1"),
    ] {
        let members: [(&str, &[u8]); 3] =
            [("box.ovf", text.as_bytes()), ("box.mf", manifest.as_bytes()), ("a.vmdk", DISK)];
        let (_folder, file) = archive(&members);
        let error = refusal(&file);
        assert!(error.contains(expected), "{manifest}: {error}");
    }
}

#[test]
fn archives_that_are_no_appliances_are_refused() {
    let text = descriptor("a.vmdk");
    let sized = text.replace("ovf:href=\"a.vmdk\"", "ovf:href=\"a.vmdk\" ovf:size=\"28\"");
    let (ovf, sized, big) = (text.as_bytes(), sized.as_bytes(), vec![b' '; MAX_XML + 1]);
    let cases: [(Members<'_>, &str); 11] = [
        (&[("a.vmdk", DISK)], "it has no descriptor"),
        (&[("._box.ovf", ovf), ("a.vmdk", DISK)], "it has no descriptor"),
        (&[("box/._box.ovf", b""), ("box/box.ovf", ovf)], "its descriptor \"box/box.ovf\" is in a folder"),
        (&[("._box.ovf", b""), ("box.ovf", ovf)], "\"a.vmdk\", which is not in the package"),
        (&[("a.ovf", ovf), ("b.ovf", ovf)], "\"a.ovf\" and \"b.ovf\""),
        (&[("box.ovf", ovf)], "\"a.vmdk\", which is not in the package"),
        (&[("box.ovf", ovf), ("folder/a.vmdk", DISK)], "which is not in the package"),
        (&[("box.ovf", ovf), ("a.vmdk", b"")], "has 0 bytes"),
        (&[("box.ovf", sized), ("a.vmdk", DISK)], "has 27 bytes, and its descriptor declares 28"),
        (&[("box.ovf", &big)], "has more than 1048576 bytes"),
        (&[("box.ovf", b"\xff\xfe<\0"), ("a.vmdk", DISK)], "is not UTF-8"),
    ];
    for (members, expected) in cases {
        let (_folder, file) = archive(members);
        let error = refusal(&file);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let folder = tempfile::tempdir().expect("a new folder");
    let text = folder.path().join("box.ova");
    assert!(refusal(&text).contains("No such file"));
    fs::write(&text, "<Envelope/>").expect("a new file");
    assert!(refusal(&text).contains("truncated"));
}

#[test]
fn a_file_of_a_disk_that_exists_stays_and_the_others_are_not_extracted() {
    let text = descriptor("a.vmdk")
        .replace("</References>", "<File ovf:id=\"f2\" ovf:href=\"b.vmdk\"/></References>")
        .replace(
            "</DiskSection>",
            "<Disk ovf:capacity=\"1\" ovf:diskId=\"d2\" ovf:fileRef=\"f2\" ovf:format=\"vmdk\"/></DiskSection>",
        )
        .replace(
            "</VirtualHardwareSection>",
            "<Item><ResourceType>17</ResourceType><HostResource>/disk/d2</HostResource></Item></VirtualHardwareSection>",
        );
    let members: [(&str, &[u8]); 3] = [("box.ovf", text.as_bytes()), ("a.vmdk", DISK), ("b.vmdk", DISK)];
    let (folder, file) = archive(&members);
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("a new folder");
    fs::write(out.join("b.vmdk"), "mine").expect("a new file");
    let error = format!("{:#}", import_of(&file).1.expect_err("it is refused"));
    assert!(error.contains("b.vmdk exists: remove it, or give another folder with --out"), "{error}");
    assert_eq!(fs::read_to_string(out.join("b.vmdk")).expect("it is there"), "mine");
    assert_eq!(fs::read_dir(&out).expect("it exists").count(), 1, "the first disk is not left");
}

#[test]
fn extracted_files_have_no_names_before_all_are_whole() {
    let folder = tempfile::tempdir().expect("a new folder");
    let (a, b) = (folder.path().join("a.vmdk"), folder.path().join("b.vmdk"));
    let extract = || {
        let mut extraction = Extraction::begin(folder.path(), 1, &["a.vmdk", "b.vmdk"])?;
        extraction.create("a.vmdk")?.write_all(DISK)?;
        extraction.create("b.vmdk")?.write_all(DISK)?;
        anyhow::Ok(extraction)
    };
    drop(extract().expect("there is room"));
    let mut extraction = extract().expect("the first one left nothing");
    assert!(!a.exists() && !b.exists(), "a file has its name too early");
    fs::write(&b, "mine").expect("a new file");
    let error = extraction.name_files().expect_err("another file has the name by now");
    assert!(error.to_string().contains("b.vmdk"), "{error}");
    drop(extraction);
    assert!(!a.exists(), "the first file is not left");
    assert_eq!(fs::read_to_string(&b).expect("it is there"), "mine");
}

#[test]
fn a_manifest_beside_a_descriptor_is_found_however_it_is_spelled() {
    let folder = tempfile::tempdir().expect("a new folder");
    let text = descriptor("a.vmdk");
    let (file, disk) = (folder.path().join("Box.OVF"), folder.path().join("a.vmdk"));
    fs::write(&file, &text).expect("a new file");
    fs::write(&disk, b"other").expect("a new file");
    let manifest =
        format!("SHA256(Box.OVF)= {}\nSHA256(a.vmdk)= {}\n", sha256(text.as_bytes()), sha256(DISK));
    fs::write(folder.path().join("box.MF"), &manifest).expect("a new file");
    assert!(refusal(&file).contains("its SHA-256 is another one"));
    fs::write(&disk, DISK).expect("it is there");
    let package = Package::open(&file).expect("it is one");
    assert_eq!(notes(&package), Vec::<String>::new());
    fs::write(folder.path().join("BOX.mf"), manifest).expect("a new file");
    assert!(refusal(&file).contains("an appliance has one file *.mf"));
    for name in ["box.MF", "BOX.mf"] {
        fs::remove_file(folder.path().join(name)).expect("it is there");
    }
    let package = Package::open(&file).expect("it is one");
    let expected = "its appliance has no manifest (Box.mf beside it): its files were not verified";
    assert_eq!(notes(&package), [expected]);
}

#[test]
fn a_folder_without_room_is_refused_and_removed() {
    let folder = tempfile::tempdir().expect("a new folder");
    let out = folder.path().join("out");
    let error = Extraction::begin(&out, u64::MAX, &[]).err().expect("no disk is so large");
    assert!(format!("{error:#}").contains("MiB free: give a folder elsewhere"), "{error:#}");
    assert!(!out.exists());
}

#[test]
fn a_write_that_fails_is_an_error_with_its_reason() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let text = descriptor("a.vmdk");
    let (_folder, file) = archive(&[("box.ovf", text.as_bytes()), ("a.vmdk", DISK)]);
    let package = Package::open(&file).expect("it opens");
    let (appliance, manifest) = described(&package).expect("it has a descriptor");
    let disk = disk_files(&package, &appliance.files, manifest.as_ref()).expect("they are there").remove(0);
    let error = copied(disk, &mut Full).expect_err("it is full");
    assert!(format!("{error:#}").starts_with("writing its copy: "), "{error:#}");
}
