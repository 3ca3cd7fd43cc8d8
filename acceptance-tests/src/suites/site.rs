//! Sites for suites whose cases run on either control plane.

use anyhow::Result;

use super::Kit;
use crate::fleet::Fleet;
use crate::platform::{HostLogin, Parts, Platform};
use crate::report::Report;

/// The control plane of a suite's site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlPlane {
    /// That of `berth up`.
    Embedded,
    /// A real kube-apiserver with etcd. Each host has an account of its own there, with the rights of a host and no more.
    Kubernetes,
}

impl ControlPlane {
    /// The name of the suite that runs the cases of `suite` on this control plane.
    pub fn suite(self, suite: &str) -> String {
        match self {
            Self::Embedded => suite.to_owned(),
            Self::Kubernetes => format!("{suite}-kubernetes"),
        }
    }

    /// Starts a site of one host.
    pub fn platform(self, kit: &Kit, report: &mut Report, parts: &Parts) -> Result<Platform> {
        if self == Self::Embedded {
            return report.step("berth up is ready", || Platform::embedded(parts));
        }
        on_kubernetes(kit, report, parts, HostLogin::Joined)
    }

    /// Starts the control plane of several hosts: `berth up` with its own host, or kube-apiserver with none.
    pub fn fleet(self, kit: &Kit, report: &mut Report, parts: &Parts) -> Result<Fleet> {
        if self == Self::Embedded {
            return report
                .step("berth up serves its segment, and its own host is ready", || Fleet::embedded(parts));
        }
        let programs = report.step("kube-apiserver is built from source", || kit.kubernetes())?;
        report.step("kube-apiserver serves the segment, with berth's definitions", || {
            Fleet::kubernetes(parts, &programs)
        })
    }
}

/// Starts a site of one host on a real kube-apiserver with etcd.
pub fn on_kubernetes(kit: &Kit, report: &mut Report, parts: &Parts, login: HostLogin) -> Result<Platform> {
    let programs = report.step("kube-apiserver is built from source", || kit.kubernetes())?;
    let mut platform =
        report.step("etcd and kube-apiserver serve", || Platform::kubernetes(parts, &programs, login))?;
    report.step("the CRDs, policies and roles apply, and controllers and host start", || {
        platform.install_on_kubernetes()
    })?;
    Ok(platform)
}
