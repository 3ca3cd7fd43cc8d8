//! Many concurrent users: creates, lists and counts over plain connections.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::metrics::Counts;
use crate::api::{self, Access, Api, Kind};
use crate::manifests;
use crate::namespace::Namespace;

/// The number of connections that create objects at the same time.
const AT_ONCE: usize = 16;
/// The page size of a list: the largest allowed.
const PAGE: u32 = 500;
const CLASS: &str = "scale";
const IMAGE: &str = "scale";
const HOST_FINALIZER: &str = "berth.dev/host";

/// The control plane under measurement, as its users access it.
#[derive(Debug, Clone)]
pub(super) struct Plane {
    access: Access,
}

impl Plane {
    /// Opens the control plane with an administrator's kubeconfig.
    pub(super) fn open(kubeconfig: &Path, namespace: &Arc<Namespace>) -> Result<Self> {
        let plane = Self { access: Access::read(kubeconfig, namespace)? };
        plane.connect()?.get("/readyz")?;
        Ok(plane)
    }

    /// A new connection.
    pub(super) fn connect(&self) -> Result<Api> {
        self.access.connect()
    }

    /// The API server's counts.
    pub(super) fn counts(&self) -> Result<Counts> {
        Ok(Counts::parse(&self.connect()?.get("/metrics")?))
    }

    /// The number of ready hosts.
    pub(super) fn ready_hosts(&self) -> Result<usize> {
        let hosts = self.connect()?.read(&api::HOST.path())?;
        let hosts = hosts["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(hosts.iter().filter(|host| api::is_true(host, "Ready")).count())
    }

    /// Creates the objects that all VMs share.
    pub(super) fn create_shared(&self) -> Result<()> {
        let mut api = self.connect()?;
        create(&mut api, api::VM_CLASS, &manifests::class(CLASS, 1, "512Mi"))?;
        let image = manifests::image(IMAGE, "http://images.invalid/scale.qcow2", &"5".repeat(64));
        create(&mut api, api::IMAGE, &image)
    }

    /// Creates VMs, each with a Disk, as fast as the server accepts them. `groups`: the security groups of their interfaces.
    pub(super) fn create_vms(&self, names: &[String], groups: &[&str]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            let mut api = self.connect()?;
            while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                create(&mut api, api::DISK, &as_provider(manifests::disk(name, IMAGE, "4Gi")))?;
                let mut vm = manifests::vm(name, CLASS, name);
                if !groups.is_empty() {
                    let interface = json!({"name": "nic0", "securityGroups": groups});
                    vm = manifests::with(vm, "networkInterfaces", json!([interface]));
                }
                create(&mut api, api::VM, &as_provider(vm))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
            let ends = workers.into_iter().map(|w| w.join().map_err(|_| anyhow!("a creator panicked"))?);
            ends.collect::<Result<()>>()
        })
    }

    /// Lists every VM in pages, several times. Returns the average time of one list.
    pub(super) fn list_vms(&self, expected: usize, times: u32) -> Result<Duration> {
        let mut api = self.connect()?;
        let begun = Instant::now();
        for _ in 0..times {
            let (mut listed, mut token) = (0, String::new());
            loop {
                // Not parsed: the client's work is not being measured.
                let page = api.get(&format!("{}?limit={PAGE}&continue={token}", api::VM.path()))?;
                listed += page.matches("\"kind\":\"VM\"").count();
                match continue_token(&page) {
                    Some(next) => token = next.to_owned(),
                    None => break,
                }
            }
            ensure!(listed == expected, "{listed} VMs are listed, {expected} were made");
        }
        Ok(begun.elapsed() / times)
    }
}

/// The object with the finalizer that Terraform's provider creates it with.
fn as_provider(mut object: Value) -> Value {
    object["metadata"]["finalizers"] = json!([HOST_FINALIZER]);
    object
}

fn create(api: &mut Api, kind: Kind, object: &Value) -> Result<()> {
    api.post(&kind.path(), &object.to_string())
}

fn continue_token(text: &str) -> Option<&str> {
    let token = text.split_once("\"continue\":\"")?.1.split_once('"')?.0;
    (!token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_in_a_list() {
        assert_eq!(continue_token(r#"{"metadata":{"continue":"abc","x":1},"items":[]}"#), Some("abc"));
        assert_eq!(continue_token(r#"{"metadata":{"continue":""},"items":[]}"#), None);
        assert_eq!(continue_token(r#"{"metadata":{},"items":[]}"#), None);
    }
}
