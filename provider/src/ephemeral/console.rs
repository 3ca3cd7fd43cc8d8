//! `berth_console`: a ticket for one connection to a VM's console, and where to use it.
//!
//! The control plane issues the ticket and stores nothing of it; the VM's host accepts it once, within a minute. So there is
//! nothing to close, and nothing to renew.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_api::console::{CONSOLE_ACCOUNT, ConsoleUse, TICKET_LIFE};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value as Json, json};
use tfplugin6::{
    Attribute, Diagnostic, EphemeralResource, Schema, Value,
    ephemeral::{OpenRequest, OpenResponse},
    resource::ValidateRequest,
};
use tokio::time::{Instant, sleep};

use crate::{
    api::{Address, Api, ApiError, RetryLimit},
    form::Form,
    readiness,
    session::Session,
};

/// The shortest lifetime in seconds that Kubernetes gives a token. Hosts accept a ticket for [`TICKET_LIFE`] only.
const TOKEN_SECONDS: i64 = 600;
/// How long an open waits for what follows soon after a VM was placed: its host's report, and the account of its namespace.
const PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(500);
/// The uses that a ticket is offered for.
const USES: [ConsoleUse; 4] = [ConsoleUse::Console, ConsoleUse::Log, ConsoleUse::Follow, ConsoleUse::Vnc];

/// The ephemeral resource `berth_console`.
pub struct Console {
    session: Arc<Session>,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").finish_non_exhaustive()
    }
}

/// The VM whose console is opened.
struct Target<'a> {
    vm: Address,
    /// The uid that the configuration demands.
    uid: Option<&'a str>,
    wanted: ConsoleUse,
}

/// Why there is no ticket.
enum NoTicket {
    /// It may be resolved within seconds.
    NotYet(Diagnostic),
    Lasting(Diagnostic),
}

/// An open console: its server, and the ticket.
struct Opened {
    address: String,
    certificate_sha256: String,
    uid: String,
    token: String,
}

impl Console {
    /// The HCL example of its documentation.
    pub const EXAMPLE: &'static str =
        include_str!("../../../examples/ephemeral-resources/berth_console/ephemeral-resource.tf");

    /// Consoles of the VMs on the control plane of a session.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

fn lasting(summary: impl Into<String>, detail: impl Into<String>, at: &'static str) -> NoTicket {
    NoTicket::Lasting(Diagnostic::error(summary.into(), detail.into()).at(at))
}

fn text<'a>(object: &'a Json, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

/// The server of the VM's console: address and hash of the certificate.
fn server(target: &Target<'_>, object: &Json) -> Result<(String, String), NoTicket> {
    let name = target.vm.id();
    let uid = text(object, "/metadata/uid");
    if let Some(wanted) = target.uid.filter(|wanted| *wanted != uid) {
        let detail =
            format!("The VM of this name has uid {uid}, not {wanted}: it was deleted and created again.");
        return Err(lasting(format!("VM {name} is another object"), detail, "uid"));
    }
    let host = text(object, "/status/binding/host");
    if host.is_empty() {
        let ready = readiness::condition(object, "Ready");
        let why = ready.map_or_else(|| "not observed yet".to_owned(), |ready| ready.text());
        return Err(lasting(
            format!("VM {name} has no console"),
            format!("It has no host yet: {why}."),
            "vm",
        ));
    }
    let (address, hash) =
        (text(object, "/status/console/address"), text(object, "/status/console/certificateSha256"));
    if address.is_empty() {
        let detail = format!(
            "Its host {host} serves none: the agent has not reported the VM yet, is older than this provider, or runs with \
             --no-console."
        );
        let refusal = Diagnostic::error(format!("VM {name} has no console"), detail).at("vm");
        return Err(NoTicket::NotYet(refusal));
    }
    Ok((address.to_owned(), hash.to_owned()))
}

fn unreadable(error: &ApiError, vm: &Address) -> NoTicket {
    let summary = format!("VM {} cannot be read", vm.id());
    let detail = match (error, error.code()) {
        (_, 403) => format!("{error}. This needs the verb get on vms in namespace {}.", vm.namespace),
        (ApiError::Unreachable(problem), _) => {
            format!("{problem}. Check that the control plane runs (a local one: \"berth up\").")
        }
        _ => error.to_string(),
    };
    NoTicket::Lasting(Diagnostic::error(summary, detail))
}

fn no_ticket(error: &ApiError, vm: &Address) -> NoTicket {
    let summary = format!("No ticket for the console of VM {}", vm.id());
    match error.code() {
        404 => {
            let detail = format!(
                "{error}. The controllers create this account with the first VM of a namespace; or: kubectl create serviceaccount \
                 {CONSOLE_ACCOUNT} -n {}",
                vm.namespace
            );
            NoTicket::NotYet(Diagnostic::error(summary, detail))
        }
        403 => {
            let detail = format!(
                "{error}. This needs the verb create on serviceaccounts/token of {CONSOLE_ACCOUNT} in namespace {} (role berth-editor has \
                 it).",
                vm.namespace
            );
            NoTicket::Lasting(Diagnostic::error(summary, detail))
        }
        _ => NoTicket::Lasting(Diagnostic::error(summary, error.to_string())),
    }
}

async fn open_once(api: &Api, target: &Target<'_>, limit: &RetryLimit) -> Result<Opened, NoTicket> {
    let vm = &target.vm;
    let found = api.read(vm, limit).await.map_err(|error| unreadable(&error, vm))?;
    let Some(object) = found else {
        let detail = format!(
            "There is no VM {}. For a VM that the same run creates, set uid = berth_vm.NAME.uid as well: it is unknown in the plan, \
             so that the console is opened in the apply.",
            vm.id()
        );
        return Err(lasting("The VM does not exist", detail, "vm"));
    };
    let (address, certificate_sha256) = server(target, &object)?;
    let uid = text(&object, "/metadata/uid").to_owned();
    let audience = target.wanted.audience(&vm.namespace, &vm.name, &uid);
    let spec = json!({"audiences": [audience], "expirationSeconds": TOKEN_SECONDS});
    let account = Address::service_account(&vm.namespace, CONSOLE_ACCOUNT);
    let issued = api.request_token(&account, spec, limit).await.map_err(|error| no_ticket(&error, vm))?;
    let token = text(&issued, "/token").to_owned();
    Ok(Opened { address, certificate_sha256, uid, token })
}

async fn open_soon(api: &Api, target: &Target<'_>, request: &OpenRequest) -> Result<Opened, Diagnostic> {
    let until = Instant::now() + PATIENCE;
    loop {
        let limit = RetryLimit::seconds(super::RETRIES, &request.cancel);
        match open_once(api, target, &limit).await {
            Ok(opened) => return Ok(opened),
            Err(NoTicket::Lasting(problem)) => return Err(problem),
            Err(NoTicket::NotYet(problem)) if Instant::now() + PAUSE > until => return Err(problem),
            Err(NoTicket::NotYet(problem)) => tokio::select! {
                () = request.cancel.cancelled() => return Err(problem),
                () = sleep(PAUSE) => {}
            },
        }
    }
}

/// The end of the time for which hosts accept the ticket, by the time of issue in it.
fn end(token: &str) -> Option<String> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let issued = serde_json::from_slice::<Json>(&claims).ok()?.get("iat")?.as_i64()?;
    let life = i64::try_from(TICKET_LIFE.as_secs()).ok()?;
    Some(Timestamp::from_second(issued.checked_add(life)?).ok()?.to_string())
}

fn wanted(config: &Value) -> Option<ConsoleUse> {
    let name = config.get("use").as_str().unwrap_or(ConsoleUse::Console.as_str());
    USES.into_iter().find(|each| each.as_str() == name)
}

#[async_trait]
impl EphemeralResource for Console {
    fn type_name(&self) -> &str {
        "berth_console"
    }

    fn schema(&self) -> Schema {
        let attributes = vec![
            Attribute::string("namespace")
                .optional()
                .computed()
                .description("Namespace of the VM. Default: the provider's `namespace`."),
            Attribute::string("vm").required().description("Name of the VM."),
            Attribute::string("uid").optional().computed().description(
                "The uid of the VM: another VM of this name is refused. With `berth_vm.NAME.uid`, which a plan does not know, the \
                 console of a VM that the same run creates is opened in the apply.",
            ),
            Attribute::string("use").optional().computed().description(
                "What the ticket is for: `console` (default; to read the serial console and to type into it), `log` (its log, to \
                 its end), `follow` (the log, and the output that follows) or `vnc` (screen, keyboard and pointer).",
            ),
            Attribute::string("address")
                .computed()
                .description("IP address and port of the VM's host, for HTTPS."),
            Attribute::string("certificate_sha256").computed().description(
                "SHA-256 of the host's certificate (DER), in hexadecimal digits. It is self-signed: accept it and no other.",
            ),
            Attribute::string("path").computed().description("The path of the request."),
            Attribute::string("token").computed().sensitive().description(
                "The ticket, for the header `Authorization: Bearer`. The host accepts it for one connection.",
            ),
            Attribute::string("expiration")
                .computed()
                .description("The time after which the host refuses the ticket, by RFC 3339: a minute after the open."),
        ];
        Schema::new(attributes).description(
            "Requests a ticket for one connection to a console of a VM, for a program in the same run. It is in no plan and no \
             state. Terraform 1.10, OpenTofu 1.11 and later.\n\nEach run requests a new ticket, in the plan and again in the \
             apply. It is valid for one VM, one use and one connection within a minute of the open: use it in what runs \
             directly after the VM. The permissions that it takes, and the protocol, are described in [Consoles](../console.md).",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let mut found = super::check_names(config, &[("namespace", Form::Name), ("vm", Form::Name)]);
        if config.get("uid").as_str() == Some("") {
            found.push(
                Diagnostic::error("Invalid uid", "A uid is not empty. Leave it out for any.").at("uid"),
            );
        }
        if !config.get("use").is_unknown() && wanted(config).is_none() {
            let words = USES.map(ConsoleUse::as_str).join(", ");
            found.push(Diagnostic::error("Invalid use", format!("One of {words}.")).at("use"));
        }
        found
    }

    async fn open(&self, request: OpenRequest) -> OpenResponse {
        let config = &request.config;
        let settings = self.session.settings();
        let (api, namespace) = match super::place(&settings, config, "A console") {
            Ok(place) => place,
            Err(problem) => return OpenResponse::failed(vec![*problem]),
        };
        let wanted = wanted(config).unwrap_or(ConsoleUse::Console);
        let name = config.get("vm").as_str().unwrap_or_default();
        let target =
            Target { vm: Address::berth("vms", &namespace, name), uid: config.get("uid").as_str(), wanted };
        let opened = match open_soon(api, &target, &request).await {
            Ok(opened) => opened,
            Err(problem) => return OpenResponse::failed(vec![problem]),
        };
        let mut result = config.clone();
        result.set("path", wanted.path(&namespace, name));
        result.set("namespace", namespace);
        result.set("use", wanted.as_str());
        result.set("expiration", end(&opened.token));
        result.set("uid", opened.uid);
        result.set("address", opened.address);
        result.set("certificate_sha256", opened.certificate_sha256);
        result.set("token", opened.token);
        OpenResponse::new(result)
    }
}
