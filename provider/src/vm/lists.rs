//! Changes of a list of a VM whose elements come or go.

use tfplugin6::AttributePath;

use crate::{
    change::PlannedChange,
    field::{Effect, Field, declared_power},
    mapping::find_named,
    planning,
};

/// A list of which elements come or go is one change. It waits for the next start if a change of an element that stays does.
pub(super) fn wait_with_elements_that_stay(change: &mut PlannedChange<'_>, list: &str) {
    let fields = change.fields.iter().find(|field| field.name == list).map_or(&[][..], Field::children);
    let (was, is) = (change.prior.get(list).elements(), change.planned.get(list).elements());
    let waits =
        is.iter().filter_map(|element| Some((find_named(was, element)?, element))).any(|(was, is)| {
            planning::changes(fields, was, is).iter().any(|change| change.effect == Effect::PowerCycle)
        });
    let path = AttributePath::root(list);
    let effect = Effect::PowerCycle.with_power(declared_power(change.prior));
    for change in change.changes.iter_mut().filter(|change| waits && change.path == path) {
        change.effect = effect;
    }
}

#[cfg(test)]
mod tests {
    use tfplugin6::Value;

    use super::*;
    use crate::{private::Private, vm::interfaces::network_interfaces};

    #[test]
    fn a_change_that_waits_does_so_beside_an_interface_that_comes() {
        let fields = [network_interfaces()];
        let vm = |interfaces: &[(&str, Value)]| {
            let interface = |(name, mtu): &(&str, Value)| {
                Value::object([
                    ("name", Value::from(*name)),
                    ("mtu", mtu.clone()),
                    ("link", Value::from("Up")),
                ])
            };
            let interfaces = Value::List(interfaces.iter().map(interface).collect());
            Value::object([("network_interfaces", interfaces), ("power", Value::from("Running"))])
        };
        let effect = |mtu: Value| {
            let (prior, planned) = (vm(&[("a", Value::Null)]), vm(&[("b", Value::Null), ("a", mtu)]));
            let mut change =
                PlannedChange::new(&fields, &prior, &planned, planned.clone(), Private::default());
            wait_with_elements_that_stay(&mut change, "network_interfaces");
            change.changes.into_iter().map(|change| change.effect).collect::<Vec<_>>()
        };
        assert_eq!(effect(Value::from(1400)), [Effect::PowerCycle]);
        assert_eq!(effect(Value::Null), [Effect::Live], "nothing else changes");
    }
}
