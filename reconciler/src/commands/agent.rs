//! This machine's agent, under whichever control plane is in charge: it follows its site to the next one by itself.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use berth_agent::{AgentConfig, AgentError};
use berth_api::site::{Authority, authority};
use berth_host::linux::{LinuxSystem, record};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{api_limits::ApiLimits, credential::Credential, graduate, one_connection::client_within, site};

/// The delay before a failed attempt is repeated.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The control plane of an agent.
pub(super) enum Where {
    /// Served by this process.
    Here(Client),
    /// Reached with the kubeconfig that the options name.
    Named(Client),
    /// Joined by this host.
    Joined(Box<Credential>),
}

impl std::fmt::Debug for Where {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Here(_) => "here",
            Self::Named(_) => "where a kubeconfig leads",
            Self::Joined(_) => "where it joined",
        })
    }
}

/// This machine as a host.
pub(super) struct Machine {
    pub(super) config: AgentConfig,
    pub(super) system: Arc<LinuxSystem>,
    pub(super) state_dir: PathBuf,
    /// The limits of its requests to a control plane of another process.
    pub(super) limits: ApiLimits,
}

impl Machine {
    /// Runs the agent under its control plane, and follows its site.
    ///
    /// *Errors:* those that end an agent.
    pub(super) async fn run(&self, mut at: Where, cancel: &CancellationToken) -> anyhow::Result<()> {
        while !cancel.is_cancelled() {
            let client = client(&at, &self.limits).await?;
            let ended = Box::pin(self.agent(&at, &client, cancel)).await;
            match ended {
                Err(AgentError::Moved { .. }) => at = Box::pin(self.follow(at, &client, cancel)).await,
                Err(AgentError::Deposed { why, .. }) => {
                    warn!(why, "the control plane no longer commands this host: what runs goes on");
                    pause(TRY_AGAIN, cancel).await;
                }
                ended => return ended.context("the host agent"),
            }
        }
        Ok(())
    }

    /// Runs the agent of `berth up`: under its own control plane while that is in charge, else under the one this
    /// host joined.
    ///
    /// *Errors:* those that end an agent.
    pub(super) async fn run_beside(&self, own: &Client, cancel: &CancellationToken) -> anyhow::Result<()> {
        while !cancel.is_cancelled() {
            let at = match self.standing(own).await {
                Some(Authority::InCharge(_)) => Where::Here(own.clone()),
                // The agent records the term before anything else, ends at once, and follows.
                Some(Authority::Moved(_)) if self.leads_elsewhere(own).await => Where::Here(own.clone()),
                _ => match self.credential() {
                    Some(credential) => Where::Joined(Box::new(credential)),
                    None => {
                        warn!("no control plane that this host knows is in charge of it: what runs goes on");
                        pause(TRY_AGAIN, cancel).await;
                        continue;
                    }
                },
            };
            info!(control_plane = ?at, "the agent starts");
            let is_here = matches!(at, Where::Here(_));
            let client = client(&at, &self.limits).await?;
            let until = cancel.child_token();
            let ended = tokio::select! {
                ended = Box::pin(self.agent(&at, &client, &until)) => ended,
                () = self.own_takes_charge(own), if !is_here => Ok(()),
            };
            until.cancel();
            match ended {
                Ok(()) => {}
                Err(AgentError::Moved { .. }) => drop(Box::pin(self.follow(at, &client, cancel)).await),
                Err(AgentError::Deposed { why, .. }) => {
                    warn!(why, "the control plane no longer commands this host: what runs goes on");
                    pause(TRY_AGAIN, cancel).await;
                }
                ended => return ended.context("the host agent"),
            }
        }
        Ok(())
    }

    async fn agent(&self, at: &Where, client: &Client, cancel: &CancellationToken) -> Result<(), AgentError> {
        let system = Arc::clone(&self.system);
        let config =
            AgentConfig { beside_control_plane: matches!(at, Where::Here(_)), ..self.config.clone() };
        let running = berth_agent::run(config, client.clone(), system, cancel.clone());
        match at {
            Where::Joined(credential) => tokio::select! {
                ended = running => ended,
                () = credential.keep(client) => Ok(()),
            },
            Where::Here(_) | Where::Named(_) => running.await,
        }
    }

    /// Joins the control plane of the ticket that the host's former control plane holds; retried until it works,
    /// because guests keep running.
    async fn follow(&self, was: Where, client: &Client, cancel: &CancellationToken) -> Where {
        let host = &self.config.host_name;
        loop {
            let went = async {
                let join = graduate::ticket(client, host).await?;
                Credential::join(&self.state_dir, &join).await
            };
            match went.await {
                Ok(credential) => {
                    info!(host, "this host has gone on to the control plane in charge");
                    return Where::Joined(Box::new(credential));
                }
                Err(error) => warn!(error = format!("{error:#}"), "this host cannot go on with its site yet"),
            }
            pause(TRY_AGAIN, cancel).await;
            if cancel.is_cancelled() {
                return was;
            }
        }
    }

    fn credential(&self) -> Option<Credential> {
        let found = Credential::find(&self.state_dir);
        found.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "this host's credential cannot be read");
            None
        })
    }

    /// Whether this process's control plane has a ticket to a control plane that this host has not joined: the
    /// host's credential may be from an earlier move.
    async fn leads_elsewhere(&self, own: &Client) -> bool {
        let Some(credential) = self.credential() else { return true };
        match graduate::ticket(own, &self.config.host_name).await {
            Ok(join) => !credential.is_for(&join),
            Err(_) => false,
        }
    }

    /// Returns the standing of this process's control plane towards this host.
    async fn standing(&self, own: &Client) -> Option<Authority> {
        let kept = record::read(&self.state_dir).ok()?;
        match site::read(own).await.ok()? {
            None => Some(authority(None, kept.as_ref())),
            Some(Ok(site)) => Some(authority(Some(&site), kept.as_ref())),
            Some(Err(_)) => None,
        }
    }

    async fn own_takes_charge(&self, own: &Client) {
        while !matches!(self.standing(own).await, Some(Authority::InCharge(_))) {
            tokio::time::sleep(site::LOOK_EVERY).await;
        }
    }
}

async fn client(at: &Where, limits: &ApiLimits) -> anyhow::Result<Client> {
    match at {
        Where::Here(client) | Where::Named(client) => Ok(client.clone()),
        Where::Joined(credential) => {
            let client = client_within(credential.config().await?, limits)?;
            credential.check(&client).await?;
            Ok(client)
        }
    }
}

async fn pause(time: Duration, cancel: &CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = tokio::time::sleep(time) => {}
    }
}
