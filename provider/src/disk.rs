//! `berth_disk`

use berth_api::Quantity;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{Facts, Kind},
};

/// A persistent disk.
#[derive(Debug)]
pub struct Disk;

impl Kind for Disk {
    fn facts(&self) -> Facts {
        Facts {
            type_name: "berth_disk",
            kind: "Disk",
            plural: "disks",
            description: "A persistent disk that outlives any VM: blank, or made from an image. Its file comes into being on the host of the first VM that uses it. A VM lists it in `disks`, or a `berth_hotswap_disk_attachment` joins it to a running VM.\n\nDestroying a disk that is in use is refused. With `deletion_policy = \"Delete\"` the file rests in the pool's trash for 24 hours (`berth undelete`).",
            example: r#"resource "berth_disk" "root" {
  name  = "web-root"
  image = berth_image.debian.name
  size  = "4Gi"
}

resource "berth_disk" "data" {
  name            = "web-data"
  size            = "1Gi"
  deletion_policy = "Retain"
}
"#,
            timeouts: [600, 600, 600],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::Disk::crd()
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("size", Shape::Text(Form::Quantity)).presence(Presence::Kept),
            Field::spec("image", Shape::Text(Form::Name)).effect(Effect::Replace),
            Field::spec("pool", Shape::Text(Form::Name))
                .default(berth_api::DEFAULT_NAME)
                .effect(Effect::Replace),
            Field::spec("deletion_policy", Shape::Text(Form::Any)).default("Delete"),
            Field::observed(
                "serial",
                "/status/serial",
                "The serial number a guest finds it by (`/dev/disk/by-id/…`). Decided when a VM first uses it.",
            ),
            Field::observed(
                "volume_id",
                "/status/volumeID",
                "berth's own identity of the disk; its file is named by it. Decided when a VM first uses it.",
            ),
            Field::observed("host", "/status/binding/host", "The host that has the file."),
            Field::observed(
                "state",
                "/status/state",
                "One word for what it is doing: `Pending`, `Creating`, `Available`, `InUse`, `Failed` or `Terminating`.",
            ),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        if config.get("size").is_null() && config.get("image").is_null() {
            let detail = "A disk without an image needs a size: write size = \"1Gi\", or the image it is to be made from.";
            return vec![Diagnostic::error("Missing size", detail).at("size")];
        }
        Vec::new()
    }

    fn refine(&self, change: &mut PlannedChange<'_>) {
        let size = |state: &Value| state.get("size").as_str().map(|size| Quantity(size.to_owned()));
        if !change.replace.is_empty() {
            return;
        }
        if let (Some(was), Some(is)) = (size(change.prior), size(&change.planned))
            && is < was
        {
            let detail = format!(
                "A disk can only grow: it has {was}, and {is} would lose data. Keep at least {was}, or make another disk under \
                 another name. (terraform destroy looks here too; with -refresh=false it does not.)"
            );
            change
                .diagnostics
                .push(Diagnostic::error("A disk cannot shrink", detail).at(AttributePath::root("size")));
        }
    }

    fn view(&self, object: &Json) -> Json {
        let mut view = object.clone();
        let decided = object.pointer("/status/size").cloned();
        if let (Some(size), Some(spec)) = (decided, view.get_mut("spec").and_then(Json::as_object_mut)) {
            spec.entry("size").or_insert(size);
        }
        view
    }

    fn has_lived(&self, object: &Json) -> bool {
        object.pointer("/status/volumeID").is_some()
    }
}
