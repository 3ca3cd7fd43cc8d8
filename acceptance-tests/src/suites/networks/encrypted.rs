//! `examples/networks/encryption` with the small guest: VMs of two hosts whose packets are encrypted between the hosts.
//!
//! The kernel of a test machine often has no WireGuard: hosts then use wireguard-go, each in its own network namespace.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::hosts::map;
use super::{ANSWER, REPORTED, SOON, nft};
use crate::fleet::Fleet;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::namespace::Namespace;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::terraform::Project;
use crate::{prerequisites, segment, wait, workspace};

/// A command that shows whether a package of a host is installed, and the package.
const PROGRAMS: &[(&str, &str)] = &[("wg", "wireguard-tools"), ("wireguard-go", "wireguard-go")];
/// The UDP port of encrypted packets.
const PORT: u16 = 51_847;
/// The bytes of a packet that fit: 1,500 less those of tunnel and encryption.
const MTU: i64 = 1370;

pub fn install() -> Result<()> {
    prerequisites::install(PROGRAMS)
}

pub fn cases(report: &mut Report, fleet: &Fleet, guest: &GuestImage) -> Result<()> {
    report.case(
        "each host has a key of its own, which only root reads there, and reports the public one",
        || {
            let mut keys = Vec::new();
            for host in ["h1", "h2"] {
                let status = wait::until(&format!("{host} to report its key"), REPORTED, || {
                    let found = fleet.kubectl().object("host", host)?["status"]["wireguard"].clone();
                    ensure!(found["publicKey"].is_string() && found["port"] == PORT, "{found}");
                    Ok(found)
                })?;
                keys.push(status["publicKey"].clone());
                let file = fleet.member(host)?.berth.state().join("wireguard.key");
                let mode = fs::metadata(&file)?.permissions().mode();
                ensure!(mode & 0o777 == 0o600, "{mode:o}");
            }
            ensure!(keys[0] != keys[1], "{keys:?}");
            Ok(())
        },
    );
    let project = report.step("examples/networks/encryption is applied", || {
        let project = project(fleet, guest)?;
        project.apply()?;
        Ok(project)
    })?;
    let guests =
        report.step("the VMs are on two hosts, whose addresses in WireGuard the Network has", || {
            project.plan_is_empty()?;
            let network = fleet.kubectl().object("network", "ledger")?;
            let hosts = network["status"]["hosts"].as_array().context("no hosts")?;
            ensure!(network["status"]["mtu"] == MTU && hosts.len() == 2, "{:#}", network["status"]);
            let is_within = |host: &Value| {
                host["address"].as_str().is_some_and(|address| address.starts_with("fd62:6572:7468:"))
            };
            ensure!(hosts.iter().all(is_within), "{hosts:?}");
            guests(fleet, &project)
        })?;
    report.case("between the hosts are packets of WireGuard only, and the guests reach each other", || {
        for (from, to) in [(&guests[0], &guests[1]), (&guests[1], &guests[0])] {
            capture(fleet.member(&to.host)?.namespace(), &fleet.member(&from.host)?.address)?;
            wait::until(&format!("{} to reach {}", from.name, to.name), SOON, || reaches(fleet, from, to))?;
            only_encrypted(fleet.member(&to.host)?.namespace())?;
        }
        Ok(())
    });
    report.case("the interface is removed: nothing leaves unencrypted, and it is made again", || {
        let (from, to) = (&guests[0], &guests[1]);
        let there = interface(fleet.member(&from.host)?.namespace())?;
        fleet.member(&from.host)?.namespace().ip(&["link", "del", &there])?;
        wait::until("the guests to reach each other again", ANSWER, || reaches(fleet, from, to))?;
        only_encrypted(fleet.member(&to.host)?.namespace())
    });
    report.case("encryption of a network with VMs is not taken away", || {
        let patch = json!({"spec": {"encryption": "None"}}).to_string();
        let refused = fleet.kubectl().refused(&["patch", "network/ledger", "--type=merge", "-p", &patch])?;
        contains_all(&refused, &["encryption cannot change"])
    });
    report.case("with the VMs the interfaces go, and the programs that serve them", || {
        for host in ["h1", "h2"] {
            let _ = nft(fleet.member(host)?.namespace(), &["delete table ip seen"]);
        }
        project.destroy()?;
        for host in ["h1", "h2"] {
            let machine = fleet.member(host)?.namespace();
            wait::until(&format!("{host} to have none"), SOON, || {
                let links = machine.ip(&["-o", "link"])?;
                let processes = machine.processes()?;
                let is_left = processes.iter().any(|(_, command)| command.contains("wireguard-go"));
                ensure!(!links.contains("btw-") && !is_left, "{links}\n{processes:?}");
                Ok(())
            })?;
        }
        Ok(())
    });
    Ok(())
}

/// A VM that runs.
struct Guest {
    name: String,
    host: String,
    address: String,
}

fn project(fleet: &Fleet, guest: &GuestImage) -> Result<Project> {
    let project = fleet.project()?;
    project.copy_from(&workspace::root().join("examples/networks/encryption"))?;
    let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
    let variables =
        json!({"image_url": url, "image_sha256": guest.sha256, "disk_size": "64Mi", "memory": "256Mi"});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    Ok(project)
}

fn guests(fleet: &Fleet, project: &Project) -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    for (name, address) in map(project, "addresses")? {
        let guest = Guest { host: fleet.host_of(&name)?, name, address };
        let machine = fleet.member(&guest.host)?.namespace();
        let text = http::get_within(machine, &guest.address, "/", ANSWER)?;
        ensure!(field(&text, "hostname")? == guest.name, "{text}");
        guests.push(guest);
    }
    ensure!(guests.len() == 2 && guests[0].host != guests[1].host, "they are not on two hosts");
    Ok(guests)
}

/// Whether a guest, called from its host, reads the complete page of the other one.
fn reaches(fleet: &Fleet, from: &Guest, to: &Guest) -> Result<()> {
    let machine = fleet.member(&from.host)?.namespace();
    let text = http::get(machine, &from.address, &format!("/cgi-bin/reach?to={}", to.address), SOON)?;
    ensure!(field(&text, "ping")? == "yes" && field(&text, "hostname")? == to.name, "{text}");
    ensure!(field(&text, "bytes")? == "300000", "a large page did not come whole: {text}");
    Ok(())
}

/// Counts the packets that a host receives from another one: those of WireGuard, and all that are neither of these nor of the connections
/// of TCP between agents and the control plane, such as tunnels' packets without encryption. ICMP is the answer to packets for an interface
/// that is away.
fn capture(machine: &Namespace, from: &str) -> Result<()> {
    nft(machine, &["add table ip seen"])?;
    nft(machine, &["add chain ip seen received { type filter hook prerouting priority -300; }"])?;
    let received = format!("add rule ip seen received iifname {} ip saddr {from}", segment::CARD);
    // A message of WireGuard begins with its type and three bytes that are 0.
    let is_message = "@th,72,24 0";
    nft(machine, &[&format!("{received} udp dport {PORT} {is_message} counter comment \"encrypted\"")])?;
    nft(machine, &[&format!("{received} udp dport {PORT} {is_message} return")])?;
    nft(machine, &[&format!("{received} meta l4proto != {{ tcp, icmp }} counter comment \"others\"")])
        .map(drop)
}

fn only_encrypted(machine: &Namespace) -> Result<()> {
    let rules = nft(machine, &["list table ip seen"])?;
    let line = |comment: &str| {
        rules.lines().find(|line| line.contains(comment)).with_context(|| format!("no {comment}: {rules}"))
    };
    ensure!(!line("encrypted")?.contains("packets 0 "), "{rules}");
    ensure!(line("others")?.contains("packets 0 "), "{rules}");
    Ok(())
}

/// The name of the interface of WireGuard.
fn interface(machine: &Namespace) -> Result<String> {
    let links = machine.ip(&["-o", "link"])?;
    let name = links.split([' ', ':', '@']).find(|word| word.starts_with("btw-"));
    Ok(name.with_context(|| links.clone())?.to_owned())
}
