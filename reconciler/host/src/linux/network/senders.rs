//! Reads the addresses that guests send from: nftables collects them ([`ruleset::senders`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::Ipv6Net;
use serde_json::Value;

use super::firewall::{self, NFT, Rules};
use super::{Result, ruleset};
use crate::{Firewall, ObservedPort};
use ruleset::senders::SENDERS;

/// A network may have thousands of addresses.
const WITHOUT_ADDRESSES: &[&str] = &["-t"];

/// The table, as far as it is known here.
#[derive(Debug)]
pub(super) struct Senders {
    /// Whether it may be there.
    may_be_there: AtomicBool,
    /// Whether it keeps guests of the firewall that was applied last to the addresses that they claimed.
    chooses: AtomicBool,
}

impl Default for Senders {
    fn default() -> Self {
        Self { may_be_there: AtomicBool::new(true), chooses: AtomicBool::new(false) }
    }
}

impl Senders {
    /// Whether other rules rely on the table.
    pub(super) fn have_choices(&self) -> bool {
        self.chooses.load(Ordering::Relaxed)
    }

    /// Applies the rules with the table that they rely on.
    ///
    /// *Guarantees:* at no moment may a guest send from an address that it has not claimed.
    pub(super) async fn apply(
        &self,
        rules: &Rules,
        firewall: &Firewall,
        ipv6_closed: &[Ipv6Net],
    ) -> Result<()> {
        if firewall.observed.iter().any(|port| port.chosen.is_some()) {
            self.may_be_there.store(true, Ordering::Relaxed);
            self.chooses.store(true, Ordering::Relaxed);
            if let Some(closed) = meanwhile(firewall, &choosing().await?) {
                rules.apply(&closed, ipv6_closed).await?;
            }
            // First: the other rules pass all addresses of their network to guests that choose among them.
            observe(&firewall.observed).await?;
            return rules.apply(firewall, ipv6_closed).await;
        }
        self.chooses.store(false, Ordering::Relaxed);
        rules.apply(firewall, ipv6_closed).await?;
        let has_observed = !firewall.observed.is_empty();
        if has_observed || self.may_be_there.load(Ordering::Relaxed) {
            match observe(&firewall.observed).await {
                Ok(()) => self.may_be_there.store(has_observed, Ordering::Relaxed),
                // The rules for guests do not depend on it.
                Err(error) => {
                    tracing::warn!(
                        error = error.chain(),
                        "the addresses that guests send from cannot be read"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Has the addresses of exactly these ports collected from now on.
async fn observe(ports: &[ObservedPort]) -> Result<()> {
    let there = match listing(WITHOUT_ADDRESSES).await {
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

/// Lists the taps whose guests choose their addresses by the rules that are there.
async fn choosing() -> Result<BTreeSet<String>> {
    Ok(listing(WITHOUT_ADDRESSES).await?.as_ref().map(ruleset::senders::choosing).unwrap_or_default())
}

/// Returns the rules to apply before this table changes, if it holds guests that choose by it now and are not to any more: only the other
/// rules close the addresses that it passes no more. `choosing`: those that choose by it now; the others do so after that.
fn meanwhile(firewall: &Firewall, choosing: &BTreeSet<String>) -> Option<Firewall> {
    let ports = firewall.observed.iter().filter(|port| port.chosen.is_some());
    let wanted: BTreeSet<&str> = ports.map(|port| port.tap.as_str()).collect();
    if choosing.iter().all(|tap| wanted.contains(tap.as_str())) {
        return None;
    }
    let mut closed = firewall.clone();
    closed.exceptions.retain(|of| !wanted.contains(of.tap.as_str()) || choosing.contains(&of.tap));
    Some(closed)
}

/// Lists the addresses by tap.
pub(super) async fn seen() -> Result<BTreeMap<String, BTreeSet<IpAddr>>> {
    Ok(listing(&[]).await?.as_ref().map(ruleset::senders::addresses).unwrap_or_default())
}

/// Returns the table as nftables shows it with these options, if it is there.
async fn listing(options: &[&str]) -> Result<Option<Value>> {
    let args = [options, &["-j", "list", "table", SENDERS.family, SENDERS.name][..]].concat();
    let output = NFT.run(&args, Vec::new()).await?;
    if output.ok {
        return serde_json::from_slice(&output.stdout).map(Some).map_err(|e| NFT.failed(e.to_string()));
    }
    match output.stderr.contains("No such file or directory") {
        true => Ok(None),
        false => Err(NFT.failed(output.stderr)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChosenAddresses, PortException};

    fn firewall(taps: &[&str]) -> Firewall {
        let exception = |tap: &&str| PortException {
            tap: (*tap).to_owned(),
            ranges: vec!["fd00:60::/64".parse().expect("a range")],
            macs: Vec::new(),
            gateways: Vec::new(),
        };
        let chosen = || ChosenAddresses {
            bridge: "bth-00004d".to_owned(),
            prefix: "fd00:60::/64".parse().expect("a prefix"),
            own: Vec::new(),
        };
        let port = |tap: &&str| ObservedPort {
            tap: (*tap).to_owned(),
            chosen: Some(chosen()),
            ..ObservedPort::default()
        };
        Firewall {
            exceptions: taps.iter().map(exception).collect(),
            observed: taps.iter().map(port).collect(),
            ..Firewall::default()
        }
    }

    #[test]
    fn a_guest_that_chooses_no_more_is_closed_before_the_table_lets_it_go() {
        let choosing = |taps: &[&str]| taps.iter().map(|tap| (*tap).to_owned()).collect::<BTreeSet<_>>();
        let taps = |closed: Firewall| closed.exceptions.into_iter().map(|of| of.tap).collect::<Vec<_>>();
        let wanted = firewall(&["btt2", "btt3"]);
        assert_eq!(meanwhile(&wanted, &choosing(&[])), None);
        assert_eq!(meanwhile(&wanted, &choosing(&["btt2"])), None, "one more");
        let closed = meanwhile(&wanted, &choosing(&["btt1", "btt2"])).map(taps);
        assert_eq!(
            closed,
            Some(vec!["btt2".to_owned()]),
            "neither that of the first, nor yet that of the third"
        );
        let mut declared = firewall(&["btt2"]);
        declared.exceptions.extend(firewall(&["btt1"]).exceptions);
        let closed = meanwhile(&declared, &choosing(&["btt1", "btt2"])).map(taps);
        assert_eq!(closed, Some(vec!["btt2".to_owned(), "btt1".to_owned()]), "it declares others instead");
    }
}
