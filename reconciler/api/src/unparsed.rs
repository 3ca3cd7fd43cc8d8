//! Objects as the text in which they arrive, for requests that are the same for all kinds.
//!
//! The code of a list, a watch or a write of typed objects is compiled once for each kind, and is much larger than the code that
//! reads the object. With these objects it is compiled once.
//!
//! An object is read without its managed fields: nothing here reads those, and they are half of an object's bytes. To build them
//! costs more than to read the rest of the object.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{JsonKind, exact};

/// An object of any kind as JSON text.
///
/// Of its metadata, name, namespace, UID and resource version are read: enough for a watch.
#[derive(Clone)]
pub struct Unparsed {
    text: Box<RawValue>,
    /// Where in the text the value of the managed fields is.
    managed_fields: Option<Range<usize>>,
    metadata: ObjectMeta,
}

impl Unparsed {
    /// The text of an object.
    pub fn of<K: JsonKind>(object: &K) -> Result<Self, serde_json::Error> {
        Self::new(object.to_json()?)
    }

    /// The resource of a kind, for a client of these objects.
    pub fn resource<K: Resource<DynamicType = ()>>() -> ApiResource {
        ApiResource::erase::<K>(&())
    }

    /// Reads the object, without its managed fields.
    pub fn parse<K: JsonKind>(&self) -> Result<K, serde_json::Error> {
        let mut object = K::from_json(&self.unmanaged())?;
        // The type is Kubernetes', and nearly all objects have one or two.
        let metadata = object.meta_mut();
        metadata.finalizers = metadata.finalizers.take().map(exact::fitted);
        Ok(object)
    }

    /// The text without the managed fields.
    fn unmanaged(&self) -> Cow<'_, str> {
        let text = self.text.get();
        match &self.managed_fields {
            Some(fields) => [&text[..fields.start], "null", &text[fields.end..]].concat().into(),
            None => text.into(),
        }
    }

    fn new(text: Box<RawValue>) -> Result<Self, serde_json::Error> {
        let Identity { name, namespace, uid, resource_version, managed_fields } = identity_of(text.get())?;
        let managed_fields = managed_fields.map(|fields| range_of(fields.get(), text.get()));
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Ok(Self { text, managed_fields, metadata })
    }
}

/// Where in a text a part is that was borrowed from it.
fn range_of(part: &str, text: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - text.as_ptr().addr();
    start..start + part.len()
}

/// Reads the identity of the object of this text, which is JSON. Spec and status, most of the text, follow the metadata and are
/// not read.
fn identity_of(text: &str) -> Result<Identity<'_>, serde_json::Error> {
    let mut found = None;
    let read = serde_json::Deserializer::from_str(text).deserialize_map(Head { found: &mut found });
    match found {
        // An error only says that the object does not end there.
        Some(identity) => Ok(identity),
        None => read.map(|()| Identity::default()),
    }
}

/// The members of an object up to its metadata.
struct Head<'a, 'de> {
    found: &'a mut Option<Identity<'de>>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Member {
    Metadata,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for Head<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(member) = members.next_key::<Member>()? {
            match member {
                Member::Metadata => {
                    *self.found = Some(members.next_value()?);
                    return Ok(());
                }
                Member::Other => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity<'a> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

/// Shows which object it is, and none of its content, which may be a Secret's.
impl fmt::Debug for Unparsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectMeta { name, namespace, resource_version, .. } = &self.metadata;
        f.debug_struct("Unparsed")
            .field("namespace", namespace)
            .field("name", name)
            .field("resource_version", resource_version)
            .finish_non_exhaustive()
    }
}

impl Serialize for Unparsed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Unparsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Box::<RawValue>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Resource for Unparsed {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use kube::core::WatchEvent;
    use serde_json::json;

    use super::*;
    use crate::Disk;

    fn disk() -> serde_json::Value {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": "root", "namespace": "ns", "resourceVersion": "7", "managedFields": [{"manager": "m"}]},
            "spec": {"size": "1Gi"},
        })
    }

    #[test]
    fn an_object_of_a_watch_event_or_an_answer_is_read_once_its_kind_is_known() {
        // A control plane sends the type first.
        let event = format!(r#"{{"type":"ADDED","object":{}}}"#, disk());
        let Ok(WatchEvent::Added(object)) = serde_json::from_str::<WatchEvent<Unparsed>>(&event) else {
            panic!("an event of an added object")
        };
        assert_eq!(object.resource_version().as_deref(), Some("7"));
        let read: Disk = object.parse().expect("a disk");
        assert_eq!((read.name_any().as_str(), read.metadata.managed_fields), ("root", None));
        let answer: Unparsed = serde_json::from_value(disk()).expect("an object");
        assert_eq!(json!(answer), disk());
    }

    #[test]
    fn an_object_of_another_form_is_an_error_and_its_content_is_not_shown() {
        let object: Unparsed =
            serde_json::from_str(r#"{"metadata": {"name": "s"}, "data": {"key": "c2VjcmV0"}}"#)
                .expect("an object");
        assert!(object.parse::<Disk>().is_err());
        assert!(!format!("{object:?}").contains("c2VjcmV0"));
        assert!(serde_json::from_str::<Unparsed>("7").is_err());
    }

    #[test]
    fn an_object_is_read_whole_except_for_its_managed_fields() {
        let mut object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": "root", "namespace": "ns", "annotations": {"managedFields": "kept", "a\"b": "ü"}},
            "spec": {"size": "1Gi"},
            "status": {"observedGeneration": 1, "volumeID": "v-1"},
        });
        let expected: Disk = serde_json::from_value(object.clone()).expect("a disk");
        for fields in [json!([{"manager": "m", "fieldsV1": {"f:spec": {"ü": {}}}}]), json!([]), json!(null)]
        {
            object["metadata"]["managedFields"] = fields;
            for text in [object.to_string(), format!("{object:#}")] {
                let read: Unparsed = serde_json::from_str(&text).expect("an object");
                assert_eq!(json!(read.parse::<Disk>().expect("a disk")), json!(expected), "{text}");
            }
        }
    }

    #[test]
    fn the_identity_is_read_wherever_the_metadata_is() {
        let texts = [
            r#"{"metadata": {"name": "m", "uid": "u", "labels": {"uid": "x"}}, "spec": {"metadata": {"name": "n"}}}"#,
            r#"{"spec": {"metadata": {"name": "n"}}, "kind": "K", "metadata": {"uid": "u", "name": "m"}}"#,
        ];
        for text in texts {
            let read: Unparsed = serde_json::from_str(text).expect("an object");
            assert_eq!((read.name_any().as_str(), read.uid().as_deref()), ("m", Some("u")), "{text}");
            assert_eq!(json!(read), serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
        }
        let without: Unparsed = serde_json::from_str("{}").expect("an object");
        assert_eq!(without.meta(), &ObjectMeta::default());
        assert!(serde_json::from_str::<Unparsed>(r#"{"metadata": 7}"#).is_err());
        assert!(serde_json::from_str::<Unparsed>(r#"{"metadata": {"name": "m"}, "spec": "#).is_err());
    }

    #[test]
    fn metadata_may_be_optional_and_errors_say_what_is_wrong() {
        let text = r#"{"metadata": {"name": "m", "managedFields": [{"manager": "m"}]}, "data": {"a": "b"}}"#;
        let map: Unparsed = serde_json::from_str(text).expect("an object");
        let map: ConfigMap = map.parse().expect("a map");
        assert_eq!((map.metadata.name.as_deref(), map.metadata.managed_fields), (Some("m"), None));
        let disk: Unparsed =
            serde_json::from_str(r#"{"metadata": {}, "spec": {"size": 1}}"#).expect("an object");
        let error = disk.parse::<Disk>().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("expected a string"), "{error}");
    }
}
