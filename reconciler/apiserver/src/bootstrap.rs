//! What every cluster has from the start.

use std::sync::Arc;

use serde_json::json;

use crate::core::Core;
use crate::identity::Identity;
use crate::request::{Options, Sub, Target};
use crate::verbs::Call;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Makes what is missing.
pub(crate) async fn ensure(core: &Arc<Core>) -> Result<(), String> {
    for name in NAMESPACES {
        if core.namespace(name).is_some() {
            continue;
        }
        let served = core.catalog.served();
        let resource = served.find("", "namespaces").ok_or("namespaces are not served")?;
        let target = Target {
            resource: Arc::clone(resource),
            version: 0,
            namespace: String::new(),
            name: String::new(),
            sub: Sub::None,
        };
        let mut call = Call {
            core: Arc::clone(core),
            who: Identity::admin(),
            target,
            options: Options::default(),
            default_manager: "berth-apiserver".into(),
            warnings: Vec::new(),
            twice: Vec::new(),
            verb: "create",
            written: None,
        };
        let created = call.create(json!({"metadata": {"name": name}})).await;
        created.map_err(|error| format!("creating namespace {name}: {}", error.message))?;
    }
    Ok(())
}
