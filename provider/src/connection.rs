//! The address and the credentials of the control plane: from the `provider` block, the environment, or the kubeconfig that
//! `berth up` writes.

mod credentials;
mod others;
mod text_file;

use std::{
    env, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::{
        AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
        NamedCluster, NamedContext,
    },
};
use tower::ServiceBuilder;

pub(crate) use others::client_of_others;

/// The directory in which `berth up` writes its kubeconfig unless another state directory is configured.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/berth";
const KUBECONFIG_NAME: &str = "admin.kubeconfig";

/// The connection settings from the configuration and the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// The path of a kubeconfig file.
    pub kubeconfig: Option<String>,
    /// The context in the kubeconfig.
    pub context: Option<String>,
    /// `https://host:port`
    pub host: Option<String>,
    /// A bearer token.
    pub token: Option<String>,
    /// The PEM certificate of the authority that signed the control plane's certificate.
    pub ca_certificate: Option<String>,
    /// Whether `http://` is allowed for a control plane on a loopback address.
    pub allow_loopback_http: bool,
    /// Whether the certificate of `host` is accepted unverified.
    pub insecure_skip_tls_verify: bool,
}

/// The reason there is no connection to the control plane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nothing is configured, and no kubeconfig was found.
    #[error(
        "No kubeconfig of a local control plane was found at {0}. Start one with \"berth up\", or configure the \
         connection with kubeconfig (BERTH_KUBECONFIG), or with host, token and ca_certificate (BERTH_HOST, BERTH_TOKEN, \
         BERTH_CA_CERT)."
    )]
    NotFound(String),
    /// The configured kubeconfig does not exist.
    #[error("The kubeconfig {0} does not exist: check kubeconfig (BERTH_KUBECONFIG).")]
    Missing(String),
    /// The kubeconfig exists, but this user cannot read it.
    #[error(
        "The kubeconfig {0} cannot be read by this user. Write yourself a copy with \"sudo berth kubeconfig > \
         ~/berth.kubeconfig\" and set BERTH_KUBECONFIG to it, or start berth with \"berth up --kubeconfig-owner USER\"."
    )]
    NotReadable(String),
    /// The kubeconfig is unusable.
    #[error("The kubeconfig {0} cannot be used: {1}.")]
    Kubeconfig(String, String),
    /// The host is unusable.
    #[error("The control plane at {0} cannot be used: {1}.")]
    Host(String, String),
    /// Credentials must not be sent to the address.
    #[error("{0}")]
    Address(String),
    /// The token cannot be sent.
    #[error(
        "The token has characters that no HTTP header may have, such as a line break in the middle. Write the token alone, \
         as \"kubectl create token\" prints it."
    )]
    Token,
    /// The certificate cannot be left unverified here.
    #[error(
        "insecure_skip_tls_verify (BERTH_INSECURE_SKIP_TLS_VERIFY) {0}. Leave it out, or configure host (BERTH_HOST) with \
         token, without ca_certificate (BERTH_CA_CERT)."
    )]
    Unverified(&'static str),
}

impl ConnectError {
    /// The attribute of the `provider` block that is wrong regardless of the control plane, if there is one.
    #[must_use]
    pub fn attribute(&self) -> Option<&'static str> {
        match self {
            Self::Address(_) => Some("host"),
            Self::Token => Some("token"),
            Self::Unverified(_) => Some("insecure_skip_tls_verify"),
            _ => None,
        }
    }
}

/// The control plane that a client sends its requests to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// `https://host:port`
    pub host: String,
    /// Where the address is configured, such as `the kubeconfig /home/me/berth.kubeconfig`.
    pub source: String,
    /// The PEM certificates of the authorities that it is trusted by; none: those of the system.
    pub ca_certificate: Option<String>,
}

impl ConnectionSettings {
    /// Completes the settings from the environment. The configuration wins as a whole: an environment that names another host
    /// does not mix with a configured kubeconfig.
    #[must_use]
    pub fn or_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        self.allow_loopback_http |= variable("BERTH_ALLOW_LOOPBACK_HTTP").as_deref() == Some("true");
        if self.kubeconfig.is_some() {
            return Self { context: self.context.or_else(|| variable("BERTH_CONTEXT")), ..self };
        }
        self.insecure_skip_tls_verify |=
            variable("BERTH_INSECURE_SKIP_TLS_VERIFY").as_deref() == Some("true");
        if self.host.is_some() {
            return Self {
                token: self.token.or_else(|| variable("BERTH_TOKEN")),
                ca_certificate: self.ca_certificate.or_else(|| variable("BERTH_CA_CERT")),
                ..self
            };
        }
        let host = variable("BERTH_HOST");
        let kubeconfig = if host.is_none() { variable("BERTH_KUBECONFIG") } else { None };
        Self {
            context: self.context.or_else(|| variable("BERTH_CONTEXT")),
            token: self.token.or_else(|| variable("BERTH_TOKEN")),
            ca_certificate: self.ca_certificate.or_else(|| variable("BERTH_CA_CERT")),
            host,
            kubeconfig,
            allow_loopback_http: self.allow_loopback_http,
            insecure_skip_tls_verify: self.insecure_skip_tls_verify,
        }
    }
}

/// Checks that credentials may be sent to an address. `place` names where it is configured.
///
/// # Errors
/// [`ConnectError::Address`]
pub fn check_address(place: &str, address: &str, allow_loopback_http: bool) -> Result<(), ConnectError> {
    let wrong = |why: &str| Err(ConnectError::Address(format!("{place} is {address:?}: {why}")));
    let form = "write the address as https://HOST:PORT.";
    let Ok(uri) = address.parse::<Uri>() else { return wrong(&format!("it is not an address; {form}")) };
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host().filter(|host| !host.is_empty())) else {
        return wrong(&format!("it has no scheme or no host; {form}"));
    };
    let plain = uri.authority().is_none_or(|authority| !authority.as_str().contains('@'));
    if !plain || uri.query().is_some() {
        return wrong(&format!("it has a user or a query, which an address here cannot have; {form}"));
    }
    match scheme {
        "https" => Ok(()),
        "http" if !is_loopback(host) => wrong(
            "over http the token and all bootstrap data would be readable on the network. Write https://; a control plane \
             made by \"berth up\" serves nothing else.",
        ),
        "http" if !allow_loopback_http => wrong(
            "over http the token is sent unencrypted. Write https://, or set allow_loopback_http = true \
             (BERTH_ALLOW_LOOPBACK_HTTP=true) if what listens on this loopback address is yours, such as a tunnel.",
        ),
        "http" => Ok(()),
        _ => wrong(&format!("its scheme is neither https nor http; {form}")),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// An environment variable, if it is set and not empty.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A client with these settings, and the control plane's address. Does not connect yet.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(settings: &ConnectionSettings) -> Result<(Client, Server), ConnectError> {
    check_verification(settings)?;
    let (place, mut config) = match &settings.host {
        Some(host) => {
            check_address("host", host, settings.allow_loopback_http)?;
            let options = KubeConfigOptions::default();
            let refused = |problem: String| ConnectError::Host(host.clone(), problem);
            let kubeconfig = kubeconfig_for(host, settings, token(settings)?).map_err(refused)?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            ("host".to_owned(), config.map_err(|error| refused(error.to_string()))?)
        }
        None => {
            let path = kubeconfig_path(settings);
            let shown = path.display().to_string();
            let kubeconfig = read(&path, settings.kubeconfig.is_some())?;
            check_context(&kubeconfig, settings.context.as_deref())
                .map_err(|problem| ConnectError::Kubeconfig(shown.clone(), problem))?;
            let options =
                KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            let place = format!("The server in the kubeconfig {shown}");
            (place, config.map_err(|error| ConnectError::Kubeconfig(shown, error.to_string()))?)
        }
    };
    let host = config.cluster_url.to_string();
    check_address(&place, &host, settings.allow_loopback_http)?;
    credentials::check(&mut config.auth_info).await.map_err(|problem| match &settings.host {
        Some(host) => ConnectError::Host(host.clone(), problem),
        None => ConnectError::Kubeconfig(kubeconfig_path(settings).display().to_string(), problem),
    })?;
    let ca_certificate =
        config.root_cert.as_ref().map(|certificates| certificates.iter().map(|der| pem(der)).collect());
    let source = match &settings.host {
        Some(_) => "the provider's host".to_owned(),
        None => format!("the kubeconfig {}", kubeconfig_path(settings).display()),
    };
    let server = Server { host: host.trim_end_matches('/').to_owned(), source, ca_certificate };
    let client = client(config).map_err(|error| ConnectError::Host(host, error.to_string()))?;
    Ok((client, server))
}

/// Checks that nothing else says how the certificate is verified.
fn check_verification(settings: &ConnectionSettings) -> Result<(), ConnectError> {
    if !settings.insecure_skip_tls_verify {
        return Ok(());
    }
    if settings.host.is_none() {
        return Err(ConnectError::Unverified(
            "is for a connection by host, and a kubeconfig has a setting of its own",
        ));
    }
    if settings.ca_certificate.is_some() {
        return Err(ConnectError::Unverified("cannot be set together with ca_certificate"));
    }
    Ok(())
}

fn pem(certificate: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Checks that the kubeconfig has the context. Its own error would not name those there are.
fn check_context(kubeconfig: &Kubeconfig, wanted: Option<&str>) -> Result<(), String> {
    let Some(wanted) = wanted.or(kubeconfig.current_context.as_deref()).filter(|name| !name.is_empty())
    else {
        return Err("it has no current-context: set context (BERTH_CONTEXT)".to_owned());
    };
    let known: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    if known.contains(&wanted) {
        return Ok(());
    }
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(format!("it has no context {wanted:?}; its contexts: {known}"))
}

/// The token as it is sent: without the line break that a token read from a file usually ends with.
fn token(settings: &ConnectionSettings) -> Result<Option<&str>, ConnectError> {
    let Some(token) = settings.token.as_deref().map(str::trim) else { return Ok(None) };
    if credentials::is_sendable(token) { Ok(Some(token)) } else { Err(ConnectError::Token) }
}

fn kubeconfig_path(settings: &ConnectionSettings) -> PathBuf {
    if let Some(path) = &settings.kubeconfig {
        return match (path.strip_prefix("~/"), env::home_dir()) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(path),
        };
    }
    let state_dir = variable("BERTH_STATE_DIR").unwrap_or_else(|| DEFAULT_STATE_DIR.to_owned());
    Path::new(&state_dir).join(KUBECONFIG_NAME)
}

fn read(path: &Path, is_configured: bool) -> Result<Kubeconfig, ConnectError> {
    let shown = path.display().to_string();
    // Opened here first: the kind of the I/O error determines the error to report.
    if let Err(error) = std::fs::File::open(path) {
        return Err(match error.kind() {
            io::ErrorKind::PermissionDenied => ConnectError::NotReadable(shown),
            io::ErrorKind::NotFound if is_configured => ConnectError::Missing(shown),
            io::ErrorKind::NotFound => ConnectError::NotFound(shown),
            _ => ConnectError::Kubeconfig(shown, error.to_string()),
        });
    }
    Kubeconfig::read_from(path).map_err(|error| ConnectError::Kubeconfig(shown, without_quote(&error)))
}

/// The error without its quotes of the file, which may contain a token.
fn without_quote(error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(parse) = error else { return error.to_string() };
    match parse.location() {
        Some(at) => format!("it is not a valid kubeconfig (line {}, column {})", at.line(), at.column()),
        None => "it is not a valid kubeconfig".to_owned(),
    }
}

fn kubeconfig_for(
    host: &str,
    settings: &ConnectionSettings,
    token: Option<&str>,
) -> Result<Kubeconfig, String> {
    use base64::Engine as _;
    let mut cluster = Cluster {
        server: Some(host.to_owned()),
        insecure_skip_tls_verify: settings.insecure_skip_tls_verify.then_some(true),
        ..Cluster::default()
    };
    if let Some(pem) = &settings.ca_certificate {
        // A path is accepted too: environments usually hold paths of certificates.
        let pem = if pem.contains("-----BEGIN") {
            pem.clone()
        } else {
            text_file::read(pem).map_err(|error| format!("the CA certificate {pem}: {error}"))?
        };
        let data = base64::engine::general_purpose::STANDARD.encode(pem);
        cluster.certificate_authority_data = Some(data);
    }
    let user = AuthInfo { token: token.map(|token| token.to_owned().into()), ..AuthInfo::default() };
    let name = || "berth".to_owned();
    let context = Context { cluster: name(), user: Some(name()), ..Context::default() };
    // Not from JSON: the code that reads a kubeconfig from it would be another copy of kube's, which reads it from YAML.
    Ok(Kubeconfig {
        clusters: vec![NamedCluster { name: name(), cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo { name: name(), auth_info: Some(user), ..NamedAuthInfo::default() }],
        contexts: vec![NamedContext { name: name(), context: Some(context), ..NamedContext::default() }],
        current_context: Some(name()),
        ..Kubeconfig::default()
    })
}

/// Builds a client as kube does, but with TCP_NODELAY, which small requests need, and without kube's retries: the caller
/// retries.
fn client(config: Config) -> Result<Client, kube::Error> {
    // An error means that a provider is installed already: it is the same one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(Duration::from_secs(4)));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let http = HttpClient::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(variables: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn configured_settings_do_not_mix_with_the_environment() {
        let written = ConnectionSettings { kubeconfig: Some("a".into()), ..ConnectionSettings::default() };
        let settings =
            written.clone().or_environment(with(&[("BERTH_HOST", "https://h"), ("BERTH_TOKEN", "t")]));
        assert_eq!(settings, written);
        let settings = ConnectionSettings::default()
            .or_environment(with(&[("BERTH_HOST", "https://h"), ("BERTH_KUBECONFIG", "k")]));
        assert_eq!((settings.host.as_deref(), settings.kubeconfig), (Some("https://h"), None));
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_explained() {
        let settings = ConnectionSettings {
            kubeconfig: Some("/nowhere/kubeconfig".into()),
            ..ConnectionSettings::default()
        };
        let error = connect(&settings).await.err();
        assert_eq!(error, Some(ConnectError::Missing("/nowhere/kubeconfig".into())));
    }

    #[tokio::test]
    async fn a_malformed_token_is_never_repeated() {
        let settings = ConnectionSettings {
            host: Some("::".into()),
            token: Some("secret-token".into()),
            ..ConnectionSettings::default()
        };
        let error = connect(&settings).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("::") && !error.contains("secret-token"), "{error}");
        let host = || Some("https://127.0.0.1:1".to_owned());
        let settings = |token: &str| ConnectionSettings {
            host: host(),
            token: Some(token.into()),
            ..ConnectionSettings::default()
        };
        assert!(connect(&settings("from-a-file\n")).await.is_ok(), "the end of a line is no part of a token");
        let error = connect(&settings("secret\ntoken")).await.err();
        assert_eq!(error, Some(ConnectError::Token));
    }

    #[test]
    fn credentials_go_to_https_and_by_choice_to_loopback_http() {
        let check =
            |address: &str, allow| check_address("host", address, allow).map_err(|error| error.to_string());
        for good in ["https://berth.example:7443", "https://10.0.0.1", "https://[::1]:7443", "https://h/base"]
        {
            assert_eq!(check(good, false), Ok(()), "{good}");
        }
        for plain in ["http://berth.example:7443", "http://10.0.0.1", "http://127.0.0.1.example", "HTTP://h"]
        {
            for allow in [false, true] {
                assert!(check(plain, allow).is_err_and(|text| text.contains("https://")), "{plain}");
            }
        }
        for loopback in ["http://127.0.0.1:8001", "http://localhost:8001", "http://[::1]:8001"] {
            assert!(check(loopback, false).is_err_and(|text| text.contains("allow_loopback_http = true")));
            assert_eq!(check(loopback, true), Ok(()), "{loopback}");
        }
        for bad in [
            "",
            "berth.example:7443",
            "berth.example",
            "https://",
            "ftp://h",
            "https://u:p@h",
            "https://h?x",
            "::",
            "/",
        ] {
            assert!(check(bad, true).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_with_a_plain_server_is_refused() {
        let directory = tempfile::tempdir().expect("a new directory");
        let path = directory.path().join("kubeconfig");
        let write = |server: &str, token: &str| {
            let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
                "clusters": [{"name": "a", "cluster": {"server": server}}],
                "users": [{"name": "a", "user": {"token": token}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
            std::fs::write(&path, text.to_string()).expect("the directory is ours");
        };
        let settings = ConnectionSettings {
            kubeconfig: Some(path.display().to_string()),
            ..ConnectionSettings::default()
        };
        write("http://berth.example:7443", "t");
        let error = connect(&settings).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("kubeconfig") && error.contains("https://"), "{error}");
        write("https://berth.example:7443", "t");
        assert!(connect(&settings).await.is_ok());
    }

    async fn connect_as(user: &serde_json::Value) -> Result<(), String> {
        let cluster = json!({"server": "https://berth.example:7443"});
        connect_to(&cluster, user).await
    }

    /// Connects with a kubeconfig that has this cluster and user. Where this panics, the release build aborts.
    async fn connect_to(cluster: &serde_json::Value, user: &serde_json::Value) -> Result<(), String> {
        let directory = tempfile::tempdir().expect("a new directory");
        let path = directory.path().join("kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": cluster}],
            "users": [{"name": "a", "user": user}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
        std::fs::write(&path, text.to_string()).expect("the directory is ours");
        let settings = ConnectionSettings {
            kubeconfig: Some(path.display().to_string()),
            ..ConnectionSettings::default()
        };
        connect(&settings).await.map(drop).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_credential_that_no_header_can_hold_is_refused_without_a_panic_and_not_quoted() {
        let directory = tempfile::tempdir().expect("a new directory");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("the directory is ours");
            path.display().to_string()
        };
        let plugin = |name: &str, status: serde_json::Value| {
            let printed = file(name, &json!({"kind": "ExecCredential", "status": status}).to_string());
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [printed],
                "interactiveMode": "Never"}})
        };
        let provider =
            |config: serde_json::Value| json!({"auth-provider": {"name": "oidc", "config": config}});
        let bad = "secret\ntoken";
        for (user, words) in [
            (json!({"token": bad}), "its token has characters"),
            (json!({"tokenFile": file("bad", bad)}), "the token in"),
            (json!({"tokenFile": "/nowhere/token"}), "its token file /nowhere/token"),
            (provider(json!({"id-token": bad})), "the id-token of its auth provider"),
            (plugin("bad-plugin", json!({"token": bad})), "the token of its exec plugin"),
            (plugin("no-status", serde_json::Value::Null), "without a status"),
            (json!({"exec": {"command": "false"}}), "its exec plugin false failed"),
            (json!({"exec": {"command": "echo", "args": ["secret"]}}), "printed no ExecCredential"),
            (json!({"exec": {}}), "no command"),
        ] {
            let error = connect_as(&user).await.expect_err("it cannot be used");
            assert!(error.contains(words) && !error.contains("secret"), "{user}: {error}");
        }
        let later = "2100-01-01T00:00:00Z";
        for user in [
            json!({"token": "t"}),
            json!({"tokenFile": file("good", "t")}),
            json!({"username": "a\nb", "password": bad}),
            provider(json!({"id-token": "t"})),
            plugin("unlimited", json!({"token": "t"})),
            plugin("limited", json!({"token": "t", "expirationTimestamp": later})),
            json!({}),
        ] {
            assert_eq!(connect_as(&user).await, Ok(()), "{user}");
        }
    }

    #[tokio::test]
    async fn an_error_in_a_kubeconfig_quotes_no_credential() {
        let directory = tempfile::tempdir().expect("a new directory");
        let path = directory.path().join("kubeconfig");
        let settings = ConnectionSettings {
            kubeconfig: Some(path.display().to_string()),
            ..ConnectionSettings::default()
        };
        for user in [
            "token: secret-token\n    password: [",
            "token: [secret-token]",
            "token: {secret-token: 1}",
            "token: \"secret-token",
            "token: secret-token\n   x",
            "client-certificate-data: secret-token",
            "client-key-data: '!secret-token'\n    client-certificate-data: eA==",
        ] {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  cluster:\n    server: https://h\n\
                 contexts:\n- name: a\n  context: {{cluster: a, user: a}}\nusers:\n- name: a\n  user:\n    {user}\n"
            );
            std::fs::write(&path, text).expect("the directory is ours");
            let error = connect(&settings).await.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!error.contains("secret-token"), "{user}: {error}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
        #[test]
        fn no_kubeconfig_makes_the_provider_panic(
            texts in proptest::collection::vec(proptest::option::of("[ -~\\x00-\\x1fé]{0,8}"), 10),
        ) {
            let fields = |names: &[&str], texts: &[Option<String>]| {
                let given = names.iter().zip(texts).filter_map(|(name, text)| Some(((*name).to_owned(), json!(text.as_ref()?))));
                serde_json::Value::Object(given.collect())
            };
            let user = fields(
                &["token", "username", "password", "as", "client-certificate-data", "client-key-data"],
                &texts[..6],
            );
            let names = ["tls-server-name", "proxy-url", "certificate-authority-data"];
            let mut cluster = fields(&names, &texts[6..9]);
            cluster["server"] = format!("https://h/{}", texts[9].as_deref().unwrap_or_default()).into();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let _ = runtime.expect("a runtime").block_on(connect_to(&cluster, &user));
        }
    }
}
