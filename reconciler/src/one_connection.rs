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

/// Returns a client of the configured control plane, with the limits of a command.
///
/// *Errors:* the configuration has unusable keys or certificates.
pub fn client_of(config: Config) -> anyhow::Result<Client> {
    client_within(config, &ApiLimits::COMMAND)
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

#[cfg(test)]
mod tests {
    use http::{Request, Uri};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        time::Instant,
    };

    use super::*;
    use crate::api_limits::Rate;

    /// Answers requests, other than those with `silent` in their path.
    async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let read = stream.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            if !String::from_utf8_lossy(&buffer[..read]).contains("silent") {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await?;
            }
        }
    }

    async fn server() -> Uri {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        format!("http://{address}").parse().expect("an address")
    }

    #[tokio::test]
    async fn the_requests_of_a_client_have_its_limits() {
        let limits = ApiLimits {
            rate: Some(Rate { per_second: 10, burst: 2 }),
            timeout: Some(Duration::from_secs(1)),
            ..ApiLimits::NONE
        };
        let mut config = Config::new(server().await);
        // Not those of this machine, which may have none.
        config.root_cert = Some(Vec::new());
        let client = client_within(config, &limits).expect("a client");
        let get = |path: &str| Request::get(path).body(Vec::new()).expect("a request");
        let begun = Instant::now();
        for _ in 0..4 {
            assert_eq!(client.request_text(get("/x")).await.expect("an answer"), "{}");
        }
        assert!(begun.elapsed() >= Duration::from_millis(190), "two of them wait: {:?}", begun.elapsed());
        let error = client.request_text(get("/silent")).await.expect_err("no answer").to_string();
        assert!(error.contains("did not answer within 1 seconds"), "{error}");
    }
}
