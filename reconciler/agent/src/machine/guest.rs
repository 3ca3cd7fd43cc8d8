//! What the guest says of itself, asked now and then: often until its agent was seen, seldom afterwards, and at once
//! when QEMU tells that the agent's port was opened.
//!
//! All of it comes from the guest, which may be hostile: it is shown to the VM's owner and decides nothing but
//! whether a disk of this very VM may be pulled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::guest_agent::{Filesystem, GuestAgent, GuestAgentError, ShutdownMode, mounts_of};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::queue::{Key, Queue};
use crate::system::System;

const FIRST_LOOK: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The guest may write longer lists than anybody reads.
const MAX_ADDRESSES: usize = 16;

/// The newest a guest said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GuestFacts {
    /// Its agent answers.
    pub(crate) agent: bool,
    pub(crate) hostname: Option<String>,
    pub(crate) os: Option<String>,
    pub(crate) addresses: Vec<String>,
    /// Serial number of a disk → the name of its device in the guest, for those with something mounted.
    pub(crate) devices: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(super) enum Question {
    /// What is mounted of the disk with this serial at this SCSI target; None: no agent to ask.
    Mounts {
        serial: String,
        target: Option<u8>,
        reply: oneshot::Sender<Option<Vec<String>>>,
    },
    Shutdown(oneshot::Sender<bool>),
}

pub(super) struct Talk {
    pub(super) system: Arc<dyn System>,
    pub(super) instance: String,
    pub(super) questions: mpsc::Receiver<Question>,
    pub(super) poke: Arc<Notify>,
    pub(super) facts: watch::Sender<GuestFacts>,
    pub(super) queue: Arc<Queue>,
    pub(super) wake: Option<Key>,
}

impl Talk {
    pub(super) async fn run(mut self) {
        let mut agent = None;
        let mut wait = FIRST_LOOK;
        loop {
            tokio::select! {
                biased;
                question = self.questions.recv() => match question {
                    Some(question) => {
                        self.answer(&mut agent, question).await;
                        continue;
                    }
                    None => return,
                },
                () = self.poke.notified() => wait = FIRST_LOOK,
                () = tokio::time::sleep(wait) => {}
            }
            let facts = self.look(&mut agent).await;
            wait = if facts.agent { LOOK_EVERY } else { (wait * 2).min(LOOK_EVERY) };
            let news = self.facts.send_if_modified(|old| {
                let differs = *old != facts;
                *old = facts;
                differs
            });
            if news && let Some(key) = &self.wake {
                self.queue.add(key.clone());
            }
        }
    }

    async fn connected<'a>(&self, agent: &'a mut Option<GuestAgent>) -> Option<&'a mut GuestAgent> {
        if agent.is_none() {
            *agent = self.system.guest_agent(&self.instance).await.ok();
        }
        agent.as_mut()
    }

    async fn look(&self, agent: &mut Option<GuestAgent>) -> GuestFacts {
        let Some(connected) = self.connected(agent).await else { return GuestFacts::default() };
        match facts(connected).await {
            Ok(facts) => facts,
            Err(error) => {
                tracing::debug!(error = %error, "the guest's agent does not answer");
                if !matches!(error, GuestAgentError::Silent { .. }) {
                    *agent = None;
                }
                GuestFacts::default()
            }
        }
    }

    async fn answer(&self, agent: &mut Option<GuestAgent>, question: Question) {
        let connected = self.connected(agent).await;
        match question {
            Question::Mounts { serial, target, reply } => {
                let mounts = match connected {
                    Some(agent) => agent.filesystems().await.ok(),
                    None => None,
                };
                let points = |all: Vec<Filesystem>| {
                    mounts_of(&all, &serial, target).into_iter().map(|f| f.mountpoint.clone()).collect()
                };
                let _ = reply.send(mounts.map(points));
            }
            Question::Shutdown(reply) => {
                let heard = match connected {
                    Some(agent) => agent.shutdown(ShutdownMode::Powerdown).await.is_ok(),
                    None => false,
                };
                let _ = reply.send(heard);
            }
        }
    }
}

async fn facts(agent: &mut GuestAgent) -> Result<GuestFacts, GuestAgentError> {
    agent.ping().await?;
    // An agent need not know every command (and an administrator may forbid some): what it tells is taken.
    let hostname = agent.host_name().await.ok();
    let os = agent.os_info().await.ok().map(|os| os.pretty_name).filter(|name| !name.is_empty());
    let interfaces = agent.interfaces().await.unwrap_or_default();
    let addresses = interfaces
        .iter()
        .flat_map(|interface| &interface.addresses)
        .map(|(address, _)| *address)
        .filter(|address| match address {
            std::net::IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            std::net::IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        })
        .map(|address| address.to_string())
        .take(MAX_ADDRESSES)
        .collect();
    let filesystems = agent.filesystems().await.unwrap_or_default();
    let mut devices = BTreeMap::new();
    for disk in filesystems.iter().flat_map(|f| &f.disks) {
        if let (Some(serial), Some(dev)) = (&disk.serial, &disk.dev) {
            let own = serial.rsplit('_').next().unwrap_or(serial);
            devices.insert(own.to_owned(), dev.clone());
        }
    }
    Ok(GuestFacts { agent: true, hostname, os, addresses, devices })
}
