//! A disk of an OVA: a tar archive with a descriptor, the disks of an appliance, and a manifest with their digests. Blocking.
//!
//! ```text
//!  1st reading: names, manifest ─▶ the disk to take      2nd reading: that disk ─▶ output, compared with its digest
//! ```
//!
//! All of it is foreign. The number of its members and the lengths of their headers and names are limited; a name is compared and printed,
//! and is never a path. The descriptor is not read: a disk is a member that ends in `.vmdk`. The digests are those of SHA-2: older ones
//! (SHA-1) prove nothing that the checksum of the whole archive does not.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::rc::Rc;

use sha2::{Digest, Sha256, Sha384, Sha512};

/// The most members of an archive.
const MAX_MEMBERS: usize = 256;
/// The most bytes before the data of a member: long names and further properties are read into memory.
const MAX_HEADERS: u64 = 64 << 10;
/// The longest name of a member, in bytes.
const MAX_NAME: usize = 255;
/// The most bytes of a manifest.
const MAX_MANIFEST: u64 = 1 << 20;
/// The most disks that a message lists.
const LISTED: usize = 16;

/// The disk to take out of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Its place among all members.
    place: usize,
    name: String,
    /// Its digest by the manifest, in hexadecimal digits.
    digest: Option<String>,
}

/// Chooses the disk with this number, from 1; 0 is the only one.
pub(super) fn choose(reader: impl Read, number: u8) -> io::Result<Chosen> {
    let left = Rc::new(Cell::new(MAX_HEADERS));
    let mut archive = tar::Archive::new(Limited { inner: reader, left: Rc::clone(&left) });
    let (mut names, mut disks, mut manifest) = (BTreeSet::new(), Vec::new(), None);
    for (place, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        left.set(u64::MAX);
        if place >= MAX_MEMBERS {
            return Err(invalid(format!("it has more than {MAX_MEMBERS} members")));
        }
        if entry.header().entry_type().is_pax_global_extensions() {
            pass_over(entry, &left)?;
            continue;
        }
        let name = name_of(&entry.path_bytes())?;
        if !entry.header().entry_type().is_file() {
            return Err(invalid(format!("its member {name:?} is no file, and an OVA has only files")));
        }
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        match ending.as_deref() {
            Some("vmdk") => disks.push((place, name.clone())),
            Some("mf") if manifest.is_some() => return Err(invalid("it has two manifests".to_owned())),
            Some("mf") => manifest = Some(read_manifest(&mut entry)?),
            _ => {}
        }
        if !names.insert(name.clone()) {
            return Err(invalid(format!("it has two members {name:?}")));
        }
        pass_over(entry, &left)?;
    }
    let (place, name) = only(&disks, number)?;
    let digest = match &manifest {
        None => None,
        Some(manifest) => match manifest.get(&name) {
            Some(digest) => digest.clone(),
            None => return Err(invalid(format!("its manifest has no digest of {name:?}"))),
        },
    };
    Ok(Chosen { place, name, digest })
}

/// Reads the rest of a member, so that headers alone follow, and limits these.
fn pass_over(mut member: impl Read, left: &Cell<u64>) -> io::Result<()> {
    io::copy(&mut member, &mut io::sink())?;
    left.set(MAX_HEADERS);
    Ok(())
}

/// Has the chosen disk copied, and compares it with its digest. The archive is the one that it was chosen from.
pub(super) fn extract(
    reader: impl Read,
    chosen: &Chosen,
    copy: impl FnOnce(&mut dyn Read) -> io::Result<()>,
) -> io::Result<()> {
    let Chosen { place, name, digest } = chosen;
    let mut archive = tar::Archive::new(reader);
    let entry = archive.entries()?.nth(*place);
    let entry = entry.ok_or_else(|| invalid(format!("its member {name:?} is gone")))??;
    let size = entry.size();
    let mut hashed = Hashed { inner: entry, hasher: Hasher::of(digest.as_deref()), bytes: 0 };
    copy(&mut hashed)?;
    if hashed.bytes != size {
        let bytes = hashed.bytes;
        return Err(invalid(format!("its member {name:?} ends after {bytes} of {size} bytes")));
    }
    match digest.as_deref().zip(hashed.hasher.finish()) {
        Some((declared, found)) if declared != found => {
            Err(invalid(format!("its member {name:?} does not have the digest of the manifest")))
        }
        _ => Ok(()),
    }
}

/// Returns the place and the name of the disk with this number.
fn only(disks: &[(usize, String)], number: u8) -> io::Result<(usize, String)> {
    let listed = || {
        let all = disks.iter().take(LISTED).enumerate();
        all.map(|(index, (_, name))| format!("{} is {name:?}", index + 1)).collect::<Vec<_>>().join(", ")
    };
    let count = disks.len();
    let index = match (usize::from(number), count) {
        (_, 0) => return Err(invalid("it has no disk: no member ends in .vmdk".to_owned())),
        (0, 1) => 0,
        (0, _) => {
            let why = format!(
                "it has {count} disks ({}): declare which one it is, by ova_disk (ovaDisk)",
                listed()
            );
            return Err(invalid(why));
        }
        (number, _) => number - 1,
    };
    let none = || invalid(format!("it has no disk {number}: {}", listed()));
    disks.get(index).cloned().ok_or_else(none)
}

/// Returns the name of a member, which is that of a file without a folder.
fn name_of(path: &[u8]) -> io::Result<String> {
    let name =
        std::str::from_utf8(path).map_err(|_| invalid("the name of a member is no text".to_owned()))?;
    if name.len() > MAX_NAME {
        return Err(invalid(format!("the name of a member has more than {MAX_NAME} bytes")));
    }
    let name = name.strip_prefix("./").unwrap_or(name);
    let is_plain = !name.is_empty() && name != ".." && !name.contains(|c: char| c == '/' || c.is_control());
    match is_plain {
        true => Ok(name.to_owned()),
        false => Err(invalid(format!("its member {name:?} has no name of a file without a folder"))),
    }
}

/// Returns the digests of a manifest by the names of the files: none for one of SHA-1.
fn read_manifest(member: impl Read) -> io::Result<BTreeMap<String, Option<String>>> {
    let mut bytes = Vec::new();
    member.take(MAX_MANIFEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_MANIFEST {
        return Err(invalid(format!("its manifest has more than {MAX_MANIFEST} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| invalid("its manifest is no text".to_owned()))?;
    let mut digests = BTreeMap::new();
    let lines = text.strip_prefix('\u{feff}').unwrap_or(&text).lines().enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || {
            let number = index + 1;
            invalid(format!("line {number} of its manifest is not of the form SHA256(FILE)= DIGEST"))
        };
        let (name, digest) = of_line(line).ok_or_else(wrong)?;
        if digests.insert(name, digest).is_some() {
            return Err(invalid("its manifest has two digests of a file".to_owned()));
        }
    }
    Ok(digests)
}

fn of_line(line: &str) -> Option<(String, Option<String>)> {
    let (algorithm, rest) = line.split_once('(')?;
    // A name may have parentheses too.
    let (name, hex) = rest.rsplit_once(')')?;
    let hex = hex.trim_start().strip_prefix('=')?.trim().to_ascii_lowercase();
    let (digits, is_checked) = match algorithm.trim().to_ascii_uppercase().replace('-', "").as_str() {
        "SHA1" => (40, false),
        "SHA256" => (64, true),
        "SHA384" => (96, true),
        "SHA512" => (128, true),
        _ => return None,
    };
    let is_whole = hex.len() == digits && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    let name = name.trim().trim_start_matches("./").to_owned();
    is_whole.then_some((name, is_checked.then_some(hex)))
}

/// The computation of a digest, by the length of the declared one.
enum Hasher {
    None,
    Sha256(Box<Sha256>),
    Sha384(Box<Sha384>),
    Sha512(Box<Sha512>),
}

impl Hasher {
    fn of(digest: Option<&str>) -> Self {
        match digest.map(str::len) {
            Some(64) => Self::Sha256(Box::default()),
            Some(96) => Self::Sha384(Box::default()),
            Some(128) => Self::Sha512(Box::default()),
            _ => Self::None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha384(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Sha256(hasher) => Some(hex(&(*hasher).finalize())),
            Self::Sha384(hasher) => Some(hex(&(*hasher).finalize())),
            Self::Sha512(hasher) => Some(hex(&(*hasher).finalize())),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Hashed<R> {
    inner: R,
    hasher: Hasher,
    bytes: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

/// The bytes of an archive, of which so many may be read until the next ones are allowed.
struct Limited<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(invalid(format!("the headers of a member have more than {MAX_HEADERS} bytes")));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.left.set(left - read as u64);
        Ok(read)
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an archive; names are written as they are.
    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut made = tar::Builder::new(Vec::new());
        for (name, bytes) in members {
            let mut header = tar::Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            made.append(&header, *bytes).expect("in memory");
        }
        made.into_inner().expect("in memory")
    }

    fn taken(bytes: &[u8], number: u8) -> Result<Vec<u8>, String> {
        let mut output = Vec::new();
        let chosen = choose(bytes, number).map_err(|error| error.to_string())?;
        let copy = |disk: &mut dyn Read| disk.read_to_end(&mut output).map(drop);
        extract(bytes, &chosen, copy).map_err(|error| error.to_string())?;
        Ok(output)
    }

    fn sha256(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }

    #[test]
    fn the_only_disk_or_the_one_with_the_declared_number_is_taken() {
        let one = archive(&[("box.ovf", b"<x/>"), ("./box-disk1.vmdk", b"first")]);
        assert_eq!(taken(&one, 0).as_deref(), Ok(b"first".as_slice()));
        assert_eq!(taken(&one, 1).as_deref(), Ok(b"first".as_slice()));
        let two =
            archive(&[("box.ovf", b"<x/>"), ("a.VMDK", b"first"), ("readme", b"x"), ("b.vmdk", b"second")]);
        assert_eq!(taken(&two, 2).as_deref(), Ok(b"second".as_slice()));
        let error = taken(&two, 0).expect_err("which one is meant is not known");
        assert!(error.contains("2 disks (1 is \"a.VMDK\", 2 is \"b.vmdk\")"), "{error}");
        assert!(taken(&two, 3).expect_err("there is none").contains("no disk 3"));
        assert!(taken(&archive(&[("box.ovf", b"<x/>")]), 0).expect_err("none").contains("no disk"));
    }

    #[test]
    fn a_disk_has_the_digest_that_the_manifest_has_wherever_that_is() {
        let manifest =
            |digest: &str| format!("SHA256(box.ovf)= {}\nSHA256(a.vmdk)= {digest}\n", sha256(b"<x/>"));
        let right = manifest(&sha256(b"disk"));
        for members in [
            [("box.ovf", b"<x/>".as_slice()), ("box.mf", right.as_bytes()), ("a.vmdk", b"disk".as_slice())],
            [("box.ovf", b"<x/>".as_slice()), ("a.vmdk", b"disk".as_slice()), ("box.mf", right.as_bytes())],
        ] {
            assert_eq!(taken(&archive(&members), 0).as_deref(), Ok(b"disk".as_slice()));
        }
        let with = |text: &str| {
            taken(&archive(&[("a.vmdk", b"disk".as_slice()), ("a.mf", text.as_bytes())]), 0)
                .expect_err("refused")
        };
        assert!(with(&manifest(&sha256(b"other"))).contains("does not have the digest"));
        assert!(with("").contains("has no digest of \"a.vmdk\""));
        assert!(with("MD5(a.vmdk)= 00").contains("line 1"));
        let twice = format!("{right}{right}");
        assert!(with(&twice).contains("two digests"));
        let sha1 = format!("SHA1(a.vmdk)= {}\n", "0".repeat(40));
        let old = archive(&[("a.vmdk", b"disk".as_slice()), ("a.mf", sha1.as_bytes())]);
        assert_eq!(taken(&old, 0).as_deref(), Ok(b"disk".as_slice()), "it is not compared");
    }

    #[test]
    fn hostile_archives_are_refused() {
        for name in ["../a.vmdk", "/etc/a.vmdk", "folder/a.vmdk", "..", "a\n.vmdk"] {
            let error = taken(&archive(&[(name, b"disk")]), 0).expect_err(name);
            assert!(error.contains("without a folder"), "{name}: {error}");
        }
        let twice = archive(&[("a.vmdk", b"first"), ("./a.vmdk", b"second")]);
        assert!(taken(&twice, 1).expect_err("twice").contains("two members"));
        let names: Vec<String> = (0..=MAX_MEMBERS).map(|number| format!("{number}.txt")).collect();
        let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
        assert!(taken(&archive(&many), 0).expect_err("many").contains("more than 256 members"));
        let large = vec![b'\n'; usize::try_from(MAX_MANIFEST).expect("small") + 1];
        let error = taken(&archive(&[("a.mf", large.as_slice()), ("a.vmdk", b"disk")]), 0);
        assert!(error.expect_err("large").contains("its manifest has more than"));
        let mut link = tar::Header::new_ustar();
        link.set_entry_type(tar::EntryType::Symlink);
        link.as_mut_bytes()[..6].copy_from_slice(b"a.vmdk");
        link.set_link_name("/etc/shadow").expect("short");
        link.set_size(0);
        link.set_cksum();
        let mut long = tar::Header::new_gnu();
        long.set_entry_type(tar::EntryType::GNULongName);
        long.set_size(1 << 20);
        long.set_cksum();
        let mut made = tar::Builder::new(Vec::new());
        made.append(&long, io::repeat(b'a').take(1 << 20)).expect("in memory");
        let named = [made.into_inner().expect("in memory"), archive(&[("a.vmdk", b"disk")])].concat();
        assert!(taken(&named, 0).expect_err("a long name").contains("the headers of a member"));
        let mut made = tar::Builder::new(Vec::new());
        made.append(&link, io::empty()).expect("in memory");
        let linked = made.into_inner().expect("in memory");
        assert!(taken(&linked, 0).expect_err("a link").contains("is no file"));
        let whole = archive(&[("a.vmdk", &[7; 4096])]);
        assert!(taken(&whole[..2048], 0).is_err(), "cut off");
        assert!(taken(b"KDMV and no archive at all", 0).is_err());
    }
}
