//! Several simulated hosts on one network segment, a control plane, and an administrator's machine beside them.
//!
//! ```text
//!            segment 192.0.2.0/24
//!   ┌─────────┬─────────┬─────────┬──────────────┐
//!  h1 .11    h2 .12    h3 .13    …   control .3   outside .2 (gateway, images, kubectl, Terraform)
//! ```
//!
//! Embedded, h1 runs `berth up` and the others join it. On Kubernetes, etcd, kube-apiserver and `berth controllers` run on the
//! machine `control`, and every host joins. The same stories run on either.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::berth::{self, Administrator, Berth};
use crate::control_plane::{KubernetesControlPlane, Programs};
use crate::footprint::{self, Footprint};
use crate::image_server::ImageServer;
use crate::kubectl::{Kubectl, condition_of};
use crate::machine::Machine;
use crate::measure::api::Access;
use crate::namespace::Namespace;
use crate::platform::{Parts, belongs_to_a_vm};
use crate::process;
use crate::scratch::Scratch;
use crate::segment::Segment;
use crate::terraform::{Installation, Project};
use crate::wait;

const OUTSIDE: &str = "192.0.2.2";
const CONTROL: &str = "192.0.2.3";
/// The host with this number has the address that ends in 10 + it.
const HOSTS: &str = "192.0.2.1";
/// Public addresses of the pool that every machine has by default; not on the segment, so of no use to the outside here.
const LOCAL: &str = "198.51.100.0/28";
/// Public addresses on the segment.
pub const PUBLIC: &str = "192.0.2.64/27";
/// How long a host may take to be ready, with the machine busy.
const READY: Duration = Duration::from_secs(90);

/// One host.
#[derive(Debug)]
pub struct Member {
    /// Its name, also of its Host object.
    pub name: String,
    /// Its address on the segment.
    pub address: String,
    /// What runs on it.
    pub berth: Berth,
}

impl Member {
    /// Its network.
    pub fn namespace(&self) -> &Arc<Namespace> {
        self.berth.machine().namespace()
    }

    /// The QEMU processes on it, by the numbers this machine knows them by.
    pub fn qemu(&self) -> Result<Vec<i32>> {
        berth::qemu_processes(self.namespace())
    }

    /// What it has now of things that belong to VMs.
    pub fn footprint(&self) -> Result<Footprint> {
        let seen = Footprint::of(self.namespace(), self.berth.state(), belongs_to_a_vm)?;
        // It may have been started again, with other words.
        Ok(seen.without(&format!("process {}", self.berth.program().display())))
    }
}

#[derive(Debug)]
enum Control {
    /// On the first host.
    Embedded,
    Kubernetes(Box<Cluster>),
}

/// A Kubernetes control plane with `berth controllers`.
#[derive(Debug)]
pub struct Cluster {
    controllers: Berth,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    _plane: KubernetesControlPlane,
}

impl Cluster {
    fn start(
        parts: &Parts,
        programs: &Programs,
        namespace: &Arc<Namespace>,
        folder: &Scratch,
        outside: &Arc<Namespace>,
    ) -> Result<Self> {
        let plane = KubernetesControlPlane::start(
            programs,
            namespace,
            CONTROL,
            &folder.path().join("plane"),
            &parts.logs,
            &parts.kubectl,
        )?;
        let kubeconfig = plane.kubeconfig();
        let (state, log) = (folder.path().join("control"), parts.logs.join("controllers.log"));
        let mut controllers =
            Berth::new(&parts.binaries.berth, &Machine::plain(namespace), &state, LOCAL, &log);
        let definitions = controllers.crds()?;
        let kubectl = Kubectl::new(&parts.kubectl, &kubeconfig, &folder.path().join("home"), outside);
        kubectl.apply(&definitions)?;
        kubectl.ok(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
        controllers.spawn_controllers(&kubeconfig)?;
        Ok(Self { controllers, kubectl, kubeconfig, _plane: plane })
    }

    /// kubectl as its administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Its administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Ends the controllers.
    pub fn stop(&mut self) -> Result<()> {
        self.controllers.stop().context("controllers")
    }
}

/// The hosts and all around them.
#[derive(Debug)]
pub struct Fleet {
    // Fields drop in this order: first what runs, then where it ran, then its files.
    members: Vec<Member>,
    control: Control,
    images: ImageServer,
    outside: Arc<Namespace>,
    segment: Segment,
    kubectl: Kubectl,
    administrator: Administrator,
    installation: Installation,
    kubeconfig: PathBuf,
    parts: Parts,
    projects: Cell<u32>,
    folder: Scratch,
}

impl Fleet {
    /// One host with `berth up`.
    pub fn embedded(parts: &Parts) -> Result<Self> {
        Self::embedded_on(parts, |_| Ok(()))
    }

    /// As [`Self::embedded`], on a machine that was prepared for it.
    pub fn embedded_on(parts: &Parts, prepare: impl FnOnce(&mut Member) -> Result<()>) -> Result<Self> {
        let (folder, segment, outside) = ground(parts)?;
        let mut first = member(parts, &folder, &segment, 1)?;
        prepare(&mut first)?;
        first.berth = first.berth.listening_on("0.0.0.0:7443");
        let local = first.berth.machine().seen(&first.berth.kubeconfig());
        // The one berth writes is for its own machine.
        let kubeconfig = folder.path().join("kubeconfig");
        first.berth.spawn_up()?;
        wait::until("berth up to write its kubeconfig", READY, || {
            first.berth.must_run()?;
            let text = fs::read_to_string(&local).context("no kubeconfig yet")?;
            fs::write(&kubeconfig, text.replace("127.0.0.1", &first.address))?;
            Ok(())
        })?;
        let mut fleet = Self::finish(parts, folder, segment, outside, Control::Embedded, kubeconfig)?;
        fleet.members.push(first);
        fleet.host_is_ready("h1")?;
        Ok(fleet)
    }

    /// No host yet, but etcd, kube-apiserver, berth's definitions on it, and `berth controllers`.
    pub fn kubernetes(parts: &Parts, programs: &Programs) -> Result<Self> {
        let (folder, segment, outside) = ground(parts)?;
        let namespace = Namespace::new()?;
        segment.plug(&namespace, &format!("{CONTROL}/24"), Some(OUTSIDE))?;
        let cluster = Cluster::start(parts, programs, &namespace, &folder, &outside)?;
        let kubeconfig = cluster.kubeconfig.clone();
        Self::finish(parts, folder, segment, outside, Control::Kubernetes(Box::new(cluster)), kubeconfig)
    }

    /// A cluster beside this one's control plane: etcd, kube-apiserver, berth's definitions on it, and `berth controllers`.
    pub fn cluster(&self, programs: &Programs) -> Result<Cluster> {
        let namespace = Namespace::new()?;
        self.segment.plug(&namespace, &format!("{CONTROL}/24"), Some(OUTSIDE))?;
        Cluster::start(&self.parts, programs, &namespace, &self.folder, &self.outside)
    }

    fn finish(
        parts: &Parts,
        folder: Scratch,
        segment: Segment,
        outside: Arc<Namespace>,
        control: Control,
        kubeconfig: PathBuf,
    ) -> Result<Self> {
        let home = folder.path().join("home");
        fs::create_dir_all(&home)?;
        Ok(Self {
            members: Vec::new(),
            control,
            images: ImageServer::start(&outside, OUTSIDE)?,
            kubectl: Kubectl::new(&parts.kubectl, &kubeconfig, &home, &outside),
            administrator: Administrator::new(&parts.binaries.berth, &outside, &kubeconfig),
            installation: Installation::make(&parts.terraform, &parts.binaries.provider, &home)?,
            outside,
            segment,
            kubeconfig,
            parts: parts.clone(),
            projects: Cell::new(0),
            folder,
        })
    }

    /// A machine on the segment with nothing of berth's running; it is no member.
    pub fn machine(&self, number: u32) -> Result<Member> {
        member(&self.parts, &self.folder, &self.segment, number)
    }

    /// A machine that joins as `h` + `number`, and is a member once it is ready.
    pub fn join(&mut self, number: u32, labels: &[&str]) -> Result<()> {
        let machine = self.machine(number)?;
        self.join_on(machine, labels)
    }

    /// A machine made before that joins under its own name.
    pub fn join_on(&mut self, mut member: Member, labels: &[&str]) -> Result<()> {
        let token = self.administrator.token(&member.name)?;
        member.berth.spawn_joined(Some(&token), labels)?;
        let name = member.name.clone();
        self.members.push(member);
        self.host_is_ready(&name)
    }

    /// Waits until a host is ready; its program must run meanwhile.
    pub fn host_is_ready(&mut self, name: &str) -> Result<()> {
        let kubectl = self.kubectl.clone();
        if let Control::Kubernetes(cluster) = &mut self.control {
            cluster.controllers.must_run()?;
        }
        let member = self.member_mut(name)?;
        wait::until(&format!("host {name} to be ready"), READY, || {
            member.berth.must_run()?;
            let host = kubectl.object("host", name)?;
            let ready = condition_of(&host, "Ready").is_some_and(|ready| ready["status"] == "True");
            ensure!(ready, "its status is {:#}", host["status"]);
            Ok(())
        })
    }

    /// The hosts.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// A host.
    pub fn member(&self, name: &str) -> Result<&Member> {
        self.members.iter().find(|member| member.name == name).with_context(|| format!("no host {name}"))
    }

    /// A host, to start and stop what runs on it.
    pub fn member_mut(&mut self, name: &str) -> Result<&mut Member> {
        self.members.iter_mut().find(|member| member.name == name).with_context(|| format!("no host {name}"))
    }

    /// The host that a VM is bound to.
    pub fn host_of(&self, vm: &str) -> Result<String> {
        let object = self.kubectl.object("vm", vm)?;
        host_in(&object).with_context(|| format!("VM {vm} is bound to no host"))
    }

    /// Whether this is the embedded control plane.
    pub fn is_embedded(&self) -> bool {
        matches!(self.control, Control::Embedded)
    }

    /// A machine on the segment that is no host.
    pub fn outside(&self) -> &Arc<Namespace> {
        &self.outside
    }

    /// Images, for every machine on the segment.
    pub fn images(&self) -> &ImageServer {
        &self.images
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What the lane keeps for itself.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The API as the administrator, request by request.
    pub fn access(&self) -> Result<Access> {
        Access::read(&self.kubeconfig, &self.outside)
    }

    /// `berth` as the administrator's tool.
    pub fn administrator(&self) -> &Administrator {
        &self.administrator
    }

    /// A new, empty Terraform project.
    pub fn project(&self) -> Result<Project> {
        let number = self.projects.get();
        self.projects.set(number + 1);
        let folder = self.folder.path().join(format!("project-{number}"));
        Project::new(&self.installation, &folder, &self.kubeconfig, &self.outside)
    }

    /// What the hosts have now of things that belong to VMs.
    pub fn footprints(&self) -> Result<Vec<(String, Footprint)>> {
        self.members.iter().map(|member| Ok((member.name.clone(), member.footprint()?))).collect()
    }

    /// Waits until no host has anything that was not there before.
    pub fn nothing_beyond(&self, before: &[(String, Footprint)], limit: Duration) -> Result<()> {
        for (name, before) in before {
            let Ok(member) = self.member(name) else { continue };
            wait::until(&format!("host {name} to be clean"), limit, || {
                member.footprint()?.must_not_exceed(before)
            })?;
        }
        Ok(())
    }

    /// Stops everything of berth's in order.
    pub fn stop(&mut self) -> Result<()> {
        // The control plane is with the first host: it goes last.
        for member in self.members.iter_mut().rev().filter(|member| member.berth.is_started()) {
            member.berth.stop().with_context(|| member.name.clone())?;
        }
        if let Control::Kubernetes(cluster) = &mut self.control {
            cluster.stop()?;
        }
        Ok(())
    }

    /// Keeps what helps to understand a failure and tells the most telling part of it.
    pub fn keep_evidence(&self) -> String {
        let mut told = String::new();
        if let Ok(objects) =
            self.kubectl.run(&["get", "berth,events,leases", "--all-namespaces", "-o", "yaml"])
        {
            // Evidence that cannot be kept must not hide what it is about.
            let _ = fs::write(self.parts.logs.join("objects.yaml"), &objects.stdout);
        }
        for member in &self.members {
            let state = member.berth.state();
            for file in footprint::files(state).iter().filter(|file| file.ends_with("serial.log")) {
                let kept = format!("{}-{}", member.name, file.replace('/', "_"));
                let _ = fs::copy(state.join(file), self.parts.logs.join(kept));
            }
            let log = fs::read_to_string(member.berth.log()).unwrap_or_default();
            told += &format!("--- {}\n{}\n", member.berth.log().display(), process::tail(&log, 2_000));
        }
        told
    }
}

/// The host in an object's binding.
pub fn host_in(object: &Value) -> Option<String> {
    object["status"]["binding"]["host"].as_str().map(str::to_owned)
}

fn ground(parts: &Parts) -> Result<(Scratch, Segment, Arc<Namespace>)> {
    fs::create_dir_all(&parts.logs)?;
    let folder = Scratch::new()?;
    let segment = Segment::new()?;
    let outside = Namespace::new()?;
    segment.plug(&outside, &format!("{OUTSIDE}/24"), None)?;
    Ok((folder, segment, outside))
}

fn member(parts: &Parts, folder: &Scratch, segment: &Segment, number: u32) -> Result<Member> {
    let name = format!("h{number}");
    let address = format!("{HOSTS}{number}");
    let namespace = Namespace::new()?;
    segment.plug(&namespace, &format!("{address}/24"), Some(OUTSIDE))?;
    let machine = Machine::whole(&name, &namespace, &parts.logs.join(format!("{name}-machine.log")))?;
    // Named after its namespace: a machine of the same number may come again.
    let state = folder.path().join(format!("{name}-{}", namespace.name()));
    let log = parts.logs.join(format!("{name}.log"));
    let berth = Berth::new(&parts.binaries.berth, &machine, &state, LOCAL, &log);
    Ok(Member { name, address, berth })
}
