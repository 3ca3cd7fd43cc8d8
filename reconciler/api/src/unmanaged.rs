//! Objects read without their managed fields: nothing here reads those, and they are half of an object's bytes.
//!
//! They are skipped where they are parsed, since to build them costs more than to read the rest of the object.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};

/// An object that is read without its managed fields.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Unmanaged<K>(pub K);

impl<K: Resource<DynamicType = ()>> Resource for Unmanaged<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Unmanaged<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(Filter { inner: deserializer, part: Part::Object }).map(Self)
    }
}

/// The part of an object that is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Object,
    Metadata,
}

/// A deserializer of a part of an object, its visitor, or the seed of its value.
struct Filter<T> {
    inner: T,
    part: Part,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Filter<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Filter { inner: visitor, part: self.part })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Filter { inner: visitor, part: self.part })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Filter<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Entries { inner: map, part: self.part, is_metadata: false })
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Filter { inner: deserializer, part: self.part })
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Filter<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Filter { inner: deserializer, part: self.part })
    }
}

/// The entries of a part, without its managed fields.
struct Entries<A> {
    inner: A,
    part: Part,
    /// Whether the value that comes next is the object's metadata.
    is_metadata: bool,
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Entries<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(Name(name)) = self.inner.next_key()? {
            if self.part == Part::Metadata && name == "managedFields" {
                self.inner.next_value::<IgnoredAny>()?;
                continue;
            }
            self.is_metadata = self.part == Part::Object && name == "metadata";
            return seed.deserialize(name.as_ref().into_deserializer()).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.is_metadata {
            true => self.inner.next_value_seed(Filter { inner: seed, part: Part::Metadata }),
            false => self.inner.next_value_seed(seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::Disk;

    #[test]
    fn an_object_is_read_whole_except_for_its_managed_fields() {
        let mut object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": "root", "namespace": "ns", "annotations": {"managedFields": "kept", "a\"b": "c"}},
            "spec": {"size": "1Gi"},
            "status": {"observedGeneration": 1, "volumeID": "v-1"},
        });
        let expected: Disk = serde_json::from_value(object.clone()).expect("a disk");
        object["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}]);
        let text = object.to_string();
        let from_text: Unmanaged<Disk> = serde_json::from_str(&text).expect("a disk");
        let from_value: Unmanaged<Disk> = serde_json::from_value(object).expect("a disk");
        assert_eq!(json!(from_text), json!(expected));
        assert_eq!(json!(from_value), json!(expected));
    }

    #[test]
    fn metadata_may_be_optional_and_errors_say_what_is_wrong() {
        let text = r#"{"metadata": {"name": "m", "managedFields": [{"manager": "m"}]}, "data": {"a": "b"}}"#;
        let map: Unmanaged<ConfigMap> = serde_json::from_str(text).expect("a map");
        assert_eq!((map.0.metadata.name.as_deref(), map.0.metadata.managed_fields), (Some("m"), None));
        let error = serde_json::from_str::<Unmanaged<Disk>>(r#"{"metadata": {}, "spec": {"size": 1}}"#);
        let error = error.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("expected a string"), "{error}");
    }
}
