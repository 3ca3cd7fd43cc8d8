//! The DHCP and DNS server of one bridge: dnsmasq, started once and notified of changes by SIGHUP. Like QEMU it
//! outlives the agent. It is recognised by the name of its configuration file on its command line.
//!
//! ```text
//!  network/<bridge>/dnsmasq.conf    its configuration at start
//!                   hosts           the address reservations; read again on SIGHUP
//!                   loaded          checksum of the hosts that it has read
//!                   leases          the leases taken (dnsmasq's own file)
//!                   dnsmasq.pid
//! ```
//!
//! `hosts` is written before dnsmasq is notified, and `loaded` after: after a crash in between, dnsmasq is notified once
//! more. In a network with names, DNS is a second dnsmasq: see [`names`].

mod config;
mod names;
mod options;
mod process;
mod servers;

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::super::files::{self, blocking, failed};
use super::super::program::Program;
use super::Result;
use crate::{LeaseTaken, Names, NetworkConfig};

use process::Daemon;
pub(super) use servers::Servers;

pub(in crate::linux) const DNSMASQ: Program = Program {
    name: "dnsmasq",
    advice: "guests get their addresses from it (Debian, Ubuntu: apt install dnsmasq-base; Fedora: dnf install dnsmasq)",
};

#[derive(Clone, Debug)]
struct Files {
    conf: PathBuf,
    hosts: PathBuf,
    loaded: PathBuf,
    leases: PathBuf,
    pid: PathBuf,
}

impl Files {
    fn within(folder: &Path) -> Self {
        Self {
            conf: folder.join("dnsmasq.conf"),
            hosts: folder.join("hosts"),
            loaded: folder.join("loaded"),
            leases: folder.join("leases"),
            pid: folder.join("dnsmasq.pid"),
        }
    }
}

/// Ensures that dnsmasq runs with exactly this configuration, and the name server with exactly these names.
async fn ensure(folder: &Path, network: &NetworkConfig) -> Result<()> {
    match options::names_of(network) {
        // The DHCP server leaves the port of DNS first, or takes it last.
        Some(names) => {
            ensure_dhcp(folder, network).await?;
            names::ensure(folder, names::Place::of(network), names).await
        }
        None => {
            names::remove(folder).await?;
            ensure_dhcp(folder, network).await
        }
    }
}

/// Ensures that the name server of a bridged network runs with exactly these names. Other name servers of the network know its machines,
/// and are asked about the addresses that have no name here.
async fn ensure_names(folder: &Path, bridge: &str, names: &Names) -> Result<()> {
    let own = folder.to_owned();
    blocking(move || files::ensure_folder(&own)).await?;
    names::ensure(folder, names::Place { bridge, ipv4: None, ipv6: None }, names).await
}

async fn ensure_dhcp(folder: &Path, network: &NetworkConfig) -> Result<()> {
    let files = Files::within(folder);
    let conf = config::conf(&files, network, config::user());
    let hosts = config::hosts(network);
    let (folder, network) = (folder.to_owned(), network.clone());
    let start = {
        let files = files.clone();
        blocking(move || prepare(&folder, &files, &network, &conf, &hosts)).await?
    };
    if start { launch(&files.conf).await } else { Ok(()) }
}

/// Prepares everything but the start; returns whether a start is needed.
fn prepare(folder: &Path, files: &Files, network: &NetworkConfig, conf: &str, hosts: &str) -> Result<bool> {
    files::ensure_folder(folder)?;
    let daemon = Daemon::find(&files.conf, &files.pid)?;
    let former_hosts = read(&files.hosts)?;
    let has_conflicts = config::has_conflicts(&read(&files.leases)?, &network.leases, &former_hosts);
    let stale = read(&files.conf)? != conf || has_conflicts;
    let checksum = checksum(hosts);
    match daemon {
        Some(daemon) if !stale => {
            if read(&files.loaded)? != checksum {
                files::write_atomic(&files.hosts, hosts.as_bytes(), 0o644)?;
                daemon.reload()?;
                files::write_until_boot(&files.loaded, checksum.as_bytes(), 0o600)?;
                tracing::debug!(
                    bridge = network.bridge,
                    leases = network.leases.len(),
                    "DHCP leases reloaded"
                );
            }
            Ok(false)
        }
        daemon => {
            // dnsmasq writes the lease file itself, and must not run with a configuration that is not on disk.
            if let Some(daemon) = daemon {
                daemon.stop()?;
            }
            // It has given out leases until it ended.
            let taken = read(&files.leases)?;
            let kept = config::without_conflicts(&taken, &network.leases, &former_hosts);
            if kept != taken {
                files::write_atomic(&files.leases, kept.as_bytes(), 0o644)?;
            }
            files::write_atomic(&files.conf, conf.as_bytes(), 0o644)?;
            files::write_atomic(&files.hosts, hosts.as_bytes(), 0o644)?;
            files::write_until_boot(&files.loaded, checksum.as_bytes(), 0o600)?;
            Ok(true)
        }
    }
}

/// dnsmasq reports errors before it goes to the background, and has opened its sockets by then.
async fn launch(conf: &Path) -> Result<()> {
    let argument = process::argument(conf);
    let output = DNSMASQ.run(&[&argument], Vec::new()).await?;
    if output.ok {
        tracing::info!(configuration = %conf.display(), "dnsmasq started");
        return Ok(());
    }
    Err(DNSMASQ.failed(output.stderr))
}

/// Terminates dnsmasq. Its files are removed with the directory.
async fn remove(folder: &Path) -> Result<()> {
    names::remove(folder).await?;
    let files = Files::within(folder);
    blocking(move || match Daemon::find(&files.conf, &files.pid)? {
        Some(daemon) => daemon.stop(),
        None => Ok(()),
    })
    .await
}

/// Whether guests ask the host for names: by its DHCP server, or by a name server of its own.
pub(super) fn answers_names(folder: &Path) -> bool {
    let conf = read(&Files::within(folder).conf).unwrap_or_default();
    names::is_there(folder) || !conf.lines().any(|line| line == "port=0")
}

/// Whether the network has a DHCP server, also one that does not run.
pub(super) fn serves_dhcp(folder: &Path) -> bool {
    Files::within(folder).conf.exists()
}

pub(super) fn leases_taken(folder: &Path) -> Result<Vec<LeaseTaken>> {
    let files = Files::within(folder);
    Ok(config::parse_leases(&read(&files.leases)?, &read(&files.hosts)?))
}

/// Reads a file of berth's or dnsmasq's; empty if it does not exist.
fn read(path: &Path) -> Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}
