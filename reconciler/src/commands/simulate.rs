//! `berth host --simulate N`: the agents of N hosts that do not exist, to load-test a control plane.
//!
//! The agents are the real ones, with a connection and an account each as real hosts have: the control plane divides
//! its time among accounts. They act on a host in memory, with machines that speak QMP and run nothing. A simulated
//! host must not be mistaken for a real one: it has a label and a note in its status, and is refused on a control
//! plane with real hosts, because users' VMs would be bound to it.

mod filters;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use berth_agent::{AgentConfig, TypedApi};
use berth_api::{Host, manifests::access};
use berth_host::{KvmFacts, fake::FakeSystem};
use futures::{StreamExt, TryStreamExt};
use kube::{Client, Config, ResourceExt, api::ListParams, config::AuthInfo};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    cli::HostOptions,
    credential, install,
    one_connection::{client_of, client_within},
};

use super::{connect, descriptors};
use filters::FilterRecord;

/// Label of a Host that does not exist.
const SIMULATED: &str = "berth.dev/simulated";
/// Spreads the starts, as hosts of a data centre do not all renew their leases in the same moment.
const STARTED_WITHIN: Duration = Duration::from_secs(10);
/// The maximum interval between two starts.
const APART: Duration = Duration::from_millis(20);
/// The virtual size in bytes of every image they download.
const IMAGE_SIZE: u64 = 2 << 30;
/// The lifetime of a simulated host's token, which is not renewed: longer than any simulation.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// The number of accounts that are made concurrently.
const AT_ONCE: usize = 16;

pub(super) async fn run(options: &HostOptions, count: u16, cancel: CancellationToken) -> anyhow::Result<()> {
    descriptors::raise_limit();
    let config = connect::config(&options.connection).await?;
    let client = client_of(config.clone())?;
    refuse_real_hosts(&client).await?;
    warn!(count, "SIMULATION: these hosts do not exist, and VMs bound to them never run");
    // All accounts are made before the first agent starts: each new one makes the control plane index all grants again.
    let configs = join_all(&client, &config, count).await?;
    let record = options.record_filters.as_deref().map(FilterRecord::open).transpose()?;
    let mut agents = JoinSet::new();
    let apart = APART.min(STARTED_WITHIN / u32::from(count));
    for (number, config) in (1..=count).zip(configs) {
        let client = client_within(config, &options.api.limits())?;
        let agent = agent(options, number);
        let system = Arc::new(system(&agent, number));
        if let Some(record) = &record {
            record.follow(&agent.host_name, &system);
        }
        let stop = cancel.clone();
        agents.spawn(async move { berth_agent::run(agent, client, system, stop).await });
        tokio::select! {
            () = tokio::time::sleep(apart) => {}
            () = cancel.cancelled() => break,
        }
    }
    info!(count, "all simulated hosts are started");
    while let Some(ended) = agents.join_next().await {
        ended.context("a simulated host ended")?.context("a simulated host")?;
    }
    Ok(())
}

/// Checks that the control plane has no real hosts.
///
/// *Errors:* the control plane has a host that is not simulated: its users' VMs would be bound to simulated hosts.
async fn refuse_real_hosts(client: &Client) -> anyhow::Result<()> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let real = ListParams::default().labels(&format!("!{SIMULATED}")).limit(1);
    let real = hosts.list(&real).await.context("listing the hosts there are")?;
    let name = real.items.first().map(ResourceExt::name_any);
    ensure!(
        name.is_none(),
        "this control plane has a real host ({}): VMs would be bound to hosts that do not exist. \
         Simulate on one of its own, for instance `berth up --no-agent`",
        name.unwrap_or_default()
    );
    Ok(())
}

/// Gives each simulated host an account; returns the configurations of their clients.
///
/// *Errors:* the control plane refuses an account: only an administrator may make one.
async fn join_all(client: &Client, config: &Config, count: u16) -> anyhow::Result<Vec<Config>> {
    let each = (1..=count).map(|number| async move {
        let host = host_name(number);
        install::apply(client, &access::host(&host)).await?;
        let token = credential::request(client, &host, LIFE).await?;
        anyhow::Ok(with_token(config, token))
    });
    let joined = futures::stream::iter(each).buffered(AT_ONCE).try_collect();
    joined.await.context("giving each simulated host an account")
}

/// Returns the configuration with this token in place of the administrator's credential.
fn with_token(config: &Config, token: String) -> Config {
    let mut config = config.clone();
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    config
}

fn host_name(number: u16) -> String {
    format!("sim-{number:04}")
}

fn agent(options: &HostOptions, number: u16) -> AgentConfig {
    let mut agent = AgentConfig::new(host_name(number));
    agent.labels = options.agent.labels();
    agent.labels.insert(SIMULATED.to_owned(), "true".to_owned());
    agent.cpu_overcommit = options.agent.cpu_overcommit;
    agent
}

/// A host that can download every image, with an address of the range reserved for benchmarks (RFC 2544).
fn system(agent: &AgentConfig, number: u16) -> FakeSystem {
    let system = FakeSystem::new(agent.clock.clone());
    system.serve_any_image(IMAGE_SIZE);
    system.change_facts(|facts| {
        let reason = "simulated: this host does not exist, and nothing runs on it".to_owned();
        let [high, low] = number.to_be_bytes();
        facts.address = Some(std::net::Ipv4Addr::new(198, 19, high, low));
        facts.mtu = Some(1500);
        facts.kvm = KvmFacts { usable: false, reason, mips: None };
        if let Ok(qemu) = &mut facts.qemu {
            qemu.version = "simulated".to_owned();
        }
    });
    system
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_simulated_host_says_so_in_its_name_and_labels() {
        let cli = Cli::parse_from(["berth", "host", "--simulate", "7", "--label", "zone=a"]);
        let Command::Host(options) = cli.command else { panic!("berth host was asked for") };
        let agent = agent(&options, 7);
        assert_eq!(agent.host_name, "sim-0007");
        assert_eq!(agent.labels[SIMULATED], "true");
        assert_eq!(agent.labels["zone"], "a");
    }

    #[test]
    fn a_simulated_host_has_no_credential_of_the_administrator() {
        let mut config = Config::new("https://192.0.2.1:6443".parse().expect("an address"));
        config.auth_info.client_certificate_data = Some("admin".to_owned());
        config.auth_info.username = Some("admin".to_owned());
        let joined = with_token(&config, "t".to_owned());
        assert_eq!(joined.cluster_url, config.cluster_url);
        let auth = joined.auth_info;
        assert!(auth.token.is_some() && auth.username.is_none() && auth.client_certificate_data.is_none());
    }

    #[test]
    fn none_and_more_than_four_digits_of_hosts_are_refused() {
        for count in ["0", "10000", "some"] {
            assert!(Cli::try_parse_from(["berth", "host", "--simulate", count]).is_err(), "{count}");
        }
    }
}
