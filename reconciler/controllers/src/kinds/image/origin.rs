//! The Disk or the DiskSnapshot that an Image is made from.

use berth_api::{Disk, Image, ResourceName};
use kube::ResourceExt;

use crate::{
    cache::{Cache, shared_images::not_shared},
    key::{Key, ObjectKind},
};

/// The object that an image is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) key: Key,
    /// The error is for people.
    pub(super) place: Result<Place, String>,
    /// It is of another namespace, which does not share it: why, for people.
    pub(super) not_shared: Option<String>,
    /// No image is ever made of it: why, for people.
    pub(super) refusal: Option<String>,
}

/// Where the data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) snapshot_id: String,
    /// The volume of the Disk, of which that snapshot is to be taken.
    pub(super) volume_id: Option<String>,
    pub(super) pool: ResourceName,
}

/// Returns what the image is made from. `None`: it has a URL.
pub(super) fn observe(cache: &Cache, image: &Image) -> Option<Origin> {
    let own = image.namespace().unwrap_or_default();
    let namespace = image.foreign_data().unwrap_or(&own);
    let refused = |key: &Key, is_shared: bool| (!is_shared).then(|| not_shared(key, &own));
    let source = &image.spec.source;
    if let Some(name) = &source.snapshot {
        let key = Key::namespaced(ObjectKind::DiskSnapshot, namespace, name.as_str());
        let found = cache.tables.disk_snapshots.get(&key);
        let is_shared = namespace == own || found.is_some_and(|snapshot| snapshot.is_shared_with(&own));
        let (place, not_shared) = (of_snapshot(cache, &key), refused(&key, is_shared));
        let status = found.and_then(|snapshot| snapshot.status.as_ref());
        let is_encrypted = status.is_some_and(|status| status.encryption.is_some());
        let refusal = is_encrypted.then(|| encrypted(&key));
        return Some(Origin { key, place, not_shared, refusal });
    }
    let key = Key::namespaced(ObjectKind::Disk, namespace, source.disk.as_ref()?.as_str());
    let found = cache.tables.disks.get(&key);
    let is_shared = namespace == own || found.is_some_and(|disk| disk.is_shared_with(&own));
    let (place, not_shared) = (of_disk(cache, &key, image), refused(&key, is_shared));
    let refusal = found.and_then(|disk| match disk.without_snapshots() {
        Some(why) => Some(format!("Disk {} {why}: no image is made of it", key.name)),
        None => is_encrypted(disk).then(|| encrypted(&key)),
    });
    Some(Origin { key, place, not_shared, refusal })
}

fn is_encrypted(disk: &Disk) -> bool {
    disk.spec.encryption.is_some() || disk.status.as_ref().is_some_and(|status| status.encryption.is_some())
}

/// The refusal of encrypted data, for people. Bound to the host of the data, the image would keep the disk and its VM there.
fn encrypted(key: &Key) -> String {
    format!(
        "{} {} is encrypted, and images are not: make a backup of it, or a disk with it as its source",
        key.kind.as_str(),
        key.name
    )
}

fn of_snapshot(cache: &Cache, key: &Key) -> Result<Place, String> {
    let name = &key.name;
    let Some(snapshot) = cache.tables.disk_snapshots.get(key) else {
        return Err(format!("DiskSnapshot {name} does not exist"));
    };
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(format!("DiskSnapshot {name} is being deleted"));
    }
    let status = snapshot.status.clone().unwrap_or_default();
    match (status.binding, status.snapshot_id, status.pool, status.taken_at) {
        (Some(binding), Some(snapshot_id), Some(pool), Some(_)) => {
            Ok(Place { host: binding.host, snapshot_id, volume_id: None, pool })
        }
        _ => Err(format!("DiskSnapshot {name} is not taken yet")),
    }
}

fn of_disk(cache: &Cache, key: &Key, image: &Image) -> Result<Place, String> {
    let name = &key.name;
    let Some(disk) = cache.tables.disks.get(key) else { return Err(format!("Disk {name} does not exist")) };
    if disk.metadata.deletion_timestamp.is_some() {
        return Err(format!("Disk {name} is being deleted"));
    }
    let status = disk.status.clone().unwrap_or_default();
    let host = status.binding.as_ref().map(|binding| &binding.host);
    if status.former_host.as_ref().is_some_and(|former| host != Some(former)) {
        return Err(format!("Disk {name} goes to another host with its VM: the image is made there"));
    }
    match (status.binding, status.volume_id, status.size, image.own_snapshot()) {
        (Some(binding), Some(volume_id), Some(_), Some(snapshot_id)) => Ok(Place {
            host: binding.host,
            snapshot_id,
            volume_id: Some(volume_id),
            pool: disk.pool().clone(),
        }),
        _ => Err(format!("Disk {name} has no file yet: the image is made once it has")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::Reason;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::super::{Decision, observe as seen, plan};
    use super::*;
    use crate::plan::{Dependency, Outcome};

    #[tokio::test]
    async fn an_image_of_a_disk_that_has_no_snapshots_or_is_encrypted_is_refused_and_does_not_wait() {
        let image: Image = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": "a", "namespace": "ns", "uid": "u"},
            "spec": {"source": {"disk": "data"}},
        }))
        .expect("an image");
        let planned = |spec: Value| {
            let disk: Disk = serde_json::from_value(json!({
                "metadata": {"name": "data", "namespace": "ns"}, "spec": spec,
                "status": {"binding": {"host": "h", "epoch": 1}, "volumeID": "v-1", "size": "1Gi"},
            }))
            .expect("a disk");
            let mut cache = Cache::new(Duration::from_secs(40));
            cache.put(disk, Instant::now());
            plan(&image, &seen(&cache, &image))
        };
        let key = Key::namespaced(ObjectKind::Disk, "ns", "data");
        for (spec, why) in [
            (json!({"source": {"device": "nvme"}}), "block device"),
            (json!({"size": "1Gi", "access": "ReadWriteMany"}), "ReadWriteMany"),
            (json!({"size": "1Gi", "encryption": {"keyClass": "k"}}), "encrypted"),
        ] {
            let refused = planned(spec);
            let Decision::Refuse(Reason::NotSupported, text) = &refused.decision else {
                panic!("{refused:?}")
            };
            assert!(text.contains(why), "{text}");
            assert_eq!(refused.outcome, Outcome::Blocked(vec![Dependency::Object(key.clone())]));
        }
        assert!(matches!(planned(json!({"size": "1Gi"})).decision, Decision::BindTo(_)));
    }
}
