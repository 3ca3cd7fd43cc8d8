//! `berth disk-backup restore-vm`: a VM with its disks, made again from backups of them, each of which has the declaration of the VM.

use std::io::Write;

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{Backup, Disk, VM, backup::declaration::VMDeclaration, disk_read::DiskOrigin};
use kube::{Client, api::PostParams};
use serde_json::Value;

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
        eprintln!("berth: {note}");
    }
    match apply {
        true => create(&client, &site.namespace, restored).await,
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

/// Creates the Disks, and then the VM. Nothing is created if one of them exists.
async fn create(client: &Client, namespace: &str, restored: Restored) -> anyhow::Result<()> {
    let disks: TypedApi<Disk> = TypedApi::namespaced(client.clone(), namespace);
    let vms: TypedApi<VM> = TypedApi::namespaced(client.clone(), namespace);
    let new_vm: VM = typed(restored.vm)?;
    let new_disks = restored.disks.into_iter().map(typed).collect::<anyhow::Result<Vec<Disk>>>()?;
    let vm = new_vm.metadata.name.clone().unwrap_or_default();
    if vms.get_opt(&vm).await.with_context(|| format!("reading VM {vm}"))?.is_some() {
        bail!("VM {vm} exists: delete it first, or use another name (--as)");
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
        eprintln!("berth: Disk {name} is created");
    }
    let made = vms.create(&PostParams::default(), &new_vm).await;
    made.with_context(|| {
        format!("creating VM {vm}: its Disks are created, and are used if you create it otherwise")
    })?;
    writeln!(std::io::stdout(), "VM {vm} is created; it starts once the data of its disks is there")
        .context("printing")
}

/// A value that this version does not know is an error, before anything is created.
fn typed<T: serde::de::DeserializeOwned>(object: Value) -> anyhow::Result<T> {
    serde_json::from_value(object)
        .context("the declaration is of a newer version: print it, and apply it with kubectl")
}
