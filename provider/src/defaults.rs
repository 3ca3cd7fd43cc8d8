//! The defaults of the `provider` block: the pool of disks and the network of interfaces that name none, and the hosts of VMs that
//! declare no placement. Disks, interfaces and VMs that exist keep their own.
//!
//! Pure. Another default must not move the disks, interfaces and VMs that exist.

use std::collections::BTreeMap;

use tfplugin6::Value;

use crate::{
    disk::{CURRENT_POOL, chooses_pool},
    field::{Field, Presence, Shape},
    mapping::find_named,
    planning::named_element,
    references::{NETWORK, Reference, STORAGE_POOL},
};

/// The attribute of a VM that has the `host_selector` of the provider by default.
pub const PLACEMENT: &str = "placement";

/// The defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    /// The StoragePool of new disks that name none. None: `default`.
    pub pool: Option<String>,
    /// The Network of new interfaces that name none. None: `default`.
    pub network: Option<String>,
    /// The labels that a Host must have for new VMs that declare no placement.
    pub host_selector: BTreeMap<String, String>,
}

impl Defaults {
    /// Returns the configuration with the values that it leaves out.
    ///
    /// `keeps_placement`: whether a VM that exists, and declares no placement, keeps the one that it has.
    #[must_use]
    pub fn filled(&self, fields: &[Field], prior: &Value, config: &Value, keeps_placement: bool) -> Value {
        let mut filled = config.clone();
        self.fill(fields, prior, &mut filled);
        if has_placement(fields) && filled.get(PLACEMENT).is_null() {
            let placement = if prior.is_null() {
                self.placement()
            } else if keeps_placement {
                prior.get(PLACEMENT).clone()
            } else {
                Value::Null
            };
            filled.set(PLACEMENT, placement);
        }
        filled
    }

    fn placement(&self) -> Value {
        if self.host_selector.is_empty() {
            return Value::Null;
        }
        let labels = self.host_selector.iter();
        let labels = Value::object(labels.map(|(key, value)| (key.clone(), Value::from(value.clone()))));
        Value::object([("host_selector", labels)])
    }

    /// The name of the object that a field names by default.
    fn name(&self, reference: Option<Reference>) -> Option<&str> {
        match reference {
            Some(STORAGE_POOL) => self.pool.as_deref(),
            Some(NETWORK) => self.network.as_deref(),
            _ => None,
        }
    }

    fn fill(&self, fields: &[Field], prior: &Value, config: &mut Value) {
        for field in fields {
            let was = prior.get(field.name);
            let is_left_out = config.as_map().is_some() && config.get(field.name).is_null();
            let is_pool = field.refers == Some(STORAGE_POOL);
            match &field.shape {
                // The scheduler chooses it.
                Shape::Text(_) if is_pool && chooses_pool(config) => {}
                Shape::Text(_) if [Some(STORAGE_POOL), Some(NETWORK)].contains(&field.refers) => {
                    // One that was chosen stays, as one that was declared does.
                    let chosen = prior.get(CURRENT_POOL).as_str().filter(|_| is_pool && chooses_pool(prior));
                    let was = chosen.or(was.as_str());
                    let name = was.or_else(|| self.name(field.refers)).map(Value::from);
                    if let Some(name) = name.filter(|_| is_left_out) {
                        config.set(field.name, name);
                    }
                }
                Shape::Object(fields) => {
                    if let Some(object) = config.get_mut(field.name) {
                        self.fill(fields, was, object);
                    }
                }
                Shape::Keyed(fields) => {
                    // The elements of a default have defaults too: the one interface of a VM that declares none.
                    if let Presence::Default(elements) = &field.presence
                        && is_left_out
                    {
                        config.set(field.name, elements.clone());
                    }
                    if let Some(Value::List(elements)) = config.get_mut(field.name) {
                        for (i, element) in elements.iter_mut().enumerate() {
                            let named = named_element(fields, element, i);
                            let was = find_named(was.elements(), &named).unwrap_or(&Value::Null);
                            self.fill(fields, was, element);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// Whether the `host_selector` of the provider is the default of the placement of objects with these fields. That of a Disk has
/// no default.
#[must_use]
pub fn has_placement(fields: &[Field]) -> bool {
    fields.iter().any(|field| field.name == PLACEMENT && field.presence == Presence::Filled)
}

/// The labels in a text such as `zone=a,disk=ssd`. None if it is no such text, or has a key twice.
#[must_use]
pub fn labels(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for label in text.split(',') {
        let (key, value) = label.split_once('=')?;
        if labels.insert(key.trim().to_owned(), value.trim().to_owned()).is_some() {
            return None;
        }
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use crate::{disk::Disk, kind::ResourceKind, vm::Vm};

    use super::*;

    fn text(value: &str) -> Value {
        Value::from(value)
    }

    fn pool(name: Option<&str>) -> Defaults {
        Defaults { pool: name.map(str::to_owned), ..Defaults::default() }
    }

    #[test]
    fn a_disk_that_names_no_pool_is_in_that_of_the_provider_and_stays_where_it_is() {
        let fields = Disk.fields();
        let unnamed = Value::object([("name", text("d")), ("pool", Value::Null)]);
        let pool_of = |prior: &Value, config: &Value, default| {
            pool(default).filled(&fields, prior, config, false).get("pool").as_str().map(str::to_owned)
        };
        assert_eq!(pool_of(&Value::Null, &unnamed, Some("fast")).as_deref(), Some("fast"));
        assert_eq!(pool_of(&Value::Null, &unnamed, None), None, "the default of the attribute");
        let named = Value::object([("pool", text("slow"))]);
        assert_eq!(pool_of(&Value::Null, &named, Some("fast")).as_deref(), Some("slow"));
        assert_eq!(pool_of(&named, &unnamed, Some("fast")).as_deref(), Some("slow"), "it would be moved");
    }

    #[test]
    fn a_disk_whose_pool_is_chosen_has_no_default_and_keeps_the_chosen_one() {
        let fields = Disk.fields();
        let choice =
            Value::object([("pools", Value::List(vec![text("a"), text("b")])), ("pool", Value::Null)]);
        let filled = |prior: &Value, config: &Value| {
            pool(Some("fast")).filled(&fields, prior, config, false).get("pool").clone()
        };
        assert_eq!(filled(&Value::Null, &choice), Value::Null);
        let was = Value::object([("pool", text("slow"))]);
        assert_eq!(filled(&was, &choice), Value::Null, "it stays where it is nevertheless");
        let mut chosen = choice.clone();
        chosen.set("pool", text("default"));
        chosen.set(CURRENT_POOL, text("b"));
        let unnamed = Value::object([("pools", Value::Null), ("pool", Value::Null)]);
        assert_eq!(filled(&chosen, &unnamed), text("b"), "it would be moved");
    }

    #[test]
    fn the_templates_of_a_vm_have_the_pool_too() {
        let fields = Vm.fields();
        let disk = |pool: Value| {
            let template = Value::object([("size", text("1Gi")), ("pool", pool)]);
            Value::object([("name", text("root")), ("template", template)])
        };
        let vm = |disk: Value| Value::object([("disks", Value::List(vec![disk]))]);
        let fill = |prior: &Value, config: &Value| pool(Some("fast")).filled(&fields, prior, config, false);
        let pool_of =
            |vm: &Value| vm.get("disks").index(0).get("template").get("pool").as_str().map(str::to_owned);
        let unnamed = vm(disk(Value::Null));
        assert_eq!(pool_of(&fill(&Value::Null, &unnamed)).as_deref(), Some("fast"));
        assert_eq!(pool_of(&fill(&vm(disk(text("slow"))), &unnamed)).as_deref(), Some("slow"));
        let without = vm(Value::object([("name", text("root")), ("template", Value::Null)]));
        let filled = fill(&Value::Null, &without);
        assert_eq!(filled.get("disks"), without.get("disks"), "it is a Disk of its own");
    }

    #[test]
    fn an_interface_that_names_no_network_is_in_that_of_the_provider_and_stays_where_it_is() {
        let fields = Vm.fields();
        let defaults = Defaults { network: Some("lan".to_owned()), ..Defaults::default() };
        let vm = |interfaces: Vec<Value>| Value::object([("network_interfaces", Value::List(interfaces))]);
        let networks = |prior: &Value, config: &Value| -> Vec<Option<String>> {
            let filled = defaults.filled(&fields, prior, config, false);
            let interfaces = filled.get("network_interfaces").elements().iter();
            interfaces.map(|interface| interface.get("network").as_str().map(str::to_owned)).collect()
        };
        let unnamed = || Value::object([("name", Value::Null), ("network", Value::Null)]);
        let of =
            |name: &str, network: &str| Value::object([("name", text(name)), ("network", text(network))]);
        let some = |name: &str| Some(name.to_owned());
        let none = Value::object([("network_interfaces", Value::Null)]);
        assert_eq!(networks(&Value::Null, &none), [some("lan")], "the interface of a VM without any");
        assert_eq!(networks(&Value::Null, &vm(vec![unnamed(), of("a", "dmz")])), [some("lan"), some("dmz")]);
        let prior = vm(vec![of("nic0", "default")]);
        assert_eq!(networks(&prior, &none), [some("default")]);
        let two = vm(vec![unnamed(), unnamed()]);
        assert_eq!(networks(&prior, &two), [some("default"), some("lan")], "by the name of its position");
        assert_eq!(networks(&Value::Null, &vm(vec![Value::UNKNOWN])), [None::<String>]);
    }

    #[test]
    fn only_a_new_vm_without_a_placement_has_the_selector_of_the_provider() {
        let fields = Vm.fields();
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let defaults = Defaults { host_selector: labels, ..Defaults::default() };
        let of = |placement: Value| Value::object([("placement", placement)]);
        let placement = |prior: &Value, config: Value, keeps| {
            defaults.filled(&fields, prior, &of(config), keeps).get("placement").clone()
        };
        let selects = |zone: &str| Value::object([("host_selector", Value::object([("zone", text(zone))]))]);
        assert_eq!(placement(&Value::Null, Value::Null, false), selects("a"));
        let empty = Value::Map(BTreeMap::new());
        assert_eq!(placement(&Value::Null, empty.clone(), false), empty, "it declares that there is none");
        assert_eq!(placement(&of(Value::Null), Value::Null, true), Value::Null, "it exists");
        assert_eq!(placement(&of(selects("b")), Value::Null, true), selects("b"));
        assert_eq!(placement(&of(selects("b")), Value::Null, false), Value::Null, "it was declared");
        assert!(!has_placement(&Disk.fields()));
    }

    #[test]
    fn labels_are_read_from_a_text() {
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(labels("zone=a, disk=ssd"), Some(of(&[("zone", "a"), ("disk", "ssd")])));
        assert_eq!(labels("zone="), Some(of(&[("zone", "")])));
        assert_eq!(labels("zone"), None);
        assert_eq!(labels("zone=a,"), None);
        assert_eq!(labels("zone=a,zone=b"), None, "no host has both");
    }
}
