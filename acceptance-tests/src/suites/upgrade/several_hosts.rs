//! Hosts of this version and of the next one, under a control plane of either: their reports, and an upgrade in the order of
//! `docs/several-hosts.md`, after which everything has one version.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::witness::watch;
use super::{ANSWER, CURRENT, SOON, Versions, definitions_are_of, host_is_current, host_is_of};
use crate::fleet::{Fleet, host_in};
use crate::http::{self, field};
use crate::image_server::Content;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::report::{Report, note};
use crate::suites::kubectl::contains_all;
use crate::wait;

/// The host with the control plane, the one that is ahead and the one that is behind.
const CONTROL: &str = "h1";
const AHEAD: &str = "h2";
const BEHIND: &str = "h3";
const SHARED: &str = "shared";
/// A VM that is declared for a host while the host is behind.
const LATE: &str = "late";

/// A guest, with the values that identify the run.
#[derive(Debug)]
struct Running {
    host: &'static str,
    /// The private address, reachable from its own host.
    address: String,
    boot: String,
    process: Value,
}

/// Runs the cases.
pub fn run(report: &mut Report, versions: &Versions) -> Result<()> {
    let failed = report.count().failed;
    let mut fleet =
        report.step("berth up of this version serves its segment", || Fleet::embedded(&versions.parts))?;
    let outcome = cases(report, &mut fleet, versions);
    if outcome.is_err() || report.count().failed > failed {
        note(&fleet.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends every agent and the control plane", || fleet.stop());
    Ok(())
}

fn cases(report: &mut Report, fleet: &mut Fleet, versions: &Versions) -> Result<()> {
    let (this, next) = (versions.this.as_str(), versions.next.version.as_str());
    report.step("a host of the next version joins, and one of this version", || {
        let mut ahead = fleet.machine(2)?;
        ahead.berth.set_program(&versions.next.berth);
        fleet.join_on(ahead, &[])?;
        fleet.join(3, &[])
    })?;
    let before = report.step("the empty hosts are looked at", || fleet.footprints())?;
    report.case(
        "the newer host reports that the definitions are older, and is ready; the others report nothing",
        || {
            let kubectl = fleet.kubectl();
            host_is_of(kubectl, AHEAD, next)?;
            let output = not_current(fleet, AHEAD, "OlderDefinitions", "True")?;
            contains_all(&output, &[this, next, "apply `berth crds`"])?;
            for host in [CONTROL, BEHIND] {
                host_is_of(kubectl, host, this)?;
                host_is_current(kubectl, host)?;
            }
            Ok(())
        },
    );
    let guests = report.step("a guest runs on each of the two that joined", || {
        let url = fleet.images().put("guest.qcow2", Content::File(versions.guest.path.clone()));
        fleet.kubectl().apply(&manifests::all(&[
            manifests::bios_class(SHARED, "128Mi"),
            manifests::image(SHARED, &url, &versions.guest.sha256),
        ]))?;
        [AHEAD, BEHIND].iter().try_for_each(|host| declare(fleet, host, host))?;
        Ok([running(fleet, AHEAD)?, running(fleet, BEHIND)?])
    })?;
    report.step(
        "the control plane is of the next version: so are its definitions and its own host",
        || {
            watched(fleet, &guests, |fleet| {
                let first = &mut fleet.member_mut(CONTROL)?.berth;
                first.stop()?;
                first.set_program(&versions.next.berth);
                first.spawn_up()?;
                fleet.host_is_ready(CONTROL)?;
                host_is_of(fleet.kubectl(), CONTROL, next)?;
                definitions_are_of(fleet.kubectl(), next)?;
                host_is_current(fleet.kubectl(), CONTROL)
            })
        },
    )?;
    report.case("within two minutes the host that was ahead is current, without a restart", || {
        host_is_current(fleet.kubectl(), AHEAD)?;
        goes_on(fleet, &guests[0])
    });
    report.case(
        "the older host reports that the definitions are newer, and is not ready; its guest continues",
        || {
            let output = not_current(fleet, BEHIND, "NewerDefinitions", "False")?;
            contains_all(&output, &[this, next, "until berth is updated on this host"])?;
            goes_on(fleet, &guests[1])
        },
    );
    report.case("it takes no new VM", || {
        declare(fleet, LATE, BEHIND)?;
        let vm =
            fleet.kubectl().condition(&format!("vm/{LATE}"), "Ready=False", Some("Unschedulable"), SOON)?;
        ensure!(host_in(&vm).is_none(), "it is bound: {:#}", vm["status"]);
        Ok(())
    });
    report.step(
        "updated it is current, its guest is the same process and boot, and it takes the VM",
        || {
            watched(fleet, &guests, |fleet| {
                let behind = &mut fleet.member_mut(BEHIND)?.berth;
                behind.stop()?;
                behind.set_program(&versions.next.berth);
                behind.spawn_joined(None, &[])?;
                fleet.host_is_ready(BEHIND)?;
                host_is_of(fleet.kubectl(), BEHIND, next)?;
                host_is_current(fleet.kubectl(), BEHIND)?;
                guests.iter().try_for_each(|guest| goes_on(fleet, guest))
            })?;
            running(fleet, LATE).map(drop)
        },
    )?;
    report.case("all hosts are of the next version and current; all is deleted, and leaves nothing", || {
        for host in [CONTROL, AHEAD, BEHIND] {
            host_is_of(fleet.kubectl(), host, next)?;
            host_is_current(fleet.kubectl(), host)?;
        }
        let kubectl = fleet.kubectl();
        kubectl.ok(&["delete", "vm", AHEAD, BEHIND, LATE, "--timeout=85s"])?;
        kubectl.ok(&["delete", "disks,images", "--all", "--timeout=60s"])?;
        kubectl.delete(&format!("vmclass/{SHARED}"))?;
        fleet.nothing_beyond(&before, SOON)
    });
    Ok(())
}

/// Declares a VM for a host.
fn declare(fleet: &Fleet, name: &str, host: &str) -> Result<()> {
    let vm = manifests::with(manifests::vm(name, SHARED, name), "placement", json!({"host": host}));
    fleet.kubectl().apply(&manifests::all(&[manifests::disk(name, SHARED, "64Mi"), vm])).map(drop)
}

/// Waits until a VM responds.
fn running(fleet: &Fleet, name: &str) -> Result<Running> {
    let vm = fleet.kubectl().condition(&format!("vm/{name}"), "Ready=True", None, ANSWER)?;
    let host = if name == AHEAD { AHEAD } else { BEHIND };
    ensure!(host_in(&vm).as_deref() == Some(host), "{:#}", vm["status"]["binding"]);
    let address = vm["status"]["interfaces"][0]["address"].as_str().context("no address")?.to_owned();
    let from = fleet.member(host)?.namespace();
    let text = http::get_within(from, &address, "/cgi-bin/uptime", ANSWER)?;
    let (boot, process) = (field(&text, "boot_id")?.to_owned(), vm["status"]["process"].clone());
    Ok(Running { host, address, boot, process })
}

/// Checks that process and boot of the VM that is named after its host are unchanged.
fn goes_on(fleet: &Fleet, guest: &Running) -> Result<()> {
    let vm = fleet.kubectl().condition(&format!("vm/{}", guest.host), "Ready=True", None, SOON)?;
    let process = &vm["status"]["process"];
    ensure!(*process == guest.process, "{process:#}, before {:#}", guest.process);
    let from = fleet.member(guest.host)?.namespace();
    let text = http::get(from, &guest.address, "/cgi-bin/uptime", SOON)?;
    ensure!(field(&text, "boot_id")? == guest.boot, "the guest rebooted: {text}");
    Ok(())
}

/// The message of a host's condition that its CRDs are not current, once the condition is set and `Ready` is as expected.
fn not_current(fleet: &Fleet, host: &str, reason: &str, ready: &str) -> Result<String> {
    wait::until(&format!("host {host} to say {reason}"), ANSWER, || {
        let object = fleet.kubectl().object("host", host)?;
        let status = |kind: &str| condition_of(&object, kind).map(|found| found["status"].clone());
        ensure!(status("Ready") == Some(json!(ready)), "{:#}", object["status"]["conditions"]);
        let found = condition_of(&object, CURRENT).context("the condition is missing")?;
        ensure!(found["status"] == "False" && found["reason"] == reason, "{found:#}");
        Ok(found["message"].as_str().unwrap_or_default().to_owned())
    })
}

/// Runs `during` while the guests are polled for their page, each from its own host.
fn watched(
    fleet: &mut Fleet,
    guests: &[Running],
    during: impl FnOnce(&mut Fleet) -> Result<()>,
) -> Result<()> {
    let from = guests
        .iter()
        .map(|guest| Ok(Arc::clone(fleet.member(guest.host)?.namespace())))
        .collect::<Result<Vec<_>>>()?;
    let asked: Vec<_> = from.iter().zip(guests).map(|(from, guest)| (from, guest.address.as_str())).collect();
    let access = fleet.access()?;
    watch(&asked, access, || during(fleet))
}
