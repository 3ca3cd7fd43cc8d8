//! Changes that the control plane refuses, with Terraform: its plan has another VM in place of this one, or its apply is refused before
//! anything is changed.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::bench::{Bench, changed};
use super::table::Seen;
use super::{Power, each};
use crate::terraform::unwrapped;

const ADDRESS: &str = "berth_vm.web";

/// Plans each of them for the VM, which runs.
pub(super) fn refusals(bench: &Bench<'_>) -> Result<()> {
    let (project, base) = (bench.platform.project()?, bench.spec(Power::Running));
    project.write("main.tf.json", &configuration(&base))?;
    project.init()?;
    project.run(&["import", "-input=false", "-no-color", ADDRESS, "default/web"])?.success()?;
    let actions = project.plan()?.actions(ADDRESS);
    ensure!(["no-op", "update"].contains(&actions.as_str()), "without a change: {actions}");
    let before = bench.witness()?;
    each(|change| {
        if change.kind != "VM" || change.with_power(Power::Running) != Seen::Refused {
            return Ok(());
        }
        project.write("main.tf.json", &configuration(&changed(base.clone(), change)))?;
        let is_replacement = project.plan()?.actions(ADDRESS).split('+').any(|action| action == "delete");
        if !is_replacement {
            let refused = unwrapped(&project.apply_refused()?);
            let key = change.attributes.first().and_then(|name| name.rsplit('.').next()).unwrap_or_default();
            ensure!(refused.contains(&attribute(key)), "{refused}");
        }
        let after = bench.witness()?;
        ensure!(after == before, "{after:?}, and before {before:?}");
        Ok(())
    })
}

/// A configuration with this spec of the VM.
fn configuration(spec: &Value) -> String {
    let mut vm = of_terraform(spec);
    vm["name"] = "web".into();
    let providers = json!({"berth": {"source": "berth-vms/berth"}});
    json!({"terraform": {"required_providers": providers}, "provider": {"berth": {}},
        "resource": {"berth_vm": {"web": vm}}})
    .to_string()
}

/// The same values, with Terraform's names.
fn of_terraform(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            entries.iter().map(|(key, value)| (attribute(key), of_terraform(value))).collect()
        }
        Value::Array(elements) => elements.iter().map(of_terraform).collect(),
        other => other.clone(),
    }
}

/// Terraform's name of a field.
fn attribute(key: &str) -> String {
    let mut name = String::new();
    let mut is_inside = false;
    for letter in key.chars() {
        if letter.is_uppercase() && is_inside {
            name.push('_');
        }
        is_inside = !letter.is_uppercase();
        name.extend(letter.to_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_are_those_of_terraform() {
        for (key, name) in [
            ("class", "class"),
            ("macAddress", "mac_address"),
            ("publicIP", "public_ip"),
            ("publicIPv6", "public_ipv6"),
            ("ipv6Address", "ipv6_address"),
            ("guestOS", "guest_os"),
        ] {
            assert_eq!(attribute(key), name);
        }
        let spec = json!({"networkInterfaces": [{"guestName": "lan0", "dhcp4": false}]});
        assert_eq!(
            of_terraform(&spec),
            json!({"network_interfaces": [{"guest_name": "lan0", "dhcp4": false}]})
        );
    }
}
