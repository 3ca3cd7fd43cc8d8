//! `berth_image`

mod compression;
mod file;
mod upload;

use async_trait::async_trait;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind, Supply},
    references::{DISK, DISK_SNAPSHOT, ORIGINAL_IMAGE, SECRET},
    replacement,
    shared_with::check_shared_with,
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
            description: "An image that disks are made from. It has a `url`, is made from a disk, a snapshot or another image of the site, or is uploaded from a `file` of the machine that runs Terraform.\n\nOne host downloads it and verifies its checksum, format and virtual size; Terraform waits for that. Every other host copies it from there when it first needs it, or downloads it if it cannot be copied. An image that another namespace has downloaded is downloaded again, to prove access, but not stored twice. A host that is short of room removes images that nothing there uses; they are copied or downloaded again when they are needed.\n\nThe checksum is `sha256`, `sha512`, or the one in the file at `checksum_url` (`SHA256SUMS`, `SHA512SUMS`) when it is first read; exactly one of the three is required with a `url`. For a source that has none, `trust_on_first_use = true` takes the checksum of the bytes that are downloaded first, and accepts only these from then on. An image in a container registry (`oci://`) has its checksum there; `@sha256:…` at the end of the URL chooses one. A download slower than 64 KiB a second over a minute is aborted and retried later. Hosts fetch from public addresses only, and refuse `file://`, unless their administrator allows more (`--image-allow`, `--image-dir`).\n\nAn image with `source = { disk = … }` or `source = { snapshot = … }` has the data of that moment, in a file of its own: its disk may change or be destroyed afterwards. It is made once, on the host of the disk. Other hosts copy it from there when they first need it. The file goes with the image.\n\nAn image with `source = { image = … }` has the content of another image of the namespace under a name of its own, without a further download or upload, and keeps it when that one is destroyed. `format` and `compression` are those of the other one. With `image_namespace` it is that of an image of another namespace, which lists this namespace in its `shared_with`.\n\nAn image with `source = { file = … }` is uploaded: the provider computes the checksum of the file in each plan in which the file has changed, and an apply sends the bytes to a host of the site, over HTTPS. Other content replaces the image, as another `sha256` does. An upload that is interrupted continues with the next apply. Other hosts copy the image from that one when they first need it, unless it was decompressed or converted there: then disks that are made from it are on that host. A plan without a create or a replacement, a refresh and a destroy do not need the file. With `source = { upload = … }` another program uploads the file, such as `berth image push`, and `timeouts.create` is how long Terraform waits for it.\n\n`display_name`, `description`, `version` and `os` say what the image is: the data source `berth_image` chooses an image by them, also the one with the highest `version`. berth does not look into the image for them.\n\nDestroying an image that disks name is accepted; a finalizer keeps it until no disk names it. Until then no other image can have this name: give a new version another name.",
            example: include_str!("../../examples/resources/berth_image/resource.tf"),
            shown: "virtual_size",
            timeouts: [1800, 600, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let size = Field::spec("size", Shape::Integer).presence(Presence::Derived).effect(Effect::Replace);
        let source = vec![
            Field::spec("url", Shape::Text(Form::ImageUrl)),
            Field::spec("disk", Shape::Text(Form::Name)).effect(Effect::Replace).refers(DISK),
            Field::spec("disk_namespace", Shape::Text(Form::Name)).effect(Effect::Replace),
            Field::spec("snapshot", Shape::Text(Form::Name)).effect(Effect::Replace).refers(DISK_SNAPSHOT),
            Field::spec("snapshot_namespace", Shape::Text(Form::Name)).effect(Effect::Replace),
            Field::spec("image", Shape::Text(Form::Name)).effect(Effect::Replace).refers(ORIGINAL_IMAGE),
            Field::spec("image_namespace", Shape::Text(Form::Name)).effect(Effect::Replace),
            file::field(),
            Field::spec("upload", Shape::Object(vec![size]))
                .presence(Presence::Derived)
                .effect(Effect::Replace),
            Field::spec("sha256", Shape::Text(Form::Sha256))
                .presence(Presence::Derived)
                .effect(Effect::Replace),
            Field::spec("sha512", Shape::Text(Form::Sha512)).effect(Effect::Replace),
            Field::spec("checksum_url", Shape::Text(Form::HttpUrl)).effect(Effect::Replace),
            Field::spec("trust_on_first_use", Shape::Bool).implied(false).effect(Effect::Replace),
            Field::spec("timeout_seconds", Shape::Integer),
            Field::spec("retries", Shape::Integer),
            Field::spec("token", Shape::Text(Form::Any)),
            Field::spec("secret_name", Shape::Text(Form::DottedName)).refers(SECRET),
        ];
        let os = ["family", "distribution", "version", "variant", "architecture"];
        let os = os.map(|name| Field::spec(name, Shape::Text(Form::Any))).to_vec();
        vec![
            Field::spec("source", Shape::Object(source)).required(),
            Field::spec("format", Shape::Text(Form::Any)).default("qcow2").effect(Effect::Replace),
            Field::spec("ova_disk", Shape::Integer).effect(Effect::Replace),
            Field::spec("compression", Shape::Text(Form::Any)).effect(Effect::Replace),
            Field::spec("guest_os", Shape::Text(Form::Any)).key("guestOS").effect(Effect::PowerCycle),
            Field::spec("deletion_protection", Shape::Bool).default(false),
            Field::spec("display_name", Shape::Text(Form::Any)),
            Field::spec("description", Shape::Text(Form::Any)),
            Field::spec("version", Shape::Text(Form::Any)),
            Field::spec("os", Shape::Object(os)),
            Field::spec("owner", Shape::Text(Form::Any)),
            Field::spec("shared_with", Shape::TextList(Form::Any)),
            Field::observed("virtual_size", "/status/virtualSize", "The minimum size of disks made from it."),
            Field::observed(
                "checksum",
                "/status/checksum",
                "The checksum of the present content, if `source` declares none. It is computed when the content is first read, or made anew for another `source.token`.",
            ),
            Field::observed(
                "state",
                "/status/state",
                "The state of the image: `Pending`, `Pulling`, `Creating`, `Ready` or `Failed`.",
            )
            .follows(&["source"]),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        if let Some(problem) = check_shared_with(config) {
            return vec![problem];
        }
        let format = config.get("format");
        if config.get("ova_disk").is_set() && !format.is_unknown() && format.as_str() != Some("ova") {
            let detail = "ova_disk: it is the number of a disk in an ova: set format = \"ova\".";
            return vec![Diagnostic::error("Invalid format", detail).at("ova_disk")];
        }
        let source = config.get("source");
        if source.is_null() || source.is_unknown() {
            return Vec::new();
        }
        let path = |name: &str| AttributePath::root("source").attribute(name);
        if let Some(problem) = check_source(config, source).or_else(|| check_token(config, source)) {
            return vec![problem];
        }
        let url = source.get("url").as_str().unwrap_or_default();
        if source.get("secret_name").is_set() {
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
        let known: Vec<&str> = checksums.into_iter().filter(|name| source.get(name).is_set()).collect();
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
        let trusts = source.get("trust_on_first_use");
        if trusts.as_bool() == Some(true) && (in_registry || !known.is_empty()) {
            let at = path("trust_on_first_use");
            let detail = format!(
                "{at}: it is for a url without a checksum, and a checksum is declared. Leave one of them out."
            );
            return vec![Diagnostic::error("More than one checksum", detail).at(at)];
        }
        let has_none = !trusts.is_unknown() && trusts.as_bool() != Some(true);
        if is_known && has_none && !in_registry && checksums.iter().all(|name| source.get(name).is_null()) {
            let detail = "An image needs the checksum of its bytes: write sha256, sha512, or checksum_url with a file of checksums. To accept the bytes that the url has now, and only these from then on, set trust_on_first_use = true.";
            return vec![Diagnostic::error("Missing checksum", detail).at("source")];
        }
        Vec::new()
    }

    /// Another token makes other content. Warns of a compression that is missing.
    fn refine(&self, change: &mut PlannedChange<'_>) {
        let token = |image: &Value| image.get("source").get("token").clone();
        if !change.is_create() && token(change.prior) != token(&change.planned) {
            for observed in ["virtual_size", "checksum"] {
                change.planned.set(observed, Value::UNKNOWN);
            }
        }
        compression::warn(change);
    }

    async fn derive(&self, change: &mut PlannedChange<'_>) {
        file::derive(change).await;
    }

    async fn supply(&self, supply: Supply<'_>) -> Result<(), Box<Diagnostic>> {
        upload::run(supply).await
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        replacement::refuse_in_use(api, change, self.info().plural, "source", "The image is in use").await;
    }

    fn has_versions(&self) -> bool {
        true
    }

    /// A definition has at most eight fields that the control plane selects by.
    fn compared_fields(&self) -> &'static [&'static str] {
        &["spec.os.family", "spec.os.variant"]
    }

    /// Nothing is lost with an image that has a URL or is uploaded: its bytes are elsewhere too.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/spec/source/url").is_none() && object.pointer("/status/checksum").is_some()
    }
}

/// Refuses a source that is not exactly one, and what belongs to another one.
fn check_source(config: &Value, source: &Value) -> Option<Diagnostic> {
    let path = |name: &str| AttributePath::root("source").attribute(name);
    let sources = ["url", "disk", "snapshot", "file", "upload", "image"];
    if sources.iter().any(|name| source.get(name).is_unknown()) {
        return None;
    }
    let declared: Vec<&str> = sources.into_iter().filter(|name| !source.get(name).is_null()).collect();
    let [only] = declared.as_slice() else {
        let detail = "Set exactly one of url, file, disk, snapshot, image and upload in source, for example source = { url = \"…\" }.";
        return Some(Diagnostic::error("Invalid source", detail).at("source"));
    };
    for kind in ["image", "disk", "snapshot"] {
        let name = format!("{kind}_namespace");
        if *only != kind && source.get(&name).is_set() {
            let at = path(&name);
            let detail = format!(
                "{at}: it is the namespace of the {kind} in `{kind}`, and the source is `{only}`: leave it out."
            );
            return Some(Diagnostic::error("Invalid source", detail).at(at));
        }
    }
    match *only {
        "url" => return None,
        "file" | "upload" => return check_uploaded(source, only),
        "image" if is_itself(config, source) => {
            let at = path("image");
            let detail = format!("{at}: it must be another image than this one.");
            return Some(Diagnostic::error("Invalid source", detail).at(at));
        }
        _ => {}
    }
    let of_url = [
        "sha256",
        "sha512",
        "checksum_url",
        "trust_on_first_use",
        "timeout_seconds",
        "retries",
        "secret_name",
    ];
    if let Some(name) = of_url.into_iter().find(|name| source.get(name).is_set()) {
        let at = path(name);
        let detail = match *only {
            "image" => format!(
                "{at}: it belongs to a url: leave it out. A copy has the checksum of the other image."
            ),
            _ => format!(
                "{at}: it belongs to a url: leave it out. The host computes the checksum of an image that is made from a {only}."
            ),
        };
        return Some(Diagnostic::error("Invalid source", detail).at(at));
    }
    if *only == "image" {
        return None;
    }
    let format = config.get("format");
    if format.as_str().is_some_and(|format| format != "qcow2") {
        let detail =
            format!("format: an image that is made from a {only} has the format qcow2. Leave it out.");
        return Some(Diagnostic::error("Invalid format", detail).at("format"));
    }
    if config.get("compression").is_set() {
        let detail = "compression: it is for an image from a url. Leave it out.";
        return Some(Diagnostic::error("Invalid compression", detail).at("compression"));
    }
    None
}

/// Refuses a token of content that is always the same.
fn check_token(config: &Value, source: &Value) -> Option<Diagnostic> {
    if !source.get("token").is_set() {
        return None;
    }
    let at = AttributePath::root("source").attribute("token");
    let invalid = |detail: String| Some(Diagnostic::error("Invalid source", detail).at(at.clone()));
    let is_set = |name: &&str| source.get(name).is_set();
    if let Some(fixed) = ["sha256", "sha512", "file", "upload"].into_iter().find(is_set) {
        return invalid(format!(
            "{at}: it makes the content anew, and `{fixed}` fixes the content. Declare another image for other content."
        ));
    }
    if config.get("format").as_str() == Some("iso") {
        return invalid(format!(
            "{at}: an iso is the medium of drives, in which it would be exchanged. Declare another image for other content."
        ));
    }
    None
}

/// Whether a source names the image itself.
fn is_itself(config: &Value, source: &Value) -> bool {
    let is_named = source.get("image").as_str().is_some_and(|name| config.get("name").as_str() == Some(name));
    // The namespace may be that of the provider.
    let namespace = source.get("image_namespace");
    let is_here = namespace.as_str().is_some_and(|other| config.get("namespace").as_str() == Some(other));
    is_named && (namespace.is_null() || is_here)
}

/// Refuses what does not belong to a file that is uploaded.
fn check_uploaded(source: &Value, only: &str) -> Option<Diagnostic> {
    let path = |name: &str| AttributePath::root("source").attribute(name);
    let is_set = |name: &str| source.get(name).is_set();
    let invalid =
        |name: &str, detail: String| Some(Diagnostic::error("Invalid source", detail).at(path(name)));
    let of_url = ["checksum_url", "trust_on_first_use", "timeout_seconds", "retries", "secret_name"];
    if let Some(name) = of_url.into_iter().find(|name| is_set(name)) {
        return invalid(name, format!("{}: it belongs to a url: leave it out.", path(name)));
    }
    if only == "file" {
        let detail = "source.sha512: the provider computes the SHA-256 of a file. Leave sha512 out.";
        return if is_set("sha512") { invalid("sha512", detail.to_owned()) } else { None };
    }
    let upload = source.get("upload");
    if !upload.is_unknown() && upload.get("size").is_null() {
        return invalid("upload", "source.upload: set size, the number of bytes of the file.".to_owned());
    }
    match (source.get("sha256").is_null(), source.get("sha512").is_null()) {
        (true, true) => {
            let detail = "An upload needs the checksum of the file: write sha256 or sha512 in source.";
            Some(Diagnostic::error("Missing checksum", detail).at("source"))
        }
        _ if is_set("sha256") && is_set("sha512") => {
            let detail = "Exactly one of sha256 and sha512 can be set; both are.".to_owned();
            Some(Diagnostic::error("More than one checksum", detail).at(path("sha512")))
        }
        _ => None,
    }
}
