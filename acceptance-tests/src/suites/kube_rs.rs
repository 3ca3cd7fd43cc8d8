//! kube-rs's own integration tests against `berth up`.

use std::time::Duration;

use anyhow::Result;

use super::Kit;
use crate::access::Access;
use crate::kube_rs::{self, CRATES};
use crate::namespace::Namespace;
use crate::process::Daemon;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::{wait, workspace};

const READY: Duration = Duration::from_secs(60);

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let berth = report.step("berth is built", || kit.binaries())?.berth;
    let programs = report.step("kube-rs's tests are built", || kit.kube_rs())?;
    let (folder, namespace) = (Scratch::new()?, Namespace::new()?);
    let kubeconfig = folder.path().join("admin.kubeconfig");
    let mut up = namespace.command(&berth);
    up.args(["up", "--no-agent", "--state-dir"]).arg(folder.path());
    let log = workspace::artifacts().join("kube-rs/up.log");
    let mut up = Daemon::spawn("berth up --no-agent", &mut up, &log)?;
    report.step("a control plane is up", || {
        wait::until("the control plane", READY, || {
            up.must_run()?;
            Access::read(&kubeconfig, &namespace)?.connect()?.get("/readyz")
        })
    })?;
    for tested in CRATES {
        for test in tested.tests {
            report.case(&format!("{}: {test}", tested.name), || {
                kube_rs::run(&programs[tested.name], test, &kubeconfig, &namespace)
            });
        }
    }
    Ok(())
}
