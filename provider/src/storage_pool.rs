//! `berth_storage_pool`

use serde_json::Value as Json;

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
};

/// A place for the files of disks.
#[derive(Debug)]
pub struct StoragePool;

impl ResourceKind for StoragePool {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_storage_pool",
            kind: "StoragePool",
            plural: "storagepools",
            description: "A place for the files of disks: a folder on each host, with a trash of its own. Administrators of hosts choose the folder with `--pool-folder NAME=FOLDER`; without one it is in the state directory. Of type `Shared` it is one folder that several hosts mount, and of type `RBD` a pool of Ceph, with an image for each disk. A disk names it in `pool`. It is cluster-scoped: all namespaces share it, and only an administrator can write it. Destroying a pool that disks name is accepted; a finalizer keeps it until no disk does.",
            example: include_str!("../../examples/resources/berth_storage_pool/resource.tf"),
            shown: "status.used_by",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("type", Shape::Text(Form::Any)).default("Local").effect(Effect::Replace),
            Field::spec("trash_retention_seconds", Shape::Integer).default(86_400),
            Field::spec("overcommit_percent", Shape::Integer).default(1000),
            Field::spec("default_for_namespaces", Shape::TextList(Form::Name)),
        ]
    }

    /// Nothing is lost with a pool: while it is in use, it stays.
    fn is_worth_keeping(&self, _object: &Json) -> bool {
        false
    }
}
