use std::io::Cursor;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;
use crate::machine::Backing;

const MIB: u64 = 1 << 20;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Returns the output of `qemu-img`; None if it is not installed.
fn qemu_img(args: &[&str], file: &Path) -> Option<String> {
    let output = match Command::new("qemu-img").args(args).arg(file).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("not compared with qemu-img: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{args:?} {}: {output:?}", file.display());
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn assert_sound(file: &Path, size: u64) {
    if let Some(text) = qemu_img(&["check", "-f", "qcow2"], file) {
        assert!(text.contains("No errors were found"), "{text}");
    }
    if let Some(text) = qemu_img(&["info", "-f", "qcow2", "--output=json"], file) {
        let info: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(info["virtual-size"], size);
        assert_eq!(info["cluster-size"], 65536);
    }
}

fn refused(bytes: &[u8], declared: Format) -> String {
    inspect(&mut Cursor::new(bytes), declared).expect_err("refused").to_string()
}

/// A small valid image for tests to damage.
fn good() -> Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let directory = directory();
        let file = directory.path().join("disk");
        create(&file, 64 * MIB).expect("created");
        std::fs::read(&file).expect("readable")
    };
    IMAGE.get_or_init(make).clone()
}

fn damaged(at: usize, bytes: &[u8]) -> String {
    let mut image = good();
    image[at..at + bytes.len()].copy_from_slice(bytes);
    refused(&image, Format::Qcow2)
}

#[test]
fn a_new_disk_of_any_size_is_sound_and_small() {
    let directory = directory();
    for (index, size) in
        [512, MIB, 1 << 30, 3 * MIB + 512, 4 << 40, (4 << 40) + 512, MAX_VIRTUAL_SIZE].into_iter().enumerate()
    {
        let file = directory.path().join(format!("disk-{index}"));
        create(&file, size).expect("created");
        assert_sound(&file, size);
        let mut open = std::fs::File::open(&file).expect("there");
        let info = inspect(&mut open, Format::Qcow2).expect("ours is fine");
        assert_eq!((info.virtual_size, info.format), (size, Format::Qcow2));
        assert!(info.file_size < 2 * MIB);
    }
}

#[test]
fn a_disk_never_replaces_a_file_and_a_failure_leaves_none() {
    let directory = directory();
    let file = directory.path().join("disk");
    std::fs::write(&file, "somebody's data").expect("written");
    assert!(matches!(create(&file, MIB), Err(ImageError::Write { .. })));
    assert_eq!(std::fs::read(&file).expect("there"), b"somebody's data");
    assert!(matches!(create(&directory.path().join("odd"), 513), Err(ImageError::Size { .. })));
    assert!(matches!(create(&directory.path().join("zero"), 0), Err(ImageError::Size { .. })));
    assert!(matches!(create(&directory.path().join("huge"), u64::MAX - 511), Err(ImageError::Size { .. })));
    assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1);
}

#[test]
fn an_overlay_names_its_base_and_may_be_larger() {
    let directory = directory();
    let (base, top) = (directory.path().join("base"), directory.path().join("top"));
    create(&base, 64 * MIB).expect("created");
    for (name, backing) in [("absolute", base.clone()), ("relative", PathBuf::from("base"))] {
        let top = top.with_extension(name);
        let backing = Backing { file: backing, format: Format::Qcow2, backing: None };
        create_overlay(&top, 100 * MIB, &backing).expect("created");
        assert_sound(&top, 100 * MIB);
        if let Some(text) = qemu_img(&["info", "-f", "qcow2", "--output=json"], &top) {
            let info: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(info["backing-filename"], backing.file.to_string_lossy().as_ref());
            assert_eq!(info["backing-filename-format"], "qcow2");
            assert_eq!(info["full-backing-filename"], base.to_string_lossy().as_ref());
        }
        let mut open = std::fs::File::open(&top).expect("there");
        assert_eq!(virtual_size(&mut open).expect("readable"), 100 * MIB);
        // An overlay of berth's is not a valid source image.
        assert!(matches!(inspect(&mut open, Format::Qcow2), Err(InspectError::BackingFile { .. })));
    }
    let small = create_overlay(&top, 32 * MIB, &Backing { file: base, format: Format::Qcow2, backing: None });
    assert!(matches!(small, Err(ImageError::SmallerThanBase { .. })), "{small:?}");
    let missing = create_overlay(
        &top,
        MIB,
        &Backing { file: "/nonexistent".into(), format: Format::Raw, backing: None },
    );
    assert!(matches!(missing, Err(ImageError::Inspect { .. })), "{missing:?}");
}

#[test]
fn the_file_of_a_volume_from_another_host_names_one_file_below_it_or_none() {
    let directory = directory();
    let (base, file) = (directory.path().join("base"), directory.path().join("disk"));
    create(&base, 64 * MIB).expect("created");
    let backing = Backing { file: "base".into(), format: Format::Qcow2, backing: None };
    create_overlay(&file, 64 * MIB, &backing).expect("created");
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(&file).expect("opened");
    let inspected = |name: Option<&str>| inspect_volume(&mut open(), name).map_err(|error| error.to_string());
    assert_eq!(inspected(Some("base")), Ok(64 * MIB));
    for wrong in [None, Some("other"), Some("/etc/shadow")] {
        assert!(inspected(wrong).is_err_and(|why| why.contains("\"base\"")), "{wrong:?}");
    }
    assert_eq!(name_below(&open()).expect("read").as_deref(), Some("base"));
    rename_below(&open(), "/images/base").expect("renamed");
    assert_eq!(inspected(Some("/images/base")), Ok(64 * MIB));
    rename_below(&open(), "base").expect("renamed back");
    assert_sound(&file, 64 * MIB);
    assert!(rename_below(&open(), &"x".repeat(1024)).is_err(), "too long");
    let blank = std::fs::OpenOptions::new().read(true).write(true).open(&base).expect("opened");
    assert!(rename_below(&blank, "base").is_err(), "nothing is below it");
    assert_eq!(inspect_volume(&mut &blank, None).expect("inspected"), 64 * MIB);
}

#[test]
fn a_volume_whose_qemu_was_killed_goes_to_another_host_and_one_that_is_corrupt_does_not() {
    let directory = directory();
    let path = directory.path().join("disk");
    create(&path, 64 * MIB).expect("created");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let flagged = |bits: u8| file.write_all_at(&[bits], 79).expect("written");
    flagged(1);
    assert_eq!(inspect_volume(&mut &file, None).expect("its counts are made anew"), 64 * MIB);
    assert!(matches!(inspect(&mut &file, Format::Qcow2), Err(InspectError::Unclean)), "of an image");
    flagged(2);
    assert!(matches!(inspect_volume(&mut &file, None), Err(InspectError::Unclean)));
}

#[test]
fn an_overlay_shows_its_bases_data() {
    let directory = directory();
    let (base, top, out) =
        (directory.path().join("base"), directory.path().join("top"), directory.path().join("out"));
    let data: Vec<u8> = (0..2 * MIB).map(|n| (n % 251) as u8).collect();
    std::fs::write(&base, &data).expect("written");
    create_overlay(&top, 4 * MIB, &Backing { file: base, format: Format::Raw, backing: None })
        .expect("created");
    grow(&top, 8 * MIB).expect("grown");
    if qemu_img(&["convert", "-f", "qcow2", "-O", "raw", &top.to_string_lossy()], &out).is_some() {
        let shown = std::fs::read(&out).expect("converted");
        assert_eq!((shown.len() as u64, &shown[..data.len()]), (8 * MIB, &data[..]));
        assert!(shown[data.len()..].iter().all(|b| *b == 0));
    }
}

#[test]
fn growing_keeps_the_data_and_never_shrinks() {
    let directory = directory();
    let file = directory.path().join("disk");
    create(&file, 64 * MIB).expect("created");
    let written = qemu_io(&file, &["write -P 7 60M 4M"]);
    for size in [64 * MIB, 65 * MIB, 10 << 30, 4 << 40] {
        grow(&file, size).expect("grown");
        grow(&file, size).expect("and again");
        assert_sound(&file, size);
    }
    if written {
        assert!(qemu_io(
            &file,
            &["read -P 7 60M 4M", "read -P 0 64M 1M", "write -P 9 2T 64k", "read -P 9 2T 64k"]
        ));
        assert_sound(&file, 4 << 40);
    }
    assert!(matches!(grow(&file, MIB), Err(ImageError::Shrink { .. })));
    let beyond = grow(&file, (4 << 40) + MIB);
    assert!(matches!(beyond, Err(ImageError::NotInPlace { why: "its L1 table is full", .. })), "{beyond:?}");
    assert_sound(&file, 4 << 40);
}

/// Returns false if it is not installed.
fn qemu_io(file: &Path, commands: &[&str]) -> bool {
    let mut qemu_io = Command::new("qemu-io");
    qemu_io.args(["-f", "qcow2"]);
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    match qemu_io.arg(file).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && !text.contains("failed"), "{output:?}");
            true
        }
        Err(error) => {
            eprintln!("no data written: {error}");
            false
        }
    }
}

#[test]
fn a_file_that_is_locked_as_qemu_locks_is_not_grown() {
    let directory = directory();
    let file = directory.path().join("disk");
    create(&file, 64 * MIB).expect("created");
    let holder = std::fs::File::open(&file).expect("there");
    // QEMU holds shared locks on one byte for each permission.
    let set = |kind: libc::c_int| {
        let lock = libc::flock { l_type: kind as _, l_whence: 0, l_start: 101, l_len: 1, l_pid: 0 };
        nix::fcntl::fcntl(&holder, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).expect("set");
    };
    set(libc::F_RDLCK);
    assert!(matches!(grow(&file, 128 * MIB), Err(ImageError::InUse { .. })));
    // Closing the file is not enough: a process that another test forks would hold the lock a moment longer.
    set(libc::F_UNLCK);
    grow(&file, 128 * MIB).expect("free again");
}

#[test]
fn what_follows_the_l1_table_is_never_taken_for_part_of_it() {
    let directory = directory();
    let file = directory.path().join("disk");
    create(&file, 64 * MIB).expect("created");
    let open = std::fs::OpenOptions::new().write(true).open(&file).expect("there");
    open.write_all_at(&[1], 3 * 65536 + 8).expect("written");
    let outcome = grow(&file, 1 << 30);
    assert!(matches!(outcome, Err(ImageError::NotInPlace { .. })), "{outcome:?}");
}

#[test]
fn hostile_qcow2_headers_are_refused_with_the_reason() {
    let mut with_backing = [0; 12];
    with_backing[7] = 200;
    with_backing[11] = 11;
    let mut image = good();
    image[200..211].copy_from_slice(b"/etc/shadow");
    image[8..20].copy_from_slice(&with_backing);
    assert!(refused(&image, Format::Qcow2).contains(r#"needs a second file, "/etc/shadow""#));
    // In a first cluster larger than the default, behind the end of a default one.
    let mut image = good();
    image[20..24].copy_from_slice(&17_u32.to_be_bytes());
    image[8..16].copy_from_slice(&100_000_u64.to_be_bytes());
    image[16..20].copy_from_slice(&11_u32.to_be_bytes());
    image[100_000..100_011].copy_from_slice(b"/etc/shadow");
    assert!(refused(&image, Format::Qcow2).contains(r#"needs a second file, "/etc/shadow""#));
    assert!(damaged(79, &[4]).contains("keeps its data in another file"));
    assert!(
        damaged(104, &[0x44, 0x41, 0x54, 0x41, 0, 0, 0, 1, b'/']).contains("keeps its data in another file")
    );
    assert!(damaged(35, &[1]).contains("encrypted"));
    assert!(damaged(35, &[2]).contains("encrypted"));
    assert!(damaged(79, &[1]).contains("not closed properly"));
    assert!(damaged(79, &[2]).contains("not closed properly"));
    assert!(damaged(78, &[1]).contains("does not know (0x100)"));
    assert!(damaged(24, &[0x7f]).contains("larger than"));
    assert!(damaged(24, &[0; 8]).contains("virtual size"));
    assert!(damaged(31, &[1]).contains("virtual size"));
    assert!(damaged(20, &[0, 0, 0, 63]).contains("cluster size"));
    assert!(damaged(36, &[0, 0, 0, 0]).contains("L1 table size"));
    assert!(damaged(36, &[0xff; 4]).contains("L1 table size"));
    assert!(damaged(40, &[0xff; 6]).contains("behind its end"));
    assert!(damaged(47, &[1]).contains("a table's offset"));
    assert!(damaged(56, &[0, 0, 0, 0]).contains("refcount table size"));
    assert!(damaged(56, &[0xff; 4]).contains("refcount table size"));
    assert!(damaged(60, &[0xff; 4]).contains("snapshots"));
    assert!(damaged(99, &[7]).contains("refcount width"));
    assert!(damaged(100, &[0xff; 4]).contains("header length"));
    assert!(damaged(7, &[9]).contains("version 2 or 3"));
    assert!(damaged(3 * 65536, &[0x80, 0, 0, 1]).contains("an L2 table"));
    assert!(refused(&good()[..90], Format::Qcow2).contains("cut off"));
    assert!(refused(&good()[..3 * 65536], Format::Qcow2).contains("the L1 table"));
    assert!(refused(b"QFI\xfb", Format::Qcow2).contains("cut off"));
}

#[test]
fn other_peoples_formats_are_named() {
    let padded = |start: &[u8]| {
        let mut bytes = start.to_vec();
        bytes.resize(4096, 0);
        bytes
    };
    for declared in [Format::Raw, Format::Qcow2] {
        assert!(refused(&padded(b"\x1f\x8b\x08"), declared).contains("gzip: declare the compression gzip"));
        assert!(refused(&padded(b"\xfd7zXZ\0"), declared).contains("xz"));
        assert!(refused(&padded(b"KDMV"), declared).contains("VMDK"));
        assert!(refused(&padded(b"vhdxfile"), declared).contains("VHDX"));
        assert!(refused(&padded(b"<<< Oracle VM VirtualBox Disk Image >>>"), declared).contains("VDI"));
        assert!(refused(&padded(b"\n  <!DOCTYPE html><html>"), declared).contains("a web page"));
        assert!(refused(&padded(b"<HTML>404"), declared).contains("a web page"));
        assert!(refused(b"", declared).contains("empty"));
    }
    assert!(refused(&good(), Format::Raw).contains("declared as raw and is a qcow2 image"));
    assert!(refused(&padded(b"\xeb\x63\x90"), Format::Qcow2).contains("something else (raw?)"));
    assert!(refused(&[1; 700], Format::Raw).contains("no multiple of 512"));
    let mut vhd = vec![0; 4096];
    vhd[4096 - 512..4096 - 504].copy_from_slice(b"conectix");
    assert!(refused(&vhd, Format::Raw).contains("VHD"));
    let raw = inspect(&mut Cursor::new(padded(b"\xeb\x63\x90")), Format::Raw).expect("a raw disk");
    assert_eq!(raw.virtual_size, 4096);
}

#[test]
fn images_made_by_qemu_img_are_taken() {
    let directory = directory();
    for (name, options) in [
        ("v2", "compat=0.10"),
        ("v3", "compat=1.1"),
        ("zstd", "compression_type=zstd"),
        ("small", "cluster_size=512"),
        ("large", "cluster_size=2M"),
        ("extended", "extended_l2=on,cluster_size=128k"),
    ] {
        let file = directory.path().join(name);
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-o", options])
            .arg(&file)
            .arg("100M")
            .status();
        match made {
            Err(error) => return eprintln!("not compared with qemu-img: {error}"),
            Ok(status) => assert!(status.success(), "{name}"),
        }
        let mut open = std::fs::File::open(&file).expect("there");
        let info = inspect(&mut open, Format::Qcow2).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(info.virtual_size, 100 * MIB, "{name}");
        // Grown here or left to QEMU, but never broken.
        match grow(&file, 200 * MIB) {
            Ok(()) => assert_eq!(virtual_size(&mut open).expect("readable"), 200 * MIB, "{name}"),
            Err(ImageError::NotInPlace { .. }) => {}
            Err(other) => panic!("{name}: {other}"),
        }
        qemu_img(&["check", "-q", "-f", "qcow2"], &file);
    }
}

proptest! {
    /// Any input gives a result.
    #[test]
    fn no_header_makes_the_inspector_panic(noise in proptest::collection::vec(any::<u8>(), 0..600), at in 0_usize..120, keep in any::<bool>()) {
        let mut image = good();
        if keep {
            let end = (at + noise.len()).min(image.len());
            image[at..end].copy_from_slice(&noise[..end - at]);
        } else {
            image = noise;
            image.splice(..image.len().min(8), *b"QFI\xfb\0\0\0\x03");
        }
        let _ = inspect(&mut Cursor::new(&image), Format::Qcow2);
        let _ = virtual_size(&mut Cursor::new(&image));
    }
}

#[test]
fn an_iso_has_the_signature_of_iso_9660_after_its_system_area() {
    let mut iso = vec![0; 40 << 10];
    iso[0x8000..0x8006].copy_from_slice(b"\x01CD001");
    let info = inspect(&mut Cursor::new(&iso), Format::Iso).expect("it has the signature");
    assert_eq!((info.format, info.virtual_size), (Format::Iso, 40 << 10));
    // A hybrid image also starts as a disk does.
    iso[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert!(inspect(&mut Cursor::new(&iso), Format::Iso).is_ok());
    assert!(inspect(&mut Cursor::new(&iso), Format::Raw).is_ok(), "as it is declared");
    assert!(refused(&[0; 40 << 10], Format::Iso).contains("iso"));
    assert!(refused(&iso[..0x8006], Format::Iso).contains("shorter"));
    assert!(refused(&iso[..(40 << 10) - 100], Format::Iso).contains("multiple of 512"));
    assert!(refused(&good(), Format::Iso).contains("qcow2"));
    assert!(refused(b"<html><body>404", Format::Iso).contains("web page"));
}
