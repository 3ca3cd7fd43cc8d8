//! Packets between guests that types of ICMP or isolation decide.

use std::sync::Arc;

use super::*;
use crate::Isolation;

impl Case {
    pub(super) fn filters(&mut self) -> &mut Filters {
        Arc::make_mut(&mut self.firewall.filters)
    }
}

#[test]
fn a_rule_with_types_of_icmp_passes_those_queries_only() {
    let mut case = Case::of(3);
    case.filters().groups[0].ingress[2].icmp_types = vec![8];
    let echo = case.sent("10.77.0.2", PING);
    assert!(matches!(echo.end, TraceEnd::Guest { .. }), "{echo:?}");
    case.icmp_type = Some(13);
    let other = case.sent("10.77.0.2", PING);
    assert_eq!(
        (other.end.clone(), last(&other).0),
        (TraceEnd::Dropped, "security groups, ingress"),
        "{other:?}"
    );
    case.filters().groups[0].ingress[2].icmp_types = vec![8, 13];
    let named = case.sent("10.77.0.2", PING);
    assert!(matches!(named.end, TraceEnd::Guest { .. }), "{named:?}");
}

#[test]
fn guests_of_an_isolated_network_do_not_reach_each_other_by_any_way() {
    let mut case = Case::of(3);
    case.filters().ports.clear();
    let isolated = Isolation { bridge: Some(BRIDGE.into()), taps: vec![tap(3), tap(4)], relays: Vec::new() };
    case.firewall.isolated = vec![isolated];
    for to in ["10.77.0.4", "fd00:60::4"] {
        let trace = case.sent(to, tcp(80));
        assert_eq!((trace.end.clone(), last(&trace).0), (TraceEnd::Dropped, "isolation"), "{to}: {trace:?}");
    }
    let hidden = case.sent("10.77.0.200", tcp(80));
    assert_eq!(
        (hidden.end.clone(), last(&hidden).0),
        (TraceEnd::Dropped, "isolation"),
        "by the tunnel: {hidden:?}"
    );
}
