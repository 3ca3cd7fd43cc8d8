//! Clients that reconcile a cluster with files: Flux, Helm 3 and 4, Argo's engine. Each installs the same application in a
//! namespace of its own, side by side on one `berth up`, and takes it through its life cycle: create, health, drift, upgrade,
//! rollback, prune, uninstall. Its VM stays stopped: the tests cover the clients' view of the objects.

mod application;
mod argo;
mod flux;
mod helm;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::application::Image;
use super::Kit;
use crate::image_server::Content;
use crate::kubectl::Kubectl;
use crate::namespace::Namespace;
use crate::platform::{Parts, Platform};
use crate::process;
use crate::report::{Report, note};
use crate::tools::GitopsClients;

/// The time limit until a client has converged: the clients and a control plane share the processors.
const CONVERGED: Duration = Duration::from_secs(120);

type Scenario = fn(&mut Report, &Site) -> Result<()>;

/// The parts of the site that a client's scenario uses.
struct Site {
    clients: GitopsClients,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    machine: Arc<Namespace>,
    /// The namespace of the client's objects.
    within: &'static str,
    folder: PathBuf,
    logs: PathBuf,
    image: Image,
}

impl Site {
    /// A command of one of the clients, on the host, with a home folder of its own.
    fn command(&self, program: &str) -> Command {
        let mut command = self.machine.command(self.clients.program(program));
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.folder).current_dir(&self.folder);
        command
    }

    /// Waits until all objects of the application are ready.
    fn all_ready(&self) -> Result<()> {
        for (kind, name) in application::OBJECTS {
            self.kubectl.condition(&format!("{kind}/{name}"), "Ready=True", None, CONVERGED)?;
        }
        Ok(())
    }

    /// Waits until none of the application's objects is left.
    fn all_gone(&self) -> Result<()> {
        crate::wait::until("every object to go", CONVERGED, || {
            let left = self.kubectl.ok(&["get", application::KINDS, "-o", "name"])?;
            ensure!(left.trim().is_empty(), "left are:\n{left}");
            Ok(())
        })
    }

    /// Waits until an object is gone.
    fn gone(&self, kind: &str, name: &str) -> Result<()> {
        crate::wait::until(&format!("{kind} {name} to go"), CONVERGED, || {
            let left = self.kubectl.ok(&["get", kind, name, "--ignore-not-found", "-o", "yaml"])?;
            ensure!(left.trim().is_empty(), "it is there:\n{left}");
            Ok(())
        })
    }

    /// Changes the VM without the client.
    fn drift(&self) -> Result<()> {
        let patch = r#"{"spec":{"restartPolicy":"Never"}}"#;
        self.kubectl.ok(&["patch", "vm", "web", "--type=merge", "-p", patch]).map(drop)
    }

    /// Waits until the client has corrected the drift.
    fn drift_is_put_right(&self) -> Result<()> {
        self.kubectl
            .until("vm/web", "restartPolicy OnFailure", CONVERGED, |vm| {
                vm["spec"]["restartPolicy"] == "OnFailure"
            })
            .map(drop)
    }

    fn cpus(&self, cpus: u32) -> Result<()> {
        self.kubectl
            .until("vmclass/small", &format!("{cpus} CPUs"), CONVERGED, |class| class["spec"]["cpus"] == cpus)
            .map(drop)
    }

    fn uid(&self, kind: &str, name: &str) -> Result<String> {
        let object = self.kubectl.object(kind, name)?;
        Ok(object["metadata"]["uid"].as_str().context("no uid")?.to_owned())
    }
}

/// Runs the suite `gitops`.
pub fn helm_and_argo(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("gitops"))?;
    let clients = report.step("Helm and Argo's engine are built from source", || kit.helm_and_argo())?;
    run(&parts, &clients, &[("helm-3", helm::three), ("helm-4", helm::four), ("argo", argo::run)], report)
}

/// Runs the suite `flux`.
pub fn flux(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("flux"))?;
    let clients = report.step("Flux's controllers are built from source", || kit.flux())?;
    run(&parts, &clients, &[("flux", flux::run)], report)
}

/// Runs the scenarios side by side, each in the namespace of this name.
fn run(
    parts: &Parts,
    clients: &GitopsClients,
    scenarios: &[(&'static str, Scenario)],
    report: &mut Report,
) -> Result<()> {
    let platform = report.step("berth up serves", || Platform::embedded(parts))?;
    let image = report.step("an image is served", || serve_image(&platform))?;
    let before = report.count().failed;
    let mut sites = Vec::new();
    for &(name, scenario) in scenarios {
        let site = report.step(&format!("namespace {name} is made"), || {
            platform.kubectl().ok(&["create", "namespace", name])?;
            let folder = platform.folder().join(name);
            std::fs::create_dir_all(&folder)?;
            Ok(Site {
                clients: clients.clone(),
                kubectl: platform.kubectl().within(name),
                kubeconfig: platform.host().kubeconfig(),
                machine: Arc::clone(platform.namespace()),
                within: name,
                folder,
                logs: parts.logs.clone(),
                image: image.clone(),
            })
        })?;
        sites.push((site, scenario));
    }
    std::thread::scope(|scope| {
        let output: Vec<_> =
            sites.iter().map(|(site, scenario)| scope.spawn(|| report_of(site, *scenario))).collect();
        for scenario in output {
            match scenario.join() {
                Ok(one) => report.join(one),
                Err(_) => report.failed("a scenario panicked"),
            }
        }
    });
    if report.count().failed > before {
        note(&platform.keep_evidence());
    }
    Ok(())
}

fn report_of(site: &Site, scenario: Scenario) -> Report {
    let mut report = Report::new();
    // A failed step is counted, and the scenario ends there.
    if let Err(error) = scenario(&mut report, site)
        && report.count().failed == 0
    {
        report.failed(&format!("{}: {error:#}", site.within));
    }
    report
}

/// An image that is never booted.
fn serve_image(platform: &Platform) -> Result<Image> {
    let path = platform.folder().join("system.qcow2");
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("16M");
    process::run(&mut create, Duration::from_secs(30))?.success()?;
    let sha256 = sha256_of(&path)?;
    Ok(Image { url: platform.images().put("system.qcow2", Content::File(path)), sha256 })
}

fn sha256_of(path: &Path) -> Result<String> {
    let sums =
        process::run(Command::new("sha256sum").arg("--").arg(path), Duration::from_secs(30))?.success()?;
    Ok(sums.split_whitespace().next().unwrap_or_default().to_owned())
}
