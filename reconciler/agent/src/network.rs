//! Networks of this host, as a whole: bridges, who gets which address, and which public address leads where.
//!
//! One reconcile makes all of it, because the firewall is one transaction and a bridge's leases are one file. It is
//! run when something changes, and by a VM about to start, whose lease must be there before its guest asks.

mod observe;
mod plan;
mod probes;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::Reason;
use berth_qemu::passes::Passes;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

pub(crate) use observe::{hostname, mtu_of, public as public_address};

use crate::context::Context;
use crate::error::Error;
use crate::queue::{Again, Key};
use crate::system::{Firewall, NetworkConfig};
use observe::Observed;

/// One thing to do about the host's networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    EnsureNetwork(NetworkConfig),
    ApplyFirewall(Firewall),
    RemoveTap(String),
    RemoveNetwork(String),
}

/// What was made real since this agent started.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    real: Mutex<Real>,
    /// What is known of public addresses that are to be taken.
    probes: probes::Probes,
    /// One at a time, whoever asks for it. Those that make sure of everything serve all who wait for one.
    passes: Passes<()>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Real {
    pub(crate) networks: BTreeMap<String, NetworkConfig>,
    pub(crate) firewall: Option<Firewall>,
    /// Public addresses of VMs here that lead to none, and why.
    refused: BTreeMap<Ipv4Addr, Refused>,
    /// When everything was last made sure of.
    made_sure: Option<Instant>,
}

/// Why a public address does not lead to its VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    /// For people: what stands in the way and what to do.
    pub(crate) text: String,
    /// Who has the address instead.
    pub(crate) mac: Option<String>,
}

impl Applied {
    pub(crate) fn real(&self) -> MutexGuard<'_, Real> {
        self.real.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why this public address cannot lead to its VM.
    pub(crate) fn refused(&self, public: Ipv4Addr) -> Option<Refused> {
        self.real().refused.get(&public).cloned()
    }

    /// Every public address that cannot, in order.
    pub(crate) fn all_refused(&self) -> BTreeMap<Ipv4Addr, Refused> {
        self.real().refused.clone()
    }

    /// Whether this public address leads to this private one now.
    pub(crate) fn forwards(&self, public: Ipv4Addr, private: Ipv4Addr) -> bool {
        let real = self.real();
        let forwards = real.firewall.as_ref().map(|f| f.forwards.as_slice()).unwrap_or_default();
        forwards.iter().any(|f| f.public == public && f.private == private)
    }
}

/// What may break without anybody telling (a DHCP server that died) is made sure of this often.
const MAKE_SURE_EVERY: Duration = Duration::from_secs(300);
/// A DHCP server that was there so short a time ago is there.
const JUST_NOW: Duration = Duration::from_secs(5);
/// While a public address waits for a person to change something about the host's interfaces.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Makes the host's networks what the objects say.
pub(crate) async fn reconcile(ctx: &Context) -> Result<Again, Error> {
    ctx.network.passes.beside(pass(ctx, false)).await
}

/// The same, and what was made so already is made sure of, if that was not done just now: a hundred VMs that start at once
/// need few passes, not a hundred.
pub(crate) async fn make_sure(ctx: &Context) -> Result<(), Error> {
    let just_now = || ctx.network.real().made_sure.is_some_and(|at| at.elapsed() < JUST_NOW);
    ctx.network.passes.share(async { pass(ctx, !just_now()).await.map(drop) }).await
}

async fn pass(ctx: &Context, make_sure: bool) -> Result<Again, Error> {
    let mut observed = observe::observe(ctx).await?;
    let due = ctx.network.real().made_sure.is_none_or(|at| at.elapsed() >= MAKE_SURE_EVERY);
    observed.make_sure = make_sure || due;
    for step in plan::plan(&observed) {
        if observed.is_so(&step) {
            tracing::debug!(?step, "making sure");
        } else {
            tracing::info!(?step, "applying");
        }
        apply(ctx, &step).await?;
    }
    if observed.make_sure {
        ctx.network.real().made_sure = Some(Instant::now());
    }
    let refused = observed.wanted.refused;
    let again = match (refused.is_empty(), refused.values().any(|refused| refused.mac.is_some())) {
        (true, _) => MAKE_SURE_EVERY,
        (false, false) => LOOK_AGAIN,
        (false, true) => probes::ASK_AGAIN,
    };
    let before = std::mem::replace(&mut ctx.network.real().refused, refused.clone());
    if before != refused {
        wake_public(ctx);
        ctx.concern(Key::Host);
    }
    Ok(Again::After(again))
}

async fn apply(ctx: &Context, step: &Step) -> Result<(), Error> {
    match step {
        Step::EnsureNetwork(network) => {
            ctx.system.ensure_network(network).await?;
            ctx.network.real().networks.insert(network.bridge.clone(), network.clone());
        }
        Step::ApplyFirewall(firewall) => {
            ctx.system.apply_firewall(firewall).await?;
            let before = ctx.network.real().firewall.replace(firewall.clone());
            if before.is_none_or(|before| before.forwards != firewall.forwards) {
                wake_public(ctx);
            }
        }
        Step::RemoveTap(name) => ctx.system.remove_tap(name).await?,
        Step::RemoveNetwork(bridge) => {
            ctx.system.remove_network(bridge).await?;
            ctx.network.real().networks.remove(bridge);
        }
    }
    Ok(())
}

/// VMs whose public addresses may lead elsewhere now.
fn wake_public(ctx: &Context) {
    let keys: Vec<Key> = {
        let tables = ctx.index.read();
        let public = tables.vms.all().filter(|(_, vm)| {
            let spec = vm.spec.network_interfaces.iter().any(|n| n.public_ip.is_some());
            spec || vm.status.as_ref().is_some_and(|s| s.public_address.is_some())
        });
        public.map(|(name, _)| Key::Vm(name.clone())).collect()
    };
    for key in keys {
        ctx.queue.add(key);
    }
}

/// The bridge of a Network, given as `namespace/name`.
pub(crate) fn bridge_of(network: &str) -> String {
    let digest = Sha256::digest(network.as_bytes());
    let hex: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("bth-{hex}")
}

/// What the names of all taps of an instance start with.
pub(crate) fn tap_prefix(instance: &str) -> String {
    let hex: String = instance.trim_start_matches("i-").chars().take(8).collect();
    format!("btt{hex}n")
}

/// The tap of an instance's network interface in this slot.
pub(crate) fn tap_of(instance: &str, slot: u8) -> String {
    format!("{}{slot}", tap_prefix(instance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_host_fit_into_fifteen_characters() {
        assert_eq!(tap_of("i-0123456789ab", 13), "btt01234567n13");
        assert!(tap_of("i-0123456789ab", 13).len() <= 15);
        assert_eq!(bridge_of("berth-shared/default").len(), 12);
        assert_ne!(bridge_of("a/b"), bridge_of("a/c"));
    }
}
