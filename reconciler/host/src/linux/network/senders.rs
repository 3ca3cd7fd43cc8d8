//! Reads the addresses that guests send from: nftables collects them ([`ruleset::senders`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::firewall::{self, NFT};
use super::{Result, ruleset};
use crate::{Firewall, ObservedPort};
use ruleset::senders::SENDERS;

/// A network may have thousands of addresses.
const WITHOUT_ADDRESSES: &[&str] = &["-t"];

/// Has the addresses of exactly these ports collected from now on.
pub(super) async fn observe(ports: &[ObservedPort]) -> Result<()> {
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
pub(super) async fn choosing() -> Result<BTreeSet<String>> {
    Ok(listing(WITHOUT_ADDRESSES).await?.as_ref().map(ruleset::senders::choosing).unwrap_or_default())
}

/// Returns the rules to apply before this table changes, if it holds guests that choose by it now and are not to any more: only the other
/// rules close the addresses that it passes no more. `choosing`: those that choose by it now; the others do so after that.
pub(super) fn meanwhile(firewall: &Firewall, choosing: &BTreeSet<String>) -> Option<Firewall> {
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
