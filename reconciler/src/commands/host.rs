//! `berth host`: the agent of this machine; `berth host list|cordon|…`: what an administrator does with hosts.

use std::{
    io::Read,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use berth_agent::{
    AgentConfig,
    system::linux::{LinuxConfig, LinuxSystem, record},
};

use crate::{
    cli::{AgentOptions, HostOptions},
    clock::Identities,
    credential::Credential,
    join::Join,
    one_connection::client_of,
};

use super::{
    addresses,
    agent::{Machine, Where},
    connect, machine, signals, simulate,
};

/// What tells this machine's agent from any other of the same name, in the state directory.
const IDENTITY: &str = "agent-id";
/// A join string in a file is not longer.
const MAX_JOIN: u64 = 1 << 20;

pub(super) async fn run(options: HostOptions) -> anyhow::Result<()> {
    let cancel = signals::cancel_on_signal()?;
    if let Some(count) = options.simulate {
        return simulate::run(&options, count, cancel).await;
    }
    let state_dir = prepare(&options.state.state_dir)?;
    let credential = credential(&options, &state_dir).await?;
    let host_name = match &credential {
        Some(credential) => Some(credential.host.clone()),
        None => options.agent.host_name.clone(),
    };
    let agent = AgentOptions { host_name, ..options.agent.clone() };
    let config = agent_config(&agent, &state_dir)?;
    let connection = match &credential {
        Some(credential) => credential.config().await?,
        None => connect::config(&options.connection).await?,
    };
    let control_plane = connect::address(&connection).await;
    let at = match credential {
        Some(credential) => {
            credential.check(&client_of(connection)?).await?;
            Where::Joined(Box::new(credential))
        }
        None => Where::Named(client_of(connection)?),
    };
    let system = Arc::new(system(&state_dir, &agent, control_plane).await?);
    Box::pin(Machine { config, system, state_dir }.run(at, &cancel)).await
}

/// The host's own credential: joined with now, or before. None: a kubeconfig is to be used.
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
    // An administrator says that it belongs there, whatever it belonged to.
    record::forget(state_dir).context("leaving the control plane this machine belonged to")?;
    Ok(Some(joined))
}

/// The join string, or what the file after `@` holds.
fn read_join(text: &str) -> anyhow::Result<String> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    let mut join = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("reading the join string from {path}"))?;
    file.take(MAX_JOIN)
        .read_to_string(&mut join)
        .with_context(|| format!("reading the join string from {path}"))?;
    Ok(join)
}

/// Makes the state directory. QEMU's user must be able to pass through it, but not to list it.
pub(super) fn prepare(state_dir: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let what = || format!("making the state directory {}", state_dir.display());
    std::fs::create_dir_all(state_dir).with_context(what)?;
    std::fs::set_permissions(state_dir, std::fs::Permissions::from_mode(0o711)).with_context(what)?;
    state_dir.canonicalize().with_context(what)
}

/// This machine, with its files under the state directory. Where there is no default route, other hosts reach it at
/// the address it reaches the control plane from.
///
/// *Errors:* the directory cannot be used; another agent manages this machine; --address is not this machine's.
pub(super) async fn system(
    state_dir: &Path,
    options: &AgentOptions,
    control_plane: Option<SocketAddr>,
) -> anyhow::Result<LinuxSystem> {
    machine::claim()?;
    let mut config = LinuxConfig::new(state_dir);
    config.address = addresses::of_this_machine(options, control_plane)?;
    config.public_interface.clone_from(&options.public_interface);
    let opened = tokio::task::spawn_blocking(move || LinuxSystem::open(config))
        .await
        .context("preparing this host")?;
    opened.with_context(|| format!("preparing this host in {}", state_dir.display()))
}

/// What the agent is started with.
///
/// *Errors:* the machine's host name is no name for a Host; its identity cannot be kept.
pub(super) fn agent_config(options: &AgentOptions, state_dir: &Path) -> anyhow::Result<AgentConfig> {
    let host_name = match &options.host_name {
        Some(name) => name.clone(),
        None => {
            nix::unistd::gethostname().context("asking for the host name")?.to_string_lossy().to_lowercase()
        }
    };
    let mut config = AgentConfig::new(host_name);
    config.identity = format!("{}_{}", config.host_name, identity(state_dir)?);
    config.labels = options.labels();
    config.cpu_overcommit = options.cpu_overcommit;
    Ok(config)
}

/// What is kept in the state directory to tell this agent from others, made if it is missing.
fn identity(state_dir: &Path) -> anyhow::Result<String> {
    let path = state_dir.join(IDENTITY);
    let what = || format!("keeping this agent's identity in {}", path.display());
    let read = || std::fs::read_to_string(&path).map(|text| text.trim().to_owned());
    match read() {
        Ok(known) if !known.is_empty() => return Ok(known),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(what),
        _ => {}
    }
    let fresh = Identities::random().hex(16);
    let staged = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        use std::io::Write;
        let mut file =
            std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&staged)?;
        file.write_all(fresh.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&staged, &path)
    };
    write().with_context(what)?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_keeps_its_identity() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = identity(directory.path()).expect("made");
        assert_eq!(identity(directory.path()).expect("read"), first);
        let other = tempfile::tempdir().expect("a directory");
        assert_ne!(identity(other.path()).expect("made"), first);
    }

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
