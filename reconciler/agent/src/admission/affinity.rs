//! Rules by labels (`placement.affinity`) that keep VMs from being on one host. Of these a host is certain: both VMs are in its tables.

use std::sync::Arc;

use berth_api::VM;

use crate::key::ObjectName;

/// Returns the required rule, of the VM or of an admitted one here, that keeps the two from being on one host, for people.
pub(super) fn kept_apart(name: &ObjectName, vm: &VM, admitted: &[(&ObjectName, &Arc<VM>)]) -> Option<String> {
    let mut beside = admitted.iter().filter(|(other, _)| other.namespace == name.namespace);
    beside.find_map(|(other_name, other)| {
        let other_name = &other_name.name;
        let own = vm.kept_apart_from(other).map(|rule| {
            format!("its affinity {} keeps it apart from VM {other_name}, which the host has", rule.name)
        });
        own.or_else(|| {
            let rule = &other.kept_apart_from(vm)?.name;
            Some(format!("the host has VM {other_name}, whose affinity {rule} keeps it apart"))
        })
    })
}

#[cfg(test)]
mod tests {
    use berth_api::{HugePages, SizeTaken};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::admission::{Admission, Offer, Reservations};
    use crate::index::Index;

    fn vm(name: &str, labels: &Value, rules: &Value) -> Arc<VM> {
        let object = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels},
            "spec": {"disks": [], "placement": {"affinity": rules}},
        });
        Arc::new(serde_json::from_value(object).expect("a VM"))
    }

    #[test]
    fn a_rule_of_either_of_two_vms_keeps_them_off_one_host() {
        let rules = json!([{"name": "web", "vmSelector": {"app": "web"}}]);
        let (web, apart) = (vm("web-0", &json!({"app": "web"}), &json!([])), vm("apart", &json!({}), &rules));
        let name = |vm: &VM| ObjectName::of(vm);
        let (web_name, apart_name) = (name(&web), name(&apart));
        let other = ObjectName::new("other", "web-0");
        let refusal = kept_apart(&apart_name, &apart, &[(&web_name, &web)]);
        assert_eq!(
            refusal.as_deref(),
            Some("its affinity web keeps it apart from VM web-0, which the host has")
        );
        let refusal = kept_apart(&web_name, &web, &[(&apart_name, &apart)]);
        assert_eq!(refusal.as_deref(), Some("the host has VM apart, whose affinity web keeps it apart"));
        assert_eq!(kept_apart(&apart_name, &apart, &[(&other, &web)]), None, "another namespace");
        assert_eq!(kept_apart(&web_name, &web, &[(&web_name, &web)]), None, "no rule");
    }

    #[test]
    fn of_two_vms_bound_at_once_the_second_is_refused_before_the_status_of_the_first_records_its_admission() {
        let bound = |name: &str, labels: Value, rules: Value| -> VM {
            let object = json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": labels},
                "spec": {"cpus": 1, "memory": "1Gi", "disks": [], "placement": {"affinity": rules}},
                "status": {"binding": {"host": "h", "epoch": 1}},
            });
            serde_json::from_value(object).expect("a VM")
        };
        let rules = json!([{"name": "web", "vmSelector": {"app": "web"}}]);
        let (web, apart) =
            (bound("web-0", json!({"app": "web"}), json!([])), bound("apart", json!({}), rules));
        let offer = || Offer {
            host: "h".to_owned(),
            capacity: SizeTaken::of(8, 8 << 30, HugePages::None),
            reservable: 8000,
            overhead: 0,
            group: None,
            has_claims: false,
            outdated: false,
        };
        for (first, second) in [(&web, &apart), (&apart, &web)] {
            let (index, reservations) = (Index::default(), Reservations::default());
            index.apply(Event::Apply(web.clone()));
            index.apply(Event::Apply(apart.clone()));
            let judged = |vm: &VM| reservations.judge(&index.read(), vm, offer());
            assert!(matches!(judged(second), Admission::Fits(_)), "nothing is there yet");
            reservations.reserve(&index.read(), first, &offer());
            assert_eq!(judged(first), Admission::Granted);
            reservations.reserve(&index.read(), second, &offer());
            let refused = judged(second);
            assert!(matches!(&refused, Admission::Refused(why) if why.contains("apart")), "{refused:?}");
        }
    }
}
