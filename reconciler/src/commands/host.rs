//! `berth host`: the agent of this machine, on a Kubernetes control plane.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use berth_agent::{
    AgentConfig,
    system::linux::{LinuxConfig, LinuxSystem},
};

use crate::cli::{AgentOptions, HostOptions};

use super::{connect, signals};

pub(super) async fn run(options: HostOptions) -> anyhow::Result<()> {
    let cancel = signals::cancel_on_signal()?;
    let client = connect::client(&options.connection).await?;
    let system = Arc::new(system(&options.state.state_dir).await?);
    berth_agent::run(agent_config(&options.agent)?, client, system, cancel).await.context("the host agent")
}

/// This machine, with its files under the state directory.
///
/// *Errors:* the directory cannot be used.
pub(super) async fn system(state_dir: &Path) -> anyhow::Result<LinuxSystem> {
    let config = LinuxConfig::new(state_dir);
    let opened = tokio::task::spawn_blocking(move || LinuxSystem::open(config))
        .await
        .context("preparing this host")?;
    opened.with_context(|| format!("preparing this host in {}", state_dir.display()))
}

/// What the agent is started with.
///
/// *Errors:* the machine's host name is no name for a Host.
pub(super) fn agent_config(options: &AgentOptions) -> anyhow::Result<AgentConfig> {
    let host_name = match &options.host_name {
        Some(name) => name.clone(),
        None => {
            nix::unistd::gethostname().context("asking for the host name")?.to_string_lossy().to_lowercase()
        }
    };
    let mut config = AgentConfig::new(host_name);
    config.labels = options.labels();
    config.cpu_overcommit = options.cpu_overcommit;
    Ok(config)
}
