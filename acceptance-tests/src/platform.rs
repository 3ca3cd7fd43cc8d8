//! One simulated site: a host's namespace with berth in it, a neighbour on its network, an image server, kubectl and Terraform.
//!
//! The same cases run on either control plane: the embedded one of `berth up`, or a real kube-apiserver with etcd.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::access::Access;
use crate::berth::{self, Administrator, Berth};
use crate::control_plane::{KubernetesControlPlane, Location, Programs};
use crate::footprint::{self, Footprint};
use crate::garbage_collector::GarbageCollector;
use crate::guests::GuestImage;
use crate::image_server::{Content, ImageServer};
use crate::kubectl::Kubectl;
use crate::machine::Machine;
use crate::namespace::{self, Namespace};
use crate::process;
use crate::scratch::Scratch;
use crate::terraform::{Installation, Project};
use crate::tools::TerraformCli;
use crate::wait;
use crate::workspace::{self, Binaries};

/// The beginning of a configuration that uses our provider.
const HEAD: &str = r#"
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}
"#;
/// The host's address on the cable to its neighbour.
const HOST: &str = "192.0.2.1";
/// The neighbour's address, which also serves the images.
pub const NEIGHBOUR: &str = "192.0.2.2";
/// Public addresses: the neighbour routes them to the host.
const PUBLIC: &str = "198.51.100.0/28";
/// The host's name on a Kubernetes control plane.
const HOST_NAME: &str = "host-1";
/// The time limit for what a host that starts asks of QEMU.
const PROBED: Duration = Duration::from_secs(20);

/// The parts of a platform.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Our programs.
    pub binaries: Binaries,
    /// kubectl.
    pub kubectl: PathBuf,
    /// terraform or tofu.
    pub terraform: TerraformCli,
    /// The folder for logs.
    pub logs: PathBuf,
}

/// How the host of a Kubernetes control plane logs in there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostLogin {
    /// With the administrator's kubeconfig, which may do everything.
    Administrator,
    /// With an account of its own, as a host that joins by token.
    Joined,
}

#[derive(Debug)]
enum Running {
    Embedded(Box<Berth>),
    /// `account`: the kubeconfig of the controllers.
    Kubernetes {
        login: HostLogin,
        garbage: Option<GarbageCollector>,
        plane: Box<KubernetesControlPlane>,
        controllers: Box<Berth>,
        host: Box<Berth>,
        account: PathBuf,
    },
}

/// A simulated site with a running berth.
#[derive(Debug)]
pub struct Platform {
    // Fields drop in this order: first the processes, then their namespaces, then their files.
    running: Running,
    images: ImageServer,
    neighbour: Arc<Namespace>,
    namespace: Arc<Namespace>,
    kubectl: Kubectl,
    installation: Installation,
    kubeconfig: PathBuf,
    logs: PathBuf,
    projects: std::cell::Cell<u32>,
    folder: Scratch,
}

struct Ground {
    folder: Scratch,
    namespace: Arc<Namespace>,
    neighbour: Arc<Namespace>,
    images: ImageServer,
    installation: Installation,
}

impl Ground {
    fn lay(parts: &Parts) -> Result<Self> {
        fs::create_dir_all(&parts.logs)?;
        let folder = Scratch::new()?;
        let namespace = Namespace::new()?;
        let neighbour = Namespace::new()?;
        namespace.connect(&format!("{HOST}/24"), &neighbour, &format!("{NEIGHBOUR}/24"))?;
        neighbour.ip(&["route", "add", PUBLIC, "via", HOST])?;
        let images = ImageServer::start(&neighbour, NEIGHBOUR)?;
        let home = folder.path().join("home");
        fs::create_dir_all(&home)?;
        let installation = Installation::make(&parts.terraform, &parts.binaries.provider, &home)?;
        Ok(Self { folder, namespace, neighbour, images, installation })
    }

    fn finish(self, running: Running, kubeconfig: PathBuf, kubectl: Kubectl, logs: PathBuf) -> Platform {
        Platform {
            running,
            images: self.images,
            neighbour: self.neighbour,
            namespace: self.namespace,
            kubectl,
            installation: self.installation,
            kubeconfig,
            logs,
            projects: std::cell::Cell::new(0),
            folder: self.folder,
        }
    }

    fn kubectl(&self, parts: &Parts, kubeconfig: &Path) -> Kubectl {
        Kubectl::new(&parts.kubectl, kubeconfig, &self.folder.path().join("home"), &self.namespace)
    }

    fn berth(&self, parts: &Parts, log: &str) -> Berth {
        let state = self.folder.path().join("state");
        Berth::new(
            &parts.binaries.berth,
            &Machine::plain(&self.namespace),
            &state,
            PUBLIC,
            &parts.logs.join(log),
        )
    }
}

impl Platform {
    /// `berth up`.
    pub fn embedded(parts: &Parts) -> Result<Self> {
        let ground = Ground::lay(parts)?;
        let mut berth = ground.berth(parts, "berth.log");
        let kubeconfig = berth.kubeconfig();
        let kubectl = ground.kubectl(parts, &kubeconfig);
        berth.start(&kubectl)?;
        Ok(ground.finish(Running::Embedded(Box::new(berth)), kubeconfig, kubectl, parts.logs.clone()))
    }

    /// A real kube-apiserver and etcd, with `berth controllers` and `berth host`.
    pub fn kubernetes(parts: &Parts, programs: &Programs, login: HostLogin) -> Result<Self> {
        let ground = Ground::lay(parts)?;
        let plane = KubernetesControlPlane::start(
            programs,
            Location {
                namespace: &ground.namespace,
                address: HOST,
                ipv6: None,
                folder: &ground.folder.path().join("plane"),
                logs: &parts.logs,
            },
            &parts.kubectl,
        )?;
        let kubeconfig = plane.kubeconfig();
        let kubectl = ground.kubectl(parts, &kubeconfig);
        let controllers = Box::new(ground.berth(parts, "controllers.log"));
        let host = Box::new(ground.berth(parts, "host.log"));
        let account = ground.folder.path().join("controllers.kubeconfig");
        let (plane, garbage) = (Box::new(plane), None);
        let running = Running::Kubernetes { login, garbage, plane, controllers, host, account };
        Ok(ground.finish(running, kubeconfig, kubectl, parts.logs.clone()))
    }

    /// Applies the CRDs and the Deployment to a Kubernetes control plane, as an administrator would, and starts controllers and host. No
    /// node runs the Deployment's pods here: the controllers run beside it, with the credentials that its pods would have.
    pub fn install_on_kubernetes(&mut self) -> Result<()> {
        let Running::Kubernetes { controllers, account, .. } = &self.running else {
            anyhow::bail!("the embedded control plane has them")
        };
        let manifests = controllers.deployment()?;
        self.kubectl.apply(&manifests)?;
        let token = ["create", "token", "berth-controllers", "--namespace=berth-system", "--duration=24h"];
        let token = self.kubectl.ok(&token)?;
        let config = self.kubectl.ok(&["config", "view", "--raw", "-o", "json"])?;
        let mut config: Value = serde_json::from_str(&config).context("a kubeconfig")?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        fs::write(account, config.to_string())?;
        self.kubectl.ok(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
        let access = Access::read(&self.kubeconfig, &self.namespace)?;
        if let Running::Kubernetes { garbage, .. } = &mut self.running {
            *garbage = Some(GarbageCollector::start(access));
        }
        self.start()?;
        // The controllers create the defaults in parallel with the host's start; this is the last of them.
        self.kubectl.until("storagepool/default", "made", Duration::from_secs(60), |_| true)?;
        Ok(())
    }

    /// Starts the processes that [`Self::crash`] or [`Self::stop`] ended.
    pub fn start(&mut self) -> Result<()> {
        match &mut self.running {
            Running::Embedded(berth) => berth.start(&self.kubectl),
            Running::Kubernetes { login, controllers, host, account, .. } => {
                controllers.spawn_controllers(account, Some(berth::HEALTH))?;
                match login {
                    HostLogin::Administrator => host.spawn_host(HOST_NAME, &self.kubeconfig)?,
                    HostLogin::Joined if host.host_kubeconfig().exists() => host.spawn_joined(None, &[])?,
                    HostLogin::Joined => {
                        let administrator =
                            Administrator::new(host.program(), &self.namespace, &self.kubeconfig);
                        host.spawn_joined(Some(&administrator.token(HOST_NAME)?), &[])?;
                    }
                }
                wait::until("the host to be ready", Duration::from_secs(90), || {
                    controllers.must_run()?;
                    host.must_run()?;
                    berth::host_ready(&self.kubectl)
                })
            }
        }
    }

    /// Kills all berth processes with SIGKILL, but no VM.
    pub fn crash(&mut self) -> Result<()> {
        match &mut self.running {
            Running::Embedded(berth) => berth.crash(),
            Running::Kubernetes { controllers, host, .. } => {
                controllers.crash()?;
                host.crash()
            }
        }
    }

    /// Sends SIGTERM to berth, which must end with success.
    pub fn stop(&mut self) -> Result<()> {
        match &mut self.running {
            Running::Embedded(berth) => berth.stop(),
            Running::Kubernetes { controllers, host, .. } => {
                controllers.stop()?;
                host.stop()
            }
        }
    }

    /// Destroys the machine of `berth up`: what runs on it, and what berth stores there. An empty one takes its place on the cable, and
    /// berth is not started on it; its host will have this name. Folders beside the state directory stay, as if they were of a file
    /// server.
    pub fn replace_machine(&mut self, parts: &Parts, name: &str) -> Result<()> {
        let Running::Embedded(berth) = &mut self.running else {
            anyhow::bail!("the control plane is on another machine")
        };
        berth.crash()?;
        namespace::end_all(self.namespace.name())?;
        let destroyed = berth.state().to_owned();
        wait::until("the state directory to be removed", Duration::from_secs(20), || {
            fs::remove_dir_all(&destroyed).with_context(|| format!("removing {}", destroyed.display()))
        })?;
        self.namespace.ip(&["link", "delete", "uplink"])?;
        let empty = Namespace::new()?;
        empty.connect(&format!("{HOST}/24"), &self.neighbour, &format!("{NEIGHBOUR}/24"))?;
        self.neighbour.ip(&["route", "add", PUBLIC, "via", HOST])?;
        // Another path: what ends the former machine at last must not take processes of this one for its own.
        let state = self.folder.path().join(format!("state-{name}"));
        let home = self.folder.path().join(format!("home-{name}"));
        fs::create_dir_all(&home)?;
        let (machine, log) = (Machine::plain(&empty), parts.logs.join(format!("berth-{name}.log")));
        **berth = Berth::new(&parts.binaries.berth, &machine, &state, PUBLIC, &log).named(name);
        self.kubeconfig = berth.kubeconfig();
        self.kubectl = Kubectl::new(&parts.kubectl, &self.kubeconfig, &home, &empty);
        self.namespace = empty;
        Ok(())
    }

    /// Kills the control plane, as in a crash: with the embedded one that is all of berth.
    pub fn control_plane_down(&mut self) -> Result<()> {
        match &mut self.running {
            Running::Embedded(berth) => berth.crash(),
            Running::Kubernetes { plane, .. } => plane.crash_api_server(),
        }
    }

    /// Brings the control plane back.
    pub fn control_plane_up(&mut self) -> Result<()> {
        match &mut self.running {
            Running::Embedded(berth) => berth.start(&self.kubectl),
            Running::Kubernetes { plane, .. } => {
                plane.restart_api_server(HOST)?;
                wait::until("kube-apiserver to serve again", Duration::from_secs(120), || {
                    self.kubectl.ok(&["get", "--raw", "/readyz"]).map(drop)
                })
            }
        }
    }

    /// The berth that runs the host's agent.
    pub fn host(&self) -> &Berth {
        match &self.running {
            Running::Embedded(berth) => berth,
            Running::Kubernetes { host, .. } => host,
        }
    }

    /// Like [`Self::host`], to start and stop it.
    pub fn host_mut(&mut self) -> &mut Berth {
        match &mut self.running {
            Running::Embedded(berth) => berth,
            Running::Kubernetes { host, .. } => host,
        }
    }

    /// Deletes an empty namespace. kube-apiserver alone has no controller that completes the deletion.
    pub fn delete_namespace(&self, name: &str) -> Result<()> {
        let waits = if self.is_embedded() { "--timeout=60s" } else { "--wait=false" };
        self.kubectl.ok(&["delete", "namespace", name, waits]).map(drop)
    }

    /// Whether this is the embedded control plane.
    pub fn is_embedded(&self) -> bool {
        matches!(self.running, Running::Embedded(_))
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The host.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// A machine beside the host from which public addresses are reachable through the host.
    pub fn neighbour(&self) -> &Arc<Namespace> {
        &self.neighbour
    }

    /// The image server on the host's loopback.
    pub fn images(&self) -> &ImageServer {
        &self.images
    }

    /// A folder for a test's own files, removed with the platform.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A new, empty Terraform project.
    pub fn project(&self) -> Result<Project> {
        let number = self.projects.get();
        self.projects.set(number + 1);
        let folder = self.folder.path().join(format!("project-{number}"));
        Project::new(&self.installation, &folder, &self.kubeconfig, &self.namespace)
    }

    /// The initialized Terraform project of an example with guests of this image, and its variables.
    pub fn example(&self, name: &str, guest: &GuestImage) -> Result<(Project, Value)> {
        let project = self.project()?;
        project.copy_from(&workspace::root().join("examples").join(name))?;
        let image = format!("{}.qcow2", name.replace('/', "-"));
        let url = self.images.put(&image, Content::File(guest.path.clone()));
        let variables = json!({"image_url": url, "image_sha256": guest.sha256});
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.init()?;
        Ok((project, variables))
    }

    /// A Terraform project with this configuration, which uses our provider. It is not initialized.
    pub fn project_of(&self, configuration: &str) -> Result<Project> {
        let project = self.project()?;
        project.write("main.tf", &format!("{HEAD}{configuration}"))?;
        Ok(project)
    }

    /// Runs a script in a Debian guest by ssh from the neighbour, as the image's default user.
    pub fn ssh(&self, key: &Path, address: &str, script: &str) -> Result<process::Finished> {
        let mut ssh = self.neighbour.command("ssh");
        ssh.arg("-i").arg(key);
        // The guest's host key is new each time.
        ssh.args([
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "LogLevel=ERROR",
        ]);
        ssh.args(["-o", "ConnectTimeout=20", "-o", "BatchMode=yes", &format!("debian@{address}"), script]);
        process::run(&mut ssh, Duration::from_secs(90))
    }

    /// The current resources on the host that belong to VMs.
    pub fn footprint(&self) -> Result<Footprint> {
        Footprint::of(&self.namespace, self.host().state(), belongs_to_a_vm)
    }

    /// Waits until there is nothing beyond `before`.
    pub fn nothing_beyond(&self, before: &Footprint, limit: Duration) -> Result<()> {
        wait::until("the host to be clean", limit, || self.footprint()?.must_not_exceed(before))
    }

    /// The single QEMU process that must exist. A host that starts runs another one for a moment, to find out what this QEMU can do.
    pub fn qemu(&self) -> Result<i32> {
        let single = || {
            let processes = berth::qemu_processes(&self.namespace)?;
            ensure!(processes.len() == 1, "{} QEMU processes", processes.len());
            Ok(processes[0])
        };
        match berth::qemu_processes(&self.namespace)?.len() {
            0 | 1 => single(),
            _ => wait::until("a single QEMU process", PROBED, single),
        }
    }

    /// The output of a guest on its serial console.
    pub fn serial(&self, vm: &str) -> Result<String> {
        let object = self.kubectl.object("vm", vm)?;
        let instance = object["status"]["instanceID"].as_str().context("the VM has no instance")?;
        let path = self.host().state().join("instances").join(instance).join("serial.log");
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Keeps the evidence of a failure and returns the most useful part of it.
    pub fn keep_evidence(&self) -> String {
        let mut output = String::new();
        let state = self.host().state();
        for file in footprint::files(state) {
            if ["instances/", "network/"].iter().any(|folder| file.starts_with(folder)) && is_log(&file) {
                let _ = fs::copy(state.join(&file), self.logs.join(file.replace('/', "_")));
                let telling = ["/serial.log", "/qemu.log"].iter().any(|end| file.ends_with(end));
                if let Ok(bytes) = fs::read(state.join(&file))
                    && telling
                    && !bytes.is_empty()
                {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    output += &format!("--- {file}\n{}\n", process::tail(&text, 1_000));
                }
            }
        }
        if let Ok(objects) = self.kubectl.run(&["get", "berth,events", "--all-namespaces", "-o", "yaml"]) {
            let _ = fs::write(self.logs.join("objects.yaml"), &objects.stdout);
        }
        let log = fs::read_to_string(self.host().log()).unwrap_or_default();
        output += &format!("--- {}\n{}\n", self.host().log().display(), process::tail(&log, 5_000));
        output
    }
}

fn is_log(file: &str) -> bool {
    // `run` is another path to the same files.
    !file.contains("/run/")
        && [".log", ".json", ".conf", ".pid", "leases"].iter().any(|end| file.ends_with(end))
}

/// Whether a file must disappear with a VM and its disks. The trash keeps deleted disks for a day, and the images they are
/// overlays of.
pub fn belongs_to_a_vm(file: &str) -> bool {
    // The record of a pool's folder stays as long as the host.
    let is_record = |file: &str| file.ends_with(".json") && file.matches('/').count() == 1;
    file.starts_with("instances/")
        || (file.starts_with("pools/") && !file.contains("/trash/") && !is_record(file))
}
