//! The pools among which one is chosen for a disk, with the host of its first VM.

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
    references::STORAGE_POOL,
};

/// The attribute with the pool that has the file of a disk.
pub const CURRENT_POOL: &str = "current_pool";

/// `effect` is that of a change.
pub(super) fn fields(effect: Effect) -> Vec<Field> {
    vec![
        Field::spec("pools", Shape::TextList(Form::Name)).effect(effect).refers(STORAGE_POOL),
        Field::spec("pool_selector", Shape::TextMap).effect(effect),
    ]
}

pub(super) fn current() -> Field {
    Field::observed(
        CURRENT_POOL,
        "/status/pool",
        "The StoragePool that contains the disk. With `pools` or `pool_selector`, it is chosen when a VM first uses the disk. It differs from `pool` until a declared move is done.",
    )
    .follows(&["pool", "pools", "pool_selector"])
}

/// Whether the pool of a declared disk is chosen among several.
#[must_use]
pub fn chooses_pool(disk: &Value) -> bool {
    !disk.get("pools").is_null() || !disk.get("pool_selector").is_null()
}

/// Refuses a disk, or a template of one at this path, that names a pool beside those to choose from.
pub(super) fn check(disk: &Value, at: &AttributePath) -> Option<Diagnostic> {
    let is_set = |name: &str| disk.get(name).is_set();
    if !is_set("pools") && !is_set("pool_selector") {
        return None;
    }
    let refuse = |name: &str, detail: &str| {
        let path = at.clone().attribute(name);
        Some(Diagnostic::error("Invalid pool", format!("{path}: {detail}")).at(path))
    };
    if is_set("pools") && is_set("pool_selector") {
        return refuse("pool_selector", "set either `pools` or `pool_selector`.");
    }
    if disk.get("pool").as_str().is_some_and(|pool| pool != berth_api::DEFAULT_NAME) {
        return refuse(
            "pool",
            "`pools` and `pool_selector` leave the choice of the pool to the scheduler: set either this or one of them.",
        );
    }
    if disk.get("source").get("file").as_str().is_some() {
        let name = if is_set("pools") { "pools" } else { "pool_selector" };
        return refuse(
            name,
            "a file that is taken over goes into a pool on its own file system: set `pool`.",
        );
    }
    None
}
