//! Rules about the hosts of other VMs, which are selected by their labels.

use std::collections::BTreeMap;

use kube::{KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::{Enforcement, ResourceName, Strategy, VM};

/// A rule that keeps a VM apart from other VMs of its namespace, or together with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMAffinity {
    /// Name of the rule within the VM, the key of the list, for example `web`.
    pub name: ResourceName,
    /// Labels of the other VMs, all of which one must have, at least one label. Only VMs of the same namespace count, those that are
    /// stopped included.
    #[schemars(transform = crate::labels::some_labels)]
    pub vm_selector: BTreeMap<String, String>,
    /// `spread` (default): the VM shares no `topologyKey` value with a VM that the rule selects. `pack`: it shares one with such a VM; while
    /// none has a host, a VM that has the labels itself may be anywhere, and any other waits.
    #[serde(default)]
    pub strategy: Strategy,
    /// `required` (default): a VM that cannot be placed according to the rule stays unscheduled, and with `spread` no VM that the rule selects
    /// is placed beside this one either. `preferred`: it is placed anyway, as close to the rule as possible.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The Host label that must differ (`spread`) or be the same (`pack`). Default `kubernetes.io/hostname`: the host itself.
    #[serde(default = "crate::placement_group::default_topology_key")]
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub topology_key: String,
}

impl VMAffinity {
    /// Whether it selects VMs with these labels. An empty selector, which admission refuses, selects none.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.vm_selector.is_empty()
            && self.vm_selector.iter().all(|(label, value)| labels.get(label) == Some(value))
    }

    /// Whether no selected VM may be beside the VM: on its host, whatever the topology key.
    pub fn requires_apart(&self) -> bool {
        self.strategy == Strategy::Spread && self.enforcement == Enforcement::Required
    }
}

impl VM {
    /// Returns its rules about other VMs.
    pub fn affinity(&self) -> &[VMAffinity] {
        self.spec.placement.as_ref().map(|placement| placement.affinity.as_slice()).unwrap_or_default()
    }

    /// Returns its rule that keeps it from being on one host with another VM of its namespace.
    pub fn kept_apart_from(&self, other: &Self) -> Option<&VMAffinity> {
        self.affinity().iter().find(|rule| rule.requires_apart() && rule.selects(other.labels()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::placement_group::HOSTNAME_LABEL;

    fn vm(labels: serde_json::Value, rules: serde_json::Value) -> VM {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns", "labels": labels},
            "spec": {"disks": [], "placement": {"affinity": rules}},
        }))
        .expect("a VM")
    }

    #[test]
    fn a_rule_selects_vms_with_all_of_its_labels_and_spreads_over_hosts_by_default() {
        let rule = json!([{"name": "web", "vmSelector": {"app": "web", "tier": "front"}}]);
        let web = vm(json!({"app": "web", "tier": "front", "more": "x"}), json!([]));
        let other = vm(json!({"app": "web"}), json!([]));
        let apart = vm(json!({}), rule);
        let [rule] = apart.affinity() else { panic!("{:?}", apart.affinity()) };
        assert_eq!((rule.strategy, rule.topology_key.as_str()), (Strategy::Spread, HOSTNAME_LABEL));
        assert_eq!(apart.kept_apart_from(&web), Some(rule));
        assert_eq!(apart.kept_apart_from(&other), None);
        assert_eq!(web.kept_apart_from(&apart), None, "the other one has no rule");
        assert!(!VMAffinity::default().selects(web.labels()), "an empty selector");
    }

    #[test]
    fn only_a_required_spread_rule_keeps_vms_off_one_host() {
        let web = vm(json!({"app": "web"}), json!([]));
        for (strategy, enforcement, expected) in
            [("spread", "required", true), ("spread", "preferred", false), ("pack", "required", false)]
        {
            let rule = json!({"name": "web", "vmSelector": {"app": "web"}, "strategy": strategy,
                "enforcement": enforcement, "topologyKey": "rack"});
            let apart = vm(json!({}), json!([rule]));
            assert_eq!(apart.kept_apart_from(&web).is_some(), expected, "{strategy} {enforcement}");
        }
    }
}
