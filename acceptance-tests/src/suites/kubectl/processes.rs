//! The process of `berth up`: its files, its end and its next start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::contains_all;
use crate::platform::Platform;
use crate::report::Report;
use crate::{manifests, process};

/// Runs the cases. Each ends with `berth up` running.
pub(super) fn cases(report: &mut Report, platform: &mut Platform) {
    report.case("the kubeconfig is readable by its owner only", || {
        let mode = fs::metadata(platform.host().kubeconfig())?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "{mode:o}");
        Ok(())
    });
    report.case("a second berth up on the same directory is refused", || {
        let started = Instant::now();
        let text = process::run(&mut platform.host().up_command(), Duration::from_secs(30))?.failure()?;
        ensure!(started.elapsed() < Duration::from_secs(15), "it took {:?}", started.elapsed());
        contains_all(&text, &[&platform.host().state().display().to_string()])
    });
    report.case("SIGTERM stops berth up cleanly; after a restart every object is there", || {
        platform.kubectl().apply(&manifests::class("survivor", 1, "64Mi").to_string())?;
        let uid = platform.kubectl().object("vmclass", "survivor")?["metadata"]["uid"].clone();
        platform.stop()?;
        platform.start()?;
        ensure!(platform.kubectl().object("vmclass", "survivor")?["metadata"]["uid"] == uid);
        Ok(())
    });
    report.case("a damaged database is refused with its path and left as it is", || {
        platform.stop()?;
        let database = platform.host().state().join("control-plane/berth.db");
        let whole = fs::read(&database)?;
        let mut damaged = whole.clone();
        damaged[..64].fill(0x55);
        fs::write(&database, &damaged)?;
        let text = process::run(&mut platform.host().up_command(), Duration::from_secs(30))?.failure()?;
        ensure!(fs::read(&database)? == damaged, "the damaged file was written to");
        fs::write(&database, &whole)?;
        contains_all(&text, &["berth.db"])?;
        platform.start()
    });
    report.case("berth crds prints what a Kubernetes cluster needs", || {
        let text = platform.host().crds()?;
        contains_all(
            &text,
            &["CustomResourceDefinition", "ValidatingAdmissionPolicy", "ClusterRole", "vms.berth.dev"],
        )?;
        Ok(())
    });
}
