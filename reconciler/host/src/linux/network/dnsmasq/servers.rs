//! The DHCP and DNS servers that are to run, and the news that one has ended by itself.
//!
//! A server is not a child of this process, so its end is read from a pidfd.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::super::super::files::blocking;
use super::super::Result;
use super::process::Daemon;
use super::{DNSMASQ, Files, names};
use crate::{Names, NetworkConfig};

/// The servers of this host's networks.
#[derive(Debug, Default)]
pub(in super::super) struct Servers {
    /// The networks whose servers are to run, by bridge.
    expected: Mutex<BTreeMap<String, Expected>>,
    changed: Notify,
    /// Held while servers are started and ended on purpose, and while they are looked for.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
struct Expected {
    folder: PathBuf,
    /// False for a bridged network, which has a name server only.
    has_dhcp: bool,
}

impl Servers {
    fn expected(&self) -> MutexGuard<'_, BTreeMap<String, Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ensures that the servers of a network run with exactly this configuration.
    pub(in super::super) async fn ensure(&self, folder: &Path, network: &NetworkConfig) -> Result<()> {
        let turn = self.turn.lock().await;
        super::ensure(folder, network).await?;
        let expected = Expected { folder: folder.to_owned(), has_dhcp: true };
        self.expected().insert(network.bridge.clone(), expected);
        drop(turn);
        // The processes may be others.
        self.changed.notify_one();
        Ok(())
    }

    /// Ensures that the name server of a bridged network runs with exactly these names.
    pub(in super::super) async fn ensure_names(
        &self,
        folder: &Path,
        bridge: &str,
        names: &Names,
    ) -> Result<()> {
        let turn = self.turn.lock().await;
        super::ensure_names(folder, bridge, names).await?;
        let expected = Expected { folder: folder.to_owned(), has_dhcp: false };
        self.expected().insert(bridge.to_owned(), expected);
        drop(turn);
        self.changed.notify_one();
        Ok(())
    }

    /// Ends the servers of a network.
    pub(in super::super) async fn remove(&self, folder: &Path, bridge: &str) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.expected().remove(bridge);
        super::remove(folder).await
    }

    /// Returns the bridge of a network of which a server has ended by itself. It is expected again once it is ensured. One caller at a
    /// time.
    pub(in super::super) async fn ended(&self) -> Result<String> {
        loop {
            let running = self.running().await?;
            if let Some((bridge, _)) = running.iter().find(|(_, server)| server.is_none()) {
                self.expected().remove(bridge);
                return Ok(bridge.clone());
            }
            let mut ends = FuturesUnordered::new();
            for fd in running.into_iter().filter_map(|(_, server)| server) {
                let fd = register(fd)
                    .map_err(|error| DNSMASQ.failed(format!("its end cannot be waited for: {error}")))?;
                ends.push(async move { fd.readable().await.map(drop) });
            }
            // Whether it was ended on purpose shows when they are looked for again.
            tokio::select! {
                () = self.changed.notified() => {}
                Some(_) = ends.next() => {}
            }
        }
    }

    /// Opens the processes of the expected servers, by bridge. None: it does not run.
    async fn running(&self) -> Result<Vec<(String, Option<OwnedFd>)>> {
        let _turn = self.turn.lock().await;
        let expected = self.expected().clone();
        blocking(move || {
            let mut running = Vec::new();
            for (bridge, Expected { folder, has_dhcp }) in expected {
                if has_dhcp {
                    let files = Files::within(&folder);
                    let dhcp = Daemon::find(&files.conf, &files.pid)?;
                    running.push((bridge.clone(), dhcp.map(Daemon::into_fd)));
                }
                if names::is_there(&folder) {
                    let names = names::find(&folder)?;
                    running.push((bridge, names.map(Daemon::into_fd)));
                }
            }
            Ok(running)
        })
        .await
    }
}

#[allow(unsafe_code, reason = "tokio has no safe way to wait for a descriptor that it owns")]
fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the AsyncFd, which deregisters it before it is closed.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
