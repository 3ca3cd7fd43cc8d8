//! `berth disk-backup restore-vm`: a VM with its disks, made again from backups of them, each of which has the declaration of the VM.

use std::io::Write;

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{Backup, Disk, JsonKind, VM, backup::declaration::VMDeclaration, disk_read::DiskOrigin};
use kube::{Client, api::PostParams};
use serde_json::{Value, json};

use super::restored::{Restored, Source, WantedVm, restored};
use crate::{
    cli::{BackupSite, FileSource, RestoreVmOptions},
    commands::{connect, files, resources},
    one_connection::client_of,
};

/// *Errors:* a Backup is not there, not complete, not readable or has no declaration; they are not one of each disk of a VM; objects exist.
pub(in crate::commands) async fn restore_vm(options: RestoreVmOptions) -> anyhow::Result<()> {
    let RestoreVmOptions { backups, rename, keep_identity, without, apply, site } = options;
    let name = rename.as_deref().map(resources::checked).transpose()?;
    let client = client_of(connect::admin(&site.connection, &site.state.state_dir).await?)?;
    let mut sources = Vec::new();
    for backup in &backups {
        sources.push(Box::pin(source(&client, &site, backup)).await?);
    }
    let wanted =
        WantedVm { namespace: &site.namespace, name, keeps_identity: keep_identity, without: &without };
    let restored = restored(&sources, wanted)?;
    for note in &restored.notes {
        // The declaration is of a writer of the repository.
        notice!("berth: {}", note.replace(char::is_control, " "));
    }
    match apply {
        true => create(&client, &site.namespace, restored, keep_identity).await,
        false => print(&restored),
    }
}

/// Reads the declaration that is stored with a Backup, from the host that opens it.
async fn source(client: &Client, site: &BackupSite, name: &str) -> anyhow::Result<Source> {
    let (namespace, name) = (resources::checked(&site.namespace)?, resources::checked(name)?);
    let api: TypedApi<Backup> = TypedApi::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await.with_context(|| format!("reading Backup {name}"))?;
    let Some(backup) = found else { bail!("there is no Backup {name} in namespace {namespace} (see -n)") };
    let from = FileSource {
        namespace: namespace.to_owned(),
        partition: None,
        volume: None,
        ignore_journal: false,
        state: site.state.clone(),
        connection: site.connection.clone(),
    };
    let mut data = Box::pin(files::opened(DiskOrigin::Backup, &from, name)).await?;
    let text =
        data.declaration().await.with_context(|| format!("reading the declaration in Backup {name}"))?;
    let Some(text) = text else {
        bail!(
            "Backup {name} has no declaration of a VM: it was made by an earlier version, or of a disk that was in no VM's list. Make Disks from \
             the backups, and declare a VM with them"
        )
    };
    let declaration = VMDeclaration::decode(&text);
    let declaration = declaration
        .map_err(|detail| anyhow::anyhow!("the declaration in Backup {name} is not known: {detail}"))?;
    let taken_at = backup.status.and_then(|status| status.taken_at);
    Ok(Source { backup: name.to_owned(), taken_at, declaration })
}

fn print(restored: &Restored) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for object in restored.disks.iter().chain([&restored.vm]) {
        let text = serde_saphyr::to_string(object).context("writing YAML")?;
        writeln!(out, "---\n{}", text.trim_end()).context("printing")?;
    }
    Ok(())
}

/// Creates the Disks, and then the VM. Nothing is created if one of them exists, or if another VM has the identity.
async fn create(
    client: &Client,
    namespace: &str,
    restored: Restored,
    keeps_identity: bool,
) -> anyhow::Result<()> {
    let disks: TypedApi<Disk> = TypedApi::namespaced(client.clone(), namespace);
    let vms: TypedApi<VM> = TypedApi::namespaced(client.clone(), namespace);
    let new_vm: VM = typed(&restored.vm)?;
    let new_disks = restored.disks.iter().map(typed).collect::<anyhow::Result<Vec<Disk>>>()?;
    let vm = new_vm.metadata.name.clone().unwrap_or_default();
    if vms.get_opt(&vm).await.with_context(|| format!("reading VM {vm}"))?.is_some() {
        bail!("VM {vm} exists: delete it first, or use another name (--as)");
    }
    let former = restored.former.as_str();
    if keeps_identity && vms.get_opt(former).await.with_context(|| format!("reading VM {former}"))?.is_some()
    {
        bail!("VM {former} exists, and has this identity: delete it first, or leave out --keep-identity");
    }
    for disk in &new_disks {
        let name = disk.metadata.name.as_deref().unwrap_or_default();
        if disks.get_opt(name).await.with_context(|| format!("reading Disk {name}"))?.is_some() {
            bail!("Disk {name} exists: delete it first, or use another name for the VM (--as)");
        }
    }
    for disk in &new_disks {
        let name = disk.metadata.name.as_deref().unwrap_or_default();
        let made = disks.create(&PostParams::default(), disk).await;
        made.with_context(|| {
            format!("creating Disk {name}: delete those that were created before you repeat this")
        })?;
        notice!("berth: Disk {name} is created");
    }
    let made = vms.create(&PostParams::default(), &new_vm).await;
    made.with_context(|| {
        format!("creating VM {vm}: its Disks are created, and are used if you create it otherwise")
    })?;
    writeln!(std::io::stdout(), "VM {vm} is created; it starts once the data of its disks is there")
        .context("printing")
}

/// A field or a value that this version does not know is an error, before anything is created.
fn typed<K: JsonKind>(object: &Value) -> anyhow::Result<K> {
    let newer = "the declaration is of a newer version: print it, and apply it with kubectl";
    let typed = K::from_json(&object.to_string()).context(newer)?;
    let kept: Value = serde_json::from_str(typed.to_json().context(newer)?.get()).context(newer)?;
    if let Some(field) = unknown_field(object, &kept) {
        bail!("this version does not know {field:?}: {newer}");
    }
    Ok(typed)
}

/// Returns the pointer to a field that is declared and was not kept.
fn unknown_field(declared: &Value, kept: &Value) -> Option<String> {
    let is_empty = |value: &Value| *value == Value::Null || *value == json!({}) || *value == json!([]);
    let below = |name: String, declared: &Value, kept: Option<&Value>| match kept {
        None => (!is_empty(declared)).then(|| format!("/{name}")),
        Some(kept) => unknown_field(declared, kept).map(|field| format!("/{name}{field}")),
    };
    match declared {
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| below(name.clone(), value, kept.get(name)))
        }
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, value)| below(at.to_string(), value, kept.get(at)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_this_version_does_not_know_is_refused() {
        let vm = |more: Value| {
            let mut spec = json!({"cpus": 1, "memory": "1Gi", "placement": {}, "cdroms": [],
                "disks": [{"name": "web-root", "boot": true}], "networkInterfaces": [{"name": "nic0", "network": "lan"}]});
            spec["disks"][0]["later"] = more;
            let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "web"}, "spec": spec});
            typed::<VM>(&object)
        };
        assert_eq!(vm(Value::Null).expect("it is known").metadata.name.as_deref(), Some("web"));
        let newer = vm(json!("x")).expect_err("it is not known").to_string();
        assert!(newer.contains("/spec/disks/0/later"), "{newer}");
    }
}
