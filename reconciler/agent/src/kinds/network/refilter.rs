//! The packet filters after a change of a security group.
//!
//! A group's change concerns all hosts with members at once, and on each neither bridges nor taps nor leases. The rules in force are
//! written again with its new rules and members; nothing else is observed or planned.

use std::sync::Arc;

use berth_host::{Filters, Firewall};

use super::{Step, apply, filters};
use crate::context::Context;
use crate::converge::Requeue;
use crate::error::Error;
use crate::index::Index;
use crate::key::Key;

/// Puts the groups in force as they are now.
///
/// *Guarantees:* the filtered interfaces, and the names of their groups, stay those of the rules in force. Every other change has its
/// own reconcile of the networks.
pub(crate) async fn refilter(ctx: &Context) -> Result<Requeue, Error> {
    ctx.networks.flight.beside(pass(ctx)).await
}

async fn pass(ctx: &Context) -> Result<Requeue, Error> {
    let in_force = ctx.networks.applied().rules_in_force();
    let Some(in_force) = in_force else {
        // A pass over all networks writes all rules.
        ctx.enqueue(Key::networks());
        return Ok(Requeue::OnChange);
    };
    if let Some(now) = changed(&ctx.index, &in_force.filters) {
        let rules = Firewall { filters: Arc::new(now), ..Firewall::clone(&in_force) };
        let step = Step::ApplyFirewall(Arc::new(rules));
        tracing::info!(%step, "applying the changed security groups");
        apply::apply(ctx, &step).await?;
    }
    Ok(Requeue::OnChange)
}

/// Returns the filters of the same interfaces with the groups as they are now, if they differ. The groups are recorded while the tables
/// are locked: of one that changes afterwards, it is known that it concerns this host.
fn changed(index: &Index, in_force: &Filters) -> Option<Filters> {
    let mut tables = index.read();
    let now = filters::of_ports(&tables, in_force.ports.clone());
    // Those of a pass that failed stay recorded.
    if let Some(filtering) = &mut tables.filtering_groups {
        filtering.extend(filters::groups_in(&now));
    }
    (now != *in_force).then_some(now)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use berth_api::SecurityGroup;
    use berth_host::{FilteredPort, Port};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    fn apply(index: &Index, (name, version): (&str, u32), spec: &Value, addresses: &[&str]) {
        let group = json!({
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": version.to_string()}, "spec": spec,
            "status": {"observedGeneration": 1, "addresses": addresses},
        });
        index.apply::<SecurityGroup>(Event::Apply(serde_json::from_value(group).expect("a SecurityGroup")));
    }

    fn filtered() -> FilteredPort {
        let tap = "btt01234567n0".to_owned();
        let mac = "52:54:00:00:00:02".to_owned();
        let port = Port { tap, mac, address: Some(Ipv4Addr::new(10, 0, 0, 2)), ipv6: None };
        FilteredPort { port, groups: vec!["ns/web".to_owned()], asks_dhcp: false, prefixes: Vec::new() }
    }

    #[test]
    fn rules_and_members_follow_the_groups_and_the_filtered_interfaces_stay() {
        let index = Index::default();
        let rules = |names: &[&str]| {
            let rule = |name: &&str| json!({"name": name, "securityGroups": ["db"]});
            json!({"ingress": names.iter().map(rule).collect::<Vec<_>>()})
        };
        // Its group does not exist: it lets nothing pass.
        let before = Filters { ports: vec![filtered()], ..Filters::default() };
        assert_eq!(changed(&index, &before), None);
        apply(&index, ("web", 1), &rules(&["a"]), &[]);
        let made = changed(&index, &before).expect("the group exists");
        assert_eq!((&made.ports, made.groups[0].ingress.len()), (&before.ports, 1));
        assert!(made.sets["ns/db"].is_empty());
        apply(&index, ("db", 2), &json!({}), &["10.0.0.7-10.0.0.8"]);
        let joined = changed(&index, &made).expect("the members are others");
        assert_eq!(joined.sets["ns/db"], [(Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 8))]);
        assert_eq!(changed(&index, &joined), None);
        apply(&index, ("web", 3), &rules(&["a", "b"]), &[]);
        let more = changed(&index, &joined).expect("there is another rule");
        assert_eq!((more.groups[0].ingress.len(), &more.sets), (2, &joined.sets));
        apply(&index, ("other", 4), &rules(&["a"]), &["10.0.0.9"]);
        assert_eq!(changed(&index, &more), None, "no interface here has it");
    }

    #[test]
    fn a_group_that_a_new_rule_names_concerns_this_host_from_then_on() {
        let index = Index::default();
        let in_force = Filters { ports: vec![filtered()], ..Filters::default() };
        let naming = json!({"ingress": [{"name": "a", "securityGroups": ["db"]}]});
        apply(&index, ("web", 1), &naming, &[]);
        assert!(changed(&index, &in_force).is_some());
        assert_eq!(index.read().filtering_groups, None, "until a pass records some, every group concerns it");
        index.read().filtering_groups = Some(BTreeSet::from(["ns/kept".to_owned()]));
        assert!(changed(&index, &in_force).is_some());
        let expected = BTreeSet::from(["ns/db", "ns/kept", "ns/web"].map(str::to_owned));
        assert_eq!(index.read().filtering_groups, Some(expected));
    }
}
