//! Object revisions in one append-only SQLite table, with current reads from memory.
//!
//! Knows keys, revisions, labels and owners. It must not know a Kubernetes verb, a schema, HTTP, or access
//! rules: it stores JSON text by key and publishes changes. A write is answered, and becomes visible to
//! readers and watchers, only after it is durable. Lists and subscriptions are taken under one lock, so that
//! a watch neither misses nor repeats an event.
//!
//! ```text
//!              store            the interface: open, submit, subscribe, read past revisions
//!    writes ╱          ╲ reads
//!     writer ─ deferred state ─ queue     the newest objects, recent events and watchers, in memory
//!        ╲            ╱
//!          log, look_back ── seal ── keyring      rows in SQLite, encrypted for Secrets
//!              │
//!            tables, row
//!
//!  backup, restore, rotate            operations on the files, with or without a running server
//!  directory, private_file, floor     the state directory: its lock, its files, its free space
//!  text                               texts in memory, whose equal parts are kept once
//!  key, entry, event, write, error    values passed between the modules; counters for metrics
//! ```

mod backup;
mod counters;
mod deferred;
mod directory;
mod entry;
mod error;
mod event;
mod floor;
mod key;
mod keyring;
mod log;
mod look_back;
mod private_file;
mod queue;
mod restore;
mod rotate;
mod row;
mod seal;
mod state;
mod store;
mod tables;
mod text;
mod write;
mod writer;

pub use backup::{Backup, BackupError, BackupFile, CredentialFiles, backup, backups_in, until_due};
pub use counters::Counters;
pub use entry::{Encoded, Entry, Facts, FieldPath, with_revision};
pub use error::{OpenError, ReadError};
pub use event::{Change, Event, frame};
pub use key::Key;
pub use look_back::{ListPart, PastObjects, Revision};
pub use private_file::{read_or_make_bytes, write_private};
pub use queue::Events;
pub use restore::{RESTORED, RestoreError, RestoreOptions, Restored, restore};
pub use rotate::{Rotated, rotate_key};
pub use state::{Interest, State};
pub use store::{Storage, Store, Subscription, WriterMode};
pub use text::Text;
pub use write::{Action, Expect, Keep, Origin, Write, WriteError};
