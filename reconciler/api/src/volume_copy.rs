//! The request and the messages by which a host copies the file of a volume from the host that its VM has left.
//!
//! ```text
//!  client:  a request with HOST and OFFSET in its query (see `image_copy`), and a ticket
//!  host:    a line with File: the length of the file, its base, and a tag of its state
//!           a line with Part: offset, length and SHA-256 of some bytes; the bytes    ┐ any number of times, in the order of the file;
//!                                                                                    ┘ holes are left out
//!           a line with End
//! ```
//!
//! *Guarantees:* the client verifies each part, and that End has come. A copy that ends early continues at the end of the last whole part,
//! if the tag is still the same.

use serde::{Deserialize, Serialize};

use crate::console::is_name;

/// The most bytes of a part.
pub const MAX_PART: u32 = 4 << 20;
/// The longest line from the host that serves the file.
pub const MAX_LINE: usize = 4 << 10;

/// The message of the host that serves the file: a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeMessage {
    /// The file, before its parts.
    File(VolumeFile),
    /// So many bytes follow.
    Part(VolumePart),
    /// Nothing follows: the rest of the file is a hole.
    End,
}

/// The file of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeFile {
    /// Its length in bytes, with the holes.
    pub length: u64,
    /// The bytes that it takes from the requested offset on, for the room and the progress.
    pub taken: u64,
    /// The digest of the image that it is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Another one for each state of the file.
    pub tag: String,
}

/// Some bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumePart {
    /// Where they are in the file.
    pub offset: u64,
    /// From 1 to [`MAX_PART`].
    pub length: u32,
    /// Their SHA-256, in hexadecimal digits.
    pub sha256: String,
}

impl VolumePart {
    /// Whether it is a part of a file of this length, and not before this offset.
    pub fn is_within(&self, from: u64, length: u64) -> bool {
        let end = self.offset.checked_add(u64::from(self.length));
        (1..=MAX_PART).contains(&self.length) && self.offset >= from && end.is_some_and(|end| end <= length)
    }
}

/// The audience of a ticket for a copy of the volume of a Disk.
pub fn audience(namespace: &str, disk: &str, volume: &str) -> String {
    format!("volume-copy.berth.dev/{namespace}/{disk}/{volume}")
}

/// The path of a request for a copy.
pub fn path(namespace: &str, disk: &str, volume: &str) -> String {
    format!("/v1/namespaces/{namespace}/disks/{disk}/volumes/{volume}/file")
}

/// Returns namespace, Disk and volume of a path.
pub fn of_path(path: &str) -> Option<(&str, &str, &str)> {
    let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once("/disks/")?;
    let (disk, rest) = rest.split_once("/volumes/")?;
    let volume = rest.strip_suffix("/file")?;
    [namespace, disk, volume].iter().all(|name| is_name(name)).then_some((namespace, disk, volume))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{ConsoleUse, of_copy_path, of_download_path, of_upload_path};
    use crate::disk_read::DiskOrigin;

    #[test]
    fn a_path_names_the_volume_of_one_disk() {
        let whole = path("ns", "root", "v-1");
        assert_eq!(of_path(&whole), Some(("ns", "root", "v-1")));
        assert_eq!(
            (of_upload_path(&whole), of_copy_path(&whole), of_download_path(&whole)),
            (None, None, None)
        );
        assert_eq!((ConsoleUse::of_path(&whole), DiskOrigin::of_path(&whole)), (None, None));
        for wrong in [
            "",
            "/v1/namespaces/ns/disks/root/volumes//file",
            "/v1/namespaces//disks/root/volumes/v-1/file",
            "/v1/namespaces/ns/disks/a/b/volumes/v-1/file",
            "/v1/namespaces/ns/disks/root/volumes/v-1",
            "/v1/namespaces/ns/images/root/file",
        ] {
            assert_eq!(of_path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_part_is_bounded_and_within_the_file_and_after_the_one_before() {
        let within = |offset, length| {
            VolumePart { offset, length, sha256: String::new() }.is_within(1 << 20, 10 << 20)
        };
        assert!(within(1 << 20, 1) && within((10 << 20) - 1, 1) && within(2 << 20, MAX_PART));
        assert!(!within(2 << 20, 0) && !within(2 << 20, MAX_PART + 1) && !within(0, 1));
        assert!(!within(10 << 20, 1) && !within(u64::MAX, 1));
    }

    #[test]
    fn messages_are_lines_of_json() {
        let text = |message| serde_json::to_string(&message).expect("JSON");
        assert_eq!(text(VolumeMessage::End), r#""end""#);
        let part = VolumePart { offset: 1, length: 2, sha256: "ab".to_owned() };
        assert_eq!(text(VolumeMessage::Part(part)), r#"{"part":{"offset":1,"length":2,"sha256":"ab"}}"#);
        let file = VolumeFile { length: 3, taken: 2, base: None, tag: "t".to_owned() };
        assert_eq!(text(VolumeMessage::File(file)), r#"{"file":{"length":3,"taken":2,"tag":"t"}}"#);
    }
}
