//! Changes of a list of a VM whose elements come or go.

use tfplugin6::AttributePath;

use crate::{
    change::PlannedChange,
    field::{Effect, Field, declared_power},
    mapping::find_named,
    planning,
};

/// The fields of the elements of a list.
fn elements_of<'a>(change: &PlannedChange<'a>, list: &str) -> &'a [Field] {
    change.fields.iter().find(|field| field.name == list).map_or(&[][..], Field::children)
}

/// The changed attributes that cannot change, of elements that stay in a list of which others come or go: that is one change of the list.
pub(super) fn fixed_in_elements_that_stay(change: &PlannedChange<'_>, list: &str) -> Vec<AttributePath> {
    let path = AttributePath::root(list);
    if !change.changes.iter().any(|change| change.path == path) {
        return Vec::new();
    }
    let (fields, was) = (elements_of(change, list), change.prior.get(list).elements());
    let mut found = Vec::new();
    for (i, is) in change.planned.get(list).elements().iter().enumerate() {
        let Some(was) = find_named(was, is) else { continue };
        let fixed = planning::changes(fields, was, is).into_iter();
        // An unknown value may become the current one.
        let fixed =
            fixed.filter(|change| change.effect == Effect::Fixed && !is.at(&change.path).is_unknown());
        let within = |change: planning::Change| {
            change.path.steps().iter().cloned().fold(path.clone().index(i), AttributePath::step)
        };
        found.extend(fixed.map(within));
    }
    found
}

/// A list of which elements come or go is one change. It waits for the next start if a change of an element that stays does.
pub(super) fn wait_with_elements_that_stay(change: &mut PlannedChange<'_>, list: &str) {
    let fields = elements_of(change, list);
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

    #[test]
    fn an_interface_that_stays_keeps_its_network_when_others_come() {
        let fields = [network_interfaces()];
        let vm = |interfaces: &[(&str, Value)]| {
            let interface = |(name, network): &(&str, Value)| {
                Value::object([("name", Value::from(*name)), ("network", network.clone())])
            };
            let interfaces = Value::List(interfaces.iter().map(interface).collect());
            Value::object([("network_interfaces", interfaces), ("power", Value::from("Running"))])
        };
        let fixed = |network: Value| {
            let prior = vm(&[("a", Value::from("lan"))]);
            let planned = vm(&[("b", Value::from("lan")), ("a", network)]);
            let change = PlannedChange::new(&fields, &prior, &planned, planned.clone(), Private::default());
            let found = fixed_in_elements_that_stay(&change, "network_interfaces");
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(fixed(Value::from("dmz")), ["network_interfaces[1].network"]);
        assert!(fixed(Value::from("lan")).is_empty() && fixed(Value::UNKNOWN).is_empty());
    }
}
