//! The provider needs one line for an attribute: schema, pages, data sources, mapping, import, generated configuration and the
//! effect of a change follow from the field table and the custom resource's definition. This test adds an attribute to a kind by
//! that line alone.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use serde_json::{Value as Json, json};
use terraform_provider_berth::{
    api::Api,
    data_source::{ObjectAttributes, ObjectDataSource},
    docs,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
    resource::KindResource,
    session::{Session, Settings},
    vm_class::VmClass,
};
use tfplugin6::{
    Attribute, CancellationToken, DataSource as _, Resource as _, Value, data_source::ReadDataRequest,
    provider::ClientCapabilities, resource::GenerateConfigRequest,
};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, text_of, value},
};

/// VMClass with a further attribute, `cpu_flavor`.
struct Extended;

fn definition() -> Json {
    let mut definition = VmClass.definition();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let properties = definition.pointer_mut(spec).expect("it has a schema");
    properties["cpuFlavor"] =
        json!({"type": "string", "maxLength": 8, "description": "QEMU's model\nof the CPU."});
    definition
}

#[async_trait]
impl ResourceKind for Extended {
    fn info(&self) -> KindInfo {
        VmClass.info()
    }

    fn definition(&self) -> Json {
        definition()
    }

    fn fields(&self) -> Vec<Field> {
        let mut fields = VmClass.fields();
        fields.push(Field::spec("cpu_flavor", Shape::Text(Form::Any)).effect(Effect::PowerCycle));
        fields
    }

    fn outcome(&self, object: &Json, planned: &Value) -> Outcome {
        VmClass.outcome(object, planned)
    }
}

fn attribute(attributes: &[Attribute]) -> &Attribute {
    attributes.iter().find(|attribute| attribute.name == "cpu_flavor").expect("it has the attribute")
}

#[tokio::test]
async fn an_attribute_is_one_line_of_the_field_table() {
    let plane = ControlPlane::in_memory().await;
    let definitions: kube::Api<CustomResourceDefinition> = kube::Api::all(plane.client.clone());
    let extended = definition();
    let versions = json!({"spec": {"versions": extended["spec"]["versions"]}});
    let name = extended["metadata"]["name"].as_str().expect("a name");
    definitions.patch(name, &PatchParams::default(), &Patch::Merge(versions)).await.expect("it is valid");
    let session = Arc::new(Session::default());
    session.configure(Settings::new(
        Ok(Api::new(plane.client.clone())),
        "default".into(),
        Some("default".into()),
    ));
    let resource = Arc::new(KindResource::new(Extended, session));
    let source = ObjectDataSource::new(resource.clone(), Arc::new(ObjectAttributes::default()));

    let schema = resource.schema().block;
    let configured = attribute(&schema.attributes);
    assert!(configured.optional && !configured.computed && !configured.required);
    assert_eq!(configured.description, "QEMU's model of the CPU.");
    let schema = source.schema().block;
    assert!(attribute(&schema.attributes).computed);
    let page = docs::resource_page(&resource);
    let row = "| `cpu_flavor` | string | optional | next power cycle | next start | next power cycle | next power cycle | QEMU's model of the CPU. |";
    assert!(page.contains(row), "{page}");
    assert!(docs::data_source_page(&source).contains("| `cpu_flavor` | string | QEMU's model of the CPU. |"));

    let mut class = Stage::of(resource.clone());
    let config = |model: &str| json!({"name": "small", "cpus": 1, "memory": "1Gi", "cpu_flavor": model});
    let problems = text_of(&class.validate(&config("too-long-a-name")).await);
    assert!(problems.contains("longer than 8 characters") && problems.contains("cpu_flavor"), "{problems}");
    assert!(class.apply(&config("host")).await.is_clean());
    assert_eq!(plane.object("VMClass", "small").await["spec"]["cpuFlavor"], "host");
    class.read().await;
    assert!(class.plan_is_empty(&config("host")).await);
    let changed = text_of(&class.plan(&config("max")).await.diagnostics);
    assert!(
        changed.contains("The change of cpu_flavor takes effect when the VM is next started"),
        "{changed}"
    );
    plane.edit("VMClass", "small", json!({"spec": {"cpuFlavor": "qemu64"}})).await;
    class.read().await;
    assert_eq!(class.state.get("cpu_flavor").as_str(), Some("qemu64"), "drift is shown");

    let mut imported = Stage::of(resource.clone());
    imported.import("small").await;
    assert!(imported.plan_is_empty(&config("qemu64")).await);
    let request = GenerateConfigRequest { state: imported.state.clone(), cancel: CancellationToken::new() };
    let generated = resource.generate_config(request).await;
    assert_eq!(generated.config.get("cpu_flavor").as_str(), Some("qemu64"));
    let request = ReadDataRequest {
        config: value(&json!({"name": "small"})),
        provider_meta: Value::Null,
        client: ClientCapabilities::default(),
        cancel: CancellationToken::new(),
    };
    let read = source.read(request).await;
    assert_eq!(
        read.state.expect("a state").get("cpu_flavor").as_str(),
        Some("qemu64"),
        "{:?}",
        read.diagnostics
    );

    let removed = json!({"name": "small", "cpus": 1, "memory": "1Gi"});
    assert!(!imported.apply(&removed).await.text().contains("Error"));
    assert!(plane.object("VMClass", "small").await["spec"].get("cpuFlavor").is_none());
    plane.close().await;
}
