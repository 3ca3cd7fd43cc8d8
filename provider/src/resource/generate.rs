//! The configuration of an object that exists, of which the plan has no changes.
//!
//! It declares what a person would write: no defaults, and no values that the control plane chose within lists, such as MAC
//! addresses.

use std::collections::BTreeMap;

use tfplugin6::{Diagnostic, Value, resource::GenerateConfigResponse};

use super::KindResource;
use crate::{
    field::{Field, Presence, Shape},
    mapping,
};

impl KindResource {
    /// The configuration for a state.
    pub(crate) fn generated(&self, state: &Value) -> GenerateConfigResponse {
        // An adopted object has values of others, which stay theirs when they are left out.
        let keeps = !self.kind.is_adopted();
        let mut config = Value::Map(configured(&self.fields, state, keeps));
        config.set("timeouts", state.get("timeouts").clone());
        if !self.kind.is_adopted() {
            config.set("name_prefix", Value::Null);
        }
        let mut hidden = Vec::new();
        find_sensitive(&self.fields, &config, "", &mut hidden);
        hidden.extend(self.write_only(&config));
        let warning = |name: String| {
            let detail = format!(
                "Terraform writes no sensitive values into generated configuration. Set {name} to its value, or the next plan \
                 removes it, or refuses the configuration without it."
            );
            Diagnostic::warning(format!("{} is left out", name), detail)
        };
        GenerateConfigResponse { config, diagnostics: hidden.into_iter().map(warning).collect() }
    }

    /// The write-only attributes that are set: those with a version.
    pub(crate) fn write_only(&self, config: &Value) -> Vec<String> {
        let mut found = Vec::new();
        find_write_only(&self.fields, config, "", &mut found);
        found
    }
}

fn find_write_only(fields: &[Field], config: &Value, at: &str, found: &mut Vec<String>) {
    for field in fields {
        let name = format!("{at}{}", field.name);
        if field.write_only && !config.get(&format!("{}_version", field.name)).is_null() {
            found.push(name);
        } else if matches!(field.shape, Shape::Object(_)) {
            find_write_only(field.children(), config.get(field.name), &format!("{name}."), found);
        }
    }
}

fn configured(fields: &[Field], state: &Value, keeps: bool) -> BTreeMap<String, Value> {
    fields
        .iter()
        .map(|field| (field.name.to_owned(), configured_field(field, state.get(field.name), keeps)))
        .collect()
}

fn configured_field(field: &Field, value: &Value, keeps: bool) -> Value {
    if !field.is_input() || field.write_only || value.is_null() {
        return Value::Null;
    }
    let config = match &field.shape {
        Shape::Object(fields) => {
            let config = configured(fields, value, keeps);
            let is_optional = matches!(field.presence, Presence::Optional | Presence::Filled);
            let has_default = |field: &Field| {
                matches!(field.presence, Presence::Default(_)) && !value.get(field.name).is_null()
            };
            // Without the object, its attributes would be null and not their defaults.
            let counts = is_optional && fields.iter().any(has_default);
            if config.values().all(Value::is_null) && field.presence != Presence::Required && !counts {
                return Value::Null;
            }
            Value::Map(config)
        }
        Shape::Keyed(fields) => {
            let elements = value.elements().iter();
            Value::List(elements.map(|element| Value::Map(configured(fields, element, false))).collect())
        }
        _ => value.clone(),
    };
    match &field.presence {
        Presence::Computed => Value::Null,
        Presence::Kept if !keeps => Value::Null,
        Presence::Default(default) | Presence::Implied(default)
            if mapping::same(&field.shape, value, default)
                || mapping::same(&field.shape, &config, default) =>
        {
            Value::Null
        }
        _ => config,
    }
}

/// The sensitive attributes that are set.
fn find_sensitive(fields: &[Field], config: &Value, at: &str, found: &mut Vec<String>) {
    for field in fields {
        let value = config.get(field.name);
        let name = format!("{at}{}", field.name);
        if field.sensitive && !value.is_null() {
            found.push(name);
        } else if matches!(field.shape, Shape::Object(_)) {
            find_sensitive(field.children(), value, &format!("{name}."), found);
        }
    }
}
