//! The provider: its configuration, and everything it offers.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use berth_api::ResourceName;
use tfplugin6::{
    Action, Attribute, DataSource, Diagnostic, EphemeralResource, Function, ListResource, Provider, Resource,
    Schema, Value, provider::ConfigureRequest, resource::ValidateRequest,
};

use crate::{
    action::{VmPower, VmRestart},
    api::Api,
    connection::{self, ConnectionSettings, Server},
    data_source::{ListDataSource, ObjectAttributes, ObjectDataSource},
    ephemeral::{console::Console, token::Token},
    failure::Place,
    functions,
    list_resource::KindList,
    resource::KindResource,
    session::{Session, Settings},
};

/// The provider `berth`.
pub struct BerthProvider {
    session: Arc<Session>,
    resources: Vec<Arc<KindResource>>,
    objects: Vec<Arc<ObjectDataSource>>,
    lists: Vec<Arc<ListDataSource>>,
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
    /// A provider on a session, which configure fills.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Self {
        let resources = vec![
            KindResource::new(crate::backup::Backup, session.clone()),
            KindResource::new(crate::backup_repository::BackupRepository, session.clone()),
            KindResource::new(crate::disk::Disk, session.clone()),
            KindResource::new(crate::disk_snapshot::DiskSnapshot, session.clone()),
            KindResource::new(crate::host::Host, session.clone()),
            KindResource::new(crate::hotswap_disk_attachment::HotswapDiskAttachment, session.clone()),
            KindResource::new(crate::image::Image, session.clone()),
            KindResource::new(crate::ip_pool::IpPool, session.clone()),
            KindResource::new(crate::key_class::KeyClass, session.clone()),
            KindResource::new(crate::network::Network, session.clone()),
            KindResource::new(crate::placement_group::PlacementGroup, session.clone()),
            KindResource::new(crate::public_ip::PublicIp, session.clone()),
            KindResource::new(crate::quota::Quota, session.clone()),
            KindResource::new(crate::security_group::SecurityGroup, session.clone()),
            KindResource::new(crate::snapshot_schedule::SnapshotSchedule, session.clone()),
            KindResource::new(crate::storage_pool::StoragePool, session.clone()),
            KindResource::new(crate::vm::Vm, session.clone()),
            KindResource::new(crate::vm_class::VmClass, session.clone()),
            KindResource::new(crate::vm_snapshot::VmSnapshot, session.clone()),
        ];
        let resources: Vec<Arc<KindResource>> = resources.into_iter().map(Arc::new).collect();
        let (mut objects, mut lists) = (Vec::new(), Vec::new());
        for resource in &resources {
            let attributes = Arc::new(ObjectAttributes::default());
            objects.push(Arc::new(ObjectDataSource::new(resource.clone(), attributes.clone())));
            lists.push(Arc::new(ListDataSource::new(resource.clone(), attributes)));
        }
        Self { session, resources, objects, lists }
    }

    /// The resources, with their concrete type.
    #[must_use]
    pub fn kinds(&self) -> &[Arc<KindResource>] {
        &self.resources
    }

    /// The data sources of one object, with their concrete type.
    #[must_use]
    pub fn objects(&self) -> &[Arc<ObjectDataSource>] {
        &self.objects
    }

    /// The data sources of many objects, with their concrete type.
    #[must_use]
    pub fn lists(&self) -> &[Arc<ListDataSource>] {
        &self.lists
    }
}

/// The attributes of the `provider` block: name, environment variable, description.
const ATTRIBUTES: [(&str, &str, &str); 8] = [
    ("kubeconfig", "BERTH_KUBECONFIG", "Path of a kubeconfig file."),
    ("context", "BERTH_CONTEXT", "The context of the kubeconfig. Default: the current one."),
    ("host", "BERTH_HOST", "The control plane's address, `https://host:port`, instead of a kubeconfig."),
    ("token", "BERTH_TOKEN", "A bearer token for `host`."),
    (
        "ca_certificate",
        "BERTH_CA_CERT",
        "PEM certificate, or the path of one, of the authority that signed the certificate of `host`. Default: the system's.",
    ),
    ("namespace", "BERTH_NAMESPACE", "Namespace of resources that do not set one. Default `default`."),
    (
        "pool",
        "BERTH_POOL",
        "StoragePool of new disks, and of new disks of VMs, that do not set one. A disk that exists stays in its pool. Default `default`.",
    ),
    (
        "owner",
        "BERTH_OWNER",
        "The owner of the declared fields: one owner does not overwrite the fields of another. Give each \
         configuration, and each workspace, that shares a control plane its own owner. Default `default`.",
    ),
];

const ALLOW_LOOPBACK_HTTP: &str = "allow_loopback_http";
const INSECURE_SKIP_TLS_VERIFY: &str = "insecure_skip_tls_verify";
const INVALID_NAMESPACE: &str = "A namespace is lower-case letters, digits and \"-\", at most 63 characters.";
const INVALID_POOL: &str =
    "The name of a StoragePool is lower-case letters, digits and \"-\", at most 63 characters.";
const INVALID_OWNER: &str = "An owner is letters, digits, \"-\", \"_\" and \".\", at most 63 characters.";

/// Whether a text consists of `a-z`, `0-9`, `-`, `_`, `.`: it becomes part of a field manager's name.
fn is_owner(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=63).contains(&text.len()) && text.bytes().all(fits)
}

fn configured(config: &Value, name: &str) -> Option<String> {
    config.get(name).as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The value from the configuration, else from the environment.
fn configured_or_environment(config: &Value, name: &str) -> Option<String> {
    let environment =
        ATTRIBUTES.iter().find(|(attribute, ..)| *attribute == name).map(|(_, variable, _)| *variable);
    configured(config, name).or_else(|| environment.and_then(connection::variable))
}

/// The connection as the `provider` block has it.
fn connection_settings(config: &Value) -> ConnectionSettings {
    ConnectionSettings {
        kubeconfig: configured(config, "kubeconfig"),
        context: configured(config, "context"),
        host: configured(config, "host"),
        token: configured(config, "token"),
        ca_certificate: configured(config, "ca_certificate"),
        allow_loopback_http: config.get(ALLOW_LOOPBACK_HTTP).as_bool() == Some(true),
        insecure_skip_tls_verify: config.get(INSECURE_SKIP_TLS_VERIFY).as_bool() == Some(true),
    }
}

/// A warning if the control plane's certificate is not verified.
fn unverified(settings: &ConnectionSettings) -> Option<Diagnostic> {
    let host = settings.host.as_ref().filter(|_| settings.insecure_skip_tls_verify)?;
    let detail = format!(
        "Any certificate of {host} is accepted: a machine on the way to it can read the token and everything else. Set ca_certificate \
         (BERTH_CA_CERT) instead, for example to the one in the kubeconfig that \"sudo berth kubeconfig\" prints."
    );
    Some(
        Diagnostic::warning("The control plane's certificate is not verified", detail)
            .at(INSECURE_SKIP_TLS_VERIFY),
    )
}

#[async_trait]
impl Provider for BerthProvider {
    fn schema(&self) -> Schema {
        let loopback = "Whether a control plane on a loopback address may be reached by `http://`, for example through a \
                        tunnel. Every other address must be `https://`. Default false. Environment: \
                        `BERTH_ALLOW_LOOPBACK_HTTP`.";
        let attribute = |(name, variable, text): &(&str, &str, &str)| {
            let attribute =
                Attribute::string(*name).optional().description(format!("{text} Environment: `{variable}`."));
            if *name == "token" { attribute.sensitive() } else { attribute }
        };
        let mut attributes: Vec<Attribute> = ATTRIBUTES.iter().map(attribute).collect();
        attributes.push(Attribute::bool(ALLOW_LOOPBACK_HTTP).optional().description(loopback));
        let unverified = "Whether any certificate of `host` is accepted: the connection is encrypted, and a machine on its way can \
                          read the token and everything else. For a first test only; not together with `kubeconfig` or \
                          `ca_certificate`. Default false. Environment: `BERTH_INSECURE_SKIP_TLS_VERIFY`.";
        attributes.push(Attribute::bool(INSECURE_SKIP_TLS_VERIFY).optional().description(unverified));
        Schema::new(attributes).description(
            "berth runs virtual machines on your own hosts. Without arguments the provider finds a local control plane \
             (`berth up`).",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let mut found = Vec::new();
        // An unknown value may become null.
        let set = |name: &str| !config.get(name).is_null() && !config.get(name).is_unknown();
        if set("kubeconfig") && set("host") {
            let detail = "Set either kubeconfig, or host with token and ca_certificate.";
            found.push(Diagnostic::error("Two connections to the control plane", detail).at("host"));
        }
        for name in ["token", "ca_certificate"] {
            if set(name) && set("kubeconfig") {
                let detail = format!("{name} goes with host; a kubeconfig has its own.");
                found.push(Diagnostic::error(format!("{name} without host"), detail).at(name));
            }
        }
        let is_unverified = config.get(INSECURE_SKIP_TLS_VERIFY).as_bool() == Some(true);
        for name in ["kubeconfig", "ca_certificate"] {
            if is_unverified && set(name) {
                let detail = format!(
                    "{name} says how the control plane's certificate is verified, and {INSECURE_SKIP_TLS_VERIFY} that it is not. \
                     Leave one of them out."
                );
                let error = Diagnostic::error("The certificate is verified and is not", detail);
                found.push(error.at(INSECURE_SKIP_TLS_VERIFY));
            }
        }
        if configured(config, "namespace").is_some_and(|namespace| !ResourceName::is_dns_label(&namespace)) {
            found.push(Diagnostic::error("Invalid namespace", INVALID_NAMESPACE).at("namespace"));
        }
        if configured(config, "pool").is_some_and(|pool| !ResourceName::is_dns_label(&pool)) {
            found.push(Diagnostic::error("Invalid pool", INVALID_POOL).at("pool"));
        }
        if configured(config, "owner").is_some_and(|owner| !is_owner(&owner)) {
            found.push(Diagnostic::error("Invalid owner", INVALID_OWNER).at("owner"));
        }
        let allowed = config.get(ALLOW_LOOPBACK_HTTP);
        if let Some(host) = configured(config, "host").filter(|_| !allowed.is_unknown()) {
            let by_environment = connection::variable("BERTH_ALLOW_LOOPBACK_HTTP").as_deref() == Some("true");
            let allowed = allowed.as_bool() == Some(true) || by_environment;
            if let Err(error) = connection::check_address("host", &host, allowed) {
                found.push(Diagnostic::error("Invalid host", error.to_string()).at("host"));
            }
        }
        found
    }

    async fn configure(&self, request: ConfigureRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let owner = configured_or_environment(config, "owner").unwrap_or_else(|| "default".to_owned());
        let mut found = Vec::new();
        // Values from the environment have not been validated.
        if !is_owner(&owner) {
            found.push(Diagnostic::error("Invalid owner", INVALID_OWNER).at("owner"));
        }
        if configured_or_environment(config, "namespace")
            .is_some_and(|name| !ResourceName::is_dns_label(&name))
        {
            found.push(Diagnostic::error("Invalid namespace", INVALID_NAMESPACE).at("namespace"));
        }
        let pool = configured_or_environment(config, "pool");
        if pool.as_ref().is_some_and(|name| !ResourceName::is_dns_label(name)) {
            found.push(Diagnostic::error("Invalid pool", INVALID_POOL).at("pool"));
        }
        if config.get("pool").is_unknown() {
            let detail = "A plan shows the pool of each new disk. Write the name of the StoragePool, not an attribute of one that does \
                          not exist yet.";
            found.push(Diagnostic::error("The pool is not known yet", detail).at("pool"));
        }
        let namespace = if config.get("namespace").is_unknown() {
            None
        } else {
            Some(configured_or_environment(config, "namespace").unwrap_or_else(|| "default".to_owned()))
        };
        let ways = [
            "kubeconfig",
            "context",
            "host",
            "token",
            "ca_certificate",
            ALLOW_LOOPBACK_HTTP,
            INSECURE_SKIP_TLS_VERIFY,
        ];
        let mut server = Server::default();
        // While any of the attributes is unknown, there is no connection: creates can still be planned.
        let api = if let Some(unknown) = ways.iter().find(|name| config.get(name).is_unknown()) {
            Err(format!(
                "The provider's {unknown} is not known yet: it comes from a resource that does not exist yet. Apply that resource \
                 first (terraform apply -target=…)."
            ))
        } else {
            let settings = connection_settings(config).or_environment(connection::variable);
            found.extend(unverified(&settings));
            let connected = connection::connect(&settings).await.map(|(client, at)| {
                let place = Place { address: at.host.clone(), source: at.source.clone() };
                server = at;
                Api::at(client, place)
            });
            connected.map_err(|error| {
                // An error that does not depend on the control plane is reported at once, not by the first resource that sends
                // a request.
                let wrong = error
                    .attribute()
                    .map(|name| Diagnostic::error(format!("Invalid {name}"), error.to_string()).at(name));
                found.extend(wrong);
                error.to_string()
            })
        };
        self.session.configure(Settings::new(api, owner, namespace).with_pool(pool).at(server));
        found
    }

    fn resources(&self) -> Vec<Arc<dyn Resource>> {
        self.resources.iter().map(|resource| resource.clone() as Arc<dyn Resource>).collect()
    }

    fn data_sources(&self) -> Vec<Arc<dyn DataSource>> {
        let objects = self.objects.iter().map(|source| source.clone() as Arc<dyn DataSource>);
        objects.chain(self.lists.iter().map(|source| source.clone() as Arc<dyn DataSource>)).collect()
    }

    fn ephemeral_resources(&self) -> Vec<Arc<dyn EphemeralResource>> {
        vec![Arc::new(Console::new(self.session.clone())), Arc::new(Token::new(self.session.clone()))]
    }

    fn list_resources(&self) -> Vec<Arc<dyn ListResource>> {
        let lists = self.resources.iter();
        lists.map(|resource| Arc::new(KindList::new(resource.clone())) as Arc<dyn ListResource>).collect()
    }

    fn actions(&self) -> Vec<Arc<dyn Action>> {
        let vms = self.resources.iter().filter(|resource| resource.info().kind == "VM");
        let both = |vm: &Arc<KindResource>| -> [Arc<dyn Action>; 2] {
            [Arc::new(VmPower::new(vm.clone())), Arc::new(VmRestart::new(vm.clone()))]
        };
        vms.flat_map(both).collect()
    }

    fn functions(&self) -> Vec<Arc<dyn Function>> {
        functions::ALL.into_iter().map(|function| Arc::new(function) as Arc<dyn Function>).collect()
    }
}
