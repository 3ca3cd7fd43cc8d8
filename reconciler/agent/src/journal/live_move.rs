//! The move of a running guest in the journals of both hosts.
//!
//! ```text
//!  the host that it leaves                                     the host that it goes to
//!
//!  none ──▶ Sending ──▶ HandingOver ─────────────────Go──────▶ Receiving ──▶ Started ──the VM is bound here──▶ none
//!              │            │  ▲                                   │
//!              │ failed     │  └─ no answer: asked again            │ the connection is lost, an error, a crash
//!              ▼            ├─ NotStarted ──▶ none                 ▼
//!            none           └─ Started ─────▶ HandedOver          (the instance is removed)
//! ```
//!
//! At most one of both lets the guest run. In Sending, the guest is the first host's: the other one starts it only after Go, which is
//! sent only in HandingOver, and that is on the disk of the first host before. In HandingOver the guest stays paused there, also after a
//! crash, until the other host answers. That one writes Started before it starts the guest, and answers NotStarted only after the machine is
//! gone. A crash in Receiving removes the machine, so that each question of the first host has an answer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The move of the running guest to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Departure {
    /// Of this attempt: no other one has the same.
    pub(crate) id: String,
    /// Of the move, as the control plane knows it.
    pub(crate) migration: String,
    /// The Host that it goes to.
    pub(crate) to: String,
    /// The epoch of the binding that it leaves.
    pub(crate) epoch: i64,
    pub(crate) phase: DeparturePhase,
    pub(crate) since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DeparturePhase {
    /// The guest runs here, or is paused here for the last part of its memory.
    Sending,
    /// The guest is paused here. The other host may let it run.
    HandingOver,
    /// The guest runs on the other host.
    HandedOver,
}

/// The running guest that comes from another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Arrival {
    /// Of this attempt.
    pub(crate) id: String,
    /// The Host that it comes from.
    pub(crate) from: String,
    pub(crate) phase: ArrivalPhase,
    /// Pools and identities of the volumes that it comes with.
    pub(crate) volumes: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ArrivalPhase {
    /// The other host sends it. Here it never runs in this phase.
    Receiving,
    /// It runs here, or is about to.
    Started,
}
