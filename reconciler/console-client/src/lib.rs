//! The client's side of a host's consoles, uploads, downloads, and reads of backups and snapshots, for `berth` and for the Terraform
//! provider.
//!
//! ```text
//!  awaited     upload   ─▶ file
//!              download ─▶ part ─▶ part_file
//!              disk_data
//!              all      ─▶ connection ─▶ pinned
//! ```
//!
//! Must not know the control plane: its callers read the objects and request the tickets.

mod awaited;
mod connection;
mod disk_data;
mod download;
mod file;
mod part;
mod part_file;
mod pinned;
mod upload;

pub use awaited::{Awaited, Seen};
pub use connection::{ConnectError, Connection, connect, connect_within};
pub use disk_data::{DiskData, DiskDataError};
pub use download::{DownloadError, DownloadPlace, FetchError, fetch};
pub use file::{FileError, FileStamp, MeasuredFile, measure};
pub use part::Expected;
pub use part_file::{PartError, PartFile};
pub use upload::{Next, PushError, Target, UploadError, UploadPlace, push};
