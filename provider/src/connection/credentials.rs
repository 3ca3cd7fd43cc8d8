//! Checks the credentials of a kubeconfig before a client is built from them: kube's authorization layer panics on a bearer
//! token that no HTTP header can hold.
//!
//! Errors quote neither a token nor the output of a plugin.

use std::process::{Command, Stdio};

use http::HeaderValue;
use kube::config::{AuthInfo, AuthProviderConfig, ExecConfig, ExecInteractiveMode};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::json;

use super::text_file;

/// The output of an exec plugin.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecStatus {
    token: Option<String>,
    expiration_timestamp: Option<String>,
    client_certificate_data: Option<String>,
}

/// Whether an HTTP header can hold this token.
pub(super) fn is_sendable(token: &str) -> bool {
    HeaderValue::from_str(token).is_ok()
}

/// Checks every credential that can become a bearer token. The token of an exec plugin replaces the plugin if it does not
/// expire.
///
/// # Errors
/// The problem with a credential, worded as the end of a sentence about the kubeconfig.
pub(super) async fn check(auth: &mut AuthInfo) -> Result<(), String> {
    if let Some(provider) = &auth.auth_provider {
        check_provider(provider)?;
    }
    if let Some(token) = &auth.token {
        sendable("its token", token.expose_secret())?;
    }
    if let Some(file) = &auth.token_file {
        let token = text_file::read(file).map_err(|error| format!("its token file {file}: {error}"))?;
        sendable(&format!("the token in {file}"), &token)?;
    }
    // In kube's order of precedence, a plugin comes last.
    let is_other = auth.auth_provider.is_some()
        || (auth.username.is_some() && auth.password.is_some())
        || auth.token.is_some()
        || auth.token_file.is_some();
    if let Some(exec) = auth.exec.clone().filter(|_| !is_other) {
        let run = tokio::task::spawn_blocking(move || run(&exec));
        let status = run.await.map_err(|error| format!("its exec plugin: {error}"))??;
        if let Some(token) = status.token {
            sendable("the token of its exec plugin", &token)?;
            if status.expiration_timestamp.is_none() && status.client_certificate_data.is_none() {
                auth.token = Some(token.into());
                auth.exec = None;
            }
        }
    }
    Ok(())
}

fn sendable(what: &str, token: &str) -> Result<(), String> {
    if is_sendable(token) {
        return Ok(());
    }
    Err(format!("{what} has characters that no HTTP header can hold, such as a line break"))
}

fn check_provider(provider: &AuthProviderConfig) -> Result<(), String> {
    for name in ["id-token", "access-token"] {
        if let Some(token) = provider.config.get(name) {
            sendable(&format!("the {name} of its auth provider"), token)?;
        }
    }
    let is_unlimited =
        provider.config.contains_key("cmd-path") && !provider.config.contains_key("expiry-key");
    if is_unlimited {
        return Err("its auth provider has a cmd-path without an expiry-key: use an exec plugin".to_owned());
    }
    Ok(())
}

/// Runs an exec plugin as kube does.
fn run(exec: &ExecConfig) -> Result<ExecStatus, String> {
    let path = exec.command.as_deref().ok_or("its exec plugin has no command")?;
    let interactive = exec.interactive_mode != Some(ExecInteractiveMode::Never);
    let mut spec = json!({"interactive": interactive});
    if exec.provide_cluster_info {
        spec["cluster"] = serde_json::to_value(&exec.cluster).unwrap_or_default();
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    let mut command = Command::new(path);
    command.args(exec.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", info.to_string());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
    if interactive {
        command.stderr(Stdio::inherit());
    }
    let output = command.output().map_err(|error| format!("its exec plugin {path}: {error}"))?;
    if !output.status.success() {
        return Err(format!("its exec plugin {path} failed ({})", output.status));
    }
    let printed: ExecCredential = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("its exec plugin {path} printed no ExecCredential"))?;
    printed.status.ok_or_else(|| format!("its exec plugin {path} printed an ExecCredential without a status"))
}
