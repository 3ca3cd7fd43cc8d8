//! `berth controllers` as a Deployment of Kubernetes: the objects to apply. Pure.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use berth_api::SYSTEM_NAMESPACE;
use serde_json::{Map, Value, json};

use crate::{cli::Toleration, service::check_variables};

/// The name of the Deployment, its ServiceAccount and that account's binding.
const NAME: &str = "berth-controllers";
/// The role that `berth crds` defines for the controllers.
const CLUSTER_ROLE: &str = "berth-operator";
const RBAC: &str = "rbac.authorization.k8s.io";
/// The variable with the address for probes, and its default.
const HEALTH: (&str, &str) = ("BERTH_HEALTH", "[::]:8081");
/// A user that no image needs to know.
const USER: u32 = 65_532;
/// The length of the longest image's name.
const LONGEST_IMAGE: usize = 512;

/// The values that differ between sites.
#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    pub(crate) image: String,
    pub(crate) replicas: u8,
    /// Options of `berth controllers`.
    pub(crate) arguments: Vec<String>,
    /// Variables of the environment: names and values.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) node_selector: Vec<(String, String)>,
    pub(crate) tolerations: Vec<Toleration>,
    /// Resources: names and quantities.
    pub(crate) requests: Vec<(String, String)>,
    pub(crate) limits: Vec<(String, String)>,
    /// Secrets with the credentials of registries.
    pub(crate) pull_secrets: Vec<String>,
}

/// Returns the objects in the order in which they are applied: account, binding, Deployment.
///
/// *Errors:* a value that has no place in them: an image's name with blanks, a variable that is given twice, an option that the
/// probes depend on.
pub(crate) fn objects(deployment: &Deployment) -> anyhow::Result<[Value; 3]> {
    check_image(&deployment.image)?;
    check_variables(&deployment.environment)?;
    for argument in &deployment.arguments {
        if argument == "--health" || argument.starts_with("--health=") {
            bail!("--health: the probes need its port: give --env {}=ADDRESS:PORT instead", HEALTH.0);
        }
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": SYSTEM_NAMESPACE, "labels": labels()},
    });
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": NAME, "labels": labels()},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": CLUSTER_ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": SYSTEM_NAMESPACE}],
    });
    let workload = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": SYSTEM_NAMESPACE, "labels": labels()},
        "spec": {
            "replicas": deployment.replicas,
            "selector": {"matchLabels": labels()},
            "template": {"metadata": {"labels": labels()}, "spec": pod(deployment)?},
        },
    });
    Ok([account, binding, workload])
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": "berth", "app.kubernetes.io/component": "controllers"})
}

fn check_image(image: &str) -> anyhow::Result<()> {
    let is_name = !image.is_empty()
        && image.len() <= LONGEST_IMAGE
        && image.starts_with(|first: char| first.is_ascii_alphanumeric())
        && image.chars().all(|c| c.is_ascii_graphic());
    if !is_name {
        bail!("--controllers: {image:?} is no name of an image, such as registry.example/berth:1.0");
    }
    Ok(())
}

fn pod(deployment: &Deployment) -> anyhow::Result<Value> {
    let mut spec = json!({
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // On two nodes, if there are two: the loss of one interrupts the decisions for as long as the Lease of the leader lasts.
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels()}},
        }]}},
        "containers": [container(deployment)?],
    });
    if !deployment.node_selector.is_empty() {
        spec["nodeSelector"] = texts(&deployment.node_selector);
    }
    if !deployment.tolerations.is_empty() {
        spec["tolerations"] = deployment.tolerations.iter().map(tolerated).collect();
    }
    if !deployment.pull_secrets.is_empty() {
        spec["imagePullSecrets"] = deployment.pull_secrets.iter().map(|name| json!({"name": name})).collect();
    }
    Ok(spec)
}

fn container(deployment: &Deployment) -> anyhow::Result<Value> {
    let mut environment = deployment.environment.clone();
    for (name, value) in [HEALTH, ("BERTH_LOG_FORMAT", "json")] {
        if environment.iter().all(|(given, _)| given != name) {
            environment.push((name.to_owned(), value.to_owned()));
        }
    }
    let health =
        environment.iter().find(|(name, _)| name == HEALTH.0).map_or("", |(_, value)| value.as_str());
    let health: SocketAddr =
        health.parse().with_context(|| format!("--env {}: {health:?} is not ADDRESS:PORT", HEALTH.0))?;
    if health.ip().is_loopback() || health.port() == 0 {
        bail!("--env {}: the node's kubelet cannot probe {health}: give [::]:PORT or 0.0.0.0:PORT", HEALTH.0);
    }
    let mut arguments = vec!["controllers".to_owned()];
    arguments.extend(deployment.arguments.iter().map(|argument| literal(argument)));
    let variable = |(name, value): &(String, String)| json!({"name": name, "value": literal(value)});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "health"}, "periodSeconds": 10, "timeoutSeconds": 5});
    let mut container = json!({
        "name": "controllers",
        "image": deployment.image,
        "args": arguments,
        "env": environment.iter().map(variable).collect::<Value>(),
        "ports": [{"name": "health", "containerPort": health.port()}],
        "livenessProbe": probe("/livez"),
        "readinessProbe": probe("/readyz"),
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": texts(&deployment.requests)},
    });
    if !deployment.limits.is_empty() {
        container["resources"]["limits"] = texts(&deployment.limits);
    }
    Ok(container)
}

/// A text in which the kubelet replaces no `$(NAME)`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn texts(pairs: &[(String, String)]) -> Value {
    let pair = |(name, value): &(String, String)| (name.clone(), Value::from(value.as_str()));
    Value::Object(pairs.iter().map(pair).collect::<Map<_, _>>())
}

fn tolerated(toleration: &Toleration) -> Value {
    let mut object = match &toleration.value {
        Some(value) => json!({"key": toleration.key, "operator": "Equal", "value": value}),
        None => json!({"key": toleration.key, "operator": "Exists"}),
    };
    if let Some(effect) = &toleration.effect {
        object["effect"] = effect.as_str().into();
    }
    object
}

#[cfg(test)]
mod tests;
