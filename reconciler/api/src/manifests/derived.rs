//! The definitions as the types determine them, to write the files of `definitions` and to compare them in a test.
//!
//! Only that test and the example `definitions` call this. Deriving takes longer than a start of Terraform's provider, and its
//! code for every type is large; a program that calls none of it is linked without it.

use std::{fs, io, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSON};
use kube::CustomResourceExt;
use serde::Serialize;
use serde_json::{Serializer, json, ser::PrettyFormatter};

use crate::{
    Backup, BackupRepository, Disk, DiskSnapshot, Host, HotswapDiskAttachment, IPPool, Image, KeyClass,
    Network, PlacementGroup, PublicIP, Quota, SecurityGroup, SnapshotSchedule, StoragePool, VM, VMClass,
    VMGroup, VMSnapshot, power,
};

/// The definitions of all kinds, in the order of their names.
///
/// *Guarantees:* each gives a new object `status: {observedGeneration: -1}`, so that no tool mistakes an object that
/// was not observed yet for a finished one.
fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![
        Backup::crd(),
        BackupRepository::crd(),
        Disk::crd(),
        DiskSnapshot::crd(),
        Host::crd(),
        HotswapDiskAttachment::crd(),
        Image::crd(),
        IPPool::crd(),
        KeyClass::crd(),
        Network::crd(),
        PlacementGroup::crd(),
        PublicIP::crd(),
        Quota::crd(),
        SecurityGroup::crd(),
        SnapshotSchedule::crd(),
        StoragePool::crd(),
        VM::crd(),
        VMClass::crd(),
        VMGroup::crd(),
        VMSnapshot::crd(),
    ];
    definitions.iter_mut().for_each(complete);
    definitions
}

/// Adds the parts that no attribute of a type declares.
fn complete(definition: &mut CustomResourceDefinition) {
    let is_vm = definition.spec.names.kind == "VM";
    for version in &mut definition.spec.versions {
        let mut schema = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut());
        if let Some(schema) = schema.as_mut().filter(|_| is_vm) {
            schema.x_kubernetes_validations.get_or_insert_default().extend(power::rules());
        }
        let status = schema.and_then(|s| s.properties.as_mut()).and_then(|p| p.get_mut("status"));
        if let Some(status) = status {
            status.nullable = None;
            status.default = Some(JSON(json!({"observedGeneration": -1})));
        }
    }
}

/// The name and the text of each file, in the order of the kinds' names.
pub fn files() -> Vec<(String, String)> {
    definitions()
        .iter()
        .map(|definition| (format!("{}.json", definition.spec.names.plural), text(definition)))
        .collect()
}

/// Writes all files into a folder.
///
/// *Errors:* the first file that cannot be written.
pub fn write(folder: &Path) -> io::Result<()> {
    files().into_iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

/// Keys are sorted, also in a build of another workspace where a feature of `serde_json` keeps their order. The indentation of
/// one space saves the programs 110 kB of spaces.
fn text(definition: &CustomResourceDefinition) -> String {
    let mut value = serde_json::to_value(definition).expect("a definition is plain data");
    value.sort_all_objects();
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b" "));
    value.serialize(&mut serializer).expect("plain data is written into memory");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::super::definitions::FILES;
    use super::*;

    const COMMAND: &str = "run cargo run --example definitions";

    #[test]
    fn the_committed_definitions_are_those_of_the_types() {
        let derived = files();
        let names: Vec<String> = derived.iter().map(|(name, _)| name.clone()).collect();
        let listed: Vec<String> = FILES.iter().map(|(plural, _)| format!("{plural}.json")).collect();
        assert_eq!(listed, names, "the list in manifests/definitions.rs");
        for ((name, derived), (_, committed)) in derived.iter().zip(FILES) {
            assert!(committed == derived, "manifests/definitions/{name} is not up to date: {COMMAND}");
        }
    }

    #[test]
    fn every_file_of_the_folder_is_a_definition() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/manifests/definitions");
        let entries = fs::read_dir(folder).expect("the folder is committed");
        let mut found: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        let mut listed: Vec<String> = FILES.iter().map(|(plural, _)| format!("{plural}.json")).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed, "a file that no program embeds");
    }
}
