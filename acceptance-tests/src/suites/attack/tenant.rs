//! A tenant: a namespace, and a ServiceAccount in it that may edit the objects in that namespace and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::access::Access;
use crate::kubectl::Kubectl;
use crate::manifests;
use crate::platform::Platform;
use crate::wait;

const ACCOUNT: &str = "editor";
/// The time limit until a binding takes effect and the rules of a role are aggregated.
const SOON: Duration = Duration::from_secs(20);
/// The roles of an editor. The tests' Kubernetes control plane has no controller manager to aggregate `edit`: its parts are
/// bound instead.
const EMBEDDED: [&str; 1] = ["edit"];
const KUBERNETES: [&str; 4] =
    ["system:aggregate-to-edit", "system:aggregate-to-view", "berth-editor", "berth-viewer"];

/// An editor of one namespace. Dropping it deletes the namespace without waiting.
#[derive(Debug)]
pub(super) struct Tenant {
    namespace: String,
    administrator: Kubectl,
    kubectl: Kubectl,
    access: Access,
    kubeconfig: PathBuf,
}

impl Tenant {
    /// Creates the namespace `name` with its editor.
    pub(super) fn new(platform: &Platform, name: &str) -> Result<Self> {
        let administrator = platform.kubectl().clone();
        administrator.apply(&manifest(name, platform.is_embedded()))?;
        let token = administrator.within(name).ok(&["create", "token", ACCOUNT, "--duration=2h"])?;
        let folder = platform.folder().join(format!("tenant-{name}"));
        fs::create_dir_all(&folder)?;
        let kubeconfig = folder.join("kubeconfig");
        write_kubeconfig(&administrator, name, token.trim(), &kubeconfig)?;
        let kubectl = administrator.with_kubeconfig(&kubeconfig, &folder).within(name);
        let access = Access::read(&kubeconfig, platform.namespace())?;
        for resource in ["vms.berth.dev", "secrets"] {
            wait::until(&format!("{name} may create {resource}"), SOON, || {
                kubectl.ok(&["auth", "can-i", "create", resource]).map(drop)
            })?;
        }
        Ok(Self { namespace: name.to_owned(), administrator, kubectl, access, kubeconfig })
    }

    /// The name of the namespace.
    #[allow(dead_code, reason = "not every chapter needs it")]
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// kubectl as the tenant, in the namespace.
    #[allow(dead_code, reason = "not every chapter needs it")]
    pub(super) fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// kubectl as the administrator, in the tenant's namespace.
    #[allow(dead_code, reason = "not every chapter needs it")]
    pub(super) fn administrator(&self) -> Kubectl {
        self.administrator.within(&self.namespace)
    }

    /// The API with the tenant's token, for requests that kubectl does not send.
    #[allow(dead_code, reason = "not every chapter needs it")]
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// The tenant's kubeconfig, for example for Terraform.
    #[allow(dead_code, reason = "not every chapter needs it")]
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let arguments = ["delete", "namespace", &self.namespace, "--ignore-not-found", "--wait=false"];
        // The error of a failed case is more useful than an error here.
        let _ = self.administrator.run(&arguments);
    }
}

fn manifest(name: &str, embedded: bool) -> String {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": name},
    });
    let roles = if embedded { &EMBEDDED[..] } else { &KUBERNETES[..] };
    let bindings = roles.iter().map(|role| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": format!("tenant-{}", role.replace(':', "-")), "namespace": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": name}],
        })
    });
    let objects: Vec<Value> = [namespace, account].into_iter().chain(bindings).collect();
    manifests::all(&objects)
}

/// The administrator's kubeconfig with the tenant's token and namespace.
fn write_kubeconfig(administrator: &Kubectl, namespace: &str, token: &str, to: &Path) -> Result<()> {
    let text = administrator.ok(&["config", "view", "--raw", "--flatten", "--minify", "-o", "json"])?;
    let mut config: Value = serde_json::from_str(&text).context("kubectl printed no JSON")?;
    config["users"][0]["user"] = json!({"token": token});
    config["contexts"][0]["context"]["namespace"] = namespace.into();
    fs::write(to, config.to_string()).with_context(|| format!("writing {}", to.display()))
}
