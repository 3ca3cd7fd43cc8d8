//! Why an object that has no host must not be placed now: a host may already hold it.

use berth_api::{FORMER_UID_ANNOTATION, former_uid};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    cache::{Cache, recovery::RecoveryState},
    key::Key,
    plan::Dependency,
};

/// The reason why nothing may be placed yet, and the need it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacementHold {
    pub(crate) text: String,
    pub(crate) dependency: Dependency,
}

/// Returns why an unbound object created at this time must not be placed now: a host in a recovery may hold it,
/// or has VMs that must be given back to it first. Outside of a recovery a host holds back only its own objects.
pub(crate) fn placement_hold(cache: &Cache, made: Option<Timestamp>) -> Option<PlacementHold> {
    for host in cache.index.capacity.hosts() {
        let name = &host.name;
        let text = match host.recovery {
            Some((RecoveryState::Awaited, _)) => {
                format!("host {name} is in a recovery and has not reported its guests and disks yet")
            }
            Some((RecoveryState::Absent, since)) if made.is_none_or(|made| made <= since) => format!(
                "host {name} may have it and does not say what runs and lies there: start its agent; if the machine is gone \
                 for good, \"berth host forget {name} --lost\"; if it has nothing, \"berth host recover {name} --end\""
            ),
            _ => continue,
        };
        return Some(PlacementHold { text, dependency: Dependency::Hosts });
    }
    let is_lost = |key: &&Key| {
        let vm = cache.tables.vms.get(key);
        vm.is_some_and(|vm| {
            let bound = vm.status.as_ref().is_some_and(|s| s.binding.is_some());
            !bound && cache.claims.of(key, vm.as_ref()).is_some()
        })
    };
    let lost = cache.claims.vms().find(is_lost)?;
    let text = format!("VM {}/{} is given back to its host first", lost.namespace(), lost.name);
    Some(PlacementHold { text, dependency: Dependency::Object(lost.clone()) })
}

/// Returns why an unbound object that was realized under another uid stays unrealized.
pub(crate) fn awaits_its_host<K: ResourceExt>(object: &K) -> Option<String> {
    let uid = former_uid(object)?;
    Some(format!(
        "no host in a recovery has reported a guest or disk that was made for the uid {uid}: open one with \"berth host recover\", \
         or remove the annotation {FORMER_UID_ANNOTATION} to create it anew"
    ))
}

/// Returns the message for an object that a host claims outside of a recovery.
pub(crate) fn untrusted(host: &str) -> String {
    format!(
        "its status was lost, and host {host} reports that it has it: \"berth host recover {host}\" gives it back to that host"
    )
}
