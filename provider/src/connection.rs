//! Where the control plane is, and how to get in: from the `provider` block, the environment, or the place where
//! `berth up` leaves its kubeconfig.

use std::{
    env, io,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tower::ServiceBuilder;

/// Where `berth up` leaves its kubeconfig when it is not told another state directory.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/berth";
const KUBECONFIG_NAME: &str = "admin.kubeconfig";

/// What the configuration and the environment say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// A kubeconfig file.
    pub kubeconfig: Option<String>,
    /// Which of its contexts.
    pub context: Option<String>,
    /// `https://host:port`
    pub host: Option<String>,
    /// A bearer token.
    pub token: Option<String>,
    /// The PEM certificate of the authority that signed the control plane's.
    pub ca_certificate: Option<String>,
}

/// Why there is no way to the control plane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nothing was said, and nothing was found.
    #[error(
        "No kubeconfig of a local control plane was found at {0}. Start one with \"berth up\", or tell the provider where \
         yours is: with kubeconfig (BERTH_KUBECONFIG), or with host, token and ca_certificate (BERTH_HOST, BERTH_TOKEN, \
         BERTH_CA_CERT)."
    )]
    NotFound(String),
    /// It is there, but not for this user.
    #[error(
        "The kubeconfig {0} cannot be read by this user. Write yourself a copy with \"sudo berth kubeconfig > \
         ~/berth.kubeconfig\" and set BERTH_KUBECONFIG to it, or start berth with \"berth up --kubeconfig-owner USER\"."
    )]
    NotReadable(String),
    /// It cannot be used.
    #[error("The kubeconfig {0} cannot be used: {1}.")]
    Kubeconfig(String, String),
    /// The host cannot be used.
    #[error("The control plane at {0} cannot be used: {1}.")]
    Host(String, String),
}

impl Wishes {
    /// These, completed from the environment. What stands in the configuration wins as a whole: an environment that
    /// names another host does not mix with a kubeconfig written down.
    #[must_use]
    pub fn or_environment(self, variable: impl Fn(&str) -> Option<String>) -> Self {
        if self.kubeconfig.is_some() {
            return Self { context: self.context.or_else(|| variable("BERTH_CONTEXT")), ..self };
        }
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
        }
    }
}

/// An environment variable, when it says something.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A client for what was wished. Connects to nothing yet.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(wishes: &Wishes) -> Result<Client, ConnectError> {
    let config = match &wishes.host {
        Some(host) => {
            let options = KubeConfigOptions::default();
            let refused = |problem: String| ConnectError::Host(host.clone(), problem);
            let kubeconfig = kubeconfig_for(host, wishes).map_err(refused)?;
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| refused(error.to_string()))?
        }
        None => {
            let path = kubeconfig_path(wishes);
            let shown = path.display().to_string();
            let kubeconfig = read(&path)?;
            let options =
                KubeConfigOptions { context: wishes.context.clone(), ..KubeConfigOptions::default() };
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map_err(|error| ConnectError::Kubeconfig(shown, error.to_string()))?
        }
    };
    let host = config.cluster_url.to_string();
    client(config).map_err(|error| ConnectError::Host(host, error.to_string()))
}

fn kubeconfig_path(wishes: &Wishes) -> PathBuf {
    if let Some(path) = &wishes.kubeconfig {
        return match (path.strip_prefix("~/"), env::home_dir()) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(path),
        };
    }
    let state_dir = variable("BERTH_STATE_DIR").unwrap_or_else(|| DEFAULT_STATE_DIR.to_owned());
    Path::new(&state_dir).join(KUBECONFIG_NAME)
}

fn read(path: &Path) -> Result<Kubeconfig, ConnectError> {
    let shown = path.display().to_string();
    // Read here first: what kind of trouble it is decides what to tell.
    if let Err(error) = std::fs::File::open(path) {
        return Err(match error.kind() {
            io::ErrorKind::PermissionDenied => ConnectError::NotReadable(shown),
            io::ErrorKind::NotFound => ConnectError::NotFound(shown),
            _ => ConnectError::Kubeconfig(shown, error.to_string()),
        });
    }
    Kubeconfig::read_from(path).map_err(|error| ConnectError::Kubeconfig(shown, error.to_string()))
}

fn kubeconfig_for(host: &str, wishes: &Wishes) -> Result<Kubeconfig, String> {
    use base64::Engine as _;
    let mut cluster = json!({"server": host});
    if let Some(pem) = &wishes.ca_certificate {
        // A path is accepted too: that is how environments usually carry certificates.
        let pem = if pem.contains("-----BEGIN") {
            pem.clone()
        } else {
            std::fs::read_to_string(pem).map_err(|error| format!("the CA certificate {pem}: {error}"))?
        };
        let data = base64::engine::general_purpose::STANDARD.encode(pem);
        cluster = json!({"server": host, "certificate-authority-data": data});
    }
    let user = wishes.token.as_ref().map_or_else(|| json!({}), |token| json!({"token": token}));
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "berth", "cluster": cluster}],
        "users": [{"name": "berth", "user": user}],
        "contexts": [{"name": "berth", "context": {"cluster": "berth", "user": "berth"}}],
        "current-context": "berth",
    });
    // The error could quote the token.
    serde_json::from_value(kubeconfig).map_err(|_| "host, token or CA certificate is malformed".to_owned())
}

/// As kube builds its own, but without Nagle's delay on small requests, and with retries left to the caller.
fn client(config: Config) -> Result<Client, kube::Error> {
    // An error says that it was set before: whoever did set the same one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(Duration::from_secs(5)));
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
    use super::*;

    fn with(variables: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn what_is_written_down_does_not_mix_with_the_environment() {
        let written = Wishes { kubeconfig: Some("a".into()), ..Wishes::default() };
        let wishes =
            written.clone().or_environment(with(&[("BERTH_HOST", "https://h"), ("BERTH_TOKEN", "t")]));
        assert_eq!(wishes, written);
        let wishes =
            Wishes::default().or_environment(with(&[("BERTH_HOST", "https://h"), ("BERTH_KUBECONFIG", "k")]));
        assert_eq!((wishes.host.as_deref(), wishes.kubeconfig), (Some("https://h"), None));
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_explained() {
        let wishes = Wishes { kubeconfig: Some("/nowhere/kubeconfig".into()), ..Wishes::default() };
        let error = connect(&wishes).await.err();
        assert_eq!(error, Some(ConnectError::NotFound("/nowhere/kubeconfig".into())));
    }

    #[tokio::test]
    async fn a_malformed_token_is_never_repeated() {
        let wishes =
            Wishes { host: Some("::".into()), token: Some("secret-token".into()), ..Wishes::default() };
        let error = connect(&wishes).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("::") && !error.contains("secret-token"), "{error}");
    }
}
