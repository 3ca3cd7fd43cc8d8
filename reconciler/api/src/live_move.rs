//! The request and the messages by which a host sends a running guest to the host that its VM moves to.
//!
//! ```text
//!  source: a request with HOST in its query (see `image_copy`), and a ticket    destination
//!
//!   Begin: the machine ───────────────────────────────────────────────────────▶ taps, disks, a QEMU that waits
//!                       ◀────────────────────────────────────────────────────── Ready
//!   Chunk(n), n bytes   ───────────────────────────────────────────────────────▶ to that QEMU            (any number of times)
//!   End                 ───────────────────────────────────────────────────────▶
//!                       ◀────────────────────────────────────────────────────── Loaded: the guest is paused there
//!   (recorded: it never goes on here unless NotStarted comes)
//!   Go                  ───────────────────────────────────────────────────────▶ (recorded, then started)
//!                       ◀────────────────────────────────────────────────────── Started
//!
//!   Settle              ──── on another connection, if no answer to Go came ───▶
//!                       ◀────────────────────────────────────────────────────── Started, or NotStarted: and it never will be
//! ```
//!
//! *Guarantees:* the destination starts the guest only after Go. NotStarted, as the answer to any message, means that the machine of this
//! move does not run there and is never started. Lines, chunks and the whole stream are limited.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::console::is_name;

/// The longest line of a source. Bootstrap data, which is part of it, takes four thirds of its size.
pub const MAX_LINE: usize = 48 << 20;
/// The longest line of a destination.
pub const MAX_ANSWER: usize = 8 << 10;
/// The most bytes of a chunk.
pub const MAX_CHUNK: u32 = 1 << 20;

/// The message of the host that the guest leaves: a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceMessage {
    /// The machine that the guest runs in.
    Begin(Box<MovedMachine>),
    /// So many bytes of its state follow, at most [`MAX_CHUNK`].
    Chunk(u32),
    /// The state is complete.
    End,
    /// The guest runs at the destination from now on.
    Go,
    /// Whether the destination runs the guest.
    Settle,
}

/// The message of the host that the guest goes to: a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DestinationMessage {
    /// A QEMU waits for the state.
    Ready,
    /// The state is loaded, and the guest is paused.
    Loaded,
    /// The guest was started.
    Started,
    /// The guest was not started and never will be by this move, for this reason.
    NotStarted(String),
}

/// A machine as the agents know it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MovedMachine {
    /// The record that its agent keeps of it.
    pub journal: Value,
    /// The hardware that it has now.
    pub machine: Value,
    /// The CPUs that it has now.
    pub cpus: i64,
    /// The bootstrap data that it was started with.
    #[serde(default)]
    pub bootstrap: Vec<MovedFile>,
}

/// Bootstrap data may be secret: never printed.
impl std::fmt::Debug for MovedMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MovedMachine").field("cpus", &self.cpus).finish_non_exhaustive()
    }
}

/// A file with bootstrap data.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MovedFile {
    /// The name of the data.
    pub name: String,
    /// The bytes, in base64.
    pub base64: String,
}

/// Its content may be secret: never printed.
impl std::fmt::Debug for MovedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MovedFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The audience of a ticket for the move of a VM.
pub fn audience(namespace: &str, vm: &str, id: &str) -> String {
    format!("live-move.berth.dev/{namespace}/{vm}/{id}")
}

/// The path of a request for the move of a VM.
pub fn path(namespace: &str, vm: &str, id: &str) -> String {
    format!("/v1/namespaces/{namespace}/moves/{vm}/{id}")
}

/// Returns namespace, VM and the identity of the move of a path.
pub fn of_path(path: &str) -> Option<(&str, &str, &str)> {
    let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once("/moves/")?;
    let (vm, id) = rest.split_once('/')?;
    [namespace, vm, id].iter().all(|name| is_name(name)).then_some((namespace, vm, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::ConsoleUse;
    use crate::volume_copy;

    #[test]
    fn a_path_names_one_move_of_one_vm() {
        let whole = path("ns", "web", "m-1");
        assert_eq!(of_path(&whole), Some(("ns", "web", "m-1")));
        assert_eq!((ConsoleUse::of_path(&whole), volume_copy::of_path(&whole)), (None, None));
        for wrong in
            ["", "/v1/namespaces/ns/moves/web", "/v1/namespaces/ns/moves/web/", "/v1/namespaces//moves/a/b"]
        {
            assert_eq!(of_path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn messages_of_a_move_are_lines_of_json() {
        let text = |message| serde_json::to_string(&message).expect("JSON");
        assert_eq!(text(SourceMessage::Chunk(7)), r#"{"chunk":7}"#);
        assert_eq!(text(SourceMessage::Go), r#""go""#);
        let refused = serde_json::to_string(&DestinationMessage::NotStarted("no room".to_owned()));
        assert_eq!(refused.expect("JSON"), r#"{"notStarted":"no room"}"#);
    }
}
