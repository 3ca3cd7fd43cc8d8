//! Two builds of berth under the same running guests: this version, the next one, and this one again.
//!
//! ```text
//! one host        N ──SIGTERM──▶ N+1 ──kill -9──▶ N
//! several hosts   control plane N:   hosts N, N+1     control plane N+1:   hosts N, N+1     then all N+1
//! ```

pub mod one_host;
pub mod several_hosts;
pub mod witness;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Kit;
use crate::guests::GuestImage;
use crate::kubectl::{Kubectl, condition_of};
use crate::next_version::{self, NextVersion};
use crate::platform::Parts;
use crate::report::{Report, note};

/// The time limit for a guest that boots beside others on two emulating processors.
const ANSWER: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// The label with the version of a CRD.
const VERSION_LABEL: &str = "berth.dev/version";
/// The condition of a host that reports whether the CRDs have the version of its agent.
const CURRENT: &str = "DefinitionsCurrent";

/// The prerequisites of both parts.
#[derive(Debug)]
pub struct Versions {
    parts: Parts,
    guest: GuestImage,
    /// The version of this build.
    this: String,
    next: NextVersion,
}

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("upgrade"))?;
    let next = report.step("berth is built of the next version too", || kit.next_version())?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let this = next_version::version_of(&parts.binaries.berth)?;
    note(&format!("    {this} and {}", next.version));
    let within = |folder: &str| Parts { logs: parts.logs.join(folder), ..parts.clone() };
    let versions = |folder| Versions {
        parts: within(folder),
        guest: guest.clone(),
        this: this.clone(),
        next: next.clone(),
    };
    let first = one_host::run(report, &versions("one-host"));
    several_hosts::run(report, &versions("several-hosts"))?;
    first
}

/// Checks that a host reports this version of its agent.
fn host_is_of(kubectl: &Kubectl, host: &str, version: &str) -> Result<()> {
    kubectl
        .until(&format!("host/{host}"), &format!("to be of {version}"), SOON, |host| {
            host["status"]["version"] == version
        })
        .map(drop)
}

/// Checks that all of berth's CRDs have this version and are established.
fn definitions_are_of(kubectl: &Kubectl, version: &str) -> Result<()> {
    let text = kubectl.ok(&["get", "crds", "-o", "json"])?;
    let list: Value = serde_json::from_str(&text).context("kubectl printed no JSON")?;
    let all = list["items"].as_array().context("no list")?;
    let name = |definition: &Value| definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let ours: Vec<&Value> = all.iter().filter(|found| name(found).ends_with(".berth.dev")).collect();
    ensure!(!ours.is_empty(), "there are no definitions of berth's");
    for definition in ours {
        let label = &definition["metadata"]["labels"][VERSION_LABEL];
        ensure!(label == version, "{} is of {label}", name(definition));
        let established = condition_of(definition, "Established");
        ensure!(established.is_some_and(|found| found["status"] == "True"), "{}", name(definition));
    }
    Ok(())
}

/// Checks that a host's agent and the CRDs have the same version.
fn host_is_current(kubectl: &Kubectl, host: &str) -> Result<()> {
    kubectl
        .until(&format!("host/{host}"), "ready, with definitions of its version", ANSWER, |host| {
            condition_of(host, CURRENT).is_none()
                && condition_of(host, "Ready").is_some_and(|ready| ready["status"] == "True")
        })
        .map(drop)
}
