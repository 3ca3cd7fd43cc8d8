//! A stand-in for the garbage collector of kube-controller-manager, which does not run beside kube-apiserver here: it deletes Disks and
//! DiskSnapshots whose owner is gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::access::Access;
use crate::api::{Api, Request};

const GROUP: &str = "/apis/berth.dev/v1alpha1";
/// The resources with owners: the resource, the kind of its owners, and their resource.
const OWNED: [(&str, &str, &str); 2] =
    [("disks", "VM", "vms"), ("disksnapshots", "VMSnapshot", "vmsnapshots")];
const EVERY: Duration = Duration::from_secs(2);

/// A running garbage collector. Dropping it stops it.
#[derive(Debug)]
pub struct GarbageCollector {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl GarbageCollector {
    /// Starts it with the rights of an administrator.
    pub fn start(access: Access) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                // kube-apiserver may be down: the next pass finds the same.
                let _ = access.connect().and_then(|mut api| collect(&mut api));
                thread::park_timeout(EVERY);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for GarbageCollector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // After a panic in it there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

fn collect(api: &mut Api) -> Result<()> {
    for (resource, kind, owners) in OWNED {
        // The owners are listed later: one that was created before its dependents is among them.
        let dependents = api.read(&format!("{GROUP}/{resource}"))?;
        let owners = api.read(&format!("{GROUP}/{owners}"))?;
        for metadata in orphans(&dependents, kind, &owners) {
            let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
            let path = format!("{GROUP}/namespaces/{namespace}/{resource}/{name}");
            let preconditions = json!({"uid": metadata["uid"]});
            let options =
                json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
            // It may be gone by now, or be another one.
            api.answer(&Request::new("DELETE", &path, &options.to_string()))?;
        }
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the metadata of the objects whose owners are all of this kind, and gone.
fn orphans<'a>(dependents: &'a Value, kind: &str, owners: &Value) -> Vec<&'a Value> {
    let living = owners["items"].as_array().into_iter().flatten();
    let living: BTreeSet<&str> = living.map(|owner| text(&owner["metadata"]["uid"])).collect();
    let is_orphan = |metadata: &&Value| {
        let owners = metadata["ownerReferences"].as_array().filter(|owners| !owners.is_empty());
        metadata["deletionTimestamp"].is_null()
            && owners.is_some_and(|owners| {
                owners
                    .iter()
                    .all(|owner| text(&owner["kind"]) == kind && !living.contains(text(&owner["uid"])))
            })
    };
    let objects = dependents["items"].as_array().into_iter().flatten();
    objects.map(|object| &object["metadata"]).filter(is_orphan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_an_orphan_once_all_of_its_owners_are_gone() {
        let disk = |name: &str, owners: &[(&str, &str)]| {
            let owners: Vec<Value> =
                owners.iter().map(|(kind, uid)| json!({"kind": kind, "uid": uid})).collect();
            json!({"metadata": {"name": name, "ownerReferences": owners}})
        };
        let mut going = disk("going", &[("VM", "gone")]);
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let disks = json!({"items": [
            disk("free", &[]),
            disk("owned", &[("VM", "lives")]),
            disk("orphan", &[("VM", "gone")]),
            disk("shared", &[("VM", "gone"), ("VM", "lives")]),
            disk("foreign", &[("ConfigMap", "gone")]),
            going,
        ]});
        let vms = json!({"items": [{"metadata": {"uid": "lives"}}]});
        let found: Vec<&str> =
            orphans(&disks, "VM", &vms).iter().map(|metadata| text(&metadata["name"])).collect();
        assert_eq!(found, ["orphan"]);
        assert_eq!(orphans(&disks, "VM", &json!({"items": []})).len(), 3);
    }
}
