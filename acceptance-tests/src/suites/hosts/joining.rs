//! Valid and invalid tokens, hosts that join twice, and hosts that leave.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::SOON;
use crate::berth::Berth;
use crate::fleet::Fleet;
use crate::process;
use crate::report::Report;
use crate::suites::kubectl::contains_all;

/// The time limit until an agent reports that it may not join.
const REFUSAL: Duration = Duration::from_secs(60);

/// Runs the cases; afterwards the fleet has the same hosts as before.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case("each host reports its address, what it has and what is free, and its labels", || {
        for member in fleet.members() {
            let host = fleet.kubectl().object("host", &member.name)?;
            let status = &host["status"];
            ensure!(status["address"] == member.address.as_str(), "{:#}", status["address"]);
            for amounts in ["capacity", "allocatable", "free"] {
                ensure!(
                    status[amounts]["cpus"].as_i64().is_some_and(|cpus| cpus > 0),
                    "{amounts}: {status:#}"
                );
                ensure!(status[amounts]["memory"].is_string(), "{amounts}: {status:#}");
            }
            ensure!(host["metadata"]["labels"]["kubernetes.io/hostname"] == member.name.as_str(), "{host:#}");
        }
        let host = fleet.kubectl().object("host", "h2")?;
        ensure!(host["metadata"]["labels"]["topology.kubernetes.io/zone"] == "b", "{host:#}");
        let list = fleet.administrator().run(&["host", "list"])?.success()?;
        contains_all(&list, &["h1", "h2", "h3"])
    });
    report.case("a revoked token is refused, with a reason", || {
        let token = fleet.administrator().token("h8")?;
        fleet.administrator().revoke("h8")?;
        refused(fleet, 8, &token, None, &["revoked"])?;
        fleet.kubectl().refused(&["get", "host", "h8"]).map(drop)
    });
    report.case("another host's token is refused under a name of one's own", || {
        let token = fleet.administrator().token("h8")?;
        refused(fleet, 9, &token, Some("h9"), &["h8", "h9"])?;
        fleet.administrator().revoke("h8")?;
        fleet.kubectl().refused(&["get", "host", "h9"]).map(drop)
    });
    report.case("a second machine cannot be a host that is there already, which goes on", || {
        let token = fleet.administrator().token("h2")?;
        refused(fleet, 7, &token, Some("h2"), &["h2"])?;
        let kubectl = fleet.kubectl().clone();
        fleet.member_mut("h2")?.berth.must_run()?;
        kubectl.condition("host/h2", "Ready=True", None, SOON).map(drop)
    });
    report.case(
        "an agent on a copy of a host's state directory starts nothing and ends, and the host goes on",
        || {
            copied(fleet)?;
            let kubectl = fleet.kubectl().clone();
            fleet.member_mut("h2")?.berth.must_run()?;
            kubectl.condition("host/h2", "Ready=True", None, SOON).map(drop)
        },
    );
    if fleet.is_embedded() {
        second_up(report, fleet);
    }
}

/// Starts an agent that must end with 1 and print all of `words`.
fn refused(fleet: &Fleet, number: u32, token: &str, name: Option<&str>, words: &[&str]) -> Result<()> {
    let mut stranger = fleet.machine(number)?;
    if let Some(name) = name {
        stranger.berth = stranger.berth.named(name);
    }
    stranger.berth.spawn_joined(Some(token), &[])?;
    let (code, text) = stranger.berth.ended(REFUSAL)?;
    ensure!(code == Some(1), "it ended with {code:?}: {text}");
    contains_all(&text, words)
}

/// Starts an agent on another machine with a copy of host h2's state directory.
fn copied(fleet: &Fleet) -> Result<()> {
    let mut copy = fleet.machine(6)?;
    copy.berth = copy.berth.named("h2");
    std::fs::create_dir_all(copy.berth.state())?;
    let mut duplicate = Command::new("cp");
    duplicate.arg("-a").arg(fleet.member("h2")?.berth.state().join(".")).arg(copy.berth.state());
    process::run(&mut duplicate, SOON)?.success()?;
    copy.berth.spawn_joined(None, &[])?;
    let (code, text) = copy.berth.ended(REFUSAL)?;
    ensure!(code == Some(1), "it ended with {code:?}: {text}");
    contains_all(&text, &["h2"])
}

fn second_up(report: &mut Report, fleet: &Fleet) {
    let again = |state: &str, log: &str| -> Result<Berth> {
        let first = &fleet.member("h1")?.berth;
        let state =
            if state.is_empty() { first.state().to_owned() } else { first.state().with_file_name(state) };
        let program = first.program();
        Ok(Berth::new(program, first.machine(), &state, "198.51.100.0/28", &first.log().with_file_name(log))
            .listening_on("127.0.0.1:7543"))
    };
    report.case("a second berth up with the same state directory is refused, and the first goes on", || {
        let mut second = again("", "second.log")?;
        second.spawn_up()?;
        let (code, text) = second.ended(REFUSAL)?;
        ensure!(code == Some(1), "it ended with {code:?}: {text}");
        contains_all(&text, &[second.state().to_str().context("a path")?])?;
        fleet.kubectl().condition("host/h1", "Ready=True", None, SOON).map(drop)
    });
    report.case("a second berth up on the same machine is refused, and the first goes on", || {
        let mut second = again("other", "other.log")?;
        second.spawn_up()?;
        let (code, text) = second.ended(REFUSAL)?;
        ensure!(code == Some(1), "it ended with {code:?}: {text}");
        contains_all(&text, &["machine"])?;
        fleet.kubectl().condition("host/h1", "Ready=True", None, SOON).map(drop)
    });
}

/// A host that leaves for good.
pub fn forget(report: &mut Report, fleet: &mut Fleet) {
    report.case("a host is forgotten, and what it joined with ends", || {
        fleet.administrator().host("cordon", "h4")?.success()?;
        fleet.member_mut("h4")?.berth.stop()?;
        fleet.administrator().host("forget", "h4")?.success()?;
        fleet.kubectl().refused(&["get", "host", "h4"])?;
        let member = fleet.member_mut("h4")?;
        member.berth.spawn_joined(None, &[])?;
        let (code, text) = member.berth.ended(REFUSAL)?;
        ensure!(code == Some(1), "it ended with {code:?}: {text}");
        fleet.kubectl().refused(&["get", "host", "h4"]).map(drop)
    });
}
