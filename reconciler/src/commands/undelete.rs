//! `berth undelete`: creates a deleted Disk again from its file, in a host's trash or retained, or a Disk with the data from before a
//! restore.

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{
    Disk, DiskAccess, DiskEncryption, DiskSource, DiskSpec, Host, Provisioning, Quantity, RESTORE_ANNOTATION,
    host::{RetainedVolume, TrashedSource, TrashedVolume},
};
use kube::{
    Client, ResourceExt,
    api::{ListParams, PostParams},
};

use crate::{cli::UndeleteOptions, one_connection::client_of};

use super::connect;

pub(super) async fn run(options: UndeleteOptions) -> anyhow::Result<()> {
    let (namespace, name) = options.disk.split_once('/').unwrap_or(("default", &options.disk));
    let config = connect::admin(&options.connection, &options.state.state_dir).await?;
    let client = client_of(config)?;
    let (host, volume) = find(&client, namespace, name, options.volume.as_deref()).await?;
    let name = options.rename.as_deref().unwrap_or(name);
    let disk = disk(&host, name, &volume);
    let disks: TypedApi<Disk> = TypedApi::namespaced(client, namespace);
    if disks.get_opt(name).await.with_context(|| format!("reading Disk {namespace}/{name}"))?.is_some() {
        bail!("Disk {namespace}/{name} exists: --as NAME makes another Disk of the file");
    }
    let made = disks.create(&PostParams::default(), &disk).await;
    made.with_context(|| format!("making Disk {namespace}/{name} again"))?;
    notice!("Disk {namespace}/{name} ({}, {}) comes back on host {host}", volume.size, since(&volume));
    notice!("Its limits, policies, labels and deletion protection do not: declare them again.");
    Ok(())
}

/// Returns the Disk to create again for this file, in the file's pool. It declares what cannot be changed as the deleted one did:
/// otherwise Terraform would plan to replace it.
fn disk(host: &str, name: &str, volume: &TrashedVolume) -> Disk {
    let declared = volume.source.as_ref();
    let spec = DiskSpec {
        size: Some(Quantity(volume.size.clone())),
        image: volume.image.as_deref().map(Into::into),
        clone_mode: declared.and_then(|declared| declared.clone_mode).unwrap_or_default(),
        filesystem: declared.and_then(|declared| declared.filesystem.clone()),
        source: declared.filter(|declared| has_source(declared)).map(|source| DiskSource {
            disk: source.disk.as_deref().map(Into::into),
            disk_namespace: source.disk.as_ref().and(source.namespace.as_deref()).map(Into::into),
            snapshot: source.snapshot.as_deref().map(Into::into),
            snapshot_namespace: source.snapshot.as_ref().and(source.namespace.as_deref()).map(Into::into),
            file: source.file.clone(),
            format: source.format,
            backup: source.backup.as_deref().map(Into::into),
            device: None,
        }),
        pool: volume.pool.as_str().into(),
        provisioning: if volume.thick { Provisioning::Thick } else { Provisioning::Thin },
        access: if volume.shared { DiskAccess::ReadWriteMany } else { DiskAccess::ReadWriteOnce },
        // The namespace follows from the name, as it did before.
        encryption: volume
            .key_class
            .as_deref()
            .and_then(|class| class.split_once('/'))
            .map(|(_, name)| Box::new(DiskEncryption { key_class: name.into() })),
        ..DiskSpec::default()
    };
    let mut disk = Disk::new(name, spec);
    disk.annotations_mut().insert(RESTORE_ANNOTATION.into(), format!("{host}/{}", volume.volume_id));
    disk
}

/// Whether the Disk declared a `source`.
fn has_source(declared: &TrashedSource) -> bool {
    let named = [&declared.disk, &declared.snapshot, &declared.file, &declared.backup];
    named.into_iter().any(Option::is_some)
}

/// Returns when the file's Disk was deleted, for people.
fn since(volume: &TrashedVolume) -> String {
    match volume.deleted_at.is_empty() {
        true => "retained".to_owned(),
        false => format!("deleted {}", volume.deleted_at),
    }
}

/// A retained file as one in the trash; when its Disk was deleted is not known.
fn as_trashed(volume: RetainedVolume) -> TrashedVolume {
    TrashedVolume {
        volume_id: volume.volume_id,
        pool: volume.pool,
        namespace: volume.namespace,
        name: volume.name,
        size: volume.size,
        used: volume.used,
        image: volume.image,
        source: volume.source,
        thick: volume.thick,
        shared: volume.shared,
        key_class: volume.key_class,
        deleted_at: String::new(),
    }
}

/// Finds the newest file of a disk of that name in any host's trash, one that a host retains, or the requested one.
async fn find(
    client: &Client,
    namespace: &str,
    name: &str,
    volume: Option<&str>,
) -> anyhow::Result<(String, TrashedVolume)> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let hosts = hosts.list(&ListParams::default()).await.context("listing hosts")?;
    let mut found: Vec<(String, TrashedVolume)> = Vec::new();
    for host in hosts {
        let status = host.status.clone().unwrap_or_default();
        let files = status.trash.into_iter().chain(status.retained_volumes.into_iter().map(as_trashed));
        let fits = |t: &TrashedVolume| {
            t.namespace == namespace && t.name == name && volume.is_none_or(|v| v == t.volume_id)
        };
        found.extend(files.filter(fits).map(|file| (host.name_any(), file)));
    }
    found.sort_by(|(_, a), (_, b)| a.deleted_at.cmp(&b.deleted_at));
    for (host, other) in found.iter().rev().skip(1) {
        notice!("another one is on host {host}: --volume {} ({})", other.volume_id, since(other));
    }
    match found.pop() {
        Some(newest) => Ok(newest),
        None => bail!(
            "no host has a deleted disk {namespace}/{name}, in its trash or retained: berth trash lists them"
        ),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::CloneMode;

    use super::*;

    #[test]
    fn a_disk_comes_back_in_the_pool_its_file_lies_in() {
        let volume = |pool: serde_json::Value| -> TrashedVolume {
            let mut volume = serde_json::json!({"volumeID": "v-1", "namespace": "ns", "name": "data", "size": "1Gi",
                "deletedAt": "2026-01-01T00:00:00Z"});
            if pool.is_string() {
                volume["pool"] = pool;
            }
            serde_json::from_value(volume).expect("a file")
        };
        let fast = disk("h1", "data", &volume("fast".into()));
        assert_eq!(fast.spec.pool.as_str(), "fast");
        assert_eq!(fast.annotations()[RESTORE_ANNOTATION], "h1/v-1");
        assert_eq!(disk("h1", "data", &volume(serde_json::Value::Null)).spec.pool.as_str(), "default");
        assert_eq!(fast.spec.provisioning, Provisioning::Thin);
        assert_eq!(fast.spec.encryption, None);
        let encrypted =
            TrashedVolume { key_class: Some("berth-shared/strong".into()), ..volume("fast".into()) };
        let encryption = disk("h1", "data", &encrypted).spec.encryption.expect("encrypted");
        assert_eq!(encryption.key_class.as_str(), "strong");
        let thick = TrashedVolume { thick: true, ..volume("fast".into()) };
        assert_eq!(disk("h1", "data", &thick).spec.provisioning, Provisioning::Thick);
        let shared = TrashedVolume { shared: true, ..volume("fast".into()) };
        assert_eq!(disk("h1", "data", &shared).spec.access, DiskAccess::ReadWriteMany);
    }

    #[test]
    fn a_retained_file_comes_back_as_one_of_the_trash_does() {
        let retained = RetainedVolume {
            volume_id: "v-2".to_owned(),
            pool: "fast".to_owned(),
            size: "2Gi".to_owned(),
            image: Some("debian".to_owned()),
            thick: true,
            ..RetainedVolume::default()
        };
        let file = as_trashed(retained);
        assert_eq!(since(&file), "retained");
        let made = disk("h1", "data", &file);
        assert_eq!(made.annotations()[RESTORE_ANNOTATION], "h1/v-2");
        assert_eq!((made.spec.pool.as_str(), made.spec.provisioning), ("fast", Provisioning::Thick));
        assert_eq!(made.spec.image.map(|image| image.to_string()).as_deref(), Some("debian"));
    }

    #[test]
    fn a_copy_comes_back_with_the_source_that_it_declared() {
        let volume: TrashedVolume = serde_json::from_value(serde_json::json!({
            "volumeID": "v-1", "namespace": "ns", "name": "copy", "size": "1Gi", "deletedAt": "2026-01-01T00:00:00Z",
            "source": {"snapshot": "before"},
        }))
        .expect("a file");
        let source = disk("h1", "copy", &volume).spec.source.expect("its source");
        assert_eq!(source, DiskSource { snapshot: Some("before".into()), ..DiskSource::default() });
        let declared = serde_json::json!({"file": "/srv/a.img", "format": "raw"});
        let volume = TrashedVolume { source: serde_json::from_value(declared).expect("a source"), ..volume };
        let source = disk("h1", "copy", &volume).spec.source.expect("its source");
        assert_eq!(source.raw_file(), Some("/srv/a.img"));
    }

    #[test]
    fn a_formatted_disk_and_a_full_clone_come_back_as_they_were_declared() {
        let made = |declared: serde_json::Value| {
            let volume: TrashedVolume = serde_json::from_value(serde_json::json!({
                "volumeID": "v-1", "namespace": "ns", "name": "data", "size": "1Gi", "deletedAt": "2026-01-01T00:00:00Z",
                "source": declared,
            }))
            .expect("a file");
            disk("h1", "data", &volume).spec
        };
        let formatted = made(serde_json::json!({"filesystem": {"type": "ext4", "label": "data"}}));
        assert_eq!(formatted.source, None);
        assert_eq!(formatted.filesystem.and_then(|made| made.label).as_deref(), Some("data"));
        let full = made(serde_json::json!({"cloneMode": "Full"}));
        assert_eq!((full.source, full.clone_mode), (None, CloneMode::Full));
    }
}
