//! The translation of public addresses to those of guests and back, the same for both families. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::{ROUTED, TABLE, compare, meta, rule};
use crate::Forward;

/// The words of nftables for a family, and the names of its maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    protocol: &'static str,
    kind: &'static str,
    forwards: &'static str,
    sources: &'static str,
    is_ipv6: bool,
}

pub(super) const IPV4: Family =
    Family { protocol: "ip", kind: "ipv4_addr", forwards: "forwards", sources: "sources", is_ipv6: false };
pub(super) const IPV6: Family =
    Family { protocol: "ip6", kind: "ipv6_addr", forwards: "forwards6", sources: "sources6", is_ipv6: true };

impl Family {
    fn is_of(self, address: IpAddr) -> bool {
        address.is_ipv6() == self.is_ipv6
    }

    fn field(self, name: &str) -> Value {
        json!({"payload": {"protocol": self.protocol, "field": name}})
    }

    fn map(self, name: &str, elements: Vec<Value>) -> Value {
        let mut map = json!({"family": ROUTED.family, "table": TABLE, "name": name, "type": self.kind, "map": self.kind});
        if !elements.is_empty() {
            map["elem"] = elements.into();
        }
        json!({"add": {"map": map}})
    }

    /// Returns the address that a map has for this field, as the new one.
    fn translated(self, kind: &str, field: &str, map: &str) -> Value {
        json!({kind: {"family": self.protocol, "addr":
            {"map": {"key": self.field(field), "data": format!("@{map}")}}}})
    }
}

/// The families whose maps and rules a host has: a host without public IPv6 addresses has none of IPv6.
fn families(forwards: &[Forward]) -> Vec<Family> {
    let has_ipv6 = forwards.iter().any(|forward| forward.public.is_ipv6());
    if has_ipv6 { vec![IPV4, IPV6] } else { vec![IPV4] }
}

/// The maps of public addresses to private ones, and back.
pub(super) fn maps(forwards: &[Forward]) -> Vec<Value> {
    let of_family = |family: Family| {
        let its = || forwards.iter().filter(move |f| family.is_of(f.public) && family.is_of(f.private));
        let mut announced: Vec<&Forward> = its().filter(|f| f.announced_on.is_some()).collect();
        // A guest with several addresses sends from the first.
        announced.sort_by_key(|f| (f.private, f.public));
        announced.dedup_by_key(|f| f.private);
        let to = its().map(|f| json!([f.public, f.private])).collect();
        let from = announced.iter().map(|f| json!([f.private, f.public])).collect();
        [family.map(family.forwards, to), family.map(family.sources, from)]
    };
    families(forwards).into_iter().flat_map(of_family).collect()
}

/// Rules of the chains `prerouting` and `output`: to the guest that the address leads to.
pub(super) fn to_private(forwards: &[Forward]) -> Vec<Value> {
    let of_family = |family: Family| {
        let translated = || family.translated("dnat", "daddr", family.forwards);
        ["prerouting", "output"].map(|chain| rule(chain, vec![translated()]))
    };
    families(forwards).into_iter().flat_map(of_family).collect()
}

/// Rules of the chain `postrouting`: packets of guests with an announced address leave under it by the interface that it is announced on.
pub(super) fn under_their_own(family: Family, range: IpNet, forwards: &[Forward]) -> Vec<Value> {
    let of_family = forwards.iter().filter(|f| family.is_of(f.public));
    let mut uplinks: Vec<&String> = of_family.filter_map(|f| f.announced_on.as_ref()).collect();
    uplinks.sort();
    uplinks.dedup();
    let prefix = || json!({"prefix": {"addr": range.network(), "len": range.prefix_len()}});
    let of_uplink = |uplink: &String| {
        let from = compare("==", family.field("saddr"), prefix());
        let elsewhere = compare("!=", family.field("daddr"), prefix());
        let by_it = compare("==", meta("oifname"), json!(uplink));
        let under_its_own = family.translated("snat", "saddr", family.sources);
        rule("postrouting", vec![from, elsewhere, by_it, under_its_own])
    };
    uplinks.into_iter().map(of_uplink).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(public: &str, private: &str, announced_on: Option<&str>) -> Forward {
        Forward {
            public: public.parse().expect("an address"),
            private: private.parse().expect("an address"),
            announced_on: announced_on.map(str::to_owned),
        }
    }

    #[test]
    fn a_host_without_public_ipv6_addresses_has_the_maps_and_rules_of_ipv4_only() {
        let forwards = [forward("198.51.100.7", "10.77.0.2", Some("eth0"))];
        let names: Vec<Value> = maps(&forwards).iter().map(|map| map["add"]["map"]["name"].clone()).collect();
        assert_eq!(names, ["forwards", "sources"]);
        assert_eq!((maps(&[]).len(), to_private(&forwards).len()), (2, 2));
        let range = "fd00:60::/64".parse().expect("a range");
        assert!(under_their_own(IPV6, range, &forwards).is_empty());
    }

    #[test]
    fn an_ipv6_address_leads_to_the_guest_by_maps_of_its_own() {
        let forwards = [
            forward("198.51.100.7", "10.77.0.2", Some("eth0")),
            forward("2001:db8::7", "fd00:60::2", Some("eth0")),
            forward("2001:db8::8", "fd00:60::2", Some("eth0")),
        ];
        let found = maps(&forwards);
        let elements = |index: usize| found[index]["add"]["map"]["elem"].clone();
        assert_eq!(elements(0), json!([["198.51.100.7", "10.77.0.2"]]));
        assert_eq!(elements(2), json!([["2001:db8::7", "fd00:60::2"], ["2001:db8::8", "fd00:60::2"]]));
        assert_eq!(elements(3), json!([["fd00:60::2", "2001:db8::7"]]), "it sends from the first");
        let rules = to_private(&forwards);
        let dnat = &rules[2]["add"]["rule"]["expr"][0]["dnat"];
        assert_eq!((&dnat["family"], &dnat["addr"]["map"]["data"]), (&json!("ip6"), &json!("@forwards6")));
        let range = "fd00:60::/64".parse().expect("a range");
        let leaving = under_their_own(IPV6, range, &forwards);
        assert_eq!(leaving.len(), 1, "one interface");
        assert_eq!(leaving[0]["add"]["rule"]["expr"][3]["snat"]["addr"]["map"]["data"], "@sources6");
    }
}
