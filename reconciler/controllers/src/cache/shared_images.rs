//! Images of other namespaces, whose content a namespace may have if they are shared with it.

use berth_api::Image;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// The Image of another namespace that an Image is a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignOriginal {
    pub(crate) key: Key,
    /// Why nothing more gets its content, for people. The text is the same whether there is such an Image or not: a namespace does not
    /// learn the names in another one. `None`: it is shared.
    pub(crate) refusal: Option<String>,
}

/// Returns the text for an object that no other namespace gets data of, whether there is such an object or not.
pub(crate) fn not_shared(key: &Key, with: &str) -> String {
    let (kind, name) = (key.kind.as_str(), &key.name);
    format!("no {kind} {name} in namespace {} is shared with namespace {with}", key.namespace())
}

impl Cache {
    /// Returns the Image of another namespace that this one is a copy of. `None`: it has the content of none.
    pub(crate) fn foreign_original(&self, image: &Image) -> Option<ForeignOriginal> {
        let (namespace, name) = image.foreign_original()?;
        let key = Key::namespaced(ObjectKind::Image, namespace, name.as_str());
        let own = image.metadata.namespace.as_deref().unwrap_or_default();
        let is_shared = self.tables.images.get(&key).is_some_and(|original| original.is_shared_with(own));
        let refusal = (!is_shared).then(|| not_shared(&key, own));
        Some(ForeignOriginal { key, refusal })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn image(namespace: &str, name: &str, version: &str, spec: &Value) -> Image {
        let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": version});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("an Image")
    }

    #[tokio::test]
    async fn an_image_that_is_not_shared_is_refused_as_one_that_does_not_exist() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let source = json!({"image": "debian", "imageNamespace": "golden"});
        let copy = image("team", "copy", "1", &json!({"source": source}));
        let refusal = |cache: &Cache| cache.foreign_original(&copy).and_then(|original| original.refusal);
        let missing = refusal(&cache);
        let text = "no Image debian in namespace golden is shared with namespace team";
        assert_eq!(missing.as_deref(), Some(text));
        for (version, shared_with, is_refused) in
            [("2", json!([]), true), ("3", json!(["other"]), true), ("4", json!(["team"]), false)]
        {
            let spec = json!({"source": {"url": "https://a/b", "sha256": "ab"}, "sharedWith": shared_with});
            cache.put(image("golden", "debian", version, &spec), Instant::now());
            assert_eq!(refusal(&cache), missing.clone().filter(|_| is_refused), "{shared_with}");
        }
        let own = image("golden", "copy", "5", &json!({"source": {"image": "debian"}}));
        assert_eq!(cache.foreign_original(&own), None, "it is of the same namespace");
    }
}
