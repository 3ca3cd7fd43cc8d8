//! The ServiceAccounts of a namespace whose tokens are tickets: `berth-console` and others in one with VMs, for consoles and
//! guests, `berth-image-upload` in one with images that are uploaded, `berth-image-download` in one with images that are made or
//! uploaded, and `berth-disk-read` in one with snapshots or complete backups. And `berth-image-copy` in `berth-system`, once an image is
//! made or uploaded, or a disk is to be copied to another host.
//!
//! The accounts are not watched: each is written once for each start of the controllers, and again after each new list of
//! accounts. So one that was deleted comes back with a later decision about a VM, an image, a snapshot or a backup of its namespace.

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    key::Key,
};

/// Creates these accounts of a namespace, unless the controllers did already. The last writes of a decision, so that they delay
/// none.
pub(super) fn ensure(cache: &Cache, namespace: &str, accounts: &[&'static str], batch: &mut WriteBatch) {
    for account in accounts {
        if cache.tables.accounts.get(&Key::ticket_account(namespace, account)).is_none() {
            batch.write(Write::TicketAccount { namespace: namespace.to_owned(), account });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::console::VM_ACCOUNTS;
    use k8s_openapi::api::core::v1::ServiceAccount;
    use tokio::time::Instant;

    use super::*;

    fn written(cache: &Cache) -> Vec<Key> {
        let mut batch = WriteBatch::default();
        ensure(cache, "ns", &VM_ACCOUNTS, &mut batch);
        batch.keys().collect()
    }

    #[tokio::test]
    async fn a_namespace_gets_each_account_once() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let keys = VM_ACCOUNTS.map(|account| Key::ticket_account("ns", account));
        assert_eq!(written(&cache), keys);
        for name in VM_ACCOUNTS {
            let mut account = ServiceAccount::default();
            account.metadata.namespace = Some("ns".to_owned());
            account.metadata.name = Some(name.to_owned());
            cache.put(account, Instant::now());
        }
        assert_eq!(written(&cache), [], "the accounts exist");
        cache.remove(&keys[1]);
        assert_eq!(written(&cache), keys[1..2], "one is gone from the list");
    }
}
