//! The ServiceAccounts of a namespace with VMs, such as `berth-console`: their tokens are the tickets for consoles and guests.
//!
//! The accounts are not watched: each is written once for each start of the controllers, and again after each new list of
//! accounts. So one that was deleted comes back with a later decision about a VM of its namespace.

use berth_api::{VM, console::ACCOUNTS};
use kube::ResourceExt;

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    key::Key,
};

/// Creates the accounts of the VM's namespace, unless the controllers did already. The last writes of a decision, so that
/// they delay none.
pub(super) fn ensure(cache: &Cache, vm: &VM, batch: &mut WriteBatch) {
    let is_bound = vm.status.as_ref().is_some_and(|status| status.binding.is_some());
    if !is_bound || vm.metadata.deletion_timestamp.is_some() {
        return;
    }
    let namespace = vm.namespace().unwrap_or_default();
    for account in ACCOUNTS {
        if cache.tables.accounts.get(&Key::ticket_account(&namespace, account)).is_none() {
            batch.write(Write::TicketAccount { namespace: namespace.clone(), account });
        }
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
    async fn a_namespace_with_a_bound_vm_gets_each_account_once() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let bound = json!({"binding": {"host": "h1", "epoch": 1}});
        assert_eq!(written(&cache, &json!({})), [], "it waits for a host");
        let keys = ACCOUNTS.map(|account| Key::ticket_account("ns", account));
        assert_eq!(written(&cache, &bound), keys);
        for name in ACCOUNTS {
            let mut account = ServiceAccount::default();
            account.metadata.namespace = Some("ns".to_owned());
            account.metadata.name = Some(name.to_owned());
            cache.put(account, Instant::now());
        }
        assert_eq!(written(&cache, &bound), [], "the accounts exist");
        cache.remove(&keys[1]);
        assert_eq!(written(&cache, &bound), keys[1..2], "one is gone from the list");
    }
}
