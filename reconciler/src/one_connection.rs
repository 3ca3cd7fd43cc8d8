//! A Kubernetes client that needs one connection: HTTP/2 where the server speaks it, as every API server does.
//!
//! A host's agent keeps nine watches open. kube's own client speaks HTTP/1.1, where each of them is a TLS connection:
//! five hundred hosts would be five thousand. Over one connection a dead network is noticed too: it is pinged.

use std::time::Duration;

use anyhow::Context;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioTimer},
};
use kube::{Client, Config, client::ConfigExt};
use tower::{BoxError, ServiceBuilder};

/// How often a connection on which nothing is said is tried.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long the answer may take.
const PING_ANSWER: Duration = Duration::from_secs(10);

/// A client of the control plane that is configured.
///
/// *Errors:* the configuration has unusable keys or certificates.
pub fn client_of(config: Config) -> anyhow::Result<Client> {
    const WHAT: &str = "making a client";
    if config.proxy_url.is_some() {
        return Client::try_from(config).context(WHAT);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config().context(WHAT)?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        tls = tls
            .with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into().context(WHAT)?));
    }
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_ANSWER)
        .http2_keep_alive_while_idle(true)
        .build(tls.enable_all_versions().wrap_connector(tcp));
    let namespace = config.default_namespace.clone();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().context(WHAT)?)
        .layer(config.extra_headers_layer().context(WHAT)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, namespace))
}
