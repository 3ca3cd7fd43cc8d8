//! The Secrets with credentials of images: the hosts that download an image read them.

use std::{collections::BTreeSet, sync::Arc};

use berth_api::{Image, SYSTEM_NAMESPACE, manifests::access};
use kube::ResourceExt;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

impl Cache {
    /// Returns the Secrets of a namespace that a host must read, in order.
    pub(crate) fn secrets_of(&self, host: &str, namespace: &str) -> Vec<String> {
        let mut secrets: BTreeSet<String> = self.index.secrets.of(host, namespace).into_iter().collect();
        let own = self.images_with_secrets.iter().filter(|key| key.namespace() == namespace);
        let images = own.filter_map(|key| self.tables.images.get(key));
        let with_secret = images.filter_map(|image| Some((image, image.spec.source.secret_name.as_ref()?)));
        let needed = with_secret.filter(|(image, _)| self.downloads(image).contains(host));
        secrets.extend(needed.map(|(_, secret)| secret.clone()));
        secrets.extend(self.repository_secrets(host, namespace));
        secrets.extend(self.key_secrets(host, namespace));
        secrets.into_iter().collect()
    }

    /// Whether a host has an account of its own, which reads Secrets only by its Roles.
    pub(crate) fn has_account(&self, host: &str) -> bool {
        self.tables.accounts.named(SYSTEM_NAMESPACE, &access::account_name(host)).is_some()
    }

    /// Records whether this image has credentials.
    pub(crate) fn note_secret(&mut self, image: &Key) {
        if self.tables.images.get(image).is_some_and(|image| image.spec.source.secret_name.is_some()) {
            self.images_with_secrets.insert(image.clone());
        } else {
            self.images_with_secrets.remove(image);
        }
    }

    /// Returns the hosts that download the image: the one that verifies it, and those of its users.
    fn downloads(&self, image: &Arc<Image>) -> BTreeSet<String> {
        let verifies = image.status.as_ref().and_then(|status| status.binding.as_ref());
        let users = self.users_of(&Key::of(image.as_ref()));
        users.iter().filter_map(|user| self.host_of(user)).chain(verifies.map(|b| b.host.clone())).collect()
    }

    fn host_of(&self, user: &Key) -> Option<String> {
        let binding = match user.kind {
            ObjectKind::Disk => self.tables.disks.get(user)?.status.as_ref()?.binding.clone(),
            ObjectKind::VM => self.tables.vms.get(user)?.status.as_ref()?.binding.clone(),
            _ => None,
        };
        binding.map(|binding| binding.host)
    }

    /// Returns the Roles by which hosts read the credentials that this Image or BackupRepository has, or those of the images, repositories
    /// and classes of keys that this Disk, DiskSnapshot, VM or Backup uses.
    pub(crate) fn secret_roles(&self, key: &Key) -> Vec<Key> {
        let mut roles = self.repository_roles(key);
        roles.extend(self.image_roles(key));
        roles.extend(self.key_roles(key));
        roles
    }

    fn image_roles(&self, key: &Key) -> Vec<Key> {
        if self.images_with_secrets.is_empty() {
            return Vec::new();
        }
        let role =
            |image: &Image, host: &str| Key::secrets_role(host, &image.namespace().unwrap_or_default());
        let has_secret = |image: &&Arc<Image>| image.spec.source.secret_name.is_some();
        match key.kind {
            ObjectKind::Image => {
                let Some(image) = self.tables.images.get(key).filter(has_secret) else { return Vec::new() };
                self.downloads(image).iter().map(|host| role(image, host)).collect()
            }
            ObjectKind::Disk | ObjectKind::VM => {
                let Some(host) = self.host_of(key) else { return Vec::new() };
                let used = self.uses_of(key).unwrap_or_default();
                let images = used.into_iter().filter(|used| used.kind == ObjectKind::Image);
                let images = images.filter_map(|image| self.tables.images.get(&self.resolve(&image)));
                images.filter(has_secret).map(|image| role(image, &host)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the Roles to reconcile after a change of this object: those that it concerns now or concerned before. `classes` are those
    /// whose keys its host needed before: another class can be in the same Role.
    pub(crate) fn changed_secret_roles(&self, key: &Key, before: Vec<Key>, classes: &[Key]) -> Vec<Key> {
        let now = self.secret_roles(key);
        match key.kind {
            // Another Secret of the same hosts is another rule of the same Roles.
            ObjectKind::Image | ObjectKind::BackupRepository => before.into_iter().chain(now).collect(),
            _ if before == now && classes == self.classes_needed(key) => Vec::new(),
            _ => before.into_iter().chain(now).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::Disk;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn image(version: &str, secret: Option<&str>) -> Image {
        let mut source = json!({"url": "https://a/b", "sha256": "0".repeat(64)});
        if let Some(secret) = secret {
            source["secretName"] = secret.into();
        }
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Image",
            "metadata": {"name": "debian", "namespace": "berth-shared", "uid": "i", "resourceVersion": version},
            "spec": {"source": source}, "status": {"binding": {"host": "h1", "epoch": 1}},
        }))
        .expect("an Image")
    }

    fn disk(version: &str, status: &Value) -> Disk {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": "root", "namespace": "ns", "uid": "d", "resourceVersion": version},
            "spec": {"image": "debian"}, "status": status,
        }))
        .expect("a Disk")
    }

    #[test]
    fn the_hosts_that_download_an_image_read_its_secret_and_lose_it_with_their_last_disk() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let now = Instant::now();
        let role = |host: &str| Key::secrets_role(host, "berth-shared");
        let login = ["login".to_owned()];
        assert!(cache.put(image("1", Some("login")), now).contains(&role("h1")));
        assert_eq!(cache.secrets_of("h1", "berth-shared"), login);
        assert!(cache.secrets_of("h2", "berth-shared").is_empty());
        assert!(!cache.put(disk("2", &json!(null)), now).contains(&role("h2")));
        let bound = json!({"binding": {"host": "h2", "epoch": 1}});
        assert!(cache.put(disk("3", &bound), now).contains(&role("h2")));
        assert_eq!(cache.secrets_of("h2", "berth-shared"), login);
        assert!(cache.secrets_of("h2", "ns").is_empty(), "the Secret is beside the Image");
        let other = cache.put(image("4", Some("other")), now);
        assert!(other.contains(&role("h1")) && other.contains(&role("h2")));
        assert_eq!(cache.secrets_of("h2", "berth-shared"), ["other".to_owned()]);
        let key = Key::namespaced(ObjectKind::Disk, "ns", "root");
        assert!(cache.remove(&key).contains(&role("h2")));
        assert!(cache.secrets_of("h2", "berth-shared").is_empty());
        assert!(cache.put(image("5", None), now).contains(&role("h1")));
        assert!(cache.secrets_of("h1", "berth-shared").is_empty());
    }
}
