//! Tokens good and bad, hosts that come twice, and hosts that go.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::SOON;
use crate::berth::Berth;
use crate::fleet::Fleet;
use crate::lanes::kubectl::says;
use crate::report::Report;

/// How long an agent that may not join may take to say so.
const REFUSAL: Duration = Duration::from_secs(60);

/// Runs the cases; only the hosts that were there are there after them.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case("each host tells its address, what it has and what is free, and its labels", || {
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
        says(&list, &["h1", "h2", "h3"])
    });
    report.case("a revoked token is refused, and why is said", || {
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
        kubectl.condition("host", "h2", "Ready", "True", None, SOON).map(drop)
    });
    if fleet.is_embedded() {
        second_up(report, fleet);
    }
}

/// Starts an agent that must end with 1 and say all of `words`.
fn refused(fleet: &Fleet, number: u32, token: &str, name: Option<&str>, words: &[&str]) -> Result<()> {
    let mut stranger = fleet.machine(number)?;
    if let Some(name) = name {
        stranger.berth = stranger.berth.named(name);
    }
    stranger.berth.spawn_joined(Some(token), &[])?;
    let (code, said) = stranger.berth.ended(REFUSAL)?;
    ensure!(code == Some(1), "it ended with {code:?}: {said}");
    says(&said, words)
}

fn second_up(report: &mut Report, fleet: &Fleet) {
    let again = |state: &str, log: &str| -> Result<Berth> {
        let first = &fleet.member("h1")?.berth;
        let state =
            if state.is_empty() { first.state().to_owned() } else { first.state().with_file_name(state) };
        let program = first.program();
        Ok(Berth::new(program, first.machine(), &state, "198.51.100.0/28", &first.log().with_file_name(log))
            .listening_on("127.0.0.1:7444"))
    };
    report.case("a second berth up with the same state directory is refused, and the first goes on", || {
        let mut second = again("", "second.log")?;
        second.spawn_up()?;
        let (code, said) = second.ended(REFUSAL)?;
        ensure!(code == Some(1), "it ended with {code:?}: {said}");
        says(&said, &[second.state().to_str().context("a path")?])?;
        fleet.kubectl().condition("host", "h1", "Ready", "True", None, SOON).map(drop)
    });
    report.case("a second berth up on the same machine is refused, and the first goes on", || {
        let mut second = again("other", "other.log")?;
        second.spawn_up()?;
        let (code, said) = second.ended(REFUSAL)?;
        ensure!(code == Some(1), "it ended with {code:?}: {said}");
        says(&said, &["machine"])?;
        fleet.kubectl().condition("host", "h1", "Ready", "True", None, SOON).map(drop)
    });
}

/// A host that goes for good.
pub fn forget(report: &mut Report, fleet: &mut Fleet) {
    report.case("a host is forgotten, and what it joined with ends", || {
        fleet.administrator().host("cordon", "h4")?.success()?;
        fleet.member_mut("h4")?.berth.stop()?;
        fleet.administrator().host("forget", "h4")?.success()?;
        fleet.kubectl().refused(&["get", "host", "h4"])?;
        let member = fleet.member_mut("h4")?;
        member.berth.spawn_joined(None, &[])?;
        let (code, said) = member.berth.ended(REFUSAL)?;
        ensure!(code == Some(1), "it ended with {code:?}: {said}");
        fleet.kubectl().refused(&["get", "host", "h4"]).map(drop)
    });
}
