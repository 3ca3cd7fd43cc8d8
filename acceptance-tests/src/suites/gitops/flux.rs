//! Flux: the application is an OCI artifact that source-controller fetches and kustomize-controller applies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{CONVERGED, Site, application};
use crate::kubectl::condition_of;
use crate::oci_registry::OciRegistry;
use crate::process::Daemon;
use crate::report::Report;
use crate::wait;

/// The time limit of a start: the controllers first list and watch their kinds.
const START: Duration = Duration::from_secs(90);
/// The address at which source-controller serves the artifacts that it fetched.
const ARTIFACTS: &str = "127.0.0.1:9790";
const ARTIFACT: &str = "web";
const TAG: &str = "latest";

pub(super) fn run(report: &mut Report, site: &Site) -> Result<()> {
    report.step("Flux: its definitions are taken and established", || define(site))?;
    let mut controllers =
        report.step("Flux: source-controller and kustomize-controller start", || Controllers::start(site))?;
    let registry = report.step("Flux: an artifact is pushed", || OciRegistry::start(&site.machine))?;
    report.step("Flux: a Kustomization creates everything and is Ready when all of it is", || {
        let digest = push(site, &registry, &application::version_1(&site.image))?;
        site.kubectl.apply(&declaration(site, &registry))?;
        applied(site, &digest).inspect_err(|_| controllers.note_logs())?;
        for (kind, name) in application::OBJECTS {
            let object = site.kubectl.object(kind, name)?;
            let ready = condition_of(&object, "Ready").is_some_and(|ready| ready["status"] == "True");
            ensure!(ready, "{kind} {name} was not ready when Flux reported it: {:#}", object["status"]);
        }
        Ok(())
    })?;
    report.case("Flux: drift is put right by itself", || {
        site.drift()?;
        site.drift_is_put_right()
    });
    report.case("Flux: an object deleted behind its back comes again", || {
        let before = site.uid("vm", "web")?;
        site.kubectl.ok(&["delete", "vm/web", "--wait=false"])?;
        wait::until("another VM", CONVERGED, || {
            ensure!(site.uid("vm", "web")? != before, "it is the old one");
            Ok(())
        })?;
        site.all_ready()
    });
    report.case("Flux: a new version is taken up, and what it no longer has is pruned", || {
        let digest = push(site, &registry, &application::version_2(&site.image))?;
        applied(site, &digest)?;
        site.cpus(2)?;
        site.gone("disk", "web-data")?;
        site.all_ready()
    });
    report.case("Flux: a rollback brings back the first version", || {
        let digest = push(site, &registry, &application::version_1(&site.image))?;
        applied(site, &digest)?;
        site.cpus(1)?;
        site.kubectl.condition("disk/web-data", "Ready=True", None, CONVERGED)?;
        site.all_ready()
    });
    report.case("Flux: deleting the Kustomization deletes all of it at once", || {
        site.kubectl.ok(&["delete", "kustomization.kustomize.toolkit.fluxcd.io/web", "--timeout=60s"])?;
        site.all_gone()
    });
    report.case("Flux: its controllers ran all the time and end when asked", || {
        site.kubectl.ok(&["delete", "ocirepository/web", "--timeout=60s"])?;
        controllers.must_run()?;
        controllers.stop()
    });
    Ok(())
}

fn define(site: &Site) -> Result<()> {
    let files = site.clients.flux_definitions()?;
    ensure!(!files.is_empty(), "there are none");
    for file in files {
        let file = file.to_str().context("a path that is no text")?;
        site.kubectl.ok(&["apply", "--server-side", "-f", file])?;
    }
    for kind in ["ocirepositories.source.toolkit.fluxcd.io", "kustomizations.kustomize.toolkit.fluxcd.io"] {
        site.kubectl.ok(&["wait", "crd", kind, "--for=condition=Established", "--timeout=60s"])?;
    }
    Ok(())
}

/// Pushes these objects under the artifact's tag. Returns the digest.
fn push(site: &Site, registry: &OciRegistry, objects: &[Value]) -> Result<String> {
    let folder = site.folder.join("artifact");
    application::write(&folder, objects)?;
    registry.push(ARTIFACT, TAG, &folder)
}

fn declaration(site: &Site, registry: &OciRegistry) -> String {
    let source = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "OCIRepository", "metadata": {"name": "web"},
        "spec": {"interval": "2s", "url": registry.url(ARTIFACT), "insecure": true, "ref": {"tag": TAG}},
    });
    let kustomization = json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization", "metadata": {"name": "web"},
        "spec": {
            "interval": "5s", "retryInterval": "2s", "timeout": "60s", "prune": true, "wait": true, "path": "./",
            "targetNamespace": site.within, "sourceRef": {"kind": "OCIRepository", "name": "web"},
        },
    });
    crate::manifests::all(&[source, kustomization])
}

/// Waits until the Kustomization is Ready with the artifact of this digest.
fn applied(site: &Site, digest: &str) -> Result<()> {
    let kind = "kustomization.kustomize.toolkit.fluxcd.io";
    site.kubectl
        .until(&format!("{kind}/web"), &format!("Ready with {digest}"), CONVERGED, |object| {
            let revision = object["status"]["lastAppliedRevision"].as_str();
            let ready = condition_of(object, "Ready").is_some_and(|ready| ready["status"] == "True");
            ready && revision.is_some_and(|revision| revision.ends_with(digest))
        })
        .map(drop)
}

struct Controllers {
    source: Daemon,
    kustomize: Daemon,
}

impl Controllers {
    fn start(site: &Site) -> Result<Self> {
        let start = |name: &str, ports: [&str; 2], more: &[String]| {
            let mut command = site.command(name);
            command.env("RUNTIME_NAMESPACE", site.within).env("TMPDIR", &site.folder);
            command.args([
                "--metrics-addr",
                ports[0],
                "--health-addr",
                ports[1],
                "--log-encoding",
                "console",
            ]);
            command.args(more);
            Daemon::spawn(name, &mut command, &site.logs.join(format!("{name}.log")))
        };
        let storage = site.folder.join("artifacts");
        std::fs::create_dir_all(&storage)?;
        let storage = [
            format!("--storage-path={}", storage.display()),
            format!("--storage-addr={ARTIFACTS}"),
            format!("--storage-adv-addr={ARTIFACTS}"),
        ];
        let mut controllers = Self {
            source: start("source-controller", ["127.0.0.1:9791", "127.0.0.1:9792"], &storage)?,
            kustomize: start("kustomize-controller", ["127.0.0.1:9793", "127.0.0.1:9794"], &[])?,
        };
        for port in [9792, 9794] {
            wait::until("a Flux controller to be healthy", START, || {
                controllers.must_run()?;
                site.machine.inside(move || Ok(std::net::TcpStream::connect(("127.0.0.1", port))?)).map(drop)
            })?;
        }
        Ok(controllers)
    }

    fn must_run(&mut self) -> Result<()> {
        self.source.must_run()?;
        self.kustomize.must_run()
    }

    fn note_logs(&self) {
        for daemon in [&self.source, &self.kustomize] {
            crate::report::note(&daemon.log_tail());
        }
    }

    fn stop(self) -> Result<()> {
        for daemon in [self.kustomize, self.source] {
            let status = daemon.terminate(Duration::from_secs(60))?;
            ensure!(status.success(), "{status}");
        }
        Ok(())
    }
}
