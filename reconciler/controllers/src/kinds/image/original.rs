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
    /// The declaration of the copy is wrong.
    Differs(String),
}

/// Returns the image that this one is a copy of. `None`: it has another source.
pub(super) fn observe(cache: &Cache, image: &Image) -> Option<Original> {
    let namespace = image.namespace().unwrap_or_default();
    let name = image.spec.source.image.as_ref()?;
    let key = Key::namespaced(ObjectKind::Image, &namespace, name.as_str());
    Some(Original { content: content(cache, &key, image), key })
}

fn content(cache: &Cache, key: &Key, image: &Image) -> Result<Content, Obstacle> {
    let waits = |text: &str| Err(Obstacle::Waits(format!("Image {} {text}", key.name)));
    let Some(original) = cache.tables.images.get(key) else { return waits("does not exist (yet)") };
    if original.metadata.deletion_timestamp.is_some() {
        return waits("is being deleted");
    }
    let encoding = |image: &Image| (image.spec.format, image.spec.compression);
    if encoding(original) != encoding(image) {
        let text = format!("Image {} has another format or compression: declare those of it here", key.name);
        return Err(Obstacle::Differs(text));
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
    match host(cache, &binding.host, &checksum) {
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
        assert!(observe(&cache, &image("other", &source, &Value::Null)).is_none(), "it has a URL");
    }
}
