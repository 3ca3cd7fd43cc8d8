//! The effects on the pages are those that the tests of the reconciler see on the machine of a VM.

use berth_api::Power;
use terraform_provider_berth::{
    BerthProvider,
    field::{self, Effect, Field, Shape, Source},
};

use super::changes::{self, Change, Seen};

/// Attributes that are not part of an object's `spec`.
const OUTSIDE: [&str; 5] = ["name", "name_prefix", "namespace", "labels", "annotations"];

/// An attribute whose changes reach a VM.
struct Leaf {
    name: String,
    /// Its place below `spec`.
    key: String,
    effect: Effect,
}

fn leaves(fields: &[Field], outer: [&str; 2], found: &mut Vec<Leaf>) {
    let is_of_object =
        |field: &&Field| field.is_input() && !field.write_only && field.effect != Effect::Local;
    for field in fields.iter().filter(is_of_object) {
        let key = match &field.source {
            Source::Spec(key) => key.as_ref(),
            Source::Observed(_) | Source::Local => field.name,
        };
        let (name, key) = (format!("{}{}", outer[0], field.name), format!("{}{key}", outer[1]));
        leaves(field.children(), [&format!("{name}."), &format!("{key}.")], found);
        let is_outermost = outer[0].is_empty();
        let is_counted = if is_outermost { !OUTSIDE.contains(&field.name) } else { field.name != "name" };
        if is_counted && !matches!(field.shape, Shape::Object(_)) {
            found.push(Leaf { name, key, effect: field.effect });
        }
    }
}

/// Whether the name stands for the attribute: by itself, or for all parts of an object.
fn stands_for(name: &str, key: &str) -> bool {
    let Some(whole) = name.strip_suffix(".*") else { return name == key };
    key.strip_prefix(whole).is_some_and(|part| part.starts_with('.'))
}

/// The consequence of a change with this effect for a machine, once the control plane has it.
fn seen(effect: Effect) -> Seen {
    match effect {
        Effect::Live | Effect::Start | Effect::Local | Effect::Policy | Effect::Placement => Seen::Same,
        Effect::PowerCycle | Effect::Grow | Effect::Resize => Seen::Waits,
        Effect::Reboot => Seen::Restarts,
        Effect::Replace | Effect::Fixed | Effect::NotRunning => Seen::Refused,
    }
}

#[test]
fn the_pages_show_of_each_attribute_of_a_vm_the_effect_that_is_seen_on_machines() {
    let provider = BerthProvider::default();
    let all = changes::all();
    for (type_name, kind) in [("berth_vm", "VM"), ("berth_vm_class", "VMClass")] {
        let resource = provider.kinds().iter().find(|kind| kind.info().type_name == type_name);
        let mut found = Vec::new();
        leaves(resource.expect("a kind").fields(), ["", ""], &mut found);
        let changes: Vec<&Change> = all.iter().filter(|change| change.kind == kind).collect();
        for Leaf { name, key, effect } in &found {
            let covers = |change: &&&Change| change.attributes.iter().any(|name| stands_for(name, key));
            let change = changes.iter().find(covers);
            let change = change.unwrap_or_else(|| {
                panic!("no change of {key} of a {kind}: add one to reconciler/tests/shared/changes.rs")
            });
            let member = key.split('.').next().unwrap_or_default();
            assert!(change.elsewhere.is_some() || change.spec.get(member).is_some(), "{kind} {key}");
            // The effects on the Disk are those of another page.
            if key.starts_with("disks.template.") {
                continue;
            }
            for power in Power::ALL {
                let is_refused =
                    kind == "VM" && power == Power::Suspended && field::is_refused_while_suspended(name);
                let shown = if is_refused { Seen::Refused } else { seen(effect.with_power(power)) };
                assert_eq!(change.with_power(power), shown, "{kind} {key} while {power:?}");
            }
        }
        for name in changes.iter().flat_map(|change| change.attributes) {
            let is_known = found.iter().any(|leaf| stands_for(name, &leaf.key));
            assert!(
                is_known,
                "reconciler/tests/shared/changes.rs changes {name}, which {type_name} does not have"
            );
        }
    }
}
