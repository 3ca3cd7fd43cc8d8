//! The client's side of a host's consoles and uploads, for `berth` and for the Terraform provider.
//!
//! ```text
//!  awaited     upload ─▶ file
//!                     ─▶ connection ─▶ pinned
//! ```
//!
//! Must not know the control plane: its callers read the objects and request the tickets.

mod awaited;
mod connection;
mod file;
mod pinned;
mod upload;

pub use awaited::{Awaited, Seen};
pub use connection::{ConnectError, Connection, connect};
pub use file::{FileError, FileStamp, MeasuredFile, measure};
pub use upload::{Next, PushError, Target, UploadError, UploadPlace, push};
