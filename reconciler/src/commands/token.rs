//! `berth token`: lets hosts join, and ends their access.

use std::{io::Write, net::IpAddr, time::Duration};

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose};
use berth_agent::TypedApi;
use berth_api::{Host, ResourceName, SYSTEM_NAMESPACE, Unparsed, manifests::access};
use k8s_openapi::api::{core::v1::ServiceAccount, rbac::v1::ClusterRoleBinding};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams},
};

use crate::{
    cli::{TokenAction, TokenCreate, TokenOptions},
    credential, install,
    join::{Join, TokenTimes},
    one_connection::client_of,
};

use super::connect;

/// How long to wait for an address to respond before it goes into a join string.
const PROBE: Duration = Duration::from_secs(3);

pub(super) async fn run(options: TokenOptions) -> anyhow::Result<()> {
    let config = connect::admin(&options.connection, &options.state.state_dir).await?;
    let client = client_of(config.clone())?;
    match options.action {
        TokenAction::Create(create) => make(&config, &client, &create).await,
        TokenAction::List => list(&client).await,
        TokenAction::Revoke { host } => revoke(&client, &host).await,
    }
}

async fn make(config: &Config, client: &Client, options: &TokenCreate) -> anyhow::Result<()> {
    let host = options.host.as_str();
    check_name(host)?;
    let life = options.expires.0;
    let server = server(config, options.server.as_deref()).await?;
    install::apply(client, &access::host(host)).await.context("giving the host its account")?;
    let token = credential::request(client, host, life).await.context("asking for a token")?;
    if let Some(times) = TokenTimes::of(&token) {
        notice!("Host {host} may join until {}. On that machine:", times.expires);
        notice!("    berth host --join STRING");
    }
    let join = Join { server, ca: ca(config), token, host: host.to_owned() };
    writeln!(std::io::stdout().lock(), "{}", join.encode()).context("printing")
}

fn check_name(host: &str) -> anyhow::Result<()> {
    if host.len() > 200 || !host.split('.').all(ResourceName::is_dns_label) {
        bail!(
            "{host:?} is no host name: it must be DNS labels (lower-case letters, digits and '-') joined by dots"
        );
    }
    Ok(())
}

/// Returns the control plane's CA certificates, in PEM.
pub(super) fn ca(config: &Config) -> Option<String> {
    let certificates = config.root_cert.as_ref()?;
    let pem = |der: &Vec<u8>| {
        let text = general_purpose::STANDARD.encode(der);
        let lines: Vec<&str> = text
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).expect("base64 is ASCII"))
            .collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    Some(certificates.iter().map(pem).collect())
}

/// Returns the address at which hosts reach the control plane.
pub(super) async fn server(config: &Config, given: Option<&str>) -> anyhow::Result<String> {
    if let Some(given) = given {
        let url: http::Uri = given.parse().context("--server must be https://HOST:PORT")?;
        if url.scheme_str() != Some("https") || url.host().is_none() {
            bail!("--server must be https://HOST:PORT");
        }
        return Ok(given.trim_end_matches('/').to_owned());
    }
    let known = &config.cluster_url;
    let host = known.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !is_loopback {
        return Ok(known.to_string().trim_end_matches('/').to_owned());
    }
    let address = super::addresses::outward().context(
        "the control plane is known here by a loopback address only, and this machine has no other: \
         say --server https://ADDRESS:PORT",
    )?;
    let port = known.port_u16().unwrap_or(443);
    let reached = tokio::time::timeout(PROBE, tokio::net::TcpStream::connect((address, port))).await;
    if !matches!(reached, Ok(Ok(_))) {
        bail!(
            "the control plane does not answer at {address}:{port}, where other machines would look for it: \
             start it with `berth up --listen 0.0.0.0:{port}`, or set --server https://ADDRESS:PORT"
        );
    }
    Ok(match address {
        IpAddr::V6(ip) => format!("https://[{ip}]:{port}"),
        IpAddr::V4(ip) => format!("https://{ip}:{port}"),
    })
}

async fn list(client: &Client) -> anyhow::Result<()> {
    let accounts: TypedApi<ServiceAccount> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let params = ListParams::default().labels(access::HOST_LABEL);
    let accounts = accounts.list(&params).await.context("listing the hosts' accounts")?;
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let hosts = hosts.list(&ListParams::default()).await.context("listing hosts")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:<32} {:<22} JOINED", "HOST", "CREATED").context("printing")?;
    for account in accounts {
        let Some(host) = account.labels().get(access::HOST_LABEL) else { continue };
        let created = account.creation_timestamp().map(|at| at.0.to_string()).unwrap_or_default();
        let joined = hosts.items.iter().any(|h| h.name_any() == *host);
        writeln!(out, "{host:<32} {created:<22} {}", if joined { "yes" } else { "no" })
            .context("printing")?;
    }
    Ok(())
}

async fn revoke(client: &Client, host: &str) -> anyhow::Result<()> {
    check_name(host)?;
    if !end_access(client, host).await? {
        bail!("host {host} has no token: see `berth token list`");
    }
    notice!("All tokens of host {host} have ended. Its guests continue until their VMs are deleted.");
    Ok(())
}

/// Revokes all tokens of a host; returns whether it had any.
///
/// *Errors:* the control plane's.
pub(super) async fn end_access(client: &Client, host: &str) -> anyhow::Result<bool> {
    let accounts: TypedApi<ServiceAccount> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let bindings: Api<Unparsed> = Api::all_with(client.clone(), &Unparsed::resource::<ClusterRoleBinding>());
    let params = DeleteParams::default();
    let gone = |result: kube::Result<()>| match result {
        Ok(()) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    };
    let had = accounts.delete(&access::account_name(host), &params).await;
    let had = gone(had).context("deleting the host's account")?;
    gone(bindings.delete(&access::role_name(host), &params).await.map(|_| ()))
        .context("deleting the host's role binding")?;
    Ok(had)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_is_dns_labels_joined_by_dots() {
        assert!(check_name("kvm-1.rack2").is_ok());
        for wrong in ["", "A", "a/b", "a..b"] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }
}
