//! `berth_host_token`: the line with which a machine joins as a host, for one run of Terraform.
//!
//! As `berth token create`: the host gets its account with its roles, and a token of it goes into the line. The line is in no plan, state
//! or log. The control plane stores nothing of the token, so there is nothing to close and nothing to renew.

use std::{fmt, net::IpAddr, ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use berth_api::{SYSTEM_NAMESPACE, join::Join, manifests::access};
use http::Uri;
use serde_json::{Value as Json, json};
use tfplugin6::{
    Attribute, Diagnostic, EphemeralResource, Schema, Value,
    ephemeral::{OpenRequest, OpenResponse},
    resource::ValidateRequest,
};

use crate::{
    api::{Address, Api, ApiError, ApplyOptions, RetryLimit},
    connection::{self, Server},
    form::Form,
    session::Session,
};

/// The lifetimes of a line in seconds: from Kubernetes' least to a year.
const LIFETIMES: RangeInclusive<i64> = 600..=365 * 24 * 3600;
/// The lifetime that `berth token create` gives a line, in seconds.
const LIFETIME: i64 = 24 * 3600;
/// The field manager of the accounts of hosts, whichever program creates them.
const MANAGER: &str = "berth";
/// The length of the longest name of a host: names of its account and its roles begin with more.
const LONGEST_HOST: usize = 200;

/// The ephemeral resource `berth_host_token`.
pub struct HostToken {
    session: Arc<Session>,
}

impl fmt::Debug for HostToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostToken").finish_non_exhaustive()
    }
}

impl HostToken {
    /// The HCL example of its documentation.
    pub const EXAMPLE: &'static str =
        include_str!("../../../examples/ephemeral-resources/berth_host_token/ephemeral-resource.tf");

    /// Lines for hosts of the control plane of a session.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

/// The address of one of the objects of a host's access.
fn address(object: &Json) -> Address {
    let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    Address {
        group: if version.contains('/') { format!("apis/{version}") } else { format!("api/{version}") },
        plural: format!("{}s", text("/kind").to_lowercase()),
        namespace: text("/metadata/namespace").to_owned(),
        name: text("/metadata/name").to_owned(),
    }
}

fn refused(error: &ApiError, host: &str) -> Diagnostic {
    let summary = format!("No join string for host {host}");
    let detail = match (error, error.code()) {
        (_, 403) => format!("{error}. Only an administrator lets hosts join."),
        (_, 404) => format!("{error}. Apply the definitions and roles of berth first: \"berth crds\"."),
        (ApiError::Unreachable(problem), _) => {
            format!("{problem}. Check that the control plane runs (a local one: \"berth up\").")
        }
        _ => error.to_string(),
    };
    Diagnostic::error(summary, detail)
}

/// The address at which the host reaches the control plane: the configured one, else the provider's.
fn server(config: &Value, known: &Server) -> Result<String, Box<Diagnostic>> {
    if let Some(configured) = config.get("server").as_str() {
        return Ok(configured.trim_end_matches('/').to_owned());
    }
    let host =
        known.host.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if host.is_empty() || is_loopback {
        let detail = format!(
            "The provider reaches the control plane at {:?}, which other machines cannot reach. Set server = \
             \"https://ADDRESS:PORT\".",
            known.host
        );
        return Err(Box::new(
            Diagnostic::error("The address of the control plane is not known", detail).at("server"),
        ));
    }
    Ok(known.host.clone())
}

/// Gives the host its account and its roles, and requests a token. Returns the token and its end.
async fn issue(
    api: &Api,
    host: &str,
    seconds: i64,
    retry_limit: &RetryLimit,
) -> Result<(String, Option<String>), ApiError> {
    let options = ApplyOptions { manager: MANAGER, force: true, dry_run: false };
    for object in access::host(host) {
        api.apply(&address(&object), &object, options, retry_limit).await?;
    }
    let account = Address::service_account(SYSTEM_NAMESPACE, &access::account_name(host));
    let issued = api.request_token(&account, json!({"expirationSeconds": seconds}), retry_limit).await?;
    let text = |name: &str| issued.get(name).and_then(Json::as_str).map(str::to_owned);
    let token = text("token");
    let token = token.ok_or_else(|| ApiError::InvalidResponse("it has no token".to_owned()))?;
    Ok((token, text("expirationTimestamp")))
}

#[async_trait]
impl EphemeralResource for HostToken {
    fn type_name(&self) -> &str {
        "berth_host_token"
    }

    fn schema(&self) -> Schema {
        let attributes = vec![
            Attribute::string("host").required().description("Name of the host that joins with the join string."),
            Attribute::string("server").optional().computed().description(
                "The address at which the host reaches the control plane: `https://ADDRESS:PORT`. Default: the one at which the \
                 provider reaches it, unless that is a loopback address.",
            ),
            Attribute::number("expiration_seconds").optional().computed().description(
                "How long the join string is valid, in seconds: 600 to 31,536,000. Default 86,400. When the \
                 host joins, it gets a token of its own, which it renews.",
            ),
            Attribute::string("join").computed().sensitive().description(
                "The join string, for `berth host --join` or `BERTH_JOIN`. It contains the address and the \
                 certificates of the control plane, and a token. Anyone with it can act as the host.",
            ),
            Attribute::string("expiration").computed().description("The time at which the join string expires (RFC 3339)."),
        ];
        Schema::new(attributes).description(
            "Creates a join string, with which a machine joins as a host (`berth host --join`). It is in no \
             plan and no state. Only an administrator can create one. Terraform 1.10, OpenTofu 1.11 and \
             later.\n\nEach run creates a new one, in the plan and again in the apply, and creates the \
             account and the roles of the host if they do not exist. A join string is valid until its \
             lifetime has ended or until `berth token revoke`; neither the end of the run nor the first use \
             ends it. To set labels and reservations of the host after it has joined, use \
             [`berth_host`](../resources/host.md).",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let mut found = super::check_names(config, &[("host", Form::DottedName)]);
        if config.get("host").as_str().is_some_and(|host| host.len() > LONGEST_HOST) {
            let detail = format!("The name of a host has at most {LONGEST_HOST} characters.");
            found.push(Diagnostic::error("Invalid host", detail).at("host"));
        }
        if let Some(server) = config.get("server").as_str()
            && let Err(problem) = connection::check_address("server", server, false)
        {
            found.push(Diagnostic::error("Invalid server", problem.to_string()).at("server"));
        }
        found.extend(super::check_lifetime(config, &LIFETIMES));
        found
    }

    async fn open(&self, request: OpenRequest) -> OpenResponse {
        let config = &request.config;
        let settings = self.session.settings();
        let api = match settings.api.as_ref() {
            Ok(api) => api,
            Err(problem) => {
                let full = Diagnostic::error("No control plane", problem);
                return OpenResponse::failed(vec![settings.shared_failure("A join string", full)]);
            }
        };
        let server = match server(config, &settings.server) {
            Ok(server) => server,
            Err(problem) => return OpenResponse::failed(vec![*problem]),
        };
        let host = config.get("host").as_str().unwrap_or_default();
        let seconds = config.get("expiration_seconds").as_i64().unwrap_or(LIFETIME);
        let retry_limit = RetryLimit::seconds(super::RETRIES, &request.cancel);
        let (token, expiration) = match issue(api, host, seconds, &retry_limit).await {
            Ok(issued) => issued,
            Err(error) => return OpenResponse::failed(vec![refused(&error, host)]),
        };
        let ca = settings.server.ca_certificate.clone();
        let join = Join { server: server.clone(), ca, token, host: host.to_owned() };
        let mut result = config.clone();
        if config.get("server").is_null() {
            result.set("server", server);
        }
        result.set("expiration_seconds", seconds);
        result.set("join", join.encode());
        result.set("expiration", expiration);
        OpenResponse::new(result)
    }
}
