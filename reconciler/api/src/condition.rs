//! Conditions in the form every Kubernetes tool reads (kstatus): `Ready` is always present, `Reconciling` and
//! `Stalled` only while they are true, and `observedGeneration` names the spec they refer to.
//!
//! `Ready` means *converged*, not *running*: a VM declared stopped that is stopped is ready.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use crate::Reason;

/// The list of conditions in a status, a list-map by `type`.
pub type Conditions = Vec<Condition>;

/// The maximum length of a message: Kubernetes' limit.
const MAX_MESSAGE: usize = 32_768;
/// The maximum number of conditions of an object, those of other programs included.
const MOST_CONDITIONS: usize = 64;

/// The types of condition berth writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// The object is converged: all that is declared is real.
    Ready,
    /// Work towards the declared state goes on. Present only while true.
    Reconciling,
    /// A person must change something. Present only while true.
    Stalled,
    /// A VM was bound to a host.
    Scheduled,
    /// QEMU runs the VM.
    Running,
    /// The guest is up: its agent answers, or without an agent it has a DHCP lease.
    GuestReady,
    /// The file systems of a VM's guest stay frozen after a snapshot. Present only while true.
    GuestFrozen,
    /// A running VM has the size that it and its class declare.
    ClassSynced,
    /// A running VM has the network interfaces its spec declares.
    InterfacesSynced,
    /// The declared users of a running guest have the declared SSH keys and passwords. Present only while some are declared.
    GuestUsersSynced,
    /// The package of a running guest's agent is as its policy declares. Present only with a policy.
    GuestAgentSynced,
    /// The SecurityGroups that a VM's interfaces name exist. Present only while they do not.
    SecurityGroupsSynced,
    /// The disks of a VM have the data that its `restore` declares. Present only while they have not.
    RestoreSynced,
    /// The key of an encrypted Disk is protected by the KeyClass that it declares, and known to its host. Present only with encryption; of a
    /// VM, only while it is not so for one of its disks.
    EncryptionSynced,
    /// A VM's host is one that its placement allows. Present only while it is not: a placed VM moves only where it declares that.
    PlacementSynced,
    /// Whether a VM that is to move to another host can move. Present only while it is to move.
    Movable,
    /// An attachment's disk is attached to the running VM.
    Attached,
    /// A host can use hardware acceleration.
    Accelerated,
    /// Packets between guests and the outside are forwarded.
    Forwarding,
    /// A network's declared MTU fits between its hosts. Present only while it does not.
    MTUFits,
    /// The packets of an encrypted Network pass between all hosts with VMs of it. Present only while a host cannot encrypt.
    TunnelsEncrypted,
    /// A host can make the public addresses of its VMs reachable. Present only while it cannot.
    PublicAddresses,
    /// The bridges and interfaces that Networks of VMs on a host need are there and connected. Present only while one is not.
    NetworksConnected,
    /// The DHCP and DNS servers of the Networks of VMs on a host keep running. Present only while one ends again and again.
    NetworksServed,
    /// A pool holds addresses of hosts. Present only while true.
    HostAddresses,
    /// The guests of a host go on when the service of its agent is stopped. Present only while some would end.
    GuestsOutliveAgent,
    /// The control plane's definitions know all that the host's agent reports. Present only while they do not.
    DefinitionsCurrent,
    /// A host has more than its `reserved`, so that something is left for VMs. Present only while it has not.
    ReservedFits,
    /// A host has guests or files that no object owns. Present only while true.
    Orphans,
    /// Of a PublicIP, only while it is `True`: another machine on the segment answers for the address.
    AddressConflict,
    /// Each port of a PublicIP has a target that gets new connections. Present only with ports.
    TargetsAvailable,
    /// All data of a Backup was read back and is whole. Present once it was verified.
    Verified,
}

impl ConditionType {
    /// The type as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Scheduled => "Scheduled",
            Self::Running => "Running",
            Self::GuestReady => "GuestReady",
            Self::GuestFrozen => "GuestFrozen",
            Self::ClassSynced => "ClassSynced",
            Self::InterfacesSynced => "InterfacesSynced",
            Self::GuestUsersSynced => "GuestUsersSynced",
            Self::GuestAgentSynced => "GuestAgentSynced",
            Self::SecurityGroupsSynced => "SecurityGroupsSynced",
            Self::RestoreSynced => "RestoreSynced",
            Self::EncryptionSynced => "EncryptionSynced",
            Self::PlacementSynced => "PlacementSynced",
            Self::Movable => "Movable",
            Self::Attached => "Attached",
            Self::Accelerated => "Accelerated",
            Self::Forwarding => "Forwarding",
            Self::MTUFits => "MTUFits",
            Self::TunnelsEncrypted => "TunnelsEncrypted",
            Self::PublicAddresses => "PublicAddresses",
            Self::NetworksConnected => "NetworksConnected",
            Self::NetworksServed => "NetworksServed",
            Self::HostAddresses => "HostAddresses",
            Self::GuestsOutliveAgent => "GuestsOutliveAgent",
            Self::DefinitionsCurrent => "DefinitionsCurrent",
            Self::ReservedFits => "ReservedFits",
            Self::Orphans => "Orphans",
            Self::AddressConflict => "AddressConflict",
            Self::TargetsAvailable => "TargetsAvailable",
            Self::Verified => "Verified",
        }
    }
}

/// The readiness of an object, which determines its conditions `Ready`, `Reconciling` and `Stalled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Converged.
    Ready(Reason, String),
    /// In progress, without an action of a person.
    Reconciling(Reason, String),
    /// Waits for a person.
    Stalled(Reason, String),
    /// Not known, because the host is silent.
    Unknown(Reason, String),
}

impl Readiness {
    /// The readiness of an object that was just bound to a host.
    pub fn bound_to(host: &str) -> Self {
        Self::Reconciling(Reason::Bound, format!("bound to host {host}"))
    }

    /// The reason.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Ready(reason, _)
            | Self::Reconciling(reason, _)
            | Self::Stalled(reason, _)
            | Self::Unknown(reason, _) => *reason,
        }
    }

    /// The text for people.
    pub fn message(&self) -> &str {
        match self {
            Self::Ready(_, text)
            | Self::Reconciling(_, text)
            | Self::Stalled(_, text)
            | Self::Unknown(_, text) => text,
        }
    }

    /// Writes the three conditions this readiness stands for.
    pub fn write(&self, conditions: &mut Conditions, generation: i64, now: Timestamp) {
        let ready = match self {
            Self::Ready(..) => "True",
            Self::Unknown(..) => "Unknown",
            Self::Reconciling(..) | Self::Stalled(..) => "False",
        };
        let update = |kind, status| ConditionUpdate::new(kind, status, self.reason(), self.message());
        set(conditions, update(ConditionType::Ready, ready), generation, now);
        let abnormal = [
            (ConditionType::Reconciling, matches!(self, Self::Reconciling(..))),
            (ConditionType::Stalled, matches!(self, Self::Stalled(..))),
        ];
        for (kind, holds) in abnormal {
            if holds {
                set(conditions, update(kind, "True"), generation, now);
            } else {
                remove(conditions, kind);
            }
        }
    }
}

/// A condition to set. The generation and the time come from the status that it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct ConditionUpdate<'a> {
    kind: ConditionType,
    status: &'a str,
    reason: Reason,
    message: &'a str,
}

impl<'a> ConditionUpdate<'a> {
    /// A condition whose status is `True`, `False` or `Unknown`.
    pub fn new(kind: ConditionType, status: &'a str, reason: Reason, message: &'a str) -> Self {
        Self { kind, status, reason, message }
    }

    /// A condition that is true or false.
    pub fn from_bool(kind: ConditionType, holds: bool, reason: Reason, message: &'a str) -> Self {
        Self::new(kind, if holds { "True" } else { "False" }, reason, message)
    }
}

/// Sets one condition; its transition time changes only when its status does.
///
/// *Guarantees:* calling it again with equal arguments but a later `now` changes nothing, so that a reconcile of a
/// converged object writes nothing. Messages are cut at Kubernetes' limit.
pub fn set(conditions: &mut Conditions, update: ConditionUpdate<'_>, generation: i64, now: Timestamp) {
    let ConditionUpdate { kind, status, reason, message } = update;
    let old = find(conditions, kind.as_str());
    let last_transition_time = match old {
        Some(old) if old.status == status => old.last_transition_time.clone(),
        _ => Time(now),
    };
    let condition = Condition {
        type_: kind.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: cut(message, MAX_MESSAGE).to_owned(),
        observed_generation: Some(generation),
        last_transition_time,
    };
    match conditions.iter_mut().find(|c| c.type_ == condition.type_) {
        Some(place) => *place = condition,
        None => conditions.push(condition),
    }
}

/// Removes a condition.
pub fn remove(conditions: &mut Conditions, kind: ConditionType) {
    conditions.retain(|c| c.type_ != kind.as_str());
}

/// The condition of a type.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Whether the condition of a type is `True`.
pub fn is_true(conditions: &[Condition], kind: ConditionType) -> bool {
    find(conditions, kind.as_str()).is_some_and(|c| c.status == "True")
}

/// Returns the beginning of a text, of at most so many bytes.
pub fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// `observedGeneration` of an object that has not been observed yet.
pub(crate) fn never_observed() -> i64 {
    -1
}

/// The schema of a `conditions` field: a list-map by `type`, so that several writers can each own theirs.
pub(crate) fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = generator.subschema_for::<Vec<Condition>>();
    schema.insert("maxItems".into(), MOST_CONDITIONS.into());
    // Kubernetes' limits, which its types state in comments only.
    for (field, limit) in [("type", 316), ("status", 7), ("reason", 1024), ("message", MAX_MESSAGE)] {
        let field = format!("/items/properties/{field}");
        if let Some(text) = schema.pointer_mut(&field).and_then(serde_json::Value::as_object_mut) {
            text.insert("maxLength".into(), limit.into());
        }
    }
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), serde_json::json!(["type"]));
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number of seconds is a time")
    }

    #[test]
    fn ready_is_always_there_and_the_abnormal_ones_only_while_true() {
        let mut conditions = Conditions::new();
        Readiness::Stalled(Reason::ChecksumMismatch, "x".into()).write(&mut conditions, 3, at(1));
        assert!(is_true(&conditions, ConditionType::Stalled));
        assert_eq!(find(&conditions, "Ready").map(|c| c.status.as_str()), Some("False"));
        Readiness::Ready(Reason::Available, String::new()).write(&mut conditions, 4, at(2));
        let types: Vec<_> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(types, ["Ready"]);
        assert_eq!(conditions[0].observed_generation, Some(4));
    }

    #[test]
    fn writing_the_same_again_later_changes_nothing() {
        let mut conditions = Conditions::new();
        let readiness = Readiness::Reconciling(Reason::Pulling, "half".into());
        readiness.write(&mut conditions, 1, at(1));
        let before = conditions.clone();
        readiness.write(&mut conditions, 1, at(100));
        assert_eq!(conditions, before);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(cut("äää", 3), "ä");
    }
}
