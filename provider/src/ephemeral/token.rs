//! `berth_token`: a short-lived token of a ServiceAccount, for one run of Terraform.
//!
//! The token is in no plan, state or log. The control plane issues it and stores nothing of it, so there is nothing to close; and
//! it cannot prolong one, so a renewal only warns.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tfplugin6::{
    Attribute, Diagnostic, EphemeralResource, Schema, Type, Value,
    ephemeral::{HeldRequest, OpenRequest, OpenResponse, RenewResponse},
    resource::ValidateRequest,
};

use crate::{
    api::{Address, ApiError, RetryLimit},
    form::Form,
    session::Session,
};

/// The lifetimes in seconds that Kubernetes accepts.
const LIFETIMES: RangeInclusive<i64> = 600..=1 << 32;
/// How long before its end a token is renewed, which warns.
const WARNING: Duration = Duration::from_secs(60);

/// The ephemeral resource `berth_token`.
pub struct Token {
    session: Arc<Session>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Token {
    /// The HCL example of its documentation.
    pub const EXAMPLE: &'static str =
        include_str!("../../../examples/ephemeral-resources/berth_token/ephemeral-resource.tf");

    /// Tokens of the control plane of a session.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

fn missing(at: &Address) -> Diagnostic {
    let detail = format!(
        "The control plane has no ServiceAccount {}. Create it first, and bind a role to it: kubectl create serviceaccount {} \
         -n {}",
        at.id(),
        at.name,
        at.namespace
    );
    Diagnostic::error("The ServiceAccount does not exist", detail).at("service_account")
}

fn refused(error: &ApiError, at: &Address) -> Diagnostic {
    let summary = format!("No token of ServiceAccount {}", at.id());
    match (error, error.code()) {
        (_, 404) if !error.to_string().starts_with("namespaces ") => missing(at),
        (_, 403) => {
            let detail = format!(
                "{error}. This needs the verb create on serviceaccounts/token in namespace {}.",
                at.namespace
            );
            Diagnostic::error(summary, detail)
        }
        (_, 422) if error.to_string().contains("expirationSeconds") => {
            Diagnostic::error(summary, error.to_string()).at("expiration_seconds")
        }
        (_, 422) => Diagnostic::error(summary, error.to_string()).at("audiences"),
        (ApiError::Unreachable(problem), _) => {
            let detail = format!("{problem}. Check that the control plane runs (a local one: \"berth up\").");
            Diagnostic::error(summary, detail)
        }
        _ => Diagnostic::error(summary, error.to_string()),
    }
}

#[async_trait]
impl EphemeralResource for Token {
    fn type_name(&self) -> &str {
        "berth_token"
    }

    fn schema(&self) -> Schema {
        let attributes = vec![
            Attribute::string("namespace")
                .optional()
                .computed()
                .description("Namespace of the ServiceAccount. Default: the provider's `namespace`."),
            Attribute::string("service_account").required().description("Name of the ServiceAccount."),
            Attribute::new("audiences", Type::list(Type::String))
                .optional()
                .description("The audiences of the token. Default: the control plane itself."),
            Attribute::number("expiration_seconds").optional().description(
                "The lifetime of the token in seconds, at least 600. Default: the control plane's, usually 3600. It must outlast \
                 the run: a token cannot be prolonged.",
            ),
            Attribute::string("token").computed().sensitive().description("The token."),
            Attribute::string("expiration").computed().description("The end of its lifetime, by RFC 3339."),
            Attribute::string("host")
                .computed()
                .description("The address of the control plane, as the provider reaches it: `https://host:port`."),
            Attribute::string("ca_certificate").computed().description(
                "PEM certificates of the authorities that the provider trusts for `host`; null: those of the system.",
            ),
        ];
        Schema::new(attributes).description(
            "Requests a short-lived token of a ServiceAccount, for other providers or a kubeconfig in the same run. It is in no \
             plan and no state. Terraform 1.10, OpenTofu 1.11 and later.\n\nEach run requests a new token, in the plan and again \
             in the apply. The permission it takes is the verb `create` on `serviceaccounts/token`. A token ends with its \
             lifetime or with its ServiceAccount, not with the run.",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let forms = [("namespace", Form::Name), ("service_account", Form::DottedName)];
        let mut found = super::check_names(config, &forms);
        found.extend(super::check_lifetime(config, &LIFETIMES));
        found
    }

    async fn open(&self, request: OpenRequest) -> OpenResponse {
        let config = &request.config;
        let settings = self.session.settings();
        let (api, namespace) = match super::place(&settings, config, "A token") {
            Ok(place) => place,
            Err(problem) => return OpenResponse::failed(vec![*problem]),
        };
        let at =
            Address::service_account(&namespace, config.get("service_account").as_str().unwrap_or_default());
        let mut spec = json!({});
        if let Some(seconds) = config.get("expiration_seconds").as_i64() {
            spec["expirationSeconds"] = seconds.into();
        }
        let audiences: Vec<&str> =
            config.get("audiences").elements().iter().filter_map(Value::as_str).collect();
        if !audiences.is_empty() {
            spec["audiences"] = json!(audiences);
        }
        let retry_limit = RetryLimit::seconds(super::RETRIES, &request.cancel);
        let issued = match api.request_token(&at, spec, &retry_limit).await {
            Ok(issued) => issued,
            Err(error) => return OpenResponse::failed(vec![refused(&error, &at)]),
        };
        let text = |name: &str| issued.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
        let expiration = text("expirationTimestamp");
        let mut result = config.clone();
        result.set("namespace", namespace);
        result.set("token", text("token"));
        result.set("expiration", expiration.clone());
        result.set("host", settings.server.host.clone());
        result.set("ca_certificate", settings.server.ca_certificate.clone());
        let ends = expiration.as_ref().and_then(|text| text.parse::<Timestamp>().ok()).map(SystemTime::from);
        let held = format!("ServiceAccount {} ends at {}", at.id(), expiration.unwrap_or_default());
        OpenResponse {
            renew_at: ends.and_then(|ends| ends.checked_sub(WARNING)),
            private: Some(held.into_bytes()),
            ..OpenResponse::new(result)
        }
    }

    /// Warns: a token cannot be prolonged, and another one would not reach the users of this one.
    async fn renew(&self, request: HeldRequest) -> RenewResponse {
        let held = String::from_utf8_lossy(&request.private).into_owned();
        tracing::warn!("the token of {held} and cannot be prolonged");
        let detail = format!(
            "The token of {held}, and a token cannot be prolonged: requests with it fail after that. Set a longer \
             expiration_seconds."
        );
        let warning = Diagnostic::warning("A token ends before this run", detail);
        RenewResponse { diagnostics: vec![warning], ..RenewResponse::default() }
    }
}
