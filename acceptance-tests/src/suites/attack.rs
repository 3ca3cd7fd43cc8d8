//! Attacks by a tenant (an editor of one namespace), by a guest, and by faulty clients: each case shows that a boundary of
//! `docs/security.md` holds. The same on `berth up` and on a real Kubernetes control plane.

mod api;
mod deletion;
mod images;
mod isolation;
mod networks;
mod tenant;

use anyhow::Result;

use super::{Kit, site};
use crate::guests::GuestImage;
use crate::platform::{HostLogin, Platform};
use crate::report::Report;

/// On `berth up`.
pub fn embedded(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("attack"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = report.step("berth up serves", || Platform::embedded(&parts))?;
    chapters(report, &mut platform, &guest)
}

/// On etcd and kube-apiserver.
pub fn kubernetes(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("attack-kubernetes"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = site::on_kubernetes(kit, report, &parts, HostLogin::Administrator)?;
    chapters(report, &mut platform, &guest)
}

fn chapters(report: &mut Report, platform: &mut Platform, guest: &GuestImage) -> Result<()> {
    let revoked = platform.is_embedded().then(|| api::RevokedWatch::begin(platform));
    api::run(report, platform);
    images::run(report, platform, guest);
    if let Some(revoked) = revoked {
        report.case("a watch ends within a minute of the end of its token", || revoked?.ends());
    }
    networks::run(report, platform, guest);
    deletion::run(report, platform, guest);
    isolation::run(report, platform, guest)
}
