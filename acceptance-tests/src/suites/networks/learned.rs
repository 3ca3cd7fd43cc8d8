//! IPv6 addresses that a guest takes by itself on a LAN: it has those that no other machine there has.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::lan::{self, Lan};
use super::{ANSWER, SOON, mac};
use crate::fleet::Fleet;
use crate::http::{self, field};
use crate::{manifests, wait};

const ROUTER: &str = "2001:db8:7::1";
/// The address of another machine of the LAN.
const TAKEN: &str = "2001:db8:7::9";
const FREE: &str = "2001:db8:7::77";
const USER_DATA: &str = include_str!("claim.sh");

/// Lets a guest take an address that a machine of the LAN has, and one that none has.
pub(super) fn learned(fleet: &Fleet, lan: &Lan) -> Result<()> {
    lan.namespace().ip(&["-6", "addr", "add", &format!("{ROUTER}/64"), "dev", lan::SWITCH, "nodad"])?;
    lan.other().ip(&["-6", "addr", "add", &format!("{TAKEN}/64"), "dev", lan::CARD, "nodad"])?;
    let kubectl = fleet.kubectl();
    let network = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": {"name": "learned", "namespace": "berth-shared"},
        "spec": {"type": "Bridge", "bridge": {"name": lan::BRIDGE}, "ipv4": {"allocation": "External"},
            "ipv6": {"allocation": "External", "sourceCheck": "Learned"}},
    });
    let vm = manifests::vm("learned", "small", "learned");
    let vm = manifests::with(vm, "networkInterfaces", json!([{"name": "nic0", "network": "learned"}]));
    let vm = manifests::with(vm, "bootstrap", json!({"userData": USER_DATA}));
    kubectl.apply(&manifests::all(&[network, manifests::disk("learned", "debian", "64Mi"), vm]))?;
    let address = wait::until("the guest to take a lease", ANSWER, || lan.lease(&mac(fleet, "learned")?))?;
    http::get_within(lan.namespace(), &address, "/claim-ready", ANSWER)?;
    for (claimed, answer) in [(TAKEN, "no"), (FREE, "yes")] {
        let path = format!("/cgi-bin/claim?as={claimed}&to={ROUTER}");
        let text = http::get(lan.namespace(), &address, &path, SOON)?;
        ensure!(field(&text, "ping")? == answer, "{claimed}: {text}");
    }
    wait::until("the status to have the address", SOON, || {
        let vm = kubectl.object("vm", "learned")?;
        let seen = vm["status"]["observedAddresses"][0]["addresses"].as_array();
        let seen = seen.context("it has none")?;
        ensure!(seen.iter().any(|one| *one == FREE) && !seen.iter().any(|one| *one == TAKEN), "{seen:?}");
        Ok(())
    })?;
    kubectl.delete("vm/learned")?;
    kubectl.delete("disk/learned")?;
    kubectl.ok(&["delete", "network", "learned", "--namespace=berth-shared"]).map(drop)
}
