//! The pool of disks that name none: the one that they have, or else that of the `provider` block.
//!
//! Pure. Another default must not move the disks that exist.

use tfplugin6::Value;

use crate::{
    field::{Field, Shape},
    mapping::find_named,
    references::STORAGE_POOL,
};

/// Returns the configuration with the pools of disks that name none.
#[must_use]
pub fn filled(fields: &[Field], prior: &Value, config: &Value, default: Option<&str>) -> Value {
    let mut filled = config.clone();
    fill(fields, prior, default, &mut filled);
    filled
}

fn fill(fields: &[Field], prior: &Value, default: Option<&str>, config: &mut Value) {
    for field in fields {
        let was = prior.get(field.name);
        match &field.shape {
            Shape::Text(_) if field.refers == Some(STORAGE_POOL) && config.get(field.name).is_null() => {
                let pool = was.as_str().or(default).map(Value::from);
                if let Some(pool) = pool.filter(|_| config.as_map().is_some()) {
                    config.set(field.name, pool);
                }
            }
            Shape::Object(fields) => {
                if let Some(object) = config.get_mut(field.name) {
                    fill(fields, was, default, object);
                }
            }
            Shape::Keyed(fields) => {
                if let Some(Value::List(elements)) = config.get_mut(field.name) {
                    for element in elements {
                        let was = find_named(was.elements(), element).unwrap_or(&Value::Null);
                        fill(fields, was, default, element);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{disk::Disk, kind::ResourceKind, vm::Vm};

    use super::*;

    fn text(value: &str) -> Value {
        Value::from(value)
    }

    #[test]
    fn a_disk_that_names_no_pool_is_in_that_of_the_provider_and_stays_where_it_is() {
        let fields = Disk.fields();
        let unnamed = Value::object([("name", text("d")), ("pool", Value::Null)]);
        let pool = |prior: &Value, config: &Value, default| {
            filled(&fields, prior, config, default).get("pool").as_str().map(str::to_owned)
        };
        assert_eq!(pool(&Value::Null, &unnamed, Some("fast")).as_deref(), Some("fast"));
        assert_eq!(pool(&Value::Null, &unnamed, None), None, "the default of the attribute");
        let named = Value::object([("pool", text("slow"))]);
        assert_eq!(pool(&Value::Null, &named, Some("fast")).as_deref(), Some("slow"));
        assert_eq!(pool(&named, &unnamed, Some("fast")).as_deref(), Some("slow"), "it would be moved");
    }

    #[test]
    fn the_templates_of_a_vm_have_the_pool_too() {
        let fields = Vm.fields();
        let disk = |pool: Value| {
            let template = Value::object([("size", text("1Gi")), ("pool", pool)]);
            Value::object([("name", text("root")), ("template", template)])
        };
        let vm = |disk: Value| Value::object([("disks", Value::List(vec![disk]))]);
        let pool_of =
            |vm: &Value| vm.get("disks").index(0).get("template").get("pool").as_str().map(str::to_owned);
        let unnamed = vm(disk(Value::Null));
        let new = filled(&fields, &Value::Null, &unnamed, Some("fast"));
        assert_eq!(pool_of(&new).as_deref(), Some("fast"));
        let kept = filled(&fields, &vm(disk(text("slow"))), &unnamed, Some("fast"));
        assert_eq!(pool_of(&kept).as_deref(), Some("slow"));
        let without = vm(Value::object([("name", text("root")), ("template", Value::Null)]));
        assert_eq!(filled(&fields, &Value::Null, &without, Some("fast")), without, "it is a Disk of its own");
    }
}
