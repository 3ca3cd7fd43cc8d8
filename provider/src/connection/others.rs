//! Connections to servers that are not the control plane.

use std::time::Duration;

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::KubeConfigOptions,
};
use tower::ServiceBuilder;

use super::{ConnectionSettings, kubeconfig_for};

/// A client for servers that are not the control plane: requests have whole addresses. Without certificates of authorities, as PEM or as
/// a path, those of the system count.
///
/// # Errors
/// The certificates cannot be used.
pub(crate) async fn client_of_others(ca_certificate: Option<String>) -> Result<Client, String> {
    let settings = ConnectionSettings { ca_certificate, ..ConnectionSettings::default() };
    let kubeconfig = kubeconfig_for("https://localhost", &settings, None)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.map_err(|error| error.to_string())?;
    // An error means that a provider is installed already: it is the same one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // A system without certificates trusts no server. One on a loopback address needs no trust.
    if config.root_cert.is_none() && config.rustls_client_config().is_err() {
        config.root_cert = Some(Vec::new());
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(Duration::from_secs(10)));
    let connector =
        config.rustls_https_connector_with_connector(connector).map_err(|error| error.to_string())?;
    let http = HttpClient::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new().map_err(tower::BoxError::from).service(http);
    Ok(Client::new(service, config.default_namespace))
}
