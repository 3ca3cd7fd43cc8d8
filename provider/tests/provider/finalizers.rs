//! The finalizer that objects are created with.

use serde_json::Value as Json;

use crate::{
    control_plane::ControlPlane,
    lifecycle::stories,
    stage::{Stage, provider},
};

/// The kinds that a host makes real.
const BOUND: [&str; 3] = ["VM", "Disk", "HotswapDiskAttachment"];

/// Whether the provider has declared the finalizer of a host.
fn is_declared(object: &Json) -> bool {
    let managers = object["metadata"]["managedFields"].as_array().expect("it has managers");
    managers.iter().any(|entry| {
        let declared = entry.pointer("/fieldsV1/f:metadata/f:finalizers");
        entry["manager"] == "terraform:default"
            && declared.is_some_and(|finalizers| finalizers.get("v:\"berth.dev/host\"").is_some())
    })
}

#[tokio::test]
async fn the_kinds_that_a_host_makes_real_are_created_with_its_finalizer_and_keep_it_when_they_are_changed() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (type_name, kind, config, changed) in stories() {
        let mut stage = Stage::new(&provider, type_name);
        for config in [&config, &changed] {
            let applied = stage.apply(config).await;
            assert!(!applied.diagnostics.iter().any(tfplugin6::Diagnostic::is_error), "{}", applied.text());
            let name = stage.state.get("name").as_str().expect("it has a name").to_owned();
            let object = plane.object(kind, &name).await;
            assert_eq!(is_declared(&object), BOUND.contains(&kind), "{kind}: {object}");
        }
        let destroyed = stage.destroy().await;
        assert!(destroyed.is_clean(), "{type_name}: {}", destroyed.text());
    }
}
