//! The labels that the host of a VM must or should have: declared by the VM, its placement group and its new disks. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::{key::Key, plan::Dependency};

use super::observe::{Observed, bound};

type Labels = BTreeMap<String, String>;

/// An object other than the VM, and the labels that it asks for.
type Asked<'a> = (String, Vec<(&'a String, &'a String)>);

/// Returns the labels that the group, and the disks that no host has, ask for.
fn asked(observed: &Observed) -> Vec<Asked<'_>> {
    let mut asked: Vec<Asked<'_>> = Vec::new();
    if let Some(group) = &observed.group {
        let name = format!("PlacementGroup {}", group.name_any());
        asked.push((name, group.spec.host_selector.iter().collect()));
    }
    for disk in observed.disks.iter().filter(|disk| disk.claimed.is_none()) {
        if let Some(object) = disk.object.as_deref().filter(|object| bound(object).is_none()) {
            asked.push((format!("Disk {}", disk.key.name), object.host_selector().collect()));
        }
    }
    asked.retain(|(_, labels)| !labels.is_empty());
    asked
}

/// Returns the labels that the host must have, the VM's own included. The error names two objects that ask for different values of one.
pub(super) fn required(own: &Labels, observed: &Observed) -> Result<Labels, String> {
    let asked = asked(observed);
    let own = own.iter().map(|(label, value)| (label, (value, "placement.hostSelector")));
    let mut labels: BTreeMap<&String, (&String, &str)> = own.collect();
    for (by, selector) in &asked {
        for (label, value) in selector {
            let (other, first) = *labels.entry(*label).or_insert((*value, by.as_str()));
            if other != *value {
                return Err(format!(
                    "{first} asks for hosts with {label}={other} and {by} for hosts with {label}={value}: no host has both"
                ));
            }
        }
    }
    Ok(labels.into_iter().map(|(label, (value, _))| (label.clone(), value.clone())).collect())
}

/// Returns the labels that the host should have: of a label with two values, the VM's own counts.
pub(super) fn preferred(own: Labels, observed: &Observed) -> Labels {
    let of_group = observed.group.iter().flat_map(|group| group.spec.preferred_host_selector.clone());
    of_group.chain(own).collect()
}

/// Returns the labels that other objects than the VM ask for, for people.
pub(super) fn explain(observed: &Observed) -> Vec<String> {
    let text = |(by, labels): Asked<'_>| {
        let labels: Vec<String> =
            labels.into_iter().map(|(label, value)| format!("{label}={value}")).collect();
        format!("{by} asks for hosts with {}", labels.join(", "))
    };
    asked(observed).into_iter().map(text).collect()
}

/// Returns the objects other than the VM whose labels count.
pub(super) fn dependencies(observed: &Observed) -> Vec<Dependency> {
    let group = observed.group.iter().map(|group| Key::of(group.as_ref()));
    let disks = observed.disks.iter().map(|disk| disk.key.clone());
    group.chain(disks).map(Dependency::Object).collect()
}
