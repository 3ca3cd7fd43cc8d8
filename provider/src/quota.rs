//! `berth_quota`

use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
};

/// The limits of numbers.
const COUNTS: [&str; 7] = ["cpus", "vms", "disks", "snapshots", "images", "backups", "public_ips"];
/// The limits of bytes.
const SIZES: [&str; 5] = ["disk_size", "used_storage", "image_storage", "backup_storage", "memory"];

/// How much the objects of a namespace may use together.
#[derive(Debug)]
pub struct Quota;

impl ResourceKind for Quota {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_quota",
            kind: "Quota",
            plural: "quotas",
            description: "How much the objects of a namespace may use together: storage, memory, CPUs and numbers of objects. Creations and changes that would use more are refused, except of classes in `berth-shared`, which an administrator can let grow; objects that exist are never touched, also when a limit is lowered. Only an administrator can write it. With several quotas in a namespace, all of them hold. The data source has the amounts in use in `status.used`.",
            example: include_str!("../../examples/resources/berth_quota/resource.tf"),
            shown: "status.used",
            timeouts: [120, 120, 120],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let sizes = SIZES.map(|name| Field::spec(name, Shape::Text(Form::Quantity)));
        let counts = COUNTS.map(|name| Field::spec(name, Shape::Integer));
        vec![Field::spec("hard", Shape::Object(sizes.into_iter().chain(counts).collect())).required()]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let hard = config.get("hard");
        let mut limits = SIZES.iter().chain(&COUNTS);
        if hard.is_null() || hard.is_unknown() || limits.any(|name| !hard.get(name).is_null()) {
            return Vec::new();
        }
        let at = AttributePath::root("hard");
        let detail = format!("{at}: set at least one limit, for example {{ disk_size = \"500Gi\" }}.");
        vec![Diagnostic::error("A quota without limits", detail).at(at)]
    }

    /// Nothing is lost with a quota but its limits.
    fn is_worth_keeping(&self, _object: &Json) -> bool {
        false
    }

    /// It is in force at once: there is nothing to wait for.
    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        crate::vm_class::seen(object)
    }
}
