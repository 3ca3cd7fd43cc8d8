//! The list of all hosts' addresses, by which agents block their guests' access to every host: one ConfigMap for
//! the site, so that a host that joins or moves costs one write, whatever the number of networks.

use std::net::IpAddr;

use berth_api::host_addresses::{from_data, to_data};

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    config::Config,
    key::Key,
    plan::Outcome,
};

pub(crate) fn reconcile(cache: &Cache, _: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let ipv4 = cache.underlay.addresses().map(|(address, _)| IpAddr::V4(address));
    let ipv6 = cache.underlay.ipv6_addresses().map(|(address, _)| IpAddr::V6(address));
    let wanted = to_data(ipv4.chain(ipv6));
    let listed = cache.tables.config_maps.get(key).and_then(|map| from_data(map.data.as_ref()?));
    if listed != from_data(&wanted) {
        batch.write(Write::HostAddresses(wanted));
    }
    Outcome::Settled
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use berth_api::{Host, Network, SYSTEM_NAMESPACE, USED_FINALIZER, VM, host_addresses::HOST_ADDRESSES};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::{key::ObjectKind, kinds, object::Object};

    fn object<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).expect("an object")
    }

    fn host(n: usize, version: usize) -> Host {
        object(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Host",
            "metadata": {"name": format!("h{n}"), "uid": format!("h{n}"), "resourceVersion": version.to_string()},
            "spec": {}, "status": {"observedGeneration": 1, "address": format!("192.0.2.{n}"), "mtu": 1500},
        }))
    }

    /// A site of two hosts with a VM on each of that many networks.
    fn site(networks: usize) -> Cache {
        let mut cache = Cache::new(Duration::from_secs(40));
        let mut put = |object: Object| cache.put(object, Instant::now());
        for n in 1..=2 {
            put(host(n, 1).into());
        }
        for n in 0..networks {
            let metadata = |kind: &str| {
                json!({"name": format!("{kind}{n}"), "namespace": "default",
                "uid": format!("{kind}{n}"), "resourceVersion": "1", "finalizers": [USED_FINALIZER]})
            };
            put(object::<Network>(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": metadata("net"),
                "spec": {"cidr": format!("10.0.{n}.0/24")}, "status": {"vni": n + 1},
            }))
            .into());
            put(object::<VM>(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": metadata("vm"),
                "spec": {"class": "c1", "disks": [], "networkInterfaces": [{"name": "nic0", "network": format!("net{n}")}]},
                "status": {"binding": {"host": "h1", "epoch": 1}, "interfaces": [{"name": "nic0",
                    "network": format!("default/net{n}"), "macAddress": "52:54:00:00:00:01", "address": format!("10.0.{n}.2")}]},
            }))
            .into());
        }
        cache
    }

    /// Returns the writes for these keys and puts them into the cache.
    fn written(cache: &mut Cache, keys: &[Key], version: usize) -> Vec<Key> {
        let mut written = Vec::new();
        for key in keys.iter().filter(|key| matches!(key.kind, ObjectKind::Network | ObjectKind::ConfigMap)) {
            let mut batch = WriteBatch::default();
            kinds::reconcile(cache, &Config::new(), key, &mut batch);
            for write in batch.into_parts().0 {
                written.push(write.key());
                match write {
                    Write::Status(Object::Network(mut network)) => {
                        Arc::make_mut(&mut network).metadata.resource_version = Some(version.to_string());
                        cache.put(Object::Network(network), Instant::now());
                    }
                    Write::HostAddresses(data) => {
                        let map: ConfigMap = object(json!({"metadata": {"name": HOST_ADDRESSES,
                            "namespace": SYSTEM_NAMESPACE, "resourceVersion": version.to_string()}, "data": data}));
                        cache.put(map, Instant::now());
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        written
    }

    fn listed(cache: &Cache) -> Vec<String> {
        let map = cache
            .tables
            .config_maps
            .get(&Key::host_addresses())
            .and_then(|map| from_data(map.data.as_ref()?));
        map.expect("there is a list").iter().map(ToString::to_string).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_joins_moves_or_goes_is_one_write_whatever_the_number_of_networks() {
        for networks in [1, 30] {
            let mut cache = site(networks);
            let all: Vec<Key> = cache
                .tables
                .networks
                .all()
                .map(|n| Key::of(n.as_ref()))
                .chain([Key::host_addresses()])
                .collect();
            written(&mut cache, &all, 2);
            assert_eq!(listed(&cache), ["192.0.2.1", "192.0.2.2"]);
            let joined = cache.put(host(3, 2), Instant::now());
            assert_eq!(written(&mut cache, &joined, 3), [Key::host_addresses()], "{networks} networks");
            assert_eq!(listed(&cache), ["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
            let mut moved = host(3, 3);
            moved.status.as_mut().expect("it has one").address = Some("192.0.2.9".into());
            let moved = cache.put(moved, Instant::now());
            assert_eq!(written(&mut cache, &moved, 4), [Key::host_addresses()]);
            let gone = cache.remove(&Key::cluster(ObjectKind::Host, "h3"));
            assert_eq!(written(&mut cache, &gone, 5), [Key::host_addresses()]);
            assert_eq!(listed(&cache), ["192.0.2.1", "192.0.2.2"]);
            let again = cache.put(host(2, 6), Instant::now());
            assert_eq!(written(&mut cache, &again, 6), [], "nothing changed");
            let mut reached = host(2, 7);
            reached.status.as_mut().expect("it has one").ipv6_addresses = vec!["2001:db8::2".into()];
            let reached = cache.put(reached, Instant::now());
            assert_eq!(written(&mut cache, &reached, 7), [Key::host_addresses()]);
            assert_eq!(listed(&cache), ["192.0.2.1", "192.0.2.2", "2001:db8::2"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_lost_or_spoiled_is_written_again() {
        let mut cache = site(1);
        assert_eq!(written(&mut cache, &[Key::host_addresses()], 2), [Key::host_addresses()]);
        let gone = cache.remove(&Key::host_addresses());
        assert_eq!(written(&mut cache, &gone, 3), [Key::host_addresses()]);
        let spoiled: ConfigMap =
            object(json!({"metadata": {"name": HOST_ADDRESSES, "namespace": SYSTEM_NAMESPACE,
            "resourceVersion": "4"}, "data": {"addresses": "none"}}));
        let spoiled = cache.put(spoiled, Instant::now());
        assert_eq!(written(&mut cache, &spoiled, 5), [Key::host_addresses()]);
        assert_eq!(listed(&cache), ["192.0.2.1", "192.0.2.2"]);
    }
}
