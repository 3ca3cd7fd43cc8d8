//! The Image whose content another Image has under a name of its own.

use berth_api::{ConditionType, Image, condition};
use kube::ResourceExt;

use super::holders::has_image;
use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// The image that another one is a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) key: Key,
    pub(super) content: Result<Content, Obstacle>,
}

/// The verified content of an image, and a host that has its file or can get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) host: String,
    pub(super) checksum: String,
    pub(super) media_type: Option<String>,
}

/// Why there is no copy yet, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    Waits(String),
    /// It is of another namespace, which does not share it.
    NotShared(String),
    /// The declaration of the copy is wrong.
    Differs(String),
}

/// Returns the image that this one is a copy of. `None`: it has another source.
pub(super) fn observe(cache: &Cache, image: &Image) -> Option<Original> {
    let (namespace, name) = image.original()?;
    let key = Key::namespaced(ObjectKind::Image, namespace, name.as_str());
    // Before anything else is read: the other texts would show that there is such an Image.
    let refusal = cache.foreign_original(image).and_then(|original| original.refusal);
    let content = match refusal {
        Some(text) => Err(Obstacle::NotShared(text)),
        None => content(cache, &key, image),
    };
    Some(Original { key, content })
}

fn content(cache: &Cache, key: &Key, image: &Image) -> Result<Content, Obstacle> {
    let waits = |text: &str| Err(Obstacle::Waits(format!("Image {} {text}", key.name)));
    let Some(original) = cache.tables.images.get(key) else { return waits("does not exist (yet)") };
    if original.metadata.deletion_timestamp.is_some() {
        return waits("is being deleted");
    }
    if *key == Key::of(image) {
        return Err(Obstacle::Differs("source.image must be another Image than this one".to_owned()));
    }
    let encoding = |image: &Image| (image.spec.format, image.spec.compression, image.spec.ova_disk);
    if encoding(original) != encoding(image) {
        let text = format!(
            "Image {} has another format, compression or disk of an OVA: declare those of it here",
            key.name
        );
        return Err(Obstacle::Differs(text));
    }
    // Its status is that of its former content.
    if original.is_outdated() {
        return waits("is made anew");
    }
    let status = original.status.clone().unwrap_or_default();
    if condition::is_true(&status.conditions, ConditionType::Stalled) {
        return waits("has failed: its conditions say why");
    }
    let (Some(binding), Some(checksum), Some(_)) =
        (status.binding, original.digest().map(str::to_owned), status.virtual_size)
    else {
        return waits("is not verified yet");
    };
    let stored = original.stored_digest().unwrap_or_default();
    match host(cache, &binding.host, &stored) {
        Some(host) => Ok(Content { host, checksum, media_type: status.media_type }),
        None => waits(&format!("is on host {}, which is away", binding.host)),
    }
}

/// Returns the host that the image is bound to, or else the first one by name that reports its file.
fn host(cache: &Cache, bound: &str, checksum: &str) -> Option<String> {
    let is_usable = |host: &str| cache.is_alive(host) && !cache.is_fenced(host);
    if is_usable(bound) {
        return Some(bound.to_owned());
    }
    let holders = cache.tables.hosts.all().filter(|host| has_image(host, checksum));
    holders.map(|host| host.name_any()).filter(|host| is_usable(host)).min()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn image(name: &str, source: &Value, status: &Value) -> Image {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"}, "spec": {"source": source}, "status": status,
        }))
        .expect("an Image")
    }

    #[tokio::test]
    async fn a_copy_waits_for_an_original_of_its_format_that_is_verified() {
        let copy = image("copy", &json!({"image": "golden"}), &Value::Null);
        let mut cache = Cache::new(Duration::from_secs(40));
        let text = |cache: &Cache, image: &Image| match observe(cache, image).map(|found| found.content) {
            Some(Err(Obstacle::Waits(text))) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(text(&cache, &copy), "Image golden does not exist (yet)");
        let source = json!({"url": "https://a/b", "sha256": "ab"});
        let binding = json!({"binding": {"host": "h1", "epoch": 1}});
        cache.put(image("golden", &source, &binding), Instant::now());
        assert_eq!(text(&cache, &copy), "Image golden is not verified yet");
        let mut raw = copy.clone();
        raw.spec.format = berth_api::ImageFormat::Raw;
        let differs = observe(&cache, &raw).map(|found| found.content);
        assert!(matches!(differs, Some(Err(Obstacle::Differs(_)))), "{differs:?}");
        let verified = json!({"binding": {"host": "h1", "epoch": 1}, "virtualSize": "1Gi"});
        cache.replace(image("golden", &source, &verified).into(), Instant::now());
        assert_eq!(text(&cache, &copy), "Image golden is on host h1, which is away");
        let anew = json!({"disk": "root", "token": "2"});
        cache.replace(image("golden", &anew, &verified).into(), Instant::now());
        assert_eq!(text(&cache, &copy), "Image golden is made anew");
        assert!(observe(&cache, &image("other", &source, &Value::Null)).is_none(), "it has a URL");
    }

    #[tokio::test]
    async fn a_copy_of_an_image_of_another_namespace_learns_nothing_of_it_until_it_is_shared() {
        let foreign = json!({"image": "golden", "imageNamespace": "ns"});
        let mut copy = image("copy", &foreign, &Value::Null);
        copy.metadata.namespace = Some("team".into());
        copy.spec.format = berth_api::ImageFormat::Raw;
        let mut cache = Cache::new(Duration::from_secs(40));
        let found = |cache: &Cache| observe(cache, &copy).expect("it is a copy");
        let missing = found(&cache);
        assert!(matches!(&missing.content, Err(Obstacle::NotShared(_))), "{missing:?}");
        assert_eq!(missing.key, Key::namespaced(ObjectKind::Image, "ns", "golden"));
        let mut golden = image("golden", &json!({"url": "https://a/b", "sha256": "ab"}), &Value::Null);
        cache.put(golden.clone(), Instant::now());
        assert_eq!(found(&cache), missing);
        golden.spec.shared_with = vec!["team".to_owned()];
        cache.replace(golden.into(), Instant::now());
        let differs = found(&cache).content;
        assert!(matches!(differs, Err(Obstacle::Differs(_))), "{differs:?}");
    }

    #[tokio::test]
    async fn an_image_is_no_copy_of_itself() {
        let own = image("copy", &json!({"image": "copy", "imageNamespace": "ns"}), &Value::Null);
        let mut cache = Cache::new(Duration::from_secs(40));
        cache.put(own.clone(), Instant::now());
        let found = observe(&cache, &own).map(|found| found.content);
        assert!(matches!(found, Some(Err(Obstacle::Differs(_)))), "{found:?}");
    }
}
