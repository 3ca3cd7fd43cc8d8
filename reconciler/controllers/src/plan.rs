//! The decision of a reconcile, as data.

use berth_api::{ObjectUse, ResourceName, SHARED_NAMESPACE};
use k8s_openapi::jiff::Timestamp;

use crate::{cache::users::is_shared, key::Key, scheduler::Request};

/// A write that carries out a decision. Each is idempotent: applied twice, the second does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Add a finalizer to the object, so that it stays until its holder has released it.
    AddFinalizer(Key, &'static str),
    /// Remove a finalizer.
    RemoveFinalizer(Key, &'static str),
    /// Bind a disk to a host under an identity.
    BindDisk {
        disk: Key,
        host: String,
        /// The chosen pool. None: the Disk names it, or has it already.
        pool: Option<ResourceName>,
        volume_id: String,
        serial: String,
        used_by: Vec<ObjectUse>,
    },
}

/// A need that an object waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Dependency {
    /// Any change of that object, its creation included.
    Object(Key),
    /// A host that is added, removed or changed.
    Hosts,
    /// A StoragePool that is added, removed or changed.
    StoragePools,
    /// Capacity on a host.
    Capacity(Box<QueuePosition>),
    /// A private address of a network.
    PrivateAddress,
    /// An address of a pool.
    Address,
    /// A range that no Network uses.
    NetworkRange,
    /// A moment by the wall clock.
    Time(Timestamp),
}

/// A place in the line of the VMs with the same request: where one does not fit, none of them does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueuePosition {
    pub(crate) line: Request,
    /// When the VM was created: the oldest comes first.
    pub(crate) since: Option<Timestamp>,
}

/// Returns the needs of an object of this namespace that names one which is being deleted: the removal of that one,
/// an object of the same name in its own namespace, which takes precedence, and the shared one, which takes its
/// place.
pub(crate) fn namesakes(deleting: &Key, namespace: &str) -> Vec<Dependency> {
    if !is_shared(deleting.kind) {
        return vec![Dependency::Object(deleting.clone())];
    }
    [namespace, SHARED_NAMESPACE]
        .map(|namespace| Dependency::Object(Key::namespaced(deleting.kind, namespace, &deleting.name)))
        .into()
}

/// The outcome of a reconcile for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing to wait for but a change of the object itself.
    Settled,
    /// To be requeued when one of these changes.
    Blocked(Vec<Dependency>),
}

impl Outcome {
    /// Adds a need.
    pub(crate) fn and(self, dependency: Dependency) -> Self {
        let mut dependencies = match self {
            Self::Settled => Vec::new(),
            Self::Blocked(dependencies) => dependencies,
        };
        dependencies.push(dependency);
        Self::Blocked(dependencies)
    }
}

/// The decision for one object. `blocked` is a value, never an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan<D> {
    /// Writes to make first, in order.
    pub(crate) steps: Vec<Step>,
    /// The decision about the object's own status.
    pub(crate) decision: D,
    /// What it waits for.
    pub(crate) outcome: Outcome,
}

impl<D> Plan<D> {
    /// A plan that only writes the status.
    pub(crate) fn settled(decision: D) -> Self {
        Self { steps: Vec::new(), decision, outcome: Outcome::Settled }
    }

    /// A plan that waits for `dependencies`.
    pub(crate) fn blocked(decision: D, dependencies: Vec<Dependency>) -> Self {
        Self { steps: Vec::new(), decision, outcome: Outcome::Blocked(dependencies) }
    }
}
