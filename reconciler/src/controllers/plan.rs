//! What a reconcile decided, as data.

use berth_api::{ObjectUse, Readiness};
use k8s_openapi::jiff::Timestamp;

use super::{Key, scheduler::Request};

/// A write that makes a decision true. Each is idempotent: applied twice, the second does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Put a finalizer on the object, so that it stays until somebody has let go of it.
    AddFinalizer(Key, &'static str),
    /// Take a finalizer off.
    RemoveFinalizer(Key, &'static str),
    /// Give a disk its host and its identity there.
    BindDisk { disk: Key, host: String, volume_id: String, serial: String, used_by: Vec<ObjectUse> },
}

/// What an object waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Need {
    /// Any change of that object, its appearance included.
    Object(Key),
    /// A host that comes, goes, or is another than it was.
    Hosts,
    /// Room on a host.
    Room(Box<Place>),
    /// A private address of a network.
    PrivateAddress,
    /// An address of a pool.
    Address,
}

/// A place in the line of those who ask for the same room: where one does not fit, none of them does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) line: Request,
    /// When the VM was made: the oldest comes first.
    pub(super) since: Option<Timestamp>,
}

/// What becomes of the key after a reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing to wait for but a change of the object itself.
    Settled,
    /// To be looked at again when one of these changes.
    Blocked(Vec<Need>),
}

/// The decision for one object. `blocked` is a value, never an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan<D> {
    /// Writes to make first, in order.
    pub(super) steps: Vec<Step>,
    /// What the object's own status is to say.
    pub(super) decision: D,
    /// What it waits for.
    pub(super) outcome: Outcome,
}

impl<D> Plan<D> {
    /// Nothing to do but to say so.
    pub(super) fn settled(decision: D) -> Self {
        Self { steps: Vec::new(), decision, outcome: Outcome::Settled }
    }

    /// Waits.
    pub(super) fn blocked(decision: D, needs: Vec<Need>) -> Self {
        Self { steps: Vec::new(), decision, outcome: Outcome::Blocked(needs) }
    }
}

/// What an object's status is to say of an object whose only decision is how it stands. `None`: it is somebody
/// else's to say (the bound agent's), or the object goes.
pub(super) type Standing = Option<Readiness>;
