//! A disk `data` that several VMs have at a time.

use berth_api::{Disk, VM, condition};
use kube::Api;

use super::one_host::Site;

impl Site {
    pub(crate) fn vms(&self) -> Api<VM> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn disks(&self) -> Api<Disk> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) async fn until_vm_is(&self, name: &str, ready: &str, reason: Option<&str>) {
        let what = format!("VM {name} has Ready {ready} {reason:?}");
        self.until(&what, async || {
            let vm = self.vms().get(name).await.expect("it is there");
            let generation = vm.metadata.generation;
            vm.status.is_some_and(|status| {
                let found = condition::find(&status.conditions, "Ready");
                Some(status.observed_generation) == generation
                    && found.is_some_and(|found| {
                        found.status == ready && reason.is_none_or(|reason| found.reason == reason)
                    })
            })
        })
        .await;
    }

    /// The names of the VMs that have the disk.
    pub(crate) async fn users(&self) -> Vec<String> {
        let status = self.disks().get("data").await.expect("it is there").status.unwrap_or_default();
        let mut names: Vec<String> = status.used_by.into_iter().map(|user| user.vm).collect();
        names.sort();
        names
    }
}
