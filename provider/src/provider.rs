//! The provider: its configuration, and everything it offers.

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use berth_api::ResourceName;
use tfplugin6::{
    Action, Attribute, DataSource, Diagnostic, EphemeralResource, Function, ListResource, Provider, Resource,
    Schema, Type, Value, provider::ConfigureRequest, resource::ValidateRequest,
};

use crate::{
    action::{VmMove, VmPower, VmRestart},
    api::Api,
    connection::{self, ConnectionSettings, Server},
    data_source::{ListDataSource, ObjectAttributes, ObjectDataSource},
    defaults::{self, Defaults},
    ephemeral::{console::Console, host_token::HostToken, token::Token},
    failure::Place,
    functions,
    list_resource::KindList,
    remote_images::RemoteImages,
    resource::KindResource,
    selector::{LABEL_KEY, LABEL_VALUE, is_label_key, is_label_value},
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
            KindResource::new(crate::vm_group::VmGroup, session.clone()),
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
const ATTRIBUTES: [(&str, &str, &str); 9] = [
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
        "network",
        "BERTH_NETWORK",
        "Network of new interfaces of VMs that do not set one. An interface that exists keeps its Network. Default `default`.",
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
const HOST_SELECTOR: &str = "host_selector";
const HOST_SELECTOR_VARIABLE: &str = "BERTH_HOST_SELECTOR";
/// As many labels as the selector of a VM may have.
const MOST_LABELS: usize = 64;
const INVALID_NAMESPACE: &str = "A namespace is lower-case letters, digits and \"-\", at most 63 characters.";
const INVALID_POOL: &str =
    "The name of a StoragePool is lower-case letters, digits and \"-\", at most 63 characters.";
const INVALID_NETWORK: &str =
    "The name of a Network is lower-case letters, digits and \"-\", at most 63 characters.";
const INVALID_OWNER: &str = "An owner is letters, digits, \"-\", \"_\" and \".\", at most 63 characters.";

/// Whether a text consists of `a-z`, `0-9`, `-`, `_`, `.`: it becomes part of a field manager's name.
fn is_owner(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=63).contains(&text.len()) && text.bytes().all(fits)
}

/// An attribute, whether it accepts a text, and the rule in words.
type NameRule = (&'static str, fn(&str) -> bool, &'static str);

/// The errors of the names that are set.
fn invalid_names(read: impl Fn(&str) -> Option<String>) -> Vec<Diagnostic> {
    let rules: [NameRule; 4] = [
        ("namespace", ResourceName::is_dns_label, INVALID_NAMESPACE),
        ("pool", ResourceName::is_dns_label, INVALID_POOL),
        ("network", ResourceName::is_dns_label, INVALID_NETWORK),
        ("owner", is_owner, INVALID_OWNER),
    ];
    let invalid = rules.into_iter().filter(|(name, fits, _)| read(name).is_some_and(|text| !fits(&text)));
    invalid.map(|(name, _, rule)| Diagnostic::error(format!("Invalid {name}"), rule).at(name)).collect()
}

/// The error of a selector of hosts, as far as it is known.
fn invalid_host_selector(selector: &Value) -> Option<Diagnostic> {
    let labels = selector.as_map()?;
    let problem = |(key, value): (&String, &Value)| {
        if !is_label_key(key) {
            return Some(format!("{key:?} is not the key of a label: {LABEL_KEY}"));
        }
        if value.is_null() {
            return Some(format!("{key:?} has no value."));
        }
        let value = value.as_str().filter(|value| !is_label_value(value))?;
        Some(format!("{value:?} is not the value of a label: {LABEL_VALUE}"))
    };
    let too_many = format!("There are {} labels; at most {MOST_LABELS} are allowed.", labels.len());
    let too_many = (labels.len() > MOST_LABELS).then_some(too_many);
    let detail = too_many.or_else(|| labels.iter().find_map(problem))?;
    Some(Diagnostic::error("Invalid host_selector", detail).at(HOST_SELECTOR))
}

/// The selector of hosts from the configuration, else from the environment.
fn host_selector(config: &Value) -> Result<BTreeMap<String, String>, Diagnostic> {
    let selector = config.get(HOST_SELECTOR);
    if !selector.is_wholly_known() {
        return Err(not_known(HOST_SELECTOR, "the placement of each new VM", "the labels"));
    }
    let labels: BTreeMap<String, String> = match (
        selector.as_map(),
        connection::variable(HOST_SELECTOR_VARIABLE),
    ) {
        (Some(labels), _) => {
            let label = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
            labels.iter().filter_map(label).collect()
        }
        (None, Some(text)) => defaults::labels(&text).ok_or_else(|| {
            let detail = format!(
                "{HOST_SELECTOR_VARIABLE} is {text:?}: write KEY=VALUE, or several of them with different keys, joined by commas."
            );
            Diagnostic::error("Invalid host_selector", detail).at(HOST_SELECTOR)
        })?,
        (None, None) => BTreeMap::new(),
    };
    let written = labels.iter().map(|(key, value)| (key.clone(), Value::from(value.clone())));
    let invalid = invalid_host_selector(selector).or_else(|| invalid_host_selector(&Value::object(written)));
    invalid.map_or(Ok(labels), Err)
}

/// The error of a default that comes from a resource which does not exist yet.
fn not_known(name: &str, shown: &str, written: &str) -> Diagnostic {
    let detail = format!(
        "A plan shows {shown}. Write {written}, not an attribute of a resource that does not exist yet."
    );
    Diagnostic::error(format!("The {name} is not known yet"), detail).at(name)
}

/// The values of what new resources leave out, with the errors in them.
fn defaults_of(config: &Value) -> (Defaults, Vec<Diagnostic>) {
    let mut found = Vec::new();
    if config.get("pool").is_unknown() {
        found.push(not_known("pool", "the pool of each new disk", "the name of the StoragePool"));
    }
    if config.get("network").is_unknown() {
        found.push(not_known("network", "the network of each new interface", "the name of the Network"));
    }
    let host_selector = host_selector(config).unwrap_or_else(|error| {
        found.push(error);
        BTreeMap::new()
    });
    let text = |name| configured_or_environment(config, name);
    (Defaults { pool: text("pool"), network: text("network"), host_selector }, found)
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
        let selector = format!(
            "Labels that a Host must have, for new VMs that declare no `placement`. A VM that exists keeps its placement. Environment: \
             `{HOST_SELECTOR_VARIABLE}`, for example `zone=a,disk=ssd`."
        );
        let labels = Attribute::new(HOST_SELECTOR, Type::map(Type::String));
        attributes.push(labels.optional().description(selector));
        Schema::new(attributes).description(
            "berth runs virtual machines on your own hosts. Without arguments the provider finds a local control plane \
             (`berth up`).",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let mut found = Vec::new();
        // An empty text counts as none, as for the connection.
        let set = |name: &str| config.get(name).is_set() && config.get(name).as_str() != Some("");
        if set("kubeconfig") && set("host") {
            let detail = "Set either kubeconfig, or host with token and ca_certificate.";
            found.push(Diagnostic::error("Both kubeconfig and host", detail).at("host"));
        }
        for name in ["token", "ca_certificate"] {
            if set(name) && set("kubeconfig") {
                let detail = format!(
                    "{name} is for a connection by host, and a kubeconfig contains its own. Leave {name} out, or set host instead of kubeconfig."
                );
                found.push(Diagnostic::error(format!("Both kubeconfig and {name}"), detail).at(name));
            }
        }
        let is_unverified = config.get(INSECURE_SKIP_TLS_VERIFY).as_bool() == Some(true);
        for name in ["kubeconfig", "ca_certificate"] {
            if is_unverified && set(name) {
                let detail = format!(
                    "With {name} the certificate of the control plane is verified, and with {INSECURE_SKIP_TLS_VERIFY} it is not. \
                     Leave one of them out."
                );
                let error = Diagnostic::error("Contradictory verification of the certificate", detail);
                found.push(error.at(INSECURE_SKIP_TLS_VERIFY));
            }
        }
        found.extend(invalid_names(|name| configured(config, name)));
        found.extend(invalid_host_selector(config.get(HOST_SELECTOR)));
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
        // Values from the environment have not been validated.
        let mut found = invalid_names(|name| configured_or_environment(config, name));
        let (defaults, invalid) = defaults_of(config);
        found.extend(invalid);
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
        self.session.configure(Settings::new(api, owner, namespace).with_defaults(defaults).at(server));
        found
    }

    fn resources(&self) -> Vec<Arc<dyn Resource>> {
        self.resources.iter().map(|resource| resource.clone() as Arc<dyn Resource>).collect()
    }

    fn data_sources(&self) -> Vec<Arc<dyn DataSource>> {
        let objects = self.objects.iter().map(|source| source.clone() as Arc<dyn DataSource>);
        let lists = self.lists.iter().map(|source| source.clone() as Arc<dyn DataSource>);
        objects.chain(lists).chain([Arc::new(RemoteImages) as Arc<dyn DataSource>]).collect()
    }

    fn ephemeral_resources(&self) -> Vec<Arc<dyn EphemeralResource>> {
        vec![
            Arc::new(Console::new(self.session.clone())),
            Arc::new(HostToken::new(self.session.clone())),
            Arc::new(Token::new(self.session.clone())),
        ]
    }

    fn list_resources(&self) -> Vec<Arc<dyn ListResource>> {
        let lists = self.resources.iter();
        lists.map(|resource| Arc::new(KindList::new(resource.clone())) as Arc<dyn ListResource>).collect()
    }

    fn actions(&self) -> Vec<Arc<dyn Action>> {
        let vms = self.resources.iter().filter(|resource| resource.info().kind == "VM");
        let all = |vm: &Arc<KindResource>| -> [Arc<dyn Action>; 3] {
            [
                Arc::new(VmPower::new(vm.clone())),
                Arc::new(VmRestart::new(vm.clone())),
                Arc::new(VmMove::new(vm.clone())),
            ]
        };
        vms.flat_map(all).collect()
    }

    fn functions(&self) -> Vec<Arc<dyn Function>> {
        functions::ALL.into_iter().map(|function| Arc::new(function) as Arc<dyn Function>).collect()
    }
}

#[cfg(test)]
mod tests {
    use tfplugin6::{CancellationToken, provider::ClientCapabilities};

    use super::*;

    #[tokio::test]
    async fn an_empty_text_is_no_second_connection() {
        let problems = async |kubeconfig: &str| {
            let config = Value::object([
                ("kubeconfig", Value::from(kubeconfig)),
                ("host", Value::from("https://192.0.2.1:6443")),
                ("token", Value::from("t")),
            ]);
            let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
            let found = BerthProvider::default().validate(ValidateRequest { config, client, cancel }).await;
            found.into_iter().map(|problem| problem.summary).collect::<Vec<_>>()
        };
        assert_eq!(problems("").await, [""; 0]);
        assert_eq!(problems("k").await, ["Both kubeconfig and host", "Both kubeconfig and token"]);
    }
}
