//! Reparse points: symbolic links, junctions, and content that is elsewhere.

use crate::disk::number;

/// The tags of links: of Windows, junctions, and of the Windows subsystem for Linux.
const SYMBOLIC: u64 = 0xa000_000c;
const JUNCTION: u64 = 0xa000_0003;
const LINUX: u64 = 0xa000_001d;
/// The tags of content in other forms: compressed by CompactOS, deduplicated.
const COMPACT: u64 = 0x8000_0017;
const DEDUPLICATED: u64 = 0x8000_0013;
/// The tags of files whose content a service has, as OneDrive. Bits in the middle number the service's version.
const CLOUD: u64 = 0x9000_001a;
const CLOUD_BITS: u64 = 0xffff_0fff;
/// The length of the head of a reparse point.
const HEAD: usize = 8;

/// Returns the target of a link; `None`: it is none, or damaged.
///
/// Backslashes become slashes. The letter of a drive is left out: the path is within the file system.
pub(super) fn target(reparse: &[u8]) -> Option<Vec<u8>> {
    let data = reparse.get(HEAD..)?;
    let names = match number(reparse, 0, 4) {
        SYMBOLIC => data.get(12..)?,
        JUNCTION => data.get(8..)?,
        LINUX => return data.get(4..).filter(|target| !target.is_empty()).map(<[u8]>::to_vec),
        _ => return None,
    };
    let name = |at: usize| {
        let (start, length) = (number(data, at, 2), number(data, at + 2, 2));
        let name = names.get(usize::try_from(start).ok()?..usize::try_from(start + length).ok()?)?;
        let letters = name.chunks_exact(2).map(|letter| u16::from_le_bytes([letter[0], letter[1]]));
        let text = char::decode_utf16(letters).map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER));
        Some(text.collect::<String>())
    };
    // The name for people; without one, that for the system.
    let name = name(4).filter(|name| !name.is_empty()).or_else(|| name(0))?;
    let path = name.trim_start_matches(r"\??\").replace('\\', "/");
    let path = match path.as_bytes() {
        [letter, b':', ..] if letter.is_ascii_alphabetic() => path[2..].to_owned(),
        _ => path,
    };
    (!path.is_empty()).then(|| path.into_bytes())
}

/// Returns why the content of a file with this tag cannot be read; `None`: it is in the file.
pub(super) fn elsewhere(tag: u64) -> Option<&'static str> {
    match tag {
        COMPACT => Some("its guest compresses it (CompactOS)"),
        DEDUPLICATED => Some("its guest deduplicates it"),
        tag if tag & CLOUD_BITS == CLOUD => Some("it may be stored in a cloud only"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reparse(tag: u64, head: &[u8], system: &str, person: &str) -> Vec<u8> {
        let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        let (system, person) = (wide(system), wide(person));
        let number = |number: usize| u16::try_from(number).expect("short").to_le_bytes();
        let mut bytes = u32::try_from(tag).expect("a tag").to_le_bytes().to_vec();
        bytes.extend([0_u8; 4]);
        for each in [0, system.len(), system.len(), person.len()] {
            bytes.extend(number(each));
        }
        bytes.extend(head);
        bytes.extend(system);
        bytes.extend(person);
        bytes
    }

    #[test]
    fn targets_are_paths_within_the_file_system() {
        let found = |bytes: Vec<u8>| target(&bytes).map(|found| String::from_utf8(found).expect("text"));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(found(reparse(SYMBOLIC, &[1, 0, 0, 0], r"..\ä", r"..\ä")), some("../ä"));
        assert_eq!(found(reparse(SYMBOLIC, &[0; 4], r"\??\C:\Users", r"C:\Users")), some("/Users"));
        assert_eq!(found(reparse(JUNCTION, &[], r"\??\D:\data", "")), some("/data"));
        let mut linux = u32::try_from(LINUX).expect("a tag").to_le_bytes().to_vec();
        linux.extend([0, 0, 0, 0, 2, 0, 0, 0, b'/', b'a']);
        assert_eq!(found(linux), some("/a"));
        assert_eq!(found(reparse(SYMBOLIC, &[], "", "")), None);
        assert_eq!(found(reparse(DEDUPLICATED, &[], "a", "a")), None);
        assert_eq!(found(b"\x0c\0\0\xa0".to_vec()), None);
    }

    #[test]
    fn content_that_is_elsewhere_is_known_by_its_tag() {
        assert!(elsewhere(COMPACT).is_some() && elsewhere(0x9000_601a).is_some());
        assert_eq!(elsewhere(0x8000_0001), None);
    }
}
