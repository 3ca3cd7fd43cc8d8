//! N6: a thousand resources in one Terraform configuration, planned and created; only on the control plane, nothing runs.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::scale::{
    APPLY, CORE_APPLY, CORE_PLAN, FLOOR_APPLY, KUBERNETES_APPLY, KUBERNETES_PLAN, KUBERNETES_RSS,
    KUBERNETES_STATE, MANIFEST_APPLY, MANIFEST_PLAN, MANIFEST_STATE, PLAN, RATIO, RSS, STATE,
};
use super::samples::Samples;
use super::site::Site;
use crate::namespace::Namespace;
use crate::terraform::{Installation, Project, offer};
use crate::{api, proc};
use crate::{report, wait};

/// The number of rounds of each provider but hashicorp/kubernetes: an apply that creates all, and a plan without changes.
const ROUNDS: usize = 3;
const PLANS: usize = 3;
/// The number of VMs.
const COUNT: usize = 1000;
/// The interval between two reads of a provider's peak memory, which the kernel records.
const GLANCE: Duration = Duration::from_millis(50);

const BERTH: &str = r#"
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}
provider "berth" {}
resource "berth_vm" "many" {
  count    = COUNT
  name     = "vm-${count.index}"
  class    = "none"
  disks    = [{ name = "disk-${count.index}", boot = true }]
  wait_for = "none"
}
"#;

/// The smallest resource that this provider offers.
const KUBERNETES: &str = r#"
terraform {
  required_providers {
    kubernetes = { source = "hashicorp/kubernetes" }
  }
}
provider "kubernetes" {
  config_path      = "KUBECONFIG"
  load_config_file = true
}
resource "kubernetes_config_map" "many" {
  count = COUNT
  metadata {
    name = "map-${count.index}"
  }
  data = {
    class = "none"
    disk  = "disk-${count.index}"
  }
}
"#;

/// The same VMs by the resource for any kind.
const MANIFEST: &str = r#"
terraform {
  required_providers {
    kubernetes = { source = "hashicorp/kubernetes" }
  }
}
provider "kubernetes" {
  config_path = "KUBECONFIG"
}
resource "kubernetes_manifest" "many" {
  count = COUNT
  manifest = {
    apiVersion = "berth.dev/v1alpha1"
    kind       = "VM"
    metadata   = { name = "vm-${count.index}", namespace = "default" }
    spec = {
      class = "none"
      disks = [{ name = "disk-${count.index}", boot = true }]
    }
  }
}
"#;

/// Terraform alone, with attributes that take as many bytes of a state as those of a VM. A resource has them twice.
const FLOOR: &str = r#"
resource "terraform_data" "many" {
  count = COUNT
  input = tomap({ for i in range(ATTRIBUTES) : format("attribute_%02d", i) => "value" })
}
"#;
/// The bytes of one of these attributes, twice, with the indentation.
const ATTRIBUTE: usize = 82;

/// Terraform alone: a built-in resource.
const CORE: &str = r#"
resource "terraform_data" "many" {
  count = COUNT
  input = "disk-${count.index}"
}
"#;

/// The cost of one configuration.
#[derive(Debug, Default)]
struct Taken {
    plan: Vec<f64>,
    apply: Vec<f64>,
    rss: Vec<f64>,
    /// The bytes of the state for each resource.
    state: Vec<f64>,
}

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let peers = bench.peers()?;
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N6"))?;
    site.start_control_plane()?;
    let home = site.folder().join("home");
    fs::create_dir_all(&home)?;
    let installation = Installation::make(&bench.terraform()?, &bench.binaries.provider, &home)?;
    offer(&home, "hashicorp/kubernetes", "1.13.4", &peers.kubernetes)?;
    let kubeconfig = site.kubeconfig();
    let project = |name: &str, text: &str| -> Result<Project> {
        let folder = site.folder().join(name);
        let project = Project::new(&installation, &folder, &kubeconfig, site.namespace())?;
        project.write(
            "main.tf",
            &text
                .replace("KUBECONFIG", &kubeconfig.display().to_string())
                .replace("COUNT", &COUNT.to_string()),
        )?;
        project.init()?;
        Ok(project)
    };
    named_objects(&site)?;
    let projects = [project("berth", BERTH)?, project("core", CORE)?];
    let mut taken: [Taken; 2] = Default::default();
    for round in 0..ROUNDS {
        for (project, taken) in projects.iter().zip(&mut taken) {
            one(project, site.namespace(), taken)?;
        }
        forget(&projects, &site)?;
        report::note(&format!("        round {} of {ROUNDS}: {taken:.2?}", round + 1));
    }
    let [berth, core] = taken;
    let mut floor = Taken::default();
    one(&project("floor", &as_large(&berth, &core))?, site.namespace(), &mut floor)?;
    report::note(&format!("        as large: {floor:.2?}"));
    let mut kubernetes = Taken::default();
    one(&project("kubernetes", KUBERNETES)?, site.namespace(), &mut kubernetes)?;
    let mut manifest = Taken::default();
    if let Some(program) = &bench.kubernetes_2 {
        offer(&home, "hashicorp/kubernetes", "2.0.0", program)?;
        one(&project("manifest", MANIFEST)?, site.namespace(), &mut manifest)?;
    }
    let theirs = *kubernetes.apply.first().context("hashicorp/kubernetes was not measured")?;
    let ratios = berth.apply.iter().map(|ours| ours / theirs).collect();
    let readings: [(Figure, Vec<f64>); 15] = [
        (PLAN, berth.plan),
        (APPLY, berth.apply),
        (RSS, berth.rss),
        (RATIO, ratios),
        (STATE, berth.state),
        (KUBERNETES_PLAN, kubernetes.plan),
        (KUBERNETES_APPLY, kubernetes.apply),
        (KUBERNETES_RSS, kubernetes.rss),
        (KUBERNETES_STATE, kubernetes.state),
        (CORE_PLAN, core.plan),
        (CORE_APPLY, core.apply),
        (FLOOR_APPLY, floor.apply),
        (MANIFEST_PLAN, manifest.plan),
        (MANIFEST_APPLY, manifest.apply),
        (MANIFEST_STATE, manifest.state),
    ];
    readings
        .into_iter()
        .filter(|(figure, values)| !values.is_empty() || !is_optional(figure))
        .map(|(figure, values)| {
            Ok(Reading::median(figure, &Samples::new(values).with_context(|| figure.key.to_owned())?))
        })
        .collect()
}

/// Whether the figure is measured only with a program that the caller provides.
fn is_optional(figure: &Figure) -> bool {
    [MANIFEST_PLAN, MANIFEST_APPLY, MANIFEST_STATE].iter().any(|optional| optional.key == figure.key)
}

/// The objects that the VMs name: without them an apply is refused.
fn named_objects(site: &Site) -> Result<()> {
    let mut api = site.api()?;
    api.create(api::VM_CLASS, "none", &json!({"cpus": 1, "memory": "64Mi"}))?;
    for number in 0..COUNT {
        api.create(api::DISK, &format!("disk-{number}"), &json!({"size": "1Gi"}))?;
    }
    Ok(())
}

/// The configuration of a built-in resource with as many bytes of state as a VM.
fn as_large(berth: &Taken, core: &Taken) -> String {
    let bytes = |taken: &Taken| taken.state.first().copied().unwrap_or_default();
    let attributes = (bytes(berth) - bytes(core)).max(0.0) / ATTRIBUTE as f64;
    FLOOR.replace("ATTRIBUTES", &format!("{attributes:.0}"))
}

/// Removes the created objects and the state. Not with Terraform, which takes a minute and a half to destroy a thousand
/// resources of any kind.
fn forget(projects: &[Project], site: &Site) -> Result<()> {
    let mut api = site.api()?;
    (0..COUNT).try_for_each(|number| api.delete(api::VM, &format!("vm-{number}")))?;
    wait::until("the VMs to go", Duration::from_secs(60), || {
        let left = api.read(&api::VM.path())?["items"].as_array().map_or(0, Vec::len);
        ensure!(left == 0, "{left} are left");
        Ok(())
    })?;
    for project in projects {
        fs::remove_file(project.folder().join("terraform.tfstate")).context("removing a state")?;
    }
    Ok(())
}

/// Creates all resources, then plans.
fn one(project: &Project, namespace: &Arc<Namespace>, taken: &mut Taken) -> Result<()> {
    let watcher = Watcher::start(namespace);
    taken.apply.push(seconds(|| project.apply().map(drop))?);
    let state = fs::metadata(project.folder().join("terraform.tfstate"))?.len();
    taken.state.push(state as f64 / COUNT as f64);
    for _ in 0..PLANS {
        taken.plan.push(seconds(|| project.plan_is_empty())?);
    }
    // Terraform alone has no provider process here.
    taken.rss.extend(watcher.most());
    Ok(())
}

fn seconds(body: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    body()?;
    Ok(began.elapsed().as_secs_f64())
}

/// Records the memory of the providers in a namespace.
struct Watcher {
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<BTreeMap<i32, f64>>,
}

impl Watcher {
    fn start(namespace: &Arc<Namespace>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (ended, namespace) = (Arc::clone(&over), Arc::clone(namespace));
        let thread = std::thread::spawn(move || {
            let mut most = BTreeMap::new();
            while !ended.load(Ordering::SeqCst) {
                for (pid, line) in namespace.processes().unwrap_or_default() {
                    let program = line.split(' ').next().unwrap_or_default();
                    if program.contains("terraform-provider-") {
                        // The process may have ended since.
                        most.extend(proc::peak(pid).ok().map(|peak| (pid, peak)));
                    }
                }
                std::thread::sleep(GLANCE);
            }
            most
        });
        Self { over, thread }
    }

    /// The largest peak of any provider process.
    fn most(self) -> Option<f64> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().ok()?.into_values().reduce(f64::max)
    }
}
