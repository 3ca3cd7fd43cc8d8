//! `berth_disk`

mod contents;
mod device;
mod moves;
mod placement;
mod pools;

use async_trait::async_trait;
use berth_api::Quantity;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::{Outcome, Readiness},
    references::{BACKUP, DISK, DISK_SNAPSHOT, IMAGE, KEY_CLASS, STORAGE_POOL},
    restore::{self, Restored},
    shared_with::check_shared_with,
};

pub use pools::{CURRENT_POOL, chooses_pool};

/// Ceilings for operations and bandwidth, of a disk or for the disks of a class.
pub(crate) fn limits(name: &'static str) -> Field {
    let rate = |name| Field::spec(name, Shape::Integer);
    let bytes = |name| Field::spec(name, Shape::Text(Form::Quantity));
    let fields = vec![
        rate("iops"),
        rate("read_iops"),
        rate("write_iops"),
        bytes("bandwidth"),
        bytes("read_bandwidth"),
        bytes("write_bandwidth"),
        rate("burst_iops"),
        bytes("burst_bandwidth"),
        rate("burst_seconds"),
    ];
    Field::spec(name, Shape::Object(fields))
}

/// The attributes that Disks and the templates of a VM's disks share, except their size. `fixed` is the effect of what a Disk cannot change.
fn declared(fixed: Effect, pool: Effect) -> Vec<Field> {
    let mut fields = vec![
        Field::spec("image", Shape::Text(Form::Name)).effect(fixed).refers(IMAGE),
        Field::spec("clone_mode", Shape::Text(Form::Any)).implied("Linked").effect(fixed),
        filesystem(fixed),
        source(fixed),
        Field::spec("pool", Shape::Text(Form::Name))
            .default(berth_api::DEFAULT_NAME)
            .effect(pool)
            .refers(STORAGE_POOL)
            .text(
                "Name of the StoragePool. Default: `pool` of the provider, or `default`; a disk that exists stays in its pool when it names none. After a change the file is moved on its host, also while its guest runs, and the apply waits for that. A disk that is encrypted, has snapshots or is used by several VMs is moved once no VM has it open: a running VM keeps the former file until its next power cycle, and the apply does not wait for that. In a template it cannot change.",
            ),
        Field::spec("deletion_policy", Shape::Text(Form::Any)).default("Delete"),
        Field::spec("expand_policy", Shape::Text(Form::Any)).default("Online"),
        Field::spec("provisioning", Shape::Text(Form::Any)).default("Thin").effect(fixed),
        encryption(),
        limits("limits"),
    ];
    fields.extend(pools::fields(pool));
    fields
}

/// A disk cannot get or lose it: see `refine`.
fn encryption() -> Field {
    let class =
        Field::spec("key_class", Shape::Text(Form::Name)).default(berth_api::DEFAULT_NAME).refers(KEY_CLASS);
    Field::spec("encryption", Shape::Object(vec![class]))
}

/// The encryption of a disk as its host reports it.
fn encrypted() -> Field {
    let fields = vec![
        Field::observed(
            "key_class",
            "/status/encryption/keyClass",
            "The class whose key protects the key of the disk, as `NAMESPACE/NAME`.",
        ),
        Field::observed(
            "provider_id",
            "/status/encryption/providerID",
            "The source of the key of the class: `Secret`.",
        ),
        Field::observed("key_id", "/status/encryption/keyID", "The identifier of the key of the class."),
        Field::observed(
            "disk_key_id",
            "/status/encryption/diskKeyID",
            "The identifier of the key of the disk, which its snapshots and copies share.",
        ),
    ];
    Field {
        shape: Shape::Object(fields),
        ..Field::observed(
            "encrypted",
            "/status/encryption",
            "The encryption of its file. Set when a VM first uses it.",
        )
    }
    .follows(&["encryption"])
}

/// The template of a VM's disk.
pub(crate) fn template() -> Field {
    let mut fields = vec![Field::spec("size", Shape::Text(Form::Quantity))];
    fields.extend(declared(Effect::Fixed, Effect::Fixed));
    Field::spec("template", Shape::Object(fields)).effect(Effect::Fixed)
}

fn filesystem(fixed: Effect) -> Field {
    let text = |name| Field::spec(name, Shape::Text(Form::Any)).effect(fixed);
    Field::spec("filesystem", Shape::Object(vec![text("type").required(), text("label")])).effect(fixed)
}

fn source(fixed: Effect) -> Field {
    let fields = vec![
        Field::spec("disk", Shape::Text(Form::Name)).effect(fixed).refers(DISK),
        Field::spec("disk_namespace", Shape::Text(Form::Name)).effect(fixed),
        Field::spec("snapshot", Shape::Text(Form::Name)).effect(fixed).refers(DISK_SNAPSHOT),
        Field::spec("snapshot_namespace", Shape::Text(Form::Name)).effect(fixed),
        Field::spec("backup", Shape::Text(Form::Name)).effect(fixed).refers(BACKUP),
        Field::spec("file", Shape::Text(Form::Any)).effect(fixed),
        Field::spec("device", Shape::Text(Form::Name)).effect(fixed),
        Field::spec("format", Shape::Text(Form::Any)).effect(fixed),
    ];
    Field::spec("source", Shape::Object(fields)).effect(fixed)
}

fn imported_from() -> Field {
    let text = |name| Field::spec(name, Shape::Text(Form::Any));
    let fields = vec![text("system").required(), text("guest"), text("guest_identity"), text("disk")];
    Field::spec("imported_from", Shape::Object(fields))
}

fn restore_field() -> Field {
    let fields = vec![
        Field::spec("snapshot", Shape::Text(Form::Name)).required().refers(DISK_SNAPSHOT),
        Field::spec("token", Shape::Text(Form::Any)),
    ];
    Field::spec("restore", Shape::Object(fields)).text(
        "A snapshot of this disk whose data it is to have again, by its name: a reference to the resource of the snapshot would be a circle, \
         since that one refers to the disk. It is restored once for each value, while no VM has the disk open: a running VM has the \
         data after its next power cycle, and the apply does not wait for that. The data from before stays in the pool's trash for 24 \
         hours (`berth undelete --as`). Removing it changes nothing.",
    )
}

fn restored_from() -> Field {
    let fields = vec![
        Field::observed("snapshot", "/status/restoredFrom/snapshot", "The name of the snapshot."),
        Field::observed(
            "snapshot_id",
            "/status/restoredFrom/snapshotID",
            "berth's own identity of the snapshot.",
        ),
        Field::observed("token", "/status/restoredFrom/token", "The token that was declared."),
        Field::observed("restored_at", "/status/restoredFrom/restoredAt", "When it was done, RFC 3339."),
    ];
    Field {
        shape: Shape::Object(fields),
        ..Field::observed("restored_from", "/status/restoredFrom", "The last restore of its data.")
    }
    .follows(&["restore"])
}

/// A persistent disk.
#[derive(Debug)]
pub struct Disk;

#[async_trait]
impl ResourceKind for Disk {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_disk",
            kind: "Disk",
            plural: "disks",
            description: "A persistent disk that outlives any VM: blank, made from an image, copied from another disk or a `berth_disk_snapshot`, made from a `berth_backup`, a file of the host that is taken over, or a block device of the host (`source = { device = … }`), which berth neither formats nor erases. Its file is created on the host of the first VM that uses it, one with the labels of `placement`; a copy, on the host of its source. A VM lists it in `disks`, or a `berth_hotswap_disk_attachment` attaches it to a running VM. With `access = \"ReadOnlyMany\"` several VMs of its host list it, each with `read_only = true`. With `access = \"ReadWriteMany\"` several VMs of its host list a blank disk and write to it: only for guests with a cluster file system.\n\nThe provider refuses to destroy a disk that a VM outside the plan uses. With `deletion_policy = \"Delete\"` the file stays in the pool's trash for 24 hours (`berth undelete`).",
            example: include_str!("../../examples/resources/berth_disk/resource.tf"),
            shown: "status.used_by",
            timeouts: [600, 600, 600],
        }
    }

    fn finalizer(&self) -> Option<&'static str> {
        Some(berth_api::HOST_FINALIZER)
    }

    fn fields(&self) -> Vec<Field> {
        let mut fields = vec![
            Field::spec("size", Shape::Text(Form::Quantity)).presence(Presence::Kept),
            Field::spec("deletion_protection", Shape::Bool).default(false),
            Field::spec("access", Shape::Text(Form::Any)).default("ReadWriteOnce").effect(Effect::Replace),
        ];
        fields.extend(declared(Effect::Replace, Effect::Live));
        fields.push(placement::field());
        fields.push(pools::current());
        fields.push(imported_from());
        fields.push(Field::spec("shared_with", Shape::TextList(Form::Any)));
        fields.push(restore_field());
        fields.push(restored_from());
        fields.push(encrypted());
        fields.extend([
            Field::observed(
                "serial",
                "/status/serial",
                "The serial number of the disk in the guest (`/dev/disk/by-id/…`). Set when a VM first uses it.",
            ),
            Field::observed(
                "volume_id",
                "/status/volumeID",
                "berth's own identity of the disk, and the name of its file. Set when a VM first uses it.",
            ),
            Field::observed("host", "/status/binding/host", "The host that stores the file."),
            Field::observed(
                "state",
                "/status/state",
                "The state of the disk: `Pending`, `Creating`, `Available`, `InUse`, `Failed` or `Terminating`.",
            ),
            Field {
                shape: Shape::Bool,
                ..Field::observed(
                    "survives_host_loss",
                    "/status/survivesHostLoss",
                    "Whether the disk goes on with its VM on another host once its own host is declared lost (`berth host forget --lost`). The VM can have reasons of its own to stay, such as a TPM. Set when a VM first uses it.",
                )
            },
            Field::observed(
                "host_loss_reason",
                "/status/hostLossReason",
                "Why the disk is lost with its host. Null if it is not.",
            ),
            Field::observed(
                "used",
                "/status/used",
                "The space that its file takes on its host, such as `1536Mi`: measured every ten minutes and rounded up, without the image and the snapshots that it is based on.",
            ),
        ]);
        fields
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let problems = [
            check_declared(config, &AttributePath::empty()),
            check_restore(config),
            check_access(config),
            check_shared_with(config),
        ];
        problems.into_iter().flatten().collect()
    }

    fn refine(&self, change: &mut PlannedChange<'_>) {
        let (was, is) = (change.prior.get("encryption"), change.planned.get("encryption"));
        if !change.is_create() && !is.is_unknown() && was.is_null() != is.is_null() {
            change.replace.push(AttributePath::root("encryption"));
        }
        moves::refine(change);
        if !change.replace.is_empty() {
            return;
        }
        if let Some(detail) = shrinks(change.prior, &change.planned) {
            change.refuse("A disk cannot shrink", detail, AttributePath::root("size"));
        }
        let announced = restore::announce(change, Restored::Disk);
        change.diagnostics.extend(announced);
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        placement::look(api, change).await;
    }

    fn view(&self, object: &Json) -> Json {
        let mut view = object.clone();
        let decided = object.pointer("/status/size").cloned();
        if let (Some(size), Some(spec)) = (decided, view.get_mut("spec").and_then(Json::as_object_mut)) {
            spec.entry("size").or_insert(size);
        }
        view
    }

    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/volumeID").is_some()
    }

    /// A disk that grows or is restored at the next power cycle of its VM cannot become more ready.
    fn outcome(&self, object: &Json, _: &Value) -> Outcome {
        let readiness = Readiness::of(object);
        let waits_for_person = readiness
            .ready
            .as_ref()
            .is_some_and(|ready| ["PowerCycleNeeded", "MoveWaits"].contains(&ready.reason.as_str()));
        match readiness.outcome() {
            Outcome::Waiting(_) if readiness.current && waits_for_person => Outcome::Done,
            outcome => outcome,
        }
    }
}

/// Refuses a disk, or a template of one at this path, that nothing can be made of.
pub(crate) fn check_declared(disk: &Value, at: &AttributePath) -> Option<Diagnostic> {
    let path = |name: &str| at.clone().attribute(name);
    let source = disk.get("source");
    if disk.get("size").is_null() && disk.get("image").is_null() && source.is_null() {
        let size = path("size");
        let detail = format!(
            "{size}: a disk without an image needs a size: set size = \"1Gi\", or the image to make it from."
        );
        return Some(Diagnostic::error("Missing size", detail).at(size));
    }
    if source.is_set() {
        let from = ["disk", "snapshot", "backup", "file", "device"].map(|name| source.get(name));
        let declared = from.iter().filter(|value| !value.is_null()).count();
        if declared != 1 && !from.iter().any(|value| value.is_unknown()) {
            let detail = "Set either source = { disk = \"…\" }, source = { snapshot = \"…\" }, source = { backup = \"…\" }, \
                          source = { file = \"/…\" } or source = { device = \"…\" }.";
            return Some(Diagnostic::error("Invalid source", detail).at(path("source")));
        }
        for kind in ["disk", "snapshot"] {
            let at = path("source").attribute(format!("{kind}_namespace"));
            if source.get(kind).is_null() && source.get(&format!("{kind}_namespace")).is_set() {
                let detail =
                    format!("{at}: it is the namespace of the {kind} in `{kind}`, which is not set.");
                return Some(Diagnostic::error("Invalid source", detail).at(at));
            }
        }
        if let Some(problem) = check_format(source, &path("source")) {
            return Some(problem);
        }
        if disk.get("image").is_set() {
            let detail = "A disk is made from an image or from a source: set either `image` or `source`.";
            return Some(Diagnostic::error("Image and source", detail).at(path("source")));
        }
        if let Some(file) = source.get("file").as_str()
            && !is_absolute(file)
        {
            let at = path("source").attribute("file");
            let detail =
                format!("{at}: {file:?} is not the absolute path of a file on the VM's host: write \"/…\".");
            return Some(Diagnostic::error("Invalid path", detail).at(at));
        }
        if source.get("file").as_str().is_some() && disk.get("provisioning").as_str() == Some("Thick") {
            let detail =
                "A file that is taken over stays as it is: `provisioning = \"Thick\"` is for new files.";
            return Some(Diagnostic::error("Invalid provisioning", detail).at(path("provisioning")));
        }
        let encryption = disk.get("encryption");
        if source.get("file").as_str().is_some() && encryption.is_set() {
            let detail = "A file that is taken over stays as it is: `encryption` is for new files.";
            return Some(Diagnostic::error("Invalid encryption", detail).at(path("encryption")));
        }
    }
    contents::check(disk, at)
        .or_else(|| device::check(disk, at))
        .or_else(|| pools::check(disk, at))
        .or_else(|| check_limits(disk.get("limits"), &path("limits")))
}

/// Refuses a format that files have not, and one without a file.
fn check_format(source: &Value, at: &AttributePath) -> Option<Diagnostic> {
    let (format, at) = (source.get("format"), at.clone().attribute("format"));
    let detail = match format.as_str()? {
        "qcow2" | "raw" if !source.get("file").is_null() => return None,
        "qcow2" | "raw" => format!("{at}: it is the format of the file in `file`, which is not set."),
        other => format!("{at}: {other:?} is neither \"qcow2\" nor \"raw\"."),
    };
    Some(Diagnostic::error("Invalid source", detail).at(at))
}

/// Whether it is an absolute path that a Disk accepts.
fn is_absolute(path: &str) -> bool {
    path.len() <= 1024
        && path.strip_prefix('/').is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_control))
}

/// Refuses a disk that several VMs read and that has no data, or that is written to by a restore, and one that several VMs write to and that is
/// more than a blank file.
fn check_access(disk: &Value) -> Option<Diagnostic> {
    match disk.get("access").as_str() {
        Some("ReadOnlyMany") => check_read_only(disk),
        Some("ReadWriteMany") => check_shared(disk),
        _ => None,
    }
}

/// Refuses all that a disk cannot have which several VMs write to.
fn check_shared(disk: &Value) -> Option<Diagnostic> {
    let at = AttributePath::root("access");
    let has = |name: &str| disk.get(name).is_set();
    let refusals = [
        ("image", "is blank at first: take `image` out, and write its data from a VM"),
        ("source", "is blank at first: take `source` out, and write its data from a VM"),
        ("restore", "has no snapshots, and is not restored"),
        ("encryption", "cannot be encrypted"),
        ("filesystem", "is not formatted: several VMs that mount ext4 or xfs destroy it"),
        ("pools", "has its pool declared: set `pool`"),
        ("pool_selector", "has its pool declared: set `pool`"),
        ("shared_with", "is the source of no other disk and no image: take `shared_with` out"),
    ];
    let (_, why) = refusals.into_iter().find(|(name, _)| has(name))?;
    Some(Diagnostic::error("Invalid access", format!("{at}: a ReadWriteMany disk {why}.")).at(at))
}

fn check_read_only(disk: &Value) -> Option<Diagnostic> {
    let at = AttributePath::root("access");
    let detail = if disk.get("image").is_null() && disk.get("source").is_null() {
        "it is never written to: set the image or the source of its data."
    } else if disk.get("restore").is_set() {
        "it is not restored: create another disk from the snapshot."
    } else if disk.get("encryption").is_set() {
        "it cannot be encrypted."
    } else {
        return None;
    };
    Some(
        Diagnostic::error(
            "Invalid access",
            format!("{at}: a ReadOnlyMany disk has the data of its creation, and {detail}"),
        )
        .at(at),
    )
}

/// Refuses a restore from the snapshot of another disk that the disk was made from.
fn check_restore(disk: &Value) -> Option<Diagnostic> {
    let snapshot = disk.get("restore").get("snapshot").as_str()?;
    (disk.get("source").get("snapshot").as_str() == Some(snapshot)).then(|| {
        let detail = "restore.snapshot: the disk was made from this snapshot (source), which is one of another disk. A disk is restored from a \
                      snapshot of itself.";
        Diagnostic::error("Invalid restore", detail).at(AttributePath::root("restore").attribute("snapshot"))
    })
}

/// Returns why a disk, or a template of one, cannot have its planned size.
pub(crate) fn shrinks(prior: &Value, planned: &Value) -> Option<String> {
    let size = |state: &Value| state.get("size").as_str().map(|size| Quantity(size.to_owned()));
    let (was, is) = (size(prior)?, size(planned)?);
    (is < was).then(|| {
        format!(
            "A disk can only grow: it has {was}, and {is} would lose data. Keep at least {was}, or create another disk \
             with another name."
        )
    })
}

/// Refuses ceilings that contradict each other.
pub(crate) fn check_limits(limits: &Value, at: &AttributePath) -> Option<Diagnostic> {
    if limits.is_null() || limits.is_unknown() {
        return None;
    }
    let has = |name: &str| limits.get(name).is_set();
    let lacks = |name: &str| limits.get(name).is_null();
    let refuse = |name: &str, detail: String| {
        let path = at.clone().attribute(name);
        Some(Diagnostic::error("Invalid limits", format!("{path}: {detail}")).at(path))
    };
    let rates = ["iops", "read_iops", "write_iops", "bandwidth", "read_bandwidth", "write_bandwidth"];
    if rates.into_iter().all(lacks) {
        let detail = format!("Set at least one of {}.", rates.join(", "));
        return Some(Diagnostic::error("Invalid limits", detail).at(at.clone()));
    }
    for rate in ["iops", "bandwidth"] {
        let (read, write, burst) = (format!("read_{rate}"), format!("write_{rate}"), format!("burst_{rate}"));
        if has(rate) && (has(&read) || has(&write)) {
            let detail =
                format!("it limits reads and writes together: set either {rate}, or {read} and {write}.");
            return refuse(rate, detail);
        }
        if has(&burst) && lacks(rate) {
            return refuse(&burst, format!("a burst exceeds {rate} for a time: set {rate} too."));
        }
        let amount = |name: &str| match limits.get(name).as_str() {
            Some(text) => text.parse::<Quantity>().ok()?.bytes().ok(),
            None => limits.get(name).as_number()?.as_u64(),
        };
        if let (Some(most), Some(rate_amount)) = (amount(&burst), amount(rate))
            && most < rate_amount
        {
            return refuse(
                &burst,
                format!("it is less than {rate}: the ceiling during a burst is at least as high."),
            );
        }
    }
    if has("burst_seconds") && lacks("burst_iops") && lacks("burst_bandwidth") {
        return refuse("burst_seconds", "set burst_iops or burst_bandwidth too.".to_owned());
    }
    None
}
