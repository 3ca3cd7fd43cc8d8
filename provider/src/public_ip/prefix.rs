//! `prefix_length` of `berth_public_ip`, and the prefix that is allocated.

use std::net::IpAddr;

use ipnet::Ipv6Net;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::field::Field;

const LENGTH: &str = "prefix_length";

/// The field with the allocated prefix.
pub(super) fn field() -> Field {
    let text = "The IPv6 prefix, with `prefix_length`, such as `2001:db8:0:8:1::/80`. Allocated once and kept. The guest gets no address \
                of it by itself: pass it on, for example in `user_data` as the range of a bridge for containers.";
    Field::observed("prefix", "/status/prefix", text)
}

/// Checks the attributes that a prefix excludes, and its address. The limits of the length are those of the schema.
pub(super) fn check(config: &Value) -> Option<Diagnostic> {
    let path = AttributePath::root(LENGTH);
    let length = config.get(LENGTH).as_i64().and_then(|length| u8::try_from(length).ok())?;
    if !config.get("ports").elements().is_empty() {
        let detail = format!(
            "{path}: a prefix leads to one VM as a whole, which names it in `public_ipv6` of a network interface. Declare `ports` of another \
             berth_public_ip."
        );
        return Some(Diagnostic::error("A prefix has no ports", detail).at(path));
    }
    let address = config.get("address").as_str()?;
    let is_first = |first: IpAddr| match first {
        IpAddr::V4(_) => false,
        IpAddr::V6(first) => Ipv6Net::new(first, length).is_ok_and(|prefix| prefix.network() == first),
    };
    if address.parse().is_ok_and(is_first) {
        return None;
    }
    let path = AttributePath::root("address");
    let detail = format!(
        "{path}: {address:?} is not the first IPv6 address of a prefix of {length} bits, such as \"2001:db8:0:8:1::\" of one of 80. Leave \
         it out for the lowest free prefix."
    );
    Some(Diagnostic::error("Not a prefix", detail).at(path))
}

/// Returns why a pool has no prefix of this length, if that is known.
pub(super) fn unsuitable(pool: &str, found: &Json, length: Option<i64>) -> Option<Diagnostic> {
    let path = AttributePath::root(LENGTH);
    let first = found.pointer("/spec/cidrs/0").and_then(Json::as_str).unwrap_or_default();
    let least = found.pointer("/spec/minPrefixLength").and_then(Json::as_i64);
    let too_short = length.zip(least).filter(|(length, least)| length < least);
    let detail = if !first.is_empty() && !first.contains(':') {
        format!("{path}: IPPool {pool} has IPv4 addresses. Name a pool with IPv6 addresses in `pool`.")
    } else if found.pointer("/spec/mode").and_then(Json::as_str) == Some("l2") {
        format!(
            "{path}: IPPool {pool} has the mode l2, in which hosts answer neighbour solicitations for single addresses only. Name a pool \
             with the mode local in `pool`, whose ranges are routed to the hosts."
        )
    } else if let Some((length, least)) = too_short {
        format!(
            "{path}: {length} is less than {least}, the `min_prefix_length` of IPPool {pool}. Take a smaller prefix, of {least} bits or \
             more, or name another pool in `pool`."
        )
    } else {
        return None;
    };
    Some(Diagnostic::error("The pool has no such prefix", detail).at(path))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pool_of_another_family_or_one_that_is_announced_has_no_prefixes() {
        let refused = |mode: &str, cidr: &str| {
            unsuitable("p", &json!({"spec": {"mode": mode, "cidrs": [cidr]}}), Some(64))
                .map(|found| format!("{found:?}"))
        };
        assert!(refused("local", "192.0.2.0/24").is_some_and(|text| text.contains("has IPv4 addresses")));
        assert!(refused("l2", "2001:db8::/64").is_some_and(|text| text.contains("has the mode l2")));
        assert_eq!(refused("local", "2001:db8::/64"), None);
    }

    #[test]
    fn a_prefix_that_is_larger_than_the_pool_allows_is_refused() {
        let pool = json!({"spec": {"mode": "local", "cidrs": ["2001:db8::/64"], "minPrefixLength": 80}});
        let refused = |length| unsuitable("p", &pool, length).map(|found| format!("{found:?}"));
        let text = refused(Some(79)).expect("it is larger");
        assert!(text.contains("79 is less than 80, the `min_prefix_length` of IPPool p"), "{text}");
        assert!(refused(Some(80)).is_none() && refused(None).is_none(), "or its length is not known yet");
    }
}
