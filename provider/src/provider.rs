//! The provider: its configuration and its resources.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use berth_api::ResourceName;
use tfplugin6::{
    Attribute, Diagnostic, Provider, Resource, Schema, Value, provider::ConfigureRequest,
    resource::ValidateRequest,
};

use crate::{
    api::Api,
    connection::{self, Wishes},
    resource::KindResource,
    session::{Session, Settings},
};

/// The provider `berth`.
pub struct BerthProvider {
    session: Arc<Session>,
    resources: Vec<Arc<KindResource>>,
}

impl fmt::Debug for BerthProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BerthProvider").field("resources", &self.resources.len()).finish_non_exhaustive()
    }
}

impl Default for BerthProvider {
    fn default() -> Self {
        Self::new(Arc::new(Session::default()))
    }
}

impl BerthProvider {
    /// On a session, which configure fills.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Self {
        let resources = vec![
            KindResource::new(crate::disk::Disk, session.clone()),
            KindResource::new(crate::hotswap_disk_attachment::HotswapDiskAttachment, session.clone()),
            KindResource::new(crate::image::Image, session.clone()),
            KindResource::new(crate::placement_group::PlacementGroup, session.clone()),
            KindResource::new(crate::public_ip::PublicIp, session.clone()),
            KindResource::new(crate::vm::Vm, session.clone()),
            KindResource::new(crate::vm_class::VmClass, session.clone()),
        ];
        Self { session, resources: resources.into_iter().map(Arc::new).collect() }
    }

    /// Its resources, as what they are.
    #[must_use]
    pub fn kinds(&self) -> &[Arc<KindResource>] {
        &self.resources
    }
}

/// The attributes of the `provider` block: name, environment variable, description.
const ATTRIBUTES: [(&str, &str, &str); 7] = [
    ("kubeconfig", "BERTH_KUBECONFIG", "Path of a kubeconfig file."),
    ("context", "BERTH_CONTEXT", "Which context of the kubeconfig. Default: its current one."),
    ("host", "BERTH_HOST", "The control plane's address, `https://host:port`, instead of a kubeconfig."),
    ("token", "BERTH_TOKEN", "A bearer token for `host`."),
    (
        "ca_certificate",
        "BERTH_CA_CERT",
        "PEM certificate, or the path of one, of the authority that signed the certificate of `host`. Default: the system's.",
    ),
    ("namespace", "BERTH_NAMESPACE", "Namespace of resources that do not say one. Default `default`."),
    (
        "owner",
        "BERTH_OWNER",
        "Whose declarations these are: what one owner declares, another does not overwrite. Give each configuration that \
         shares a control plane its own. Default `default`.",
    ),
];

/// `a-z`, `0-9`, `-`, `_`, `.`: it becomes part of a field manager's name.
fn is_owner(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=63).contains(&text.len()) && text.bytes().all(fits)
}

fn said(config: &Value, name: &str) -> Option<String> {
    config.get(name).as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// What the configuration says, else the environment.
fn said_or_environment(config: &Value, name: &str) -> Option<String> {
    let environment =
        ATTRIBUTES.iter().find(|(attribute, ..)| *attribute == name).map(|(_, variable, _)| *variable);
    said(config, name).or_else(|| environment.and_then(connection::variable))
}

#[async_trait]
impl Provider for BerthProvider {
    fn schema(&self) -> Schema {
        let attribute = |(name, variable, text): &(&str, &str, &str)| {
            let attribute =
                Attribute::string(*name).optional().description(format!("{text} Environment: `{variable}`."));
            if *name == "token" { attribute.sensitive() } else { attribute }
        };
        Schema::new(ATTRIBUTES.iter().map(attribute).collect()).description(
            "berth runs virtual machines on your own hosts. Without arguments the provider finds a local control plane \
             (`berth up`).",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let mut found = Vec::new();
        if !config.get("kubeconfig").is_null() && !config.get("host").is_null() {
            let detail = "Say either kubeconfig, or host with token and ca_certificate.";
            found.push(Diagnostic::error("Two ways to the control plane", detail).at("host"));
        }
        for name in ["token", "ca_certificate"] {
            if !config.get(name).is_null() && !config.get("kubeconfig").is_null() {
                let detail = format!("{name} goes with host; a kubeconfig has its own.");
                found.push(Diagnostic::error(format!("{name} without host"), detail).at(name));
            }
        }
        if said(config, "namespace").is_some_and(|namespace| !ResourceName::is_dns_label(&namespace)) {
            let detail = "A namespace is lower-case letters, digits and \"-\", at most 63 characters.";
            found.push(Diagnostic::error("Invalid namespace", detail).at("namespace"));
        }
        if said(config, "owner").is_some_and(|owner| !is_owner(&owner)) {
            let detail = "An owner is letters, digits, \"-\", \"_\" and \".\", at most 63 characters.";
            found.push(Diagnostic::error("Invalid owner", detail).at("owner"));
        }
        found
    }

    async fn configure(&self, request: ConfigureRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let owner = said_or_environment(config, "owner").unwrap_or_else(|| "default".to_owned());
        let namespace = if config.get("namespace").is_unknown() {
            None
        } else {
            Some(said_or_environment(config, "namespace").unwrap_or_else(|| "default".to_owned()))
        };
        let ways = ["kubeconfig", "context", "host", "token", "ca_certificate"];
        // While any of it is unknown, so is the way: creates can be planned all the same.
        let api = if let Some(unknown) = ways.iter().find(|name| config.get(name).is_unknown()) {
            Err(format!(
                "The provider's {unknown} is not known yet: it comes from a resource that is not there yet. Apply that first \
                 (terraform apply -target=…)."
            ))
        } else {
            let wishes = Wishes {
                kubeconfig: said(config, "kubeconfig"),
                context: said(config, "context"),
                host: said(config, "host"),
                token: said(config, "token"),
                ca_certificate: said(config, "ca_certificate"),
            };
            let wishes = wishes.or_environment(connection::variable);
            connection::connect(&wishes).await.map(Api::new).map_err(|error| error.to_string())
        };
        self.session.configure(Settings::new(api, owner, namespace));
        Vec::new()
    }

    fn resources(&self) -> Vec<Arc<dyn Resource>> {
        self.resources.iter().map(|resource| resource.clone() as Arc<dyn Resource>).collect()
    }
}
