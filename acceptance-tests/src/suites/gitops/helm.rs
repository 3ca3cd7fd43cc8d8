//! Helm 3 and Helm 4: the application is a chart.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{CONVERGED, Site, application};
use crate::process;
use crate::report::Report;

/// The time limit of a command: more than Helm's own `--timeout`.
const LIMIT: Duration = Duration::from_secs(180);

const CHART: &str = "apiVersion: v2\nname: web\nversion: 0.1.0\n";

const VALUES: &str = "\
cpus: 1
data: true
image:
  url: to be set
  sha256: to be set
";

const TEMPLATE: &str = r#"apiVersion: berth.dev/v1alpha1
kind: VMClass
metadata: {name: small}
spec:
  cpus: {{ .Values.cpus }}
  memory: 64Mi
---
apiVersion: berth.dev/v1alpha1
kind: Image
metadata: {name: system}
spec:
  source:
    url: {{ .Values.image.url | quote }}
    sha256: {{ .Values.image.sha256 | quote }}
---
apiVersion: berth.dev/v1alpha1
kind: Disk
metadata: {name: web-root}
spec: {image: system, size: 32Mi}
---
apiVersion: berth.dev/v1alpha1
kind: PlacementGroup
metadata: {name: web}
spec: {strategy: spread}
---
apiVersion: berth.dev/v1alpha1
kind: PublicIP
metadata: {name: web}
spec: {pool: default}
{{- if .Values.data }}
---
apiVersion: berth.dev/v1alpha1
kind: Disk
metadata: {name: web-data}
spec: {size: 16Mi}
{{- end }}
---
apiVersion: berth.dev/v1alpha1
kind: VM
metadata: {name: web}
spec:
  class: small
  power: Stopped
  restartPolicy: OnFailure
  stop: {mode: Hard}
  placement: {group: web}
  networkInterfaces:
    - {name: nic0, publicIP: web}
  disks:
    - {name: web-root, boot: true}
    {{- if .Values.data }}
    - {name: web-data}
    {{- end }}
---
apiVersion: berth.dev/v1alpha1
kind: Disk
metadata: {name: web-hot}
spec: {size: 16Mi}
---
apiVersion: berth.dev/v1alpha1
kind: HotswapDiskAttachment
metadata: {name: web-hot}
spec: {vm: web, disk: web-hot}
"#;

/// The differences between the two major versions.
struct Major {
    program: &'static str,
    name: &'static str,
    /// The flags that make an upgrade overwrite fields that others have changed since.
    overwrites: &'static [&'static str],
    /// The flags that make an upgrade replace objects instead of patching them.
    replaces: &'static [&'static str],
}

/// Helm 3 patches custom resources with the changes between two versions of a chart: only `--force` corrects drift.
const THREE: Major =
    Major { program: "helm-3", name: "Helm 3", overwrites: &["--force"], replaces: &["--force"] };

/// Helm 4 uses server-side apply, where another manager's change is a conflict.
const FOUR: Major = Major {
    program: "helm-4",
    name: "Helm 4",
    overwrites: &["--force-conflicts"],
    replaces: &["--server-side=false", "--force-replace"],
};

pub(super) fn three(report: &mut Report, site: &Site) -> Result<()> {
    cases(report, site, &THREE)
}

pub(super) fn four(report: &mut Report, site: &Site) -> Result<()> {
    cases(report, site, &FOUR)
}

fn cases(report: &mut Report, site: &Site, major: &Major) -> Result<()> {
    let helm = |arguments: &[&str]| helm(site, major, arguments);
    let name = major.name;
    report.step(
        &format!("{name}: install --wait creates everything, and all of it becomes ready"),
        || {
            write_chart(site)?;
            let url = format!("image.url={}", site.image.url);
            let sha256 = format!("image.sha256={}", site.image.sha256);
            helm(&[
                "install",
                "web",
                "chart",
                "--wait",
                "--timeout=2m",
                "--set",
                &url,
                "--set-string",
                &sha256,
            ])?;
            site.all_ready()
        },
    )?;
    report.case(&format!("{name}: the release is deployed"), || {
        let status: Value = serde_json::from_str(&helm(&["status", "web", "--output=json"])?)?;
        ensure!(status["info"]["status"] == "deployed", "{:#}", status["info"]);
        Ok(())
    });
    report.case(&format!("{name}: drift is put right by an upgrade to the same version"), || {
        site.drift()?;
        let mut arguments = vec!["upgrade", "web", "chart", "--reuse-values", "--wait", "--timeout=2m"];
        arguments.extend(major.overwrites);
        helm(&arguments)?;
        site.drift_is_put_right()?;
        site.all_ready()
    });
    report.case(
        &format!("{name}: an upgrade is taken up, and what the chart no longer has is deleted"),
        || {
            helm(&[
                "upgrade",
                "web",
                "chart",
                "--reuse-values",
                "--wait",
                "--timeout=2m",
                "--set",
                "cpus=2,data=false",
            ])?;
            site.cpus(2)?;
            site.gone("disk", "web-data")?;
            site.all_ready()
        },
    );
    report.case(
        &format!("{name}: a forced upgrade replaces every object, and none loses its finalizer"),
        || {
            let before = (site.uid("vm", "web")?, site.uid("disk", "web-root")?);
            let held = finalizers(site)?;
            let mut arguments = vec!["upgrade", "web", "chart", "--reuse-values", "--timeout=2m"];
            arguments.extend(major.replaces);
            helm(&arguments)?;
            crate::wait::until("the finalizers", CONVERGED, || {
                let now = finalizers(site)?;
                ensure!(now == held, "they were {held:?} and are {now:?}");
                Ok(())
            })?;
            ensure!((site.uid("vm", "web")?, site.uid("disk", "web-root")?) == before, "they are others now");
            site.all_ready()
        },
    );
    report.case(&format!("{name}: a rollback brings back the first version"), || {
        let mut arguments = vec!["rollback", "web", "1", "--wait", "--timeout=2m"];
        if major.program == FOUR.program {
            // Fields that the previous replacement took belong to another manager.
            arguments.extend(["--server-side=true", "--force-conflicts"]);
        }
        helm(&arguments)?;
        site.cpus(1)?;
        site.kubectl.condition("disk/web-data", "Ready=True", None, CONVERGED)?;
        site.all_ready()
    });
    report.case(&format!("{name}: uninstall --wait deletes all of it at once"), || {
        helm(&["uninstall", "web", "--wait", "--timeout=2m"])?;
        let left = site.kubectl.ok(&["get", application::KINDS, "-o", "name"])?;
        ensure!(left.trim().is_empty(), "after Helm ended there were:\n{left}");
        Ok(())
    });
    Ok(())
}

fn helm(site: &Site, major: &Major, arguments: &[&str]) -> Result<String> {
    let mut command = site.command(major.program);
    command.args(arguments).args(["--namespace", site.within]);
    process::run(&mut command, LIMIT)?.success()
}

fn write_chart(site: &Site) -> Result<()> {
    let templates = site.folder.join("chart/templates");
    fs::create_dir_all(&templates)?;
    fs::write(site.folder.join("chart/Chart.yaml"), CHART)?;
    fs::write(site.folder.join("chart/values.yaml"), VALUES)?;
    fs::write(templates.join("application.yaml"), TEMPLATE)?;
    Ok(())
}

/// The finalizers of the objects that a host reconciles.
fn finalizers(site: &Site) -> Result<Vec<Value>> {
    [("vm", "web"), ("disk", "web-root")]
        .into_iter()
        .map(|(kind, name)| {
            let object = site.kubectl.object(kind, name)?;
            object["metadata"].get("finalizers").cloned().with_context(|| format!("{kind} {name} has none"))
        })
        .collect()
}
