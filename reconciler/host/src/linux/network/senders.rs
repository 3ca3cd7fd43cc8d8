//! Reads the addresses that guests send from: nftables collects them ([`ruleset::senders`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::firewall::{self, NFT};
use super::{Result, ruleset};
use crate::ObservedPort;
use ruleset::senders::SENDERS;

/// Has the addresses of exactly these ports collected from now on.
pub(super) async fn observe(ports: &[ObservedPort]) -> Result<()> {
    let there = match listing().await {
        // Where nothing can be listed, nothing was made.
        Err(_) if ports.is_empty() => return Ok(()),
        there => there?,
    };
    if let Some(commands) = ruleset::senders::declare(ports, there.as_ref()) {
        firewall::submit_text(commands).await?;
    }
    match ruleset::senders::change(ports, there.as_ref()) {
        Some(transaction) => firewall::submit(&transaction).await,
        None => Ok(()),
    }
}

/// Lists the addresses by tap.
pub(super) async fn seen() -> Result<BTreeMap<String, BTreeSet<IpAddr>>> {
    Ok(listing().await?.as_ref().map(ruleset::senders::addresses).unwrap_or_default())
}

/// Returns the table as nftables shows it, if it is there.
async fn listing() -> Result<Option<Value>> {
    let output = NFT.run(&["-j", "list", "table", SENDERS.family, SENDERS.name], Vec::new()).await?;
    if output.ok {
        return serde_json::from_slice(&output.stdout).map(Some).map_err(|e| NFT.failed(e.to_string()));
    }
    match output.stderr.contains("No such file or directory") {
        true => Ok(None),
        false => Err(NFT.failed(output.stderr)),
    }
}
