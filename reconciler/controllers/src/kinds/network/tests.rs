//! Decisions for given inputs.

use berth_api::{Network, NetworkStatus, Reason, condition};
use k8s_openapi::jiff::Timestamp;

use crate::{cache::Cache, config::TenantNetworks, plan::Dependency};

use super::{
    is_accepted,
    observe::{LAST_VNI, Observed, Rejection, observe, pick_vni},
    plan::plan,
    status::{effective_mtu, status},
    why_not,
};

use std::collections::BTreeSet;

use berth_api::NetworkSpec;

fn network(mtu: Option<i64>) -> Network {
    let mut network =
        Network::new("n", NetworkSpec { cidr: "10.0.0.0/24".into(), mtu, ..NetworkSpec::default() });
    network.metadata.namespace = Some("ns".into());
    network
}

fn reported(network: &Network, observed: &Observed) -> NetworkStatus {
    let readiness = plan(observed);
    status(network, observed, &readiness, Timestamp::UNIX_EPOCH)
}

#[test]
fn identifiers_follow_from_names_and_differ_all_the_same() {
    let mut taken = BTreeSet::new();
    for n in 0..3000 {
        let vni = pick_vni(&format!("ns/{n}"), |vni| taken.contains(&vni)).expect("few are taken");
        assert!((1..=LAST_VNI).contains(&vni) && taken.insert(vni));
    }
    let first = pick_vni("ns/a", |_| false).expect("none is taken");
    assert_eq!(pick_vni("ns/a", |_| false), Some(first), "the same again");
    assert_eq!(pick_vni("ns/a", |vni| vni == first), Some(first % LAST_VNI + 1));
    assert_eq!(pick_vni("ns/a", |_| true), None);
}

#[test]
fn an_identifier_that_was_given_stays_and_a_refused_network_gets_none() {
    let mut seen = Observed { vni: Some(5), ..Observed::default() };
    let mut given = network(None);
    given.status = Some(reported(&given, &seen));
    seen.vni = Some(6);
    assert_eq!(reported(&given, &seen).vni, Some(5));
    assert!(is_accepted(&given) && why_not(&given).is_none());
    let mut rejection = network(None);
    let text = "its range 10.0.0.0/24 is larger than /25: create it with a smaller one".to_owned();
    seen.rejection = Some(Rejection { reason: Reason::InvalidSpec, text, dependencies: Vec::new() });
    rejection.status = Some(reported(&rejection, &seen));
    assert!(!is_accepted(&rejection));
    let why = why_not(&rejection).expect("refused");
    assert_eq!(
        why,
        "Network n is refused: its range 10.0.0.0/24 is larger than /25: create it with a smaller one"
    );
    assert_eq!(reported(&given, &seen).vni, Some(5), "what has VMs keeps what they run with");
}

#[test]
fn guests_are_told_what_fits_and_a_declared_mtu_that_does_not_is_a_condition() {
    assert_eq!(effective_mtu(None, None), (1500, true));
    assert_eq!(effective_mtu(None, Some(1450)), (1450, true));
    assert_eq!(effective_mtu(None, Some(8950)), (1500, true), "nobody asked for more");
    assert_eq!(effective_mtu(Some(8950), Some(8950)), (8950, true));
    assert_eq!(effective_mtu(Some(9000), None), (9000, true), "one host alone has no tunnels");
    let seen = Observed { fits: Some(1450), ..Observed::default() };
    let mut large = network(Some(1500));
    let status = reported(&large, &seen);
    assert_eq!(status.mtu, Some(1450));
    let condition = condition::find(&status.conditions, "MTUFits").expect("said");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "MTUTooLarge"));
    assert!(condition.message.contains("1550 at least"), "{}", condition.message);
    large.status = Some(status);
    let seen = Observed { fits: Some(8950), ..Observed::default() };
    assert_eq!(condition::find(&reported(&large, &seen).conditions, "MTUFits"), None);
}

#[test]
fn an_encrypted_network_with_a_host_that_cannot_encrypt_has_a_condition() {
    let mut encrypted = network(Some(1450));
    encrypted.spec.encryption = Some(berth_api::Encryption::WireGuard);
    let seen = Observed { fits: Some(1370), unencrypted: vec!["h2".into()], ..Observed::default() };
    let status = reported(&encrypted, &seen);
    let condition = condition::find(&status.conditions, "TunnelsEncrypted").expect("set");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "NotSupported"));
    assert!(condition.message.contains("VMs on h2 do not reach"), "{}", condition.message);
    let mtu = condition::find(&status.conditions, "MTUFits").expect("set");
    assert!(status.mtu == Some(1370) && mtu.message.contains("1580 at least"), "{}", mtu.message);
    encrypted.status = Some(status);
    let status = reported(&encrypted, &Observed { unencrypted: Vec::new(), ..seen });
    assert_eq!(condition::find(&status.conditions, "TunnelsEncrypted"), None);
}

fn named(namespace: &str, name: &str, cidr: &str, age: i64) -> Network {
    let mut network = Network::new(name, NetworkSpec { cidr: cidr.into(), ..NetworkSpec::default() });
    network.metadata.namespace = Some(namespace.into());
    network.metadata.uid = Some(format!("{namespace}-{name}"));
    let at = Timestamp::from_second(age).expect("a time");
    network.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
    network
}

fn accepted(mut network: Network, vni: i64) -> Network {
    network.status = Some(NetworkStatus { vni: Some(vni), ..NetworkStatus::default() });
    network
}

fn cache(networks: &[Network]) -> Cache {
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    for (n, network) in networks.iter().enumerate() {
        let mut network = network.clone();
        network.metadata.resource_version = Some((n + 1).to_string());
        cache.put(network, tokio::time::Instant::now());
    }
    cache
}

fn refusal(networks: &[Network], tenants: &TenantNetworks, of: &Network) -> Option<(Reason, String)> {
    let rejection = observe(&cache(networks), tenants, of).rejection?;
    Some((rejection.reason, rejection.text))
}

#[test]
fn a_range_that_is_refused_takes_no_addresses_from_others() {
    let tenants = TenantNetworks::default();
    let greedy = named("mallory", "all", "10.0.0.0/8", 1);
    let own = named("alice", "own", "10.5.0.0/24", 2);
    let all = [greedy.clone(), own.clone()];
    let (reason, text) = refusal(&all, &tenants, &greedy).expect("too large for a tenant");
    assert_eq!(
        (reason, text.as_str()),
        (Reason::InvalidSpec, "its range 10.0.0.0/8 is larger than /16: create it with a smaller one")
    );
    assert_eq!(refusal(&all, &tenants, &own), None);
    let shared = named("berth-shared", "default", "10.0.0.0/8", 3);
    assert_eq!(
        refusal(std::slice::from_ref(&shared), &tenants, &shared),
        None,
        "that is the administrator's"
    );
    // An accepted network takes precedence over an older one that is not accepted.
    let younger = accepted(named("alice", "own", "10.5.0.0/24", 9), 7);
    let older = named("alice", "wide", "10.5.0.0/16", 1);
    let (_, text) = refusal(&[younger.clone(), older.clone()], &tenants, &older).expect("overlaps");
    assert!(text.contains("overlaps 10.5.0.0/24 of network alice/own"), "{text}");
    assert_eq!(refusal(&[younger.clone(), older], &tenants, &younger), None);
}

#[test]
fn another_tenants_network_is_not_named() {
    let tenants = TenantNetworks::default();
    let first = accepted(named("alice", "secret-project", "10.5.0.0/24", 1), 7);
    let second = named("mallory", "mine", "10.5.0.0/25", 2);
    let (_, text) = refusal(&[first, second.clone()], &tenants, &second).expect("overlaps");
    assert_eq!(
        text,
        "its range 10.5.0.0/25 overlaps that of a network of another namespace: create it with another range"
    );
}

#[test]
fn a_tenant_keeps_to_the_ranges_and_the_number_that_the_administrator_allows() {
    let allowed = vec!["10.64.0.0/10".parse().expect("a range")];
    let tenants = TenantNetworks { ranges: allowed, per_namespace: 2, ..TenantNetworks::default() };
    let outside = named("ns", "outside", "10.5.0.0/24", 1);
    let (reason, text) = refusal(&[], &tenants, &outside).expect("not within");
    assert_eq!((reason, text.contains("not within 10.64.0.0/10")), (Reason::InvalidSpec, true));
    let two = [1, 2].map(|n| accepted(named("ns", &format!("n{n}"), &format!("10.70.{n}.0/24"), n), n));
    let third = named("ns", "n3", "10.70.3.0/24", 3);
    let (reason, _) = refusal(&two, &tenants, &third).expect("a third");
    assert_eq!(reason, Reason::QuotaExceeded);
    let elsewhere = named("other", "n3", "10.70.3.0/24", 3);
    assert_eq!(refusal(&two, &tenants, &elsewhere), None);
    assert_eq!(refusal(&two, &tenants, &two[0]), None, "what was accepted stays");
}

#[test]
fn a_prefix_with_public_addresses_is_refused_until_the_pool_has_others_and_what_was_accepted_stays() {
    let mut over = named("ns", "over", "10.5.0.0/24", 1);
    over.spec.ipv6_cidr = "2001:db8:7::/64".into();
    let rejection = |range: &str, network: &Network| {
        let mut cached = cache(&[]);
        let pool = serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool",
            "metadata": {"name": "six", "uid": "six", "resourceVersion": "1"}, "spec": {"cidrs": [range]}});
        let pool: berth_api::IPPool = serde_json::from_value(pool).expect("an IPPool");
        cached.put(pool, tokio::time::Instant::now());
        observe(&cached, &TenantNetworks::default(), network).rejection
    };
    let refused = rejection("2001:db8:7::1:0/112", &over).expect("it covers them");
    assert_eq!(refused.reason, Reason::InvalidSpec);
    assert!(refused.text.contains("2001:db8:7::/64 has public addresses"), "{refused:?}");
    assert!(matches!(&refused.dependencies[..], [Dependency::Object(pool)] if *pool.name == *"six"));
    assert_eq!(rejection("2001:db8:8::/112", &over), None);
    assert_eq!(rejection("192.0.2.0/28", &over), None);
    assert_eq!(rejection("2001:db8:7::1:0/112", &accepted(over.clone(), 7)), None);
    let refused = rejection("10.5.0.16/28", &over).expect("its range covers them");
    assert!(refused.text.contains("its range 10.5.0.0/24 has public addresses"), "{refused:?}");
    assert_eq!(rejection("10.5.0.16/28", &accepted(over.clone(), 7)), None);
}

#[test]
fn a_prefix_with_an_address_of_a_host_is_refused_and_what_was_accepted_stays() {
    let mut over = named("ns", "over", "", 1);
    over.spec.ipv6_cidr = "2001:db8:7::/64".into();
    let rejection = |address: &str, network: &Network| {
        let mut cached = cache(&[]);
        let host = serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host",
            "metadata": {"name": "h1", "uid": "h1", "resourceVersion": "1"}, "spec": {},
            "status": {"observedGeneration": 1, "ipv6Addresses": [address]}});
        let host: berth_api::Host = serde_json::from_value(host).expect("a Host");
        cached.put(host, tokio::time::Instant::now());
        observe(&cached, &TenantNetworks::default(), network).rejection
    };
    let refused = rejection("2001:db8:7::9", &over).expect("the host is on it");
    assert_eq!(refused.reason, Reason::InvalidSpec);
    assert!(refused.text.contains("2001:db8:7::/64 has an address of a host"), "{refused:?}");
    assert!(matches!(&refused.dependencies[..], [Dependency::Hosts]), "{refused:?}");
    assert_eq!(rejection("2001:db8:8::9", &over), None);
    assert_eq!(rejection("2001:db8:7::9", &accepted(over.clone(), 7)), None);
}

#[test]
fn of_two_with_one_identifier_the_younger_is_refused_and_takes_no_vm() {
    let older = accepted(named("ns", "a", "10.1.0.0/24", 1), 7);
    let mut younger = accepted(named("other", "b", "10.2.0.0/24", 2), 7);
    let both = [older.clone(), younger.clone()];
    let tenants = TenantNetworks::default();
    assert_eq!(refusal(&both, &tenants, &older), None);
    let seen = observe(&cache(&both), &tenants, &younger);
    assert_eq!(seen.rejection.as_ref().map(|r| r.reason), Some(Reason::IdentifierInUse));
    younger.status = Some(reported(&younger, &seen));
    assert!(!is_accepted(&younger), "{:?}", younger.status);
    assert!(
        why_not(&younger).is_some_and(|why| why.contains("identifier 7 is that of a network of another"))
    );
}

#[test]
fn bridged_networks_may_be_parts_of_a_hosts_range_and_of_each_other_but_not_with_the_same_addresses() {
    let bridged = |name: &str, namespace: &str, range: &str| -> Network {
        let spec = serde_json::json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24", "ipv4": {"range": range}});
        let metadata =
            serde_json::json!({"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"});
        serde_json::from_value(serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": metadata, "spec": spec}))
            .expect("a Network")
    };
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let host = serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host",
        "metadata": {"name": "h1", "uid": "h1", "resourceVersion": "1"}, "spec": {},
        "status": {"observedGeneration": 1, "address": "192.0.2.11", "mtu": 1500, "ranges": ["192.0.2.0/24"]}});
    let host: berth_api::Host = serde_json::from_value(host).expect("a Host");
    cache.put(host, tokio::time::Instant::now());
    let mut first = bridged("first", "berth-shared", "192.0.2.50-192.0.2.99");
    first.status = Some(NetworkStatus { vni: Some(7), ..NetworkStatus::default() });
    cache.put(first.clone(), tokio::time::Instant::now());
    let rejection = |network: &Network| {
        observe(&cache, &TenantNetworks::default(), network).rejection.map(|rejection| rejection.text)
    };
    assert_eq!(rejection(&first), None, "hosts use the range themselves");
    assert_eq!(rejection(&bridged("second", "berth-shared", "192.0.2.100-192.0.2.120")), None);
    let text = rejection(&bridged("third", "berth-shared", "192.0.2.99-192.0.2.120"))
        .expect("one address is in both");
    assert!(text.contains("another ipv4.range"), "{text}");
    let text = rejection(&bridged("tenant", "ns", "192.0.2.150-192.0.2.160")).expect("a tenant's");
    assert!(text.contains("berth-shared"), "{text}");
    let text = rejection(&bridged("empty", "berth-shared", "192.0.2.160-192.0.2.150")).expect("no address");
    assert!(text.contains("ipv4.range"), "{text}");
}

fn with_domain(mut network: Network) -> Network {
    network.spec.dns_domain = Some("app.internal".into());
    network
}

/// Caches a VM with an address of a network.
fn put_vm(cache: &mut Cache, namespace: &str, name: &str, network: &str, address: &str) {
    let vm = serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"), "resourceVersion": "1"},
        "spec": {"class": "s", "disks": [{"name": "d", "boot": true}]},
        "status": {"observedGeneration": 1, "interfaces": [{"name": "nic0", "network": network,
            "macAddress": "52:54:00:00:00:01", "address": address, "ipv6Address": "fd00:60::2"}]}});
    let vm: berth_api::VM = serde_json::from_value(vm).expect("a VM");
    cache.put(vm, tokio::time::Instant::now());
}

#[test]
fn vms_have_names_in_a_network_with_a_domain_and_in_a_shared_one_beside_those_of_other_namespaces() {
    let own = with_domain(accepted(named("alice", "lan", "10.5.0.0/24", 1), 7));
    let shared = with_domain(accepted(named("berth-shared", "all", "10.6.0.0/24", 2), 8));
    let without = accepted(named("alice", "plain", "10.7.0.0/24", 3), 9);
    let mut cache = cache(&[own.clone(), shared.clone(), without.clone()]);
    put_vm(&mut cache, "alice", "web", "alice/lan", "10.5.0.3");
    put_vm(&mut cache, "alice", "db", "alice/lan", "10.5.0.2");
    put_vm(&mut cache, "alice", "cache", "alice/plain", "10.7.0.2");
    put_vm(&mut cache, "alice", "queue", "berth-shared/all", "10.6.0.2");
    put_vm(&mut cache, "bob", "queue", "berth-shared/all", "10.6.0.3");
    let names = |network: &Network| {
        let observed = observe(&cache, &TenantNetworks::default(), network);
        let status = reported(network, &observed);
        status
            .names
            .into_iter()
            .map(|n| format!("{} {} {}", n.name, n.address, n.ipv6_address))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&own), ["db 10.5.0.2 fd00:60::2", "web 10.5.0.3 fd00:60::2"]);
    assert_eq!(names(&shared), ["queue.alice 10.6.0.2 fd00:60::2", "queue.bob 10.6.0.3 fd00:60::2"]);
    assert!(names(&without).is_empty());
}

#[test]
fn hosts_know_a_limited_number_of_names_and_the_network_says_so() {
    let name = |n: usize| berth_api::NetworkName { name: format!("vm-{n:05}"), ..Default::default() };
    let observed = |count| Observed { names: (0..count).map(name).collect(), ..Observed::default() };
    let most = berth_api::network::MOST_NAMES;
    assert_eq!(plan(&observed(most)).message(), "");
    let many = observed(most + 1);
    assert!(
        plan(&many).message().contains("4097 interfaces with an address, and its name servers know 4096"),
        "{}",
        plan(&many).message()
    );
    let status = reported(&network(None), &many);
    assert_eq!((status.names.len(), status.names[0].name.as_str()), (most, "vm-00000"));
    let mut later = network(None);
    later.status = Some(status.clone());
    let mut with_another = observed(most + 1);
    with_another.names.insert(0, berth_api::NetworkName { name: "a".into(), ..Default::default() });
    assert_eq!(reported(&later, &with_another).names, status.names, "those that are listed stay");
    with_another.names.retain(|name| name.name != "vm-00007");
    let names = reported(&later, &with_another).names;
    assert_eq!((names.len(), names[0].name.as_str()), (most, "a"), "the next by name follows");
}
