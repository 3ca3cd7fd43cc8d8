//! This machine as a host: its files, users and addresses, and the configuration of its agent.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use berth_agent::AgentConfig;
use berth_engine::Identities;
use berth_host::{
    CephAccess, Start, cpu_list,
    linux::{LinuxConfig, LinuxSystem, place, usable_cpus},
};
use ipnet::IpNet;

use crate::cli::AgentOptions;

use super::{addresses, machine};

/// A file in the state directory that distinguishes this machine's agent from any other of the same name.
pub(super) const IDENTITY: &str = "agent-id";

/// Opens this machine, with its files under the state directory. Without a default route, other hosts reach it at
/// the address from which it reaches the control plane.
///
/// *Errors:* the directory cannot be used; another agent manages this machine; --address is not this machine's.
pub(super) async fn system(
    state_dir: &Path,
    options: &AgentOptions,
    control_plane: Option<SocketAddr>,
    control_planes: &[SocketAddr],
) -> anyhow::Result<LinuxSystem> {
    machine::claim(state_dir)?;
    place::check(state_dir, machine::LOCK)?;
    let mut config = LinuxConfig::new(state_dir);
    config.address = addresses::of_this_machine(options, control_plane)?;
    config.public_interface.clone_from(&options.public_interface);
    config.images.folders = folders("--image-dir", &options.image_dirs)?;
    config.disk_folders = folders("--disk-dir", &options.disk_dirs)?;
    config.pci_devices.clone_from(&options.pci_devices);
    config.usb_devices.clone_from(&options.usb_devices);
    config.vgpus.clone_from(&options.vgpus);
    config.block_devices.clone_from(&options.block_devices);
    config.shares.clone_from(&options.shares);
    config.backup_folders.clone_from(&options.backup_folders);
    config.pool_folders.clone_from(&options.pool_folders);
    config.rbd_pools.clone_from(&options.rbd_pools);
    config.ceph = CephAccess { conf: options.ceph_conf.clone(), user: options.ceph_user.clone() };
    config.images.allow.clone_from(&options.image_allow);
    // A control plane that listens on all addresses has this machine's, which are refused anyway.
    config.images.control_plane = control_planes.iter().map(|at| at.ip().to_canonical()).collect();
    config.emulated = options.emulate;
    config.dedicated_cpus = dedicated_cpus(&options.dedicated_cpus.0)?;
    // Without root QEMU runs as the agent's user.
    config.qemu_users = config.qemu_users.map(|_| options.qemu_uid_range);
    let opened = tokio::task::spawn_blocking(move || LinuxSystem::open(config))
        .await
        .context("preparing this host")?;
    let system = opened.with_context(|| format!("preparing this host in {}", state_dir.display()))?;
    system.precede_machines();
    Ok(system)
}

/// Returns the CPUs of --dedicated-cpus.
///
/// *Errors:* this machine lacks one of them, or has no other.
fn dedicated_cpus(named: &BTreeSet<u32>) -> anyhow::Result<BTreeSet<u32>> {
    let usable = usable_cpus().context("asking for the CPUs of this machine")?;
    check_dedicated_cpus(named, &usable)?;
    Ok(named.clone())
}

fn check_dedicated_cpus(named: &BTreeSet<u32>, usable: &BTreeSet<u32>) -> anyhow::Result<()> {
    let missing: BTreeSet<u32> = named.difference(usable).copied().collect();
    if !missing.is_empty() {
        let (missing, usable) = (cpu_list(&missing), cpu_list(usable));
        bail!("--dedicated-cpus: this machine has no CPU {missing} that berth may use; it has {usable}");
    }
    if !named.is_empty() && named.len() == usable.len() {
        bail!("--dedicated-cpus: leave at least one CPU out, for the machine itself and for other VMs");
    }
    Ok(())
}

/// Returns the folders that this option names.
///
/// *Errors:* one of them is not a folder.
fn folders(option: &str, named: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let folder = |path: &PathBuf| {
        let path = std::path::absolute(path).with_context(|| format!("{option} {}", path.display()))?;
        if !path.is_dir() {
            bail!("{option} {}: there is no such folder", path.display());
        }
        Ok(path)
    };
    named.iter().map(folder).collect()
}

/// Returns the agent's configuration.
///
/// *Errors:* the machine's host name is not a valid name for a Host; its identity cannot be saved.
pub(super) fn agent_config(
    options: &AgentOptions,
    state_dir: &Path,
    control_planes: &[SocketAddr],
) -> anyhow::Result<AgentConfig> {
    let host_name = match &options.host_name {
        Some(name) => name.clone(),
        None => {
            nix::unistd::gethostname().context("asking for the host name")?.to_string_lossy().to_lowercase()
        }
    };
    let mut config = AgentConfig::new(host_name);
    config.identity = format!("{}_{}", config.host_name, identity(state_dir)?);
    config.start = Some(Start::here().context("asking which process this is")?);
    config.labels = options.labels();
    config.cpu_overcommit = options.cpu_overcommit;
    config.guest_allow.clone_from(&options.guest_allow);
    // An address on all of this machine's interfaces or on loopback is blocked for guests as the rest of the machine is.
    let is_single = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_loopback();
    let control_planes = control_planes.iter().map(|at| at.ip().to_canonical());
    config.control_plane = control_planes.filter(is_single).map(IpNet::from).collect();
    Ok(config)
}

/// Reads the identity that distinguishes this agent from others from the state directory, or creates it.
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
    fn a_folder_of_images_must_be_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let (there, gone) = (directory.path().to_owned(), directory.path().join("gone"));
        assert_eq!(
            folders("--image-dir", std::slice::from_ref(&there)).expect("there"),
            std::slice::from_ref(&there)
        );
        assert!(folders("--image-dir", &[there, gone]).is_err());
    }

    #[test]
    fn dedicated_cpus_are_some_of_this_machines_cpus() {
        let usable = BTreeSet::from([0, 1, 2, 3]);
        let check = |named: &[u32]| check_dedicated_cpus(&named.iter().copied().collect(), &usable);
        check(&[]).expect("none");
        check(&[2, 3]).expect("two of four");
        let error = check(&[3, 4, 5]).expect_err("there are no such CPUs").to_string();
        assert_eq!(error, "--dedicated-cpus: this machine has no CPU 4-5 that berth may use; it has 0-3");
        assert!(check(&[0, 1, 2, 3]).expect_err("all").to_string().contains("leave at least one CPU out"));
    }

    #[test]
    fn an_agent_keeps_its_identity() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = identity(directory.path()).expect("made");
        assert_eq!(identity(directory.path()).expect("read"), first);
        let other = tempfile::tempdir().expect("a directory");
        assert_ne!(identity(other.path()).expect("made"), first);
    }
}
