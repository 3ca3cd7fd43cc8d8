//! Decisions for given inputs.

use std::net::Ipv4Addr;

use berth_api::{ConditionType, IPPool, PublicIP, PublicIPStatus, Reason, condition};
use k8s_openapi::jiff::Timestamp;

use super::{
    Decision,
    observe::{Conflict, pick},
    status::status,
};

use berth_api::IPPoolSpec;

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
    let taken = ["192.0.2.8".parse::<Ipv4Addr>().expect("an address")];
    assert_eq!(pick(&pool, None, |a| !taken.contains(&a)), Ok("192.0.2.9".parse().expect("an address")));
    assert_eq!(pick(&pool, None, |a| a.octets()[0] != 192), Ok("198.51.100.7".parse().expect("an address")));
}

#[test]
fn the_ends_of_a_range_are_given_out_only_where_the_pool_says_so() {
    let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
    let mut pool = pool(&["198.51.100.0/29", "203.0.113.8/31", "203.0.113.99/32"]);
    assert_eq!(pick(&pool, None, |_| true), Ok(address("198.51.100.1")));
    let taken = |last: u8| move |a: Ipv4Addr| a > Ipv4Addr::new(198, 51, 100, last);
    assert_eq!(pick(&pool, None, taken(5)), Ok(address("198.51.100.6")));
    assert_eq!(pick(&pool, None, taken(6)), Ok(address("203.0.113.8")), "the last of the range is left out");
    assert_eq!(pick(&pool, None, |a| a.octets()[3] > 9), Ok(address("203.0.113.99")));
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
    assert!(pick(&pool, Some("999.1.1.1"), |_| true).unwrap_err().1.contains("no IPv4 address"));
}
