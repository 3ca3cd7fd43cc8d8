//! `berth host`: the agent of this machine; `berth host list|cordon|…`: an administrator's operations on hosts.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, bail};
use berth_host::linux::record;

use crate::{
    cli::{AgentOptions, HostOptions},
    credential::Credential,
    join::Join,
    one_connection::client_within,
};

use super::{
    agent::{Machine, Where},
    connect, console_server, core_dumps, signals, simulate, small_file, state_dir, this_machine,
    usage_server,
};

/// The maximum length in bytes of a join string in a file.
const MAX_JOIN: u64 = 1 << 20;

pub(super) async fn run(options: HostOptions) -> anyhow::Result<()> {
    core_dumps::forbid();
    let cancel = signals::cancel_on_signal()?;
    if let Some(count) = options.simulate {
        return simulate::run(&options, count, cancel).await;
    }
    let state_dir = state_dir::prepare(&options.state.state_dir)?;
    let credential = credential(&options, &state_dir).await?;
    let host_name = match &credential {
        Some(credential) => Some(credential.host.clone()),
        None => options.agent.host_name.clone(),
    };
    let agent = AgentOptions { host_name, ..options.agent.clone() };
    let connection = match &credential {
        Some(credential) => credential.config().await?,
        None => connect::config(&options.connection).await?,
    };
    let control_planes = connect::addresses(&connection).await;
    let control_plane = control_planes.iter().copied().find(SocketAddr::is_ipv4);
    let mut config = this_machine::agent_config(&agent, &state_dir, &control_planes)?;
    let any = Ipv4Addr::UNSPECIFIED.into();
    config.console = console_server::listen(&agent, &state_dir, any, control_plane).await?;
    let limits = options.api.limits();
    let at = match credential {
        Some(credential) => {
            credential.check(&client_within(connection, &limits)?).await?;
            Where::Joined(Box::new(credential))
        }
        None => Where::Named(client_within(connection, &limits)?),
    };
    let system = Arc::new(this_machine::system(&state_dir, &agent, control_plane, &control_planes).await?);
    config.usage = Some(usage_server::listen(&agent, &state_dir).await?);
    Box::pin(Machine { config, system, state_dir, limits }.run(at, &cancel)).await
}

/// Returns the host's own credential: obtained by joining now, or earlier. None: a kubeconfig is used.
async fn credential(options: &HostOptions, state_dir: &Path) -> anyhow::Result<Option<Credential>> {
    let Some(text) = &options.join else {
        if connect::is_named(&options.connection) {
            return Ok(None);
        }
        let known = Credential::find(state_dir)?;
        if let (Some(known), Some(name)) = (&known, &options.agent.host_name)
            && known.host != *name
        {
            bail!(
                "this machine has joined as host {}, not as {name}: a host keeps its name \
                 (to be another host it needs another --state-dir and a join string for {name})",
                known.host
            );
        }
        return Ok(known);
    };
    let join = Join::decode(&read_join(text)?)?;
    if let Some(name) = &options.agent.host_name
        && *name != join.host
    {
        bail!(
            "the join string is for host {}, not for {name}: leave --host-name out, or ask for one for {name} \
             (`berth token create {name}`)",
            join.host
        );
    }
    let joined = Credential::join(state_dir, &join).await?;
    // The join string is an administrator's decision, whichever control plane the machine belonged to.
    record::forget(state_dir).context("leaving the control plane this machine belonged to")?;
    Ok(Some(joined))
}

/// Returns the join string, or the contents of the file after `@`.
fn read_join(text: &str) -> anyhow::Result<String> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    small_file::read(Path::new(path), MAX_JOIN).context("the join string")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_string_may_be_in_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("join");
        std::fs::write(&path, "berth1.x\n").expect("written");
        assert_eq!(read_join(&format!("@{}", path.display())).expect("read"), "berth1.x\n");
        assert_eq!(read_join("berth1.y").expect("as it is"), "berth1.y");
        assert!(read_join("@/nonexistent").is_err());
    }
}
