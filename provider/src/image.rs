//! `berth_image`

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value as Json;

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
    kind::{Facts, Kind},
};

/// Something disks are made from.
#[derive(Debug)]
pub struct Image;

impl Kind for Image {
    fn facts(&self) -> Facts {
        Facts {
            type_name: "berth_image",
            kind: "Image",
            plural: "images",
            description: "Something disks are made from. One host downloads it and verifies its checksum, format and virtual size; Terraform waits for that. Every other host downloads it once at most, when it first needs it. Destroying one that disks name is refused: give a new version another name.",
            example: r#"resource "berth_image" "debian" {
  name = "debian-12"
  source = {
    url    = "https://example.org/debian-12-generic-amd64.qcow2"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
  }
}
"#,
            timeouts: [1800, 600, 300],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::Image::crd()
    }

    fn fields(&self) -> Vec<Field> {
        let source = vec![
            Field::spec("url", Shape::Text(Form::ImageUrl)).required(),
            Field::spec("sha256", Shape::Text(Form::Sha256)).required().effect(Effect::Replace),
        ];
        vec![
            Field::spec("source", Shape::Object(source)).required(),
            Field::spec("format", Shape::Text(Form::Any)).default("qcow2").effect(Effect::Replace),
            Field::observed(
                "virtual_size",
                "/status/virtualSize",
                "The size disks made from it have at least.",
            ),
            Field::observed(
                "state",
                "/status/state",
                "One word for what it is doing: `Pending`, `Pulling`, `Ready` or `Failed`.",
            )
            .follows(&["source"]),
        ]
    }

    /// Nothing is lost with it: the bytes are where they came from.
    fn has_lived(&self, _object: &Json) -> bool {
        false
    }
}
