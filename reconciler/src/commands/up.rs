//! `berth up`: control plane, controllers and agent in one process.

use std::{
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use berth_agent::AgentConfig;
use berth_api::site::{Authority, authority};
use berth_apiserver::{Listener, Server, ServerConfig};
use berth_host::{
    HostInfo as _,
    linux::{LinuxSystem, record},
};
use kube::Client;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use berth_controllers as controllers;

use crate::{api_limits::ApiLimits, cli::UpOptions, install, recovery, site};

use super::{
    addresses, agent::Machine, backup, console_server, core_dumps, descriptors, signals, state_dir,
    this_machine, usage_server,
};

/// How long the parts may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

pub(super) async fn run(options: UpOptions) -> anyhow::Result<()> {
    let begun = Instant::now();
    let tenants = options.tenants.networks()?;
    let cancel = signals::cancel_on_signal()?;
    core_dumps::forbid();
    descriptors::raise_limit();
    let state_dir = state_dir::prepare(&options.state.state_dir)?;
    let server = open(&options, &state_dir).await?;
    let listener = TcpListener::bind(options.listen).await.with_context(|| {
        format!("listening on {} (is another program using it? choose another with --listen)", options.listen)
    })?;
    let address = listener.local_addr().context("asking for the listening address")?;
    let client = Client::new(server.service(), "default");
    let agent = agent(&options, &state_dir).await?;
    install::manifests(&client).await?;
    if site::in_charge(&client, record::read(&state_dir)?.as_ref()).await?.is_ok() {
        install::defaults(&client, &options.public_cidr.to_string()).await?;
        recovery::open_if_restored(&client, &state_dir.join(state_dir::CONTROL_PLANE)).await?;
    }
    let kubeconfig = write_kubeconfig(&server, &state_dir, address, options.kubeconfig_owner.as_deref())?;

    // Controllers and agent stop first, so that the control plane still accepts their last writes.
    let serving = CancellationToken::new();
    let mut parts = JoinSet::new();
    {
        let (client, cancel) = (client.clone(), cancel.clone());
        let config = controllers::Config {
            placement: options.placement.placement.into(),
            tenants,
            ..controllers::Config::new()
        };
        let kept = state_dir.clone();
        parts.spawn(async move {
            let record = || record::read(&kept).unwrap_or_default();
            let decide = |leading| controllers::run(client.clone(), config.clone(), leading);
            tokio::join!(
                site::while_in_charge(client.clone(), record, cancel.clone(), decide),
                keep_whereabouts(&client, &kept, &cancel)
            );
            anyhow::Ok(())
        });
    }
    if let Some((config, system)) = agent {
        let (client, cancel) = (client.clone(), cancel.clone());
        let machine = Machine { config, system, state_dir: state_dir.clone(), limits: ApiLimits::NONE };
        parts.spawn(async move { Box::pin(machine.run_beside(&client, &cancel)).await });
    }
    let http = {
        let (server, serving) = (server.clone(), serving.clone());
        tokio::spawn(async move { server.serve(Listener::Tls(listener), serving).await })
    };
    info!(url = %url(address), kubeconfig = %kubeconfig.display(), took = ?begun.elapsed(), "ready");
    let result = wait(&mut parts, http, &cancel).await;
    cancel.cancel();
    let stopped =
        tokio::time::timeout(STOP_LIMIT, async { while parts.join_next().await.is_some() {} }).await;
    if stopped.is_err() {
        warn!("controllers or agent did not stop in time and are dropped");
    }
    serving.cancel();
    server.shutdown().await;
    result
}

/// Records beside the database that its site has moved, so that a restored older backup does not take charge.
async fn keep_whereabouts(client: &Client, state_dir: &Path, cancel: &CancellationToken) {
    while !cancel.is_cancelled() {
        if let (Ok(Some(Ok(site))), Ok(kept)) = (site::read(client).await, record::read(state_dir))
            && let Authority::Moved(note) = authority(Some(&site), kept.as_ref())
            && kept.as_ref() != Some(&note)
            && let Err(error) = record::write(state_dir, &note)
        {
            warn!(%error, "that the site has moved could not be kept");
        }
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(site::LOOK_EVERY) => {}
        }
    }
}

/// Returns the agent's configuration and system, if this machine runs an agent.
async fn agent(
    options: &UpOptions,
    state_dir: &Path,
) -> anyhow::Result<Option<(AgentConfig, Arc<LinuxSystem>)>> {
    if options.no_agent {
        return Ok(None);
    }
    let system = Arc::new(
        this_machine::system(state_dir, &options.agent, Some(options.listen), &[options.listen]).await?,
    );
    let asked = Arc::clone(&system);
    tokio::spawn(async move {
        // QEMU and KVM take a while to respond: they are queried while the control plane starts, and the system
        // caches the results. A failure is ignored here: the query is repeated, and reported, later.
        let _ = asked.facts().await;
    });
    let mut config = this_machine::agent_config(&options.agent, state_dir, &[options.listen])?;
    let listen = options.listen;
    config.console = console_server::listen(&options.agent, state_dir, listen.ip(), Some(listen)).await?;
    config.usage = Some(usage_server::listen(&options.agent, state_dir).await?);
    Ok(Some((config, system)))
}

/// Waits for the cancellation; a part that ends before is an error.
async fn wait(
    parts: &mut JoinSet<anyhow::Result<()>>,
    http: tokio::task::JoinHandle<Result<(), berth_apiserver::ServeError>>,
    cancel: &CancellationToken,
) -> anyhow::Result<()> {
    tokio::select! {
        () = cancel.cancelled() => Ok(()),
        part = parts.join_next() => match part {
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => Err(error).context("a part of berth ended"),
            Some(Ok(Ok(()))) | None if cancel.is_cancelled() => Ok(()),
            Some(Ok(Ok(()))) | None => bail!("a part of berth ended unexpectedly: see the log above"),
        },
        served = http => served.context("serving the API")?.context("serving the API"),
    }
}

async fn open(options: &UpOptions, state_dir: &Path) -> anyhow::Result<Server> {
    let mut config = ServerConfig::in_directory(state_dir.join(state_dir::CONTROL_PLANE));
    config.backups = backup::schedule(&options.backups)?;
    config.audit_log.clone_from(&options.audit_log);
    config.history.keep_for = options.history_for.0;
    config.history.keep_revisions = options.history_revisions;
    config.history.keep_bytes = options.history_size.bytes().context("--history-size")?.max(1 << 20);
    config.subject_alt_names.clone_from(&options.tls_san);
    if options.listen.ip().is_unspecified() {
        config.subject_alt_names.extend(addresses::own().iter().map(ToString::to_string));
    } else {
        config.subject_alt_names.push(options.listen.ip().to_string());
    }
    Server::open(config)
        .await
        .with_context(|| format!("opening the control plane in {}", state_dir.display()))
}

fn url(address: SocketAddr) -> String {
    let reachable = match address.ip() {
        ip if ip.is_unspecified() && ip.is_ipv4() => "127.0.0.1".to_owned(),
        ip if ip.is_unspecified() => "[::1]".to_owned(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        std::net::IpAddr::V4(ip) => ip.to_string(),
    };
    format!("https://{reachable}:{}", address.port())
}

fn write_kubeconfig(
    server: &Server,
    state_dir: &Path,
    address: SocketAddr,
    owner: Option<&str>,
) -> anyhow::Result<PathBuf> {
    let path = state_dir.join(state_dir::KUBECONFIG);
    // One that has not changed is not written again, and may still be that of an earlier --kubeconfig-owner.
    let own = nix::unistd::geteuid().as_raw();
    if owner.is_none() && std::fs::metadata(&path).is_ok_and(|facts| facts.uid() != own) {
        std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    server.write_kubeconfig(&path, &url(address)).with_context(|| format!("writing {}", path.display()))?;
    if let Some(owner) = owner {
        let user = nix::unistd::User::from_name(owner).context("looking up --kubeconfig-owner")?;
        let user = user.with_context(|| format!("--kubeconfig-owner: there is no user {owner:?}"))?;
        nix::unistd::chown(&path, Some(user.uid), Some(user.gid))
            .with_context(|| format!("giving {} to {owner}", path.display()))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_wildcard_address_is_loopback() {
        let url = |text: &str| url(text.parse().expect("an address"));
        assert_eq!(url("0.0.0.0:7443"), "https://127.0.0.1:7443");
        assert_eq!(url("[::]:1"), "https://[::1]:1");
        assert_eq!(url("192.0.2.1:2"), "https://192.0.2.1:2");
    }

    #[tokio::test]
    async fn an_unchanged_kubeconfig_is_not_left_to_its_earlier_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = ServerConfig::in_directory(folder.path().join("control-plane"));
        let server = Server::open(config).await.expect("it opens");
        let address = "127.0.0.1:1".parse().expect("an address");
        let write = || write_kubeconfig(&server, folder.path(), address, None).expect("it is written");
        // Only root can give a file away: for other users it is their own at both starts.
        let _ = nix::unistd::chown(&write(), Some(nix::unistd::Uid::from_raw(1)), None);
        let owner = std::fs::metadata(write()).expect("it is there").uid();
        assert_eq!(owner, nix::unistd::geteuid().as_raw());
        server.shutdown().await;
    }
}
