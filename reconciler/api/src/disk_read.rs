//! The requests and the messages by which a client reads the data of a Backup or a DiskSnapshot from its host, part by part.
//!
//! ```text
//!  client:  a request with a ticket
//!  host:    a line with Size: the number of bytes of the disk
//!  client:  a line with offset and length        ┐
//!  host:    a line with Data, and so many bytes  ┘ any number of times, one after the other
//!           or a line with Error, and the end
//!  client:  a line with declaration              ┐
//!  host:    a line with Declaration, and it      ┘ of a backup: that of the VM that had the disk, see `VMDeclaration`
//! ```
//!
//! The host knows nothing of the file systems in the data: the client reads them, in a process of its own user.

use serde::{Deserialize, Serialize};

use crate::console::is_name;

/// On a Backup, RFC 3339: until then its host may read the Secrets of its repository, to open the backup for a client. The client sets it
/// and removes it when it is connected; the controllers remove it after that time, and one that is more than [`MOST_SECONDS`] ahead.
pub const READ_UNTIL_ANNOTATION: &str = "berth.dev/read-until";
/// The most time that [`READ_UNTIL_ANNOTATION`] gives.
pub const MOST_SECONDS: i64 = 600;
/// The HTTP status of a host that may not read the Secrets of the repository yet: a client tries again.
pub const NOT_YET: u16 = 423;
/// The most bytes of one request.
pub const MAX_READ: u32 = 1 << 20;
/// The longest line from either side.
pub const MAX_LINE: usize = 4 << 10;

/// The kind of an object whose data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOrigin {
    /// A backup, complete in its repository.
    Backup,
    /// A snapshot that is taken.
    DiskSnapshot,
}

/// A part of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadRequest {
    /// In bytes.
    pub offset: u64,
    /// In bytes, from 1 to [`MAX_READ`].
    pub length: u32,
}

impl ReadRequest {
    /// Whether it is a part of a disk of this size.
    pub fn is_within(self, size: u64) -> bool {
        let end = self.offset.checked_add(u64::from(self.length));
        (1..=MAX_READ).contains(&self.length) && end.is_some_and(|end| end <= size)
    }
}

/// A request: a line of JSON. A host of an earlier version knows only that of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DiskRequest {
    /// Some of the data.
    Part(ReadRequest),
    /// The declaration that is stored with a backup.
    Declaration(DeclarationRequest),
}

/// A request for a declaration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclarationRequest {
    /// True.
    pub declaration: bool,
}

/// The message of the host: a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReadMessage {
    /// The number of bytes of the disk.
    Size(u64),
    /// So many bytes follow: those that were requested.
    Data(u32),
    /// So many bytes of a declaration follow. Zero: there is none.
    Declaration(u32),
    /// Why nothing follows, for people.
    Error(String),
}

impl DiskOrigin {
    const ALL: [Self; 2] = [Self::Backup, Self::DiskSnapshot];

    /// Its name in paths.
    fn plural(self) -> &'static str {
        match self {
            Self::Backup => "backups",
            Self::DiskSnapshot => "disksnapshots",
        }
    }

    /// The kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Backup => "Backup",
            Self::DiskSnapshot => "DiskSnapshot",
        }
    }

    /// The audience of a ticket for the object of this uid.
    pub fn audience(self, namespace: &str, name: &str, uid: &str) -> String {
        format!("disk-read.berth.dev/{namespace}/{}/{name}/{uid}", self.plural())
    }

    /// The path of a request.
    pub fn path(self, namespace: &str, name: &str) -> String {
        format!("/v1/namespaces/{namespace}/{}/{name}/data", self.plural())
    }

    /// Returns kind, namespace and name of a path.
    pub fn of_path(path: &str) -> Option<(Self, &str, &str)> {
        let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once('/')?;
        let (plural, rest) = rest.split_once('/')?;
        let origin = Self::ALL.into_iter().find(|origin| origin.plural() == plural)?;
        let name = rest.strip_suffix("/data")?;
        (is_name(namespace) && is_name(name)).then_some((origin, namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{ConsoleUse, of_copy_path, of_download_path, of_upload_path};

    #[test]
    fn a_path_names_one_backup_or_one_snapshot() {
        for origin in DiskOrigin::ALL {
            let path = origin.path("ns", "daily");
            assert_eq!(DiskOrigin::of_path(&path), Some((origin, "ns", "daily")));
            assert_eq!(
                (of_upload_path(&path), of_copy_path(&path), of_download_path(&path)),
                (None, None, None)
            );
            assert_eq!(ConsoleUse::of_path(&path), None);
        }
        for wrong in [
            "",
            "/v1/namespaces/ns/backups//data",
            "/v1/namespaces//backups/a/data",
            "/v1/namespaces/ns/backups/a/b/data",
            "/v1/namespaces/ns/backups/a",
            "/v1/namespaces/ns/images/a/data",
        ] {
            assert_eq!(DiskOrigin::of_path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_ticket_for_a_backup_opens_no_snapshot_of_the_same_name() {
        let [backup, snapshot] = DiskOrigin::ALL.map(|origin| origin.audience("ns", "daily", "u1"));
        assert_eq!(backup, "disk-read.berth.dev/ns/backups/daily/u1");
        assert_ne!(backup, snapshot);
    }

    #[test]
    fn a_request_is_within_the_disk_and_of_bounded_length() {
        let within = |offset, length| ReadRequest { offset, length }.is_within(10 << 20);
        assert!(within(0, 1) && within((10 << 20) - 1, 1) && within(9 << 20, MAX_READ));
        assert!(!within(0, 0) && !within(0, MAX_READ + 1) && !within(10 << 20, 1) && !within(u64::MAX, 1));
    }

    #[test]
    fn messages_are_lines_of_json() {
        let text = |message| serde_json::to_string(&message).expect("JSON");
        assert_eq!(text(ReadMessage::Size(5)), r#"{"size":5}"#);
        assert_eq!(text(ReadMessage::Data(5)), r#"{"data":5}"#);
        let request: ReadRequest = serde_json::from_str(r#"{"offset":1,"length":2}"#).expect("a request");
        assert_eq!(request, ReadRequest { offset: 1, length: 2 });
        let line = |text: &str| serde_json::from_str::<DiskRequest>(text).ok();
        assert_eq!(line(r#"{"offset":1,"length":2}"#), Some(DiskRequest::Part(request)));
        let declaration = DiskRequest::Declaration(DeclarationRequest { declaration: true });
        assert_eq!(serde_json::to_string(&declaration).expect("JSON"), r#"{"declaration":true}"#);
        assert_eq!(line(r#"{"declaration":true}"#), Some(declaration));
        assert_eq!(text(ReadMessage::Declaration(5)), r#"{"declaration":5}"#);
        assert_eq!((line(r#"{"offset":1}"#), line(r#"{"declaration":true,"offset":1}"#)), (None, None));
        assert!(serde_json::from_str::<ReadRequest>(r#"{"offset":-1,"length":2}"#).is_err());
    }
}
