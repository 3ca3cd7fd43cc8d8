//! Decisions for given inputs.

mod prefixes;

use std::{net::IpAddr, time::Duration};

use berth_api::public_ip::ForwardingAddress;
use berth_api::{ConditionType, Host, IPPool, Network, PublicIP, PublicIPStatus, Reason, VM, condition};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use serde_json::{Value, json};

use crate::{
    cache::Cache,
    kinds::network::free_address,
    plan::{Dependency, Outcome},
};

use super::{
    Decision,
    balancing::{self, Balancing},
    observe::{Conflict, observe, pick},
    plan::plan,
    status::status,
};

use berth_api::{IPPoolMode, IPPoolSpec};

fn pool(cidrs: &[&str]) -> IPPool {
    let cidrs = cidrs.iter().map(|c| (*c).to_owned()).collect();
    IPPool::new("p", IPPoolSpec { cidrs, ..IPPoolSpec::default() })
}

/// The status of an allocated address that already has `ip`'s status.
fn said(ip: &PublicIP, conflict: Option<&Conflict>, at: i64) -> PublicIPStatus {
    let address = "192.0.2.8".parse().expect("an address");
    let decision = Decision::Allocated {
        address,
        mode: None,
        user: None,
        terminating: false,
        misnamed_by: None,
        balancing: None,
    };
    status(ip, &decision, conflict, Timestamp::from_second(at).expect("a time"))
}

#[test]
fn an_address_that_another_machine_has_says_whose_it_is_until_it_is_not() {
    let mut ip = PublicIP::new("web", berth_api::PublicIPSpec::default());
    let conflict = Conflict { host: "h1".into(), mac: "52:54:00:66:66:66".into() };
    ip.status = Some(said(&ip, Some(&conflict), 1));
    let conditions = |ip: &PublicIP| ip.status.clone().expect("just set").conditions;
    let now = conditions(&ip);
    let found = condition::find(&now, "AddressConflict").expect("said");
    assert!(
        found.message.starts_with("52:54:00:66:66:66 answers for 192.0.2.8 on the segment of host h1"),
        "{found:?}"
    );
    assert!(!condition::is_true(&now, ConditionType::Ready));
    assert_eq!(ip.status, Some(said(&ip, Some(&conflict), 2)), "a further reconcile writes nothing");
    ip.status = Some(said(&ip, None, 3));
    assert_eq!(condition::find(&conditions(&ip), "AddressConflict"), None);
    assert!(condition::is_true(&conditions(&ip), ConditionType::Ready));
}

#[test]
fn the_lowest_free_address_of_all_ranges_is_taken() {
    let pool = pool(&["192.0.2.8/31", "198.51.100.7/32"]);
    let taken = ["192.0.2.8".parse::<IpAddr>().expect("an address")];
    assert_eq!(pick(&pool, None, |a| !taken.contains(&a)), Ok("192.0.2.9".parse().expect("an address")));
    let elsewhere = |a: IpAddr| !a.to_string().starts_with("192.");
    assert_eq!(pick(&pool, None, elsewhere), Ok("198.51.100.7".parse().expect("an address")));
}

#[test]
fn an_address_that_waits_for_one_of_a_guest_is_looked_at_again_once_the_recovery_of_its_host_is_over() {
    let mut cache = Cache::new(Duration::from_secs(40));
    let now = tokio::time::Instant::now();
    let mut pool = pool(&["192.0.2.8/32"]);
    pool.metadata.resource_version = Some("1".into());
    cache.put(pool, now);
    let owner = json!({"kind": "VM", "namespace": "ns", "name": "gone", "uid": "u1",
        "publicIPs": [{"name": "web", "address": "192.0.2.8"}]});
    let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host",
        "metadata": {"name": "h1", "generation": 2, "resourceVersion": "1"},
        "spec": {"recovery": {"since": "2026-01-01T00:00:00Z"}},
        "status": {"observedGeneration": 2, "inventory": {"complete": true},
            "orphans": [{"kind": "Process", "name": "i-1", "detail": "", "owner": owner}]}});
    cache.put(serde_json::from_value::<Host>(host).expect("a host"), now);
    let mut ip = PublicIP::new("new", serde_json::from_value(json!({"pool": "p"})).expect("a spec"));
    ip.metadata.namespace = Some("ns".into());
    let mut observed = observe(&cache, &ip);
    observed.unknown = None;
    let Outcome::Blocked(dependencies) = plan(&ip, &observed).outcome else { panic!("{observed:?}") };
    assert!(dependencies.contains(&Dependency::Hosts), "{dependencies:?}");
    observed.has_reserved = false;
    assert!(
        matches!(plan(&ip, &observed).outcome, Outcome::Blocked(all) if !all.contains(&Dependency::Hosts))
    );
}

#[test]
fn the_ends_of_a_range_are_given_out_only_where_the_pool_says_so() {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let mut pool = pool(&["198.51.100.0/29", "203.0.113.8/31", "203.0.113.99/32"]);
    assert_eq!(pick(&pool, None, |_| true), Ok(address("198.51.100.1")));
    let taken = |last: u8| move |a: IpAddr| a > IpAddr::from([198, 51, 100, last]);
    assert_eq!(pick(&pool, None, taken(5)), Ok(address("198.51.100.6")));
    assert_eq!(pick(&pool, None, taken(6)), Ok(address("203.0.113.8")), "the last of the range is left out");
    assert_eq!(pick(&pool, None, |a| a > address("203.0.113.9")), Ok(address("203.0.113.99")));
    let (reason, text) = pick(&pool, Some("198.51.100.7"), |_| true).unwrap_err();
    assert_eq!((reason, text.contains("useAllAddresses")), (Reason::AddressUnavailable, true), "{text}");
    pool.spec.use_all_addresses = true;
    assert_eq!(pick(&pool, None, |_| true), Ok(address("198.51.100.0")));
    assert_eq!(pick(&pool, Some("198.51.100.7"), |_| true), Ok(address("198.51.100.7")));
}

#[test]
fn an_empty_pool_and_a_taken_or_foreign_address_are_told_apart() {
    let pool = pool(&["192.0.2.8/31"]);
    assert_eq!(pick(&pool, None, |_| false).unwrap_err().0, Reason::NoFreeAddress);
    assert!(pick(&pool, Some("192.0.2.8"), |_| false).unwrap_err().1.contains("is taken"));
    assert!(pick(&pool, Some("192.0.2.10"), |_| true).unwrap_err().1.contains("is not in"));
    assert!(pick(&pool, Some("999.1.1.1"), |_| true).unwrap_err().1.contains("is no address"));
}

#[test]
fn the_lowest_free_ipv6_address_of_a_prefix_is_taken_and_never_that_of_its_routers() {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let mut pool = pool(&["2001:db8::/64", "2001:db8:1::a-2001:db8:1::b"]);
    assert_eq!(pick(&pool, None, |_| true), Ok(address("2001:db8::1")));
    assert_eq!(pick(&pool, None, |a| a > address("2001:db8::2")), Ok(address("2001:db8::3")));
    let prefix = address("2001:db8::1:0");
    assert_eq!(
        pick(&pool, Some("2001:db8::ffff:0:0:1"), |a| a > prefix),
        Ok(address("2001:db8::ffff:0:0:1"))
    );
    pool.spec.use_all_addresses = true;
    let (reason, text) = pick(&pool, Some("2001:db8::"), |_| true).unwrap_err();
    assert_eq!((reason, text.contains("the routers")), (Reason::AddressUnavailable, true), "{text}");
    pool.spec.cidrs.remove(0);
    assert_eq!(pick(&pool, None, |_| true), Ok(address("2001:db8:1::a")));
    assert_eq!(pick(&pool, None, |_| false).unwrap_err().0, Reason::NoFreeAddress);
    assert!(pick(&pool, Some("192.0.2.1"), |_| true).unwrap_err().1.contains("is not in"));
}

#[test]
fn an_address_of_an_ipv6_pool_is_given_out_with_ports_and_without() {
    let mut cache = cache("", &json!([]), &[]);
    let mut segment = pool(&["2001:db8::/64"]);
    segment.metadata.name = Some("default".into());
    segment.metadata.resource_version = Some("1".into());
    cache.put(segment, tokio::time::Instant::now());
    let mut ip = balancer("", false);
    ip.status = None;
    let address = |cache: &Cache, ip: &PublicIP| observe(cache, ip).address.expect("one is free").to_string();
    assert_eq!(address(&cache, &ip), "2001:db8::1");
    ip.spec.ports.clear();
    assert_eq!(address(&cache, &ip), "2001:db8::1");
    let mut first = host("h1", false, &json!([]));
    first.status.get_or_insert_default().ipv6_addresses = vec!["2001:db8::1".into()];
    first.metadata.resource_version = Some("2".into());
    cache.put(first, tokio::time::Instant::now());
    assert_eq!(address(&cache, &ip), "2001:db8::2", "a host has the first one");
}

#[test]
fn the_network_and_the_broadcast_address_of_a_hosts_segment_are_not_given_out_of_an_l2_pool() {
    let mut cache = cache("", &json!([]), &[]);
    let mut first = host("h1", false, &json!([]));
    first.status.get_or_insert_default().segments = vec!["192.0.2.0/24".into()];
    first.metadata.resource_version = Some("2".into());
    cache.put(first, tokio::time::Instant::now());
    let mut segment = pool(&["192.0.2.255-192.0.3.1"]);
    segment.metadata.name = Some("default".into());
    segment.spec.mode = IPPoolMode::L2;
    let mut ip = balancer("", false);
    ip.status = None;
    ip.spec.ports.clear();
    let mut version = 1;
    let mut address = |segment: &IPPool, ip: &PublicIP| {
        let mut segment = segment.clone();
        segment.metadata.resource_version = Some(version.to_string());
        version += 1;
        cache.put(segment, tokio::time::Instant::now());
        observe(&cache, ip).address.map(|address| address.to_string())
    };
    assert_eq!(address(&segment, &ip).as_deref(), Ok("192.0.3.0"));
    ip.spec.address = Some("192.0.2.255".into());
    let (reason, text) = address(&segment, &ip).unwrap_err();
    assert_eq!(reason, Reason::AddressUnavailable);
    assert!(text.contains("the broadcast address of 192.0.2.0/24") && text.contains("host h1"), "{text}");
    segment.spec.cidrs = vec!["192.0.2.0/25".into()];
    segment.spec.use_all_addresses = true;
    ip.spec.address = None;
    assert_eq!(address(&segment, &ip).as_deref(), Ok("192.0.2.1"), "the pool is narrower");
    segment.spec.mode = IPPoolMode::Local;
    assert_eq!(address(&segment, &ip).as_deref(), Ok("192.0.2.0"), "routed addresses are all alike");
    ip.status = Some(PublicIPStatus { address: Some("192.0.2.255".into()), ..PublicIPStatus::default() });
    assert_eq!(address(&segment, &ip).as_deref(), Ok("192.0.2.255"), "it keeps its address");
}

/// A VM on a host.
fn vm(name: &str, host: &str, state: &str, address: &str) -> VM {
    let vm = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": {"class": "small", "disks": [], "networkInterfaces": [{"name": "nic0"}]},
        "status": {"observedGeneration": 1, "state": state, "binding": {"host": host, "epoch": 1}, "interfaces": [
            {"name": "nic0", "network": "ns/default", "macAddress": "52:54:00:00:00:01", "address": address}]},
    });
    serde_json::from_value(vm).expect("a VM")
}

fn host(name: &str, draining: bool, health: &Value) -> Host {
    let host = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"draining": draining}, "status": {"observedGeneration": 1, "targetHealth": health},
    });
    serde_json::from_value(host).expect("a Host")
}

/// The Network `ns/default` with two hosts that report.
fn cache(draining: &str, health: &Value, vms: &[VM]) -> Cache {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(Duration::from_secs(40));
    let network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
        "metadata": {"name": "default", "namespace": "ns", "uid": "n", "resourceVersion": "1"}, "spec": {"cidr": "10.77.0.0/24"}});
    cache.put(serde_json::from_value::<Network>(network).expect("a Network"), now);
    for name in ["h1", "h2"] {
        cache.put(host(name, name == draining, health), now);
        let lease = json!({"metadata": {"name": name, "namespace": "berth-system", "resourceVersion": "1"}});
        cache.put(serde_json::from_value::<Lease>(lease).expect("a Lease"), now);
    }
    for vm in vms {
        cache.put(vm.clone(), now);
    }
    cache
}

/// A PublicIP that host `holder` has, if it is not empty.
fn balancer(holder: &str, health_check: bool) -> PublicIP {
    let mut ip = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP", "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"},
        "spec": {"ports": [{"name": "http", "port": 80, "targets": ["web-1", "web-2"]}]},
        "status": {"observedGeneration": 1, "address": "192.0.2.8"},
    });
    if !holder.is_empty() {
        ip["status"]["binding"] = json!({"host": holder, "epoch": 1});
    }
    if health_check {
        ip["spec"]["ports"][0]["healthCheck"] = json!({});
    }
    serde_json::from_value(ip).expect("a PublicIP")
}

fn seen(cache: &Cache, ip: &PublicIP) -> Balancing {
    balancing::observe(cache, ip, "192.0.2.8".parse().ok()).expect("it has ports")
}

#[test]
fn the_host_of_the_first_target_that_runs_has_the_address_and_keeps_it_until_it_is_drained() {
    let both = [vm("web-1", "h1", "Running", "10.77.0.2"), vm("web-2", "h2", "Running", "10.77.0.3")];
    let holder = |draining: &str, vms: &[VM], current: &str| {
        seen(&cache(draining, &json!([]), vms), &balancer(current, false)).host
    };
    assert_eq!(holder("", &both, "").as_deref(), Some("h1"));
    let stopped = [vm("web-1", "h1", "Stopped", "10.77.0.2"), both[1].clone()];
    assert_eq!(holder("", &stopped, "").as_deref(), Some("h2"));
    assert_eq!(holder("", &stopped, "h1").as_deref(), Some("h1"), "it keeps the address");
    assert_eq!(holder("h1", &stopped, "h1").as_deref(), Some("h2"), "a drained host does not");
    assert_eq!(holder("", &both, "gone").as_deref(), Some("h1"));
    assert_eq!(holder("", &[], ""), None);
    let [mut deleted, _] = stopped;
    assert_eq!(holder("", std::slice::from_ref(&deleted), "").as_deref(), Some("h1"), "none runs");
    deleted.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    assert_eq!(holder("", &[deleted], ""), None, "its host is one for its deletion only");
}

#[test]
fn targets_that_do_not_run_are_named_and_those_elsewhere_get_an_address_of_their_network() {
    let vms = [vm("web-1", "h1", "Paused", "10.77.0.2"), vm("web-2", "h2", "Running", "10.77.0.3")];
    let cache = cache("", &json!([]), &vms);
    let found = seen(&cache, &balancer("h1", false));
    let [port] = &found.ports[..] else { panic!("{found:?}") };
    assert_eq!((port.available, port.total, port.message.as_str()), (1, 2, "VM web-1 does not run"));
    assert_eq!(found.targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), ["web-2"]);
    let [forwarding] = &found.forwarding_addresses[..] else { panic!("{found:?}") };
    assert_eq!((forwarding.network.as_str(), forwarding.address.as_str()), ("ns/default", "10.77.0.254"));
    // It is taken then: by no VM and by no other PublicIP.
    let mut ip = balancer("h1", false);
    ip.status.get_or_insert_default().forwarding_addresses = found.forwarding_addresses.clone();
    let mut with_it = cache;
    let concerned = with_it.put(ip.clone(), tokio::time::Instant::now());
    assert!(
        concerned.iter().any(|key| *key.name == *"default"),
        "the Network has one more host: {concerned:?}"
    );
    assert!(with_it.index.is_address_used("ns/default", "10.77.0.254".parse().expect("an address")));
    assert_eq!(seen(&with_it, &ip).forwarding_addresses, found.forwarding_addresses, "it stays");
}

#[test]
fn addresses_of_networks_are_taken_before_another_write_releases_those_that_are_not_used() {
    let vms = [vm("web-1", "h1", "Running", "10.77.0.2"), vm("web-2", "h2", "Running", "10.77.0.3")];
    let mut cache = cache("", &json!([]), &vms);
    let unused = ForwardingAddress { network: "ns/former".to_owned(), address: "10.78.0.254".to_owned() };
    let mut ip = balancer("h1", false);
    ip.status.get_or_insert_default().forwarding_addresses = vec![unused.clone()];
    cache.put(ip.clone(), tokio::time::Instant::now());
    let taken = seen(&cache, &ip).forwarding_addresses;
    assert!(taken.len() == 2 && taken.contains(&unused), "{taken:?}");
    let status = ip.status.get_or_insert_default();
    status.forwarding_addresses = taken;
    status.binding.as_mut().expect("it has a host").host = "h2".to_owned();
    assert!(!cache.releases(&ip.clone().into()), "taken at once, also with another host");
    ip.status.as_mut().and_then(|status| status.binding.as_mut()).expect("it has a host").host =
        "h1".to_owned();
    let released = seen(&cache, &ip).forwarding_addresses;
    assert!(released.len() == 1 && !released.contains(&unused), "{released:?}");
    ip.status.get_or_insert_default().forwarding_addresses = released;
    assert!(cache.releases(&ip.into()), "free only once that is confirmed");
}

#[test]
fn targets_of_an_ipv6_address_are_those_with_ipv6_and_those_elsewhere_get_an_address_of_their_network() {
    let with_ipv6 = |name: &str, host: &str, state: &str, address: &str| {
        let mut vm = vm(name, host, state, "");
        vm.status.as_mut().expect("a status").interfaces[0].ipv6_address = address.to_owned();
        vm
    };
    let world = |first: &str, egress: &str| {
        let vms = [
            with_ipv6("web-1", "h1", first, "fd00:60::2"),
            with_ipv6("web-2", "h2", "Running", "fd00:60::3"),
        ];
        let mut cache = cache("", &json!([]), &vms);
        let network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
            "metadata": {"name": "default", "namespace": "ns", "uid": "n", "resourceVersion": "2"},
            "spec": {"ipv6CIDR": "fd00:60::/64", "ipv6Egress": egress}});
        let network = serde_json::from_value::<Network>(network).expect("a Network");
        cache.put(network, tokio::time::Instant::now());
        balancing::observe(&cache, &balancer("h1", false), "2001:db8::8".parse().ok()).expect("it has ports")
    };
    let found = world("Running", "Masquerade");
    assert_eq!(found.host.as_deref(), Some("h1"));
    let targets: Vec<&str> = found.targets.iter().map(|target| target.address.as_str()).collect();
    assert_eq!((targets, found.ports[0].available), (vec!["fd00:60::2", "fd00:60::3"], 2));
    let [forwarding] = &found.forwarding_addresses[..] else { panic!("{found:?}") };
    assert_eq!(forwarding.address, "fd00:60::ffff:ffff:ffff:ffff", "the highest: VMs get the lowest ones");
    let stays = world("Stopped", "Masquerade");
    assert_eq!((stays.host.as_deref(), stays.ports[0].available), (Some("h1"), 1), "it keeps the address");
    let closed = world("Running", "None");
    assert_eq!((closed.host.as_deref(), closed.ports[0].available), (Some("h1"), 0));
    assert!(closed.ports[0].message.contains("ipv6Egress None"), "{:?}", closed.ports);
    let ipv4 = [vm("web-1", "h1", "Running", "10.77.0.2")];
    let cache = cache("", &json!([]), &ipv4);
    let without = balancing::observe(&cache, &balancer("h1", false), "2001:db8::8".parse().ok());
    let message = without.expect("it has ports").ports[0].message.clone();
    assert!(message.contains("VM web-1 has no network interface with an IPv6 address"), "{message}");
}

#[test]
fn the_ipv6_address_that_a_host_forwards_from_is_no_vms_and_its_host_is_one_of_the_network() {
    let mut cache = cache("", &json!([]), &[]);
    let mut ip = balancer("h2", false);
    let address = "fd00:60::ffff:ffff:ffff:ffff";
    let status = ip.status.get_or_insert_default();
    status.address = Some("2001:db8::8".to_owned());
    status.forwarding_addresses =
        vec![ForwardingAddress { network: "ns/default".to_owned(), address: address.to_owned() }];
    let concerned = cache.put(ip.clone(), tokio::time::Instant::now());
    assert!(concerned.iter().any(|key| *key.name == *"default"), "one more host: {concerned:?}");
    let address = address.parse().expect("an address");
    assert!(cache.index.is_ipv6_address_used("ns/default", address));
    assert_eq!(cache.index.hosts_of("ns/default").collect::<Vec<_>>(), ["h2"]);
    assert!(cache.index.forwarding_in("ns/default").contains(&IpAddr::V6(address)));
    ip.metadata.resource_version = Some("2".into());
    ip.status.get_or_insert_default().forwarding_addresses.clear();
    cache.put(ip, tokio::time::Instant::now());
    assert!(!cache.index.is_ipv6_address_used("ns/default", address));
    assert!(cache.index.forwarding_in("ns/default").is_empty());
}

#[test]
fn the_host_of_a_vm_with_an_ipv6_address_only_is_one_of_its_network() {
    let mut only = vm("web-1", "h1", "Running", "");
    only.status.as_mut().expect("a status").interfaces[0].ipv6_address = "fd00:60::2".to_owned();
    let cache = cache("", &json!([]), &[only]);
    assert_eq!(cache.index.hosts_of("ns/default").collect::<Vec<_>>(), ["h1"]);
}

#[test]
fn a_checked_target_counts_once_the_host_that_has_the_address_reports_a_success() {
    let vms = [vm("web-1", "h1", "Running", "10.77.0.2"), vm("web-2", "h1", "Running", "10.77.0.3")];
    let result = |vm: &str, failure: &str| json!({"address": "192.0.2.8", "port": 80, "protocol": "tcp", "vm": vm, "failure": failure});
    let health = json!([result("web-1", ""), result("web-2", "no answer within 2 s")]);
    let found = seen(&cache("", &health, &vms), &balancer("h1", true));
    assert_eq!(found.ports[0].available, 1);
    assert_eq!(found.ports[0].message, "VM web-2 fails its health check: no answer within 2 s");
    let none = seen(&cache("", &json!([]), &vms), &balancer("h1", true));
    assert_eq!((none.ports[0].available, none.forwarding_addresses.len()), (0, 0));
}

#[test]
fn clients_that_do_not_reach_a_target_on_a_bridge_are_named_while_its_host_filters_bridged_packets() {
    let world = |bridge: Value, filtered: &[&str]| {
        let vms = [vm("web-1", "h1", "Running", "10.77.0.2"), vm("web-2", "h2", "Running", "10.77.0.3")];
        let mut cache = cache("", &json!([]), &vms);
        let network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
            "metadata": {"name": "default", "namespace": "ns", "uid": "n", "resourceVersion": "2"},
            "spec": {"type": "Bridge", "bridge": bridge, "cidr": "10.77.0.0/24"}});
        let now = tokio::time::Instant::now();
        cache.put(serde_json::from_value::<Network>(network).expect("a Network"), now);
        let mut holder = host("h1", false, &json!([]));
        holder.metadata.resource_version = Some("2".into());
        let status = holder.status.as_mut().expect("a status");
        status.segments = vec!["10.77.0.0/24".into()];
        status.filtered_bridges = filtered.iter().map(|family| (*family).to_owned()).collect();
        let networks = json!([{"name": "eth1", "kind": "Interface", "mtu": 1500, "up": true}]);
        status.networks = serde_json::from_value(networks).expect("interfaces");
        cache.put(holder, now);
        let found = seen(&cache, &balancer("h1", false));
        assert_eq!(found.targets.len(), 2, "both are available: {found:?}");
        found.lost_clients
    };
    let lost = world(json!({"name": "vmbr0"}), &["IPv4"]).expect("some are");
    assert!(
        lost.contains("the same port of bridge vmbr0") && lost.contains("VMs on a bridge of host h1"),
        "{lost}"
    );
    assert!(lost.ends_with("(sysctl -w net.bridge.bridge-nf-call-iptables=0)"), "{lost}");
    let lost = world(json!({"interface": "eth1"}), &["IPv4"]).expect("VMs there");
    assert!(lost.starts_with("no connections from VMs on a bridge of host h1"), "{lost}");
    for filtered in [&[][..], &["IPv6"][..]] {
        assert_eq!(world(json!({"name": "vmbr0"}), filtered), None, "{filtered:?}");
    }
}

#[test]
fn targets_over_an_interface_are_reached_by_an_address_of_their_network_from_a_host_with_that_interface() {
    let world = |interface: &str, address: Option<&str>| {
        let vms = [vm("web-1", "h1", "Running", "10.77.0.2"), vm("web-2", "h2", "Running", "10.77.0.3")];
        let mut cache = cache("", &json!([]), &vms);
        let spec = json!({"type": "Bridge", "bridge": {"interface": "eth1"}, "cidr": "10.77.0.0/24",
            "ipv4": {"range": "10.77.0.2-10.77.0.9"}});
        let network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
            "metadata": {"name": "default", "namespace": "ns", "uid": "n", "resourceVersion": "2"}, "spec": spec});
        let now = tokio::time::Instant::now();
        cache.put(serde_json::from_value::<Network>(network).expect("a Network"), now);
        let mut holder = host("h1", false, &json!([]));
        holder.metadata.resource_version = Some("2".into());
        let networks = json!([{"name": interface, "kind": "Interface", "mtu": 1500, "up": true}]);
        let status = holder.status.as_mut().expect("a status");
        status.networks = serde_json::from_value(networks).expect("interfaces");
        (status.address, status.mtu) = (address.map(str::to_owned), Some(1500));
        cache.put(holder, now);
        let found = seen(&cache, &balancer("h1", false));
        let forwarding = found.forwarding_addresses.iter().map(|of| of.address.clone()).collect::<Vec<_>>();
        (found.targets.len(), forwarding, found.ports[0].message.clone())
    };
    assert_eq!(world("eth1", None), (2, vec!["10.77.0.9".to_owned()], String::new()));
    let (_, forwarding, _) = world("eth1", Some("10.77.0.9"));
    assert_eq!(forwarding, ["10.77.0.8"], "the highest one is a host's own");
    let (count, forwarding, message) = world("eth2", None);
    assert_eq!((count, forwarding.len()), (0, 0), "{message}");
    assert!(message.contains("host h1, which has the public address, is not: it has no interface eth1"));
}

#[test]
fn on_a_bridge_connections_are_not_forwarded_from_the_address_of_a_host() {
    let mut cache = cache("", &json!([]), &[]);
    let network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
        "metadata": {"name": "default", "namespace": "ns", "uid": "n", "resourceVersion": "2"},
        "spec": {"type": "Bridge", "bridge": {"interface": "eth1"}, "ipv6CIDR": "2001:db8:7::/64"}});
    let now = tokio::time::Instant::now();
    cache.put(serde_json::from_value::<Network>(network).expect("a Network"), now);
    let found = |cache: &Cache| free_address(cache, "ns/default", true).map(|address| address.to_string());
    let [highest, next] = ["2001:db8:7:0:ffff:ffff:ffff:ffff", "2001:db8:7:0:ffff:ffff:ffff:fffe"];
    assert_eq!(found(&cache).as_deref(), Ok(highest));
    let mut other = host("h2", false, &json!([]));
    other.metadata.resource_version = Some("2".into());
    other.status.as_mut().expect("a status").ipv6_addresses = vec![highest.to_owned()];
    cache.put(other, now);
    assert_eq!(found(&cache).as_deref(), Ok(next));
}

#[test]
fn ipv6_targets_on_a_bridge_are_reached_by_a_host_with_an_address_in_their_prefix() {
    let world = |addresses: &[&str]| {
        let mut target = vm("web-1", "h2", "Running", "");
        target.status.as_mut().expect("a status").interfaces[0].ipv6_address = "2001:db8:7::50".to_owned();
        let mut cache = cache("", &json!([]), &[target]);
        let network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
            "metadata": {"name": "default", "namespace": "ns", "uid": "n", "resourceVersion": "2"},
            "spec": {"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64"}});
        let now = tokio::time::Instant::now();
        cache.put(serde_json::from_value::<Network>(network).expect("a Network"), now);
        let mut holder = host("h1", false, &json!([]));
        holder.metadata.resource_version = Some("2".into());
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        holder.status.as_mut().expect("a status").ipv6_addresses = addresses;
        cache.put(holder, now);
        let found = balancing::observe(&cache, &balancer("h1", false), "2001:db8:9::8".parse().ok());
        let found = found.expect("it has ports");
        assert!(found.forwarding_addresses.is_empty(), "{found:?}");
        (found.targets.len(), found.ports[0].message.clone())
    };
    let (count, message) = world(&["2001:db8:9::1", "2001:db8:7::1"]);
    assert!(count == 1 && !message.contains("web-1"), "{message}");
    for elsewhere in [&[][..], &["2001:db8:9::1"][..]] {
        let (count, message) = world(elsewhere);
        let words = "prefix 2001:db8:7::/64 host h1, which has the public address, has no address: give it one on its bridge vmbr0";
        assert!(count == 0 && message.contains(words), "{message}");
    }
}

#[test]
fn targets_on_a_bridge_are_reached_by_a_host_with_an_address_in_their_network() {
    let world = |segments: &[&str], more: Value| {
        let vms = [vm("web-1", "h1", "Running", "10.77.0.2"), vm("web-2", "h2", "Running", "10.77.0.3")];
        let mut cache = cache("", &json!([]), &vms);
        let mut spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.77.0.0/24"});
        spec.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        let network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
            "metadata": {"name": "default", "namespace": "ns", "uid": "n", "resourceVersion": "2"}, "spec": spec});
        let now = tokio::time::Instant::now();
        cache.put(serde_json::from_value::<Network>(network).expect("a Network"), now);
        let mut holder = host("h1", false, &json!([]));
        holder.metadata.resource_version = Some("2".into());
        let segments = segments.iter().map(|segment| (*segment).to_owned()).collect();
        holder.status.as_mut().expect("a status").segments = segments;
        cache.put(holder, now);
        let found = seen(&cache, &balancer("h1", false));
        assert!(found.forwarding_addresses.is_empty(), "{found:?}");
        (found.targets.len(), found.ports[0].message.clone())
    };
    for reached in [["10.77.0.0/24"], ["10.77.0.0/16"]] {
        assert_eq!(world(&reached, json!({})), (2, String::new()));
    }
    for (segments, more, words) in [
        (&[][..], json!({}), "range 10.77.0.0/24 host h1, which has the public address, has no address"),
        (&["10.78.0.0/24"][..], json!({}), "has no address: give it one on its bridge vmbr0"),
        (&["10.77.0.0/24"][..], json!({"securityGroups": ["web"]}), "has security groups"),
    ] {
        let (count, message) = world(segments, more);
        assert!(count == 0 && message.contains(words), "{words}: {count} {message}");
    }
}
