//! `berth_image`

use async_trait::async_trait;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    references::{DISK, DISK_SNAPSHOT, SECRET},
    replacement,
};

/// The source of disks.
#[derive(Debug)]
pub struct Image;

#[async_trait]
impl ResourceKind for Image {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_image",
            kind: "Image",
            plural: "images",
            description: "An image that disks are made from. It has a `url`, or is made from a disk or a snapshot of the site.\n\nOne host downloads it and verifies its checksum, format and virtual size; Terraform waits for that. Every other host downloads it at most once, when it first needs it. An image that another namespace has downloaded is downloaded again, to prove access, but not stored twice.\n\nThe checksum is `sha256`, `sha512`, or the one in the file at `checksum_url` (`SHA256SUMS`, `SHA512SUMS`) when it is first read; exactly one of the three is required with a `url`. An image in a container registry (`oci://`) has its checksum there; `@sha256:…` at the end of the URL chooses one. A download slower than 64 KiB a second over a minute is aborted and retried later. Hosts fetch from public addresses only, and refuse `file://`, unless their administrator allows more (`--image-allow`, `--image-dir`).\n\nAn image with `source = { disk = … }` or `source = { snapshot = … }` has the data of that moment, in a file of its own: its disk may change or be destroyed afterwards. It is made once, on the host of the disk: disks that are made from it are on that host, and VMs that use them run there. The file goes with the image, and there is no other copy of it.\n\nDestroying an image that disks name is accepted; a finalizer keeps it until no disk names it. Until then no other image can have this name: give a new version another name.",
            example: include_str!("../../examples/resources/berth_image/resource.tf"),
            shown: "virtual_size",
            timeouts: [1800, 600, 300],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::Image::crd()
    }

    fn fields(&self) -> Vec<Field> {
        let source = vec![
            Field::spec("url", Shape::Text(Form::ImageUrl)),
            Field::spec("disk", Shape::Text(Form::Name)).effect(Effect::Replace).refers(DISK),
            Field::spec("snapshot", Shape::Text(Form::Name)).effect(Effect::Replace).refers(DISK_SNAPSHOT),
            Field::spec("sha256", Shape::Text(Form::Sha256)).effect(Effect::Replace),
            Field::spec("sha512", Shape::Text(Form::Sha512)).effect(Effect::Replace),
            Field::spec("checksum_url", Shape::Text(Form::HttpUrl)).effect(Effect::Replace),
            Field::spec("secret_name", Shape::Text(Form::DottedName)).refers(SECRET),
        ];
        vec![
            Field::spec("source", Shape::Object(source)).required(),
            Field::spec("format", Shape::Text(Form::Any)).default("qcow2").effect(Effect::Replace),
            Field::spec("compression", Shape::Text(Form::Any)).effect(Effect::Replace),
            Field::spec("deletion_protection", Shape::Bool).default(false),
            Field::observed("virtual_size", "/status/virtualSize", "The minimum size of disks made from it."),
            Field::observed(
                "state",
                "/status/state",
                "The state of the image: `Pending`, `Pulling`, `Creating`, `Ready` or `Failed`.",
            )
            .follows(&["source"]),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let source = config.get("source");
        if source.is_null() || source.is_unknown() {
            return Vec::new();
        }
        let path = |name: &str| AttributePath::root("source").attribute(name);
        if let Some(problem) = check_made(config, source) {
            return vec![problem];
        }
        let url = source.get("url").as_str().unwrap_or_default();
        if !source.get("secret_name").is_null() {
            let authority = url.split_once("://").and_then(|(_, rest)| rest.split('/').next());
            let problem = match authority {
                Some("") if url.starts_with("file:") => "A file of the host needs no Secret",
                Some(authority) if authority.contains('@') => {
                    "A user in the url and a Secret exclude each other"
                }
                _ => "",
            };
            if !problem.is_empty() {
                let at = path("secret_name");
                return vec![Diagnostic::error("Invalid credentials", format!("{at}: {problem}.")).at(at)];
            }
        }
        let checksums = ["sha256", "sha512", "checksum_url"];
        // An unknown checksum may become null.
        let known: Vec<&str> = checksums
            .into_iter()
            .filter(|name| !source.get(name).is_null() && !source.get(name).is_unknown())
            .collect();
        let in_registry = url.starts_with("oci://");
        if let (true, [first, ..]) = (in_registry, known.as_slice()) {
            let detail = "An oci:// image has its checksum in the registry: write @sha256:... at the end of url to choose one.";
            return vec![Diagnostic::error("Checksum of an image in a registry", detail).at(path(first))];
        }
        if let [_, second, ..] = known.as_slice() {
            let detail = format!(
                "Exactly one of sha256, sha512 and checksum_url can be set; {} are.",
                known.join(" and ")
            );
            return vec![Diagnostic::error("More than one checksum", detail).at(path(second))];
        }
        let is_known = !source.get("url").is_unknown() && !source.get("url").is_null();
        if is_known && !in_registry && checksums.iter().all(|name| source.get(name).is_null()) {
            let detail = "An image needs the checksum of its bytes: write sha256, sha512, or checksum_url with a file of checksums.";
            return vec![Diagnostic::error("Missing checksum", detail).at("source")];
        }
        Vec::new()
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        replacement::refuse_in_use(api, change, self.info().plural, "source", "The image is in use").await;
    }

    /// Nothing is lost with an image that has a URL: its bytes can be downloaded again.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/spec/source/url").is_none() && object.pointer("/status/checksum").is_some()
    }
}

/// Refuses a source that is not exactly one, and what belongs to a URL beside a disk or a snapshot.
fn check_made(config: &Value, source: &Value) -> Option<Diagnostic> {
    let path = |name: &str| AttributePath::root("source").attribute(name);
    let sources = ["url", "disk", "snapshot"];
    if sources.iter().any(|name| source.get(name).is_unknown()) {
        return None;
    }
    let declared: Vec<&str> = sources.into_iter().filter(|name| !source.get(name).is_null()).collect();
    let [only] = declared.as_slice() else {
        let detail = "Set exactly one of source = { url = \"…\" }, source = { disk = \"…\" } and source = { snapshot = \"…\" }.";
        return Some(Diagnostic::error("Invalid source", detail).at("source"));
    };
    if *only == "url" {
        return None;
    }
    let of_url = ["sha256", "sha512", "checksum_url", "secret_name"];
    if let Some(name) = of_url.into_iter().find(|name| !source.get(name).is_null()) {
        let at = path(name);
        let detail = format!(
            "{at}: it belongs to a url. The host computes the checksum of an image that is made from a {only}."
        );
        return Some(Diagnostic::error("Invalid source", detail).at(at));
    }
    let format = config.get("format");
    if format.as_str().is_some_and(|format| format != "qcow2") {
        let detail = format!("format: an image that is made from a {only} has the format qcow2.");
        return Some(Diagnostic::error("Invalid format", detail).at("format"));
    }
    if !config.get("compression").is_null() {
        let detail = "compression: it is that of the file at a url.";
        return Some(Diagnostic::error("Invalid compression", detail).at("compression"));
    }
    None
}
