//! The ServiceAccount `berth-console` of a namespace with VMs: its tokens are the tickets for their consoles.
//!
//! The account is not watched: it is written once for each start of the controllers, and again after each new list of
//! accounts. So one that was deleted comes back with a later decision about a VM of its namespace.

use berth_api::VM;
use kube::ResourceExt;

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    key::Key,
};

/// Creates the account of the VM's namespace, unless the controllers did already. The last write of a decision, so that
/// it delays none.
pub(super) fn ensure(cache: &Cache, vm: &VM, batch: &mut WriteBatch) {
    let is_bound = vm.status.as_ref().is_some_and(|status| status.binding.is_some());
    if !is_bound || vm.metadata.deletion_timestamp.is_some() {
        return;
    }
    let namespace = vm.namespace().unwrap_or_default();
    if cache.tables.accounts.get(&Key::console_account(&namespace)).is_none() {
        batch.write(Write::ConsoleAccount(namespace));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ServiceAccount;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    fn written(cache: &Cache, status: &serde_json::Value) -> Vec<Key> {
        let vm = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"class": "c", "disks": []}, "status": status});
        let mut batch = WriteBatch::default();
        ensure(cache, &serde_json::from_value(vm).expect("a VM"), &mut batch);
        batch.keys().collect()
    }

    #[tokio::test]
    async fn a_namespace_with_a_bound_vm_gets_one_account() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let bound = json!({"binding": {"host": "h1", "epoch": 1}});
        assert_eq!(written(&cache, &json!({})), [], "it waits for a host");
        assert_eq!(written(&cache, &bound), [Key::console_account("ns")]);
        let mut account = ServiceAccount::default();
        account.metadata.namespace = Some("ns".to_owned());
        account.metadata.name = Some(berth_api::console::ACCOUNT.to_owned());
        cache.put(account, Instant::now());
        assert_eq!(written(&cache, &bound), [], "the account exists");
        cache.remove(&Key::console_account("ns"));
        assert_eq!(written(&cache, &bound), [Key::console_account("ns")], "it is gone from the list");
    }
}
