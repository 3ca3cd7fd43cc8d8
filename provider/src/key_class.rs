//! `berth_key_class`

use async_trait::async_trait;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
    references::SECRET,
    replacement,
    vm_class::seen,
};

/// The key that protects the keys of encrypted disks.
#[derive(Debug)]
pub struct KeyClass;

#[async_trait]
impl ResourceKind for KeyClass {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_key_class",
            kind: "KeyClass",
            plural: "keyclasses",
            description: "The key that protects the keys of encrypted disks. It is in a Secret, which Terraform never reads. A `berth_disk` names the class in `encryption`; with another class, the key of the disk is protected by that one at once, while its VM runs. A disk with `encryption = {}` has the class `default`, of its namespace or of `berth-shared`.\n\nDestroying a class that disks or snapshots have is accepted; a finalizer keeps it until none has it. The Secret is not destroyed with it.",
            example: include_str!("../../examples/resources/berth_key_class/resource.tf"),
            shown: "status.used_by",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let secret = vec![
            Field::spec("name", Shape::Text(Form::Name)).required().effect(Effect::Replace).refers(SECRET),
            Field::spec("key", Shape::Text(Form::Any)).default("key").effect(Effect::Replace),
        ];
        vec![Field::spec("secret", Shape::Object(secret)).required().effect(Effect::Replace)]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        check_key(config.get("secret")).into_iter().collect()
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        replacement::refuse_in_use(api, change, self.info().plural, "secret", "The class is in use").await;
    }

    /// Nothing is lost with it: the Secret stays.
    fn is_worth_keeping(&self, _object: &Json) -> bool {
        false
    }

    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        seen(object)
    }
}

/// Refuses a text that names no entry of a Secret. Its length is checked by the table of fields.
fn check_key(secret: &Value) -> Option<Diagnostic> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let key = secret.get("key").as_str().filter(|key| !key.bytes().all(is_valid))?;
    let at = AttributePath::root("secret").attribute("key");
    let detail =
        format!("{at}: {key:?} is not the name of an entry: use letters, digits, \"-\", \"_\" and \".\".");
    Some(Diagnostic::error("Invalid key", detail).at(at))
}
