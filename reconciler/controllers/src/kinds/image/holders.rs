//! The hosts that have the file of an Image.

use berth_api::{Host, Image};
use kube::ResourceExt;

use crate::cache::Cache;

/// The most hosts that a status lists.
const MOST: usize = 64;

/// Returns the hosts that report a file with the image's checksum, by name: none before the image is verified, because a checksum alone
/// is no proof of access to its bytes.
pub(super) fn of(cache: &Cache, image: &Image) -> Vec<String> {
    let is_verified = image.status.as_ref().is_some_and(|status| status.virtual_size.is_some());
    let Some(digest) = image.stored_digest().filter(|_| is_verified) else { return Vec::new() };
    let having = cache.tables.hosts.all().filter(|host| has_image(host, &digest));
    let mut names: Vec<String> = having.map(|host| host.name_any()).collect();
    names.sort();
    names.truncate(MOST);
    names
}

/// Whether the host reports a file with this checksum.
pub(super) fn has_image(host: &Host, digest: &str) -> bool {
    host.status.as_ref().is_some_and(|status| status.images.iter().any(|image| image == digest))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::key::{Key, ObjectKind};

    fn host(name: &str, images: &[&str]) -> Host {
        serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {},
            "status": {"observedGeneration": 1, "vms": 0, "images": images},
        }))
        .expect("a Host")
    }

    fn image(digest: &str, size: Option<&str>) -> Image {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns"},
            "spec": {"source": {"url": "https://a/b", "sha256": digest}},
            "status": {"observedGeneration": 1, "virtualSize": size},
        }))
        .expect("an Image")
    }

    #[tokio::test]
    async fn a_verified_image_lists_the_hosts_that_have_its_bytes() {
        let mut cache = Cache::new(Duration::from_secs(40));
        cache.put(image("ab", Some("1Gi")), Instant::now());
        let key = Key::namespaced(ObjectKind::Image, "ns", "a");
        let concerned = |keys: Vec<Key>| keys.contains(&key);
        assert!(!concerned(cache.put(host("h0", &["cd"]), Instant::now())));
        for name in ["h2", "h1"] {
            assert!(concerned(cache.put(host(name, &["ab"]), Instant::now())), "{name}");
        }
        assert_eq!(of(&cache, &image("ab", Some("1Gi"))), ["h1", "h2"]);
        assert_eq!(of(&cache, &image("ab", None)), [""; 0], "it is not verified");
        let gone = cache.replace(host("h1", &[]).into(), Instant::now());
        assert!(concerned(gone));
        assert_eq!(of(&cache, &image("ab", Some("1Gi"))), ["h2"]);
    }
}
