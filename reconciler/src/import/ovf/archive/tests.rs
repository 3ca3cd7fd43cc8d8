//! Archives as tar, VMware and VirtualBox write them, and hostile ones.

use std::io::Cursor;

use proptest::prelude::*;
use tar::Builder;

use super::*;

/// A member of this name and type, without extensions.
fn entry(kind: EntryType, name: &str, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    padded(&header, data)
}

fn padded(header: &Header, data: &[u8]) -> Vec<u8> {
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, data: &[u8]) -> Vec<u8> {
    entry(EntryType::Regular, name, data)
}

fn pax(key: &str, value: &str) -> Vec<u8> {
    let length = |digits: usize| key.len() + value.len() + 3 + digits;
    let length = if length(1) < 10 { length(1) } else { length(2) };
    entry(EntryType::XHeader, "x", format!("{length} {key}={value}\n").as_bytes())
}

fn read(parts: &[Vec<u8>]) -> Result<Vec<Member>, ArchiveError> {
    members(&mut Cursor::new(parts.concat()))
}

fn refusal(parts: &[Vec<u8>]) -> String {
    read(parts).expect_err("it is refused").to_string()
}

fn end() -> Vec<u8> {
    vec![0; 1024]
}

#[test]
fn members_are_found_with_their_names_places_and_sizes() {
    let long = format!("{}.vmdk", "a".repeat(150));
    let mut builder = Builder::new(Vec::new());
    for (name, size) in [("box.ovf", 700), (&*long, 512), ("empty", 0)] {
        let mut header = Header::new_gnu();
        header.set_size(size);
        builder.append_data(&mut header, name, io::repeat(7).take(size)).expect("it is in memory");
    }
    let bytes = builder.into_inner().expect("it is in memory");
    let found = members(&mut Cursor::new(&bytes)).expect("it is an archive");
    let listed: Vec<(&str, u64)> = found.iter().map(|member| (&*member.name, member.size)).collect();
    assert_eq!(listed, [("box.ovf", 700), (&*long, 512), ("empty", 0)]);
    for member in &found {
        let (from, size) = (member.offset as usize, member.size as usize);
        assert!(bytes[from..from + size].iter().all(|byte| *byte == 7), "{member:?}");
    }
}

#[test]
fn names_and_sizes_of_records_replace_those_of_the_header() {
    let mut sized = Header::new_ustar();
    sized.set_path("short").expect("a name");
    sized.set_size(0);
    sized.set_cksum();
    let parts = [
        entry(EntryType::XGlobalHeader, "g", b"15 comment=abc\n"),
        pax("size", "5"),
        padded(&sized, b"12345"),
        pax("path", "./disk.vmdk"),
        file("other", b"data"),
        file("./plain", b""),
        entry(EntryType::Directory, "./", b""),
        entry(EntryType::Directory, "folder/", b""),
        end(),
        file("after the end", b""),
    ];
    let found = read(&parts).expect("it is an archive");
    let listed: Vec<(&str, u64)> = found.iter().map(|member| (&*member.name, member.size)).collect();
    assert_eq!(listed, [("short", 5), ("disk.vmdk", 4), ("plain", 0)]);
    // Without zeros, and without the padding of the last member.
    let mut bytes = file("a", b"12345");
    bytes.truncate(512 + 5);
    assert_eq!(read(&[bytes]).expect("it is an archive")[0].size, 5);
}

#[test]
fn a_size_in_binary_is_read() {
    let mut header = Header::new_gnu();
    header.set_path("a").expect("a name");
    header.set_size(9 << 30);
    header.set_cksum();
    let cut = read(&[padded(&header, b"")]);
    assert!(matches!(cut, Err(ArchiveError::CutOff(0))), "{cut:?}");
    assert_eq!(header.entry_size().expect("a size"), 9 << 30);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../a", "a/../../b", "/etc/passwd", "a/..", "..", "./../a", "//a", "./"] {
        let found = read(&[file(name, b""), end()]);
        let is_folder = name == "./";
        assert!(found.is_err() != is_folder, "{name}: {found:?}");
        let found = read(&[pax("path", name), file("a", b""), end()]);
        assert!(found.is_err() != is_folder, "{name}: {found:?}");
    }
    assert!(read(&[file("..a..", b""), end()]).is_ok());
    let mut bytes = file("a", b"");
    let mut header = Header::from_byte_slice(&bytes[..512]).clone();
    header.as_old_mut().name[0] = 0xff;
    header.set_cksum();
    bytes = padded(&header, b"");
    assert!(refusal(&[bytes]).contains("UTF-8"));
}

#[test]
fn links_devices_sparse_files_and_doubled_names_are_refused() {
    for kind in [
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::GNUSparse,
        EntryType::new(b'V'),
    ] {
        assert!(refusal(&[entry(kind, "a", b"")]).contains("no plain file"), "{kind:?}");
    }
    assert!(refusal(&[pax("GNU.sparse.major", "1"), file("a", b"")]).contains("no plain file"));
    assert!(refusal(&[file("a", b"1"), file("./a", b"2")]).contains("two members"));
}

#[test]
fn sizes_that_lie_and_files_that_are_no_archives_are_refused() {
    assert!(refusal(&[]).contains("no tar archive"));
    assert!(refusal(&[end()]).contains("no tar archive"));
    assert!(refusal(&[b"PK\x03\x04".to_vec(), end()]).contains("no tar archive"));
    assert!(refusal(&[b"ustar".to_vec()]).contains("truncated"));
    let mut cut = file("a", &[7; 1024]);
    cut.truncate(1024);
    assert!(refusal(&[cut]).contains("truncated"));
    for size in ["18446744073709551615", "18446744073709551104", "9999"] {
        assert!(refusal(&[pax("size", size), file("a", b""), end()]).contains("truncated"), "{size}");
    }
    for size in ["-1", "", "x"] {
        assert!(read(&[pax("size", size), file("a", b""), end()]).is_err(), "{size}");
    }
    let mut damaged = file("a", b"");
    damaged[0] ^= 1;
    assert!(refusal(&[damaged]).contains("no tar archive"));
}

#[test]
fn members_records_and_long_names_have_limits() {
    let many: Vec<Vec<u8>> = (0..=MAX_MEMBERS).map(|number| file(&number.to_string(), b"")).collect();
    assert!(read(&many[1..]).is_ok());
    assert!(refusal(&many).contains("more than 256 files"));
    let folders = vec![entry(EntryType::Directory, "a/", b""); MAX_HEADERS + 1];
    assert!(refusal(&folders).contains("more than 256 files"));
    let long = vec![b'a'; MAX_RECORDS as usize + 1];
    for kind in [EntryType::XHeader, EntryType::GNULongName, EntryType::GNULongLink, EntryType::XGlobalHeader]
    {
        assert!(refusal(&[entry(kind, "x", &long), file("a", b"")]).contains("more than 65536"), "{kind:?}");
    }
}

proptest! {
    #[test]
    fn any_header_is_that_of_members_within_the_archive_or_refused(
        kind in any::<u8>(),
        size in any::<[u8; 12]>(),
        name in any::<[u8; 16]>(),
        rest in proptest::collection::vec(any::<u8>(), 0..2048),
    ) {
        let mut header = Header::new_ustar();
        let fields = header.as_old_mut();
        fields.name[..16].copy_from_slice(&name);
        fields.size = size;
        fields.linkflag = [kind];
        header.set_cksum();
        let bytes = [header.as_bytes().as_slice(), rest.as_slice()].concat();
        for member in members(&mut Cursor::new(&bytes)).unwrap_or_default() {
            prop_assert!(member.offset + member.size <= bytes.len() as u64, "{member:?}");
            prop_assert!(!member.name.starts_with('/') && member.name.split('/').all(|part| part != ".."));
        }
    }
}
