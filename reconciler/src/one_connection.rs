//! A Kubernetes client that needs one connection: HTTP/2 if the server supports it, as every API server does.
//!
//! A host's agent keeps nine watches open. kube's own client uses HTTP/1.1, where each of them is a TLS connection:
//! five hundred hosts would be five thousand. A single connection also detects a dead network: it sends pings. As
//! kube's own client does, it repeats requests that the control plane refuses as too many.

use std::time::Duration;

use anyhow::Context;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt},
};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer};

use crate::{api_limits::ApiLimits, too_many_requests::TooManyRequests};

/// The time limit for the response to a ping.
const PING_ANSWER: Duration = Duration::from_secs(10);

/// Returns a client of the configured control plane, without limits.
///
/// *Errors:* the configuration has unusable keys or certificates.
pub fn client_of(config: Config) -> anyhow::Result<Client> {
    client_within(config, &ApiLimits::NONE)
}

/// Returns a client of the configured control plane whose requests have these limits.
///
/// *Errors:* the configuration has unusable keys or certificates.
pub fn client_within(config: Config, limits: &ApiLimits) -> anyhow::Result<Client> {
    const WHAT: &str = "making a client";
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config).context(WHAT)?.with_layer(&limits.layer()).build());
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
        .http2_keep_alive_interval(limits.ping_every)
        .http2_keep_alive_timeout(PING_ANSWER)
        .http2_keep_alive_while_idle(true)
        .build(tls.enable_all_versions().wrap_connector(tcp));
    let namespace = config.default_namespace.clone();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(TooManyRequests::new()))
        // Each repetition counts.
        .layer(limits.layer())
        .option_layer(config.auth_layer().context(WHAT)?)
        .layer(config.extra_headers_layer().context(WHAT)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, namespace))
}
