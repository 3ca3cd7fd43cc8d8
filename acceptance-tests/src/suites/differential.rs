//! Sends the same requests to both control planes.

use anyhow::Result;

use super::Kit;
use crate::report::Report;
use crate::{differential, workspace};

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let berth = report.step("berth is built", || kit.binaries())?.berth;
    let programs = report.step("kube-apiserver is built from source", || kit.kubernetes())?;
    let kubectl = kit.kubectl()?;
    differential::run(report, &berth, &programs, &kubectl, &workspace::artifacts().join("differential"))
}
