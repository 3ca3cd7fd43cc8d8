//! Several simulated hosts on one network segment, a control plane, and an administrator's machine beside them.
//!
//! ```text
//!            segment 192.0.2.0/24
//!   ┌─────────┬─────────┬─────────┬──────────────┐
//!  h1 .11    h2 .12    h3 .13    …   control .3   outside .2 (gateway, images, kubectl, Terraform)
//! ```
//!
//! Embedded: h1 runs `berth up` and the others join it. On Kubernetes: etcd, kube-apiserver and `berth controllers` run on the
//! machine `control`, and every host joins. The same cases run on either.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::access::Access;
use crate::berth::{self, Administrator, Berth};
use crate::control_plane::{KubernetesControlPlane, Location, PORT, Programs};
use crate::footprint::{self, Footprint};
use crate::garbage_collector::GarbageCollector;
use crate::image_server::ImageServer;
use crate::kubectl::{Kubectl, condition_of};
use crate::machine::Machine;
use crate::namespace::Namespace;
use crate::platform::{Parts, belongs_to_a_vm};
use crate::process;
use crate::scratch::Scratch;
use crate::segment::{CARD, Segment};
use crate::terraform::{Installation, Project};
use crate::wait;

const OUTSIDE: &str = "192.0.2.2";
const CONTROL: &str = "192.0.2.3";
const CONTROL_IPV6: &str = "2001:db8:c::3";
/// The prefix of a host's address: host number N has the address that ends in 10 + N.
const HOSTS: &str = "192.0.2.1";
/// The public addresses of every machine's default pool; they are not on the segment, so the outside cannot reach them here.
const LOCAL: &str = "198.51.100.0/28";
/// Public addresses on the segment.
pub const PUBLIC: &str = "192.0.2.64/27";
/// The time limit until a host is ready, with the machine busy.
const READY: Duration = Duration::from_secs(90);
/// The time limit until all hosts have seen the folder of a pool: each looks at its pools every minute, and when it is asked to.
const POOL_SEEN: Duration = Duration::from_secs(300);

/// One host.
#[derive(Debug)]
pub struct Member {
    /// The name, also of its Host object.
    pub name: String,
    /// The address on the segment.
    pub address: String,
    /// The `berth` process on the host.
    pub berth: Berth,
}

impl Member {
    /// The network namespace.
    pub fn namespace(&self) -> &Arc<Namespace> {
        self.berth.machine().namespace()
    }

    /// The QEMU processes on the host, by the pids of this machine.
    pub fn qemu(&self) -> Result<Vec<i32>> {
        berth::qemu_processes(self.namespace())
    }

    /// The current resources on the host that belong to VMs.
    pub fn footprint(&self) -> Result<Footprint> {
        let seen = Footprint::of(self.namespace(), self.berth.state(), belongs_to_a_vm)?;
        // berth may have been restarted with other arguments.
        let seen = seen.without(&format!("process {}", self.berth.program().display()));
        let kept = kept_by_trash(self.berth.state());
        Ok(kept.iter().fold(seen, |seen, id| seen.without(&format!("file pools/default/snapshots/{id}."))))
    }
}

/// The snapshots that a disk in the trash is based on: they stay as long as it does.
fn kept_by_trash(state: &Path) -> Vec<String> {
    let (trash, snapshots) = (state.join("pools/default/trash"), state.join("pools/default/snapshots"));
    let names = footprint::files(&trash);
    let notes = names.iter().filter(|name| name.ends_with(".json"));
    let notes: Vec<String> = notes.filter_map(|name| fs::read_to_string(trash.join(name)).ok()).collect();
    let ids = footprint::files(&snapshots);
    let ids = ids.iter().filter_map(|name| name.strip_suffix(".json"));
    ids.filter(|id| notes.iter().any(|note| note.contains(*id))).map(str::to_owned).collect()
}

/// What machines and control plane stand on.
#[derive(Debug)]
struct Ground {
    folder: Scratch,
    segment: Segment,
    outside: Arc<Namespace>,
}

#[derive(Debug)]
enum Control {
    /// The control plane runs on the first host.
    Embedded,
    Kubernetes(Box<Cluster>),
}

/// A Kubernetes control plane with `berth controllers`.
#[derive(Debug)]
pub struct Cluster {
    controllers: Berth,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    _garbage: GarbageCollector,
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
        namespace.ip(&["-6", "addr", "add", &format!("{CONTROL_IPV6}/64"), "dev", CARD, "nodad"])?;
        let plane = KubernetesControlPlane::start(
            programs,
            Location {
                namespace,
                address: CONTROL,
                ipv6: Some(CONTROL_IPV6),
                folder: &folder.path().join("plane"),
                logs: &parts.logs,
            },
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
        let garbage = GarbageCollector::start(Access::read(&kubeconfig, namespace)?);
        controllers.spawn_controllers(&kubeconfig, None)?;
        Ok(Self { controllers, kubectl, kubeconfig, _garbage: garbage, _plane: plane })
    }

    /// kubectl as its administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Stops the controllers.
    pub fn stop(&mut self) -> Result<()> {
        self.controllers.stop().context("controllers")
    }
}

/// The hosts and their surroundings.
#[derive(Debug)]
pub struct Fleet {
    // Fields drop in this order: first the processes, then their namespaces, then their files.
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

    /// Like [`Self::embedded`], on a machine that `prepare` has prepared.
    pub fn embedded_on(parts: &Parts, prepare: impl FnOnce(&mut Member) -> Result<()>) -> Result<Self> {
        let (folder, segment, outside) = ground(parts)?;
        let mut first = member(parts, &folder, &segment, 1)?;
        prepare(&mut first)?;
        first.berth = first.berth.listening_on("0.0.0.0:7443");
        let local = first.berth.machine().seen(&first.berth.kubeconfig());
        // The kubeconfig that berth writes is for its own machine.
        let kubeconfig = folder.path().join("kubeconfig");
        first.berth.spawn_up()?;
        wait::until("berth up to write its kubeconfig", READY, || {
            first.berth.must_run()?;
            let text = fs::read_to_string(&local).context("no kubeconfig yet")?;
            fs::write(&kubeconfig, text.replace("127.0.0.1", &first.address))?;
            Ok(())
        })?;
        let mut fleet =
            Self::finish(parts, Ground { folder, segment, outside }, Control::Embedded, kubeconfig)?;
        fleet.members.push(first);
        fleet.host_is_ready("h1")?;
        Ok(fleet)
    }

    /// No host yet, but etcd, kube-apiserver with berth's CRDs, and `berth controllers`.
    pub fn kubernetes(parts: &Parts, programs: &Programs) -> Result<Self> {
        let (folder, segment, outside) = ground(parts)?;
        let namespace = Namespace::new()?;
        segment.plug(&namespace, &format!("{CONTROL}/24"), Some(OUTSIDE))?;
        let cluster = Cluster::start(parts, programs, &namespace, &folder, &outside)?;
        let kubeconfig = cluster.kubeconfig.clone();
        Self::finish(
            parts,
            Ground { folder, segment, outside },
            Control::Kubernetes(Box::new(cluster)),
            kubeconfig,
        )
    }

    /// A cluster beside this one's control plane: etcd, kube-apiserver with berth's CRDs, and `berth controllers`.
    pub fn cluster(&self, programs: &Programs) -> Result<Cluster> {
        let namespace = self.server(CONTROL)?;
        Cluster::start(&self.parts, programs, &namespace, &self.folder, &self.outside)
    }

    /// A machine on the segment for servers of others, with this address.
    pub fn server(&self, address: &str) -> Result<Arc<Namespace>> {
        let namespace = Namespace::new()?;
        self.segment.plug(&namespace, &format!("{address}/24"), Some(OUTSIDE))?;
        Ok(namespace)
    }

    fn finish(parts: &Parts, ground: Ground, control: Control, kubeconfig: PathBuf) -> Result<Self> {
        let Ground { folder, segment, outside } = ground;
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

    /// A machine on the segment without berth running; it is not a member.
    pub fn machine(&self, number: u32) -> Result<Member> {
        member(&self.parts, &self.folder, &self.segment, number)
    }

    /// Creates a machine that joins as `h` + `number`, and is a member once it is ready.
    pub fn join(&mut self, number: u32, labels: &[&str]) -> Result<()> {
        let machine = self.machine(number)?;
        self.join_on(machine, labels)
    }

    /// Joins a machine created before, under its own name.
    pub fn join_on(&mut self, mut member: Member, labels: &[&str]) -> Result<()> {
        let token = self.administrator.token(&member.name)?;
        member.berth.spawn_joined(Some(&token), labels)?;
        let name = member.name.clone();
        self.members.push(member);
        self.host_is_ready(&name)
    }

    /// Like [`Self::join`], on a machine that reaches the control plane on Kubernetes at its IPv6 address.
    pub fn join_by_ipv6(&mut self, number: u32) -> Result<()> {
        let mut member = self.machine(number)?;
        let own = format!("2001:db8:c::1{number}/64");
        member.namespace().ip(&["-6", "addr", "add", &own, "dev", CARD, "nodad"])?;
        let server = format!("https://[{CONTROL_IPV6}]:{PORT}");
        let token = self.administrator.token_for(&member.name, &["--server", &server])?;
        member.berth.spawn_joined(Some(&token), &[])?;
        let name = member.name.clone();
        self.members.push(member);
        self.host_is_ready(&name)
    }

    /// Waits until a host is ready; its program must keep running.
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

    /// Starts the program of a host again, with the control plane if that is the one of `berth up`, and waits until the host is ready.
    pub fn start_again(&mut self, name: &str) -> Result<()> {
        let is_first = self.members.first().is_some_and(|first| first.name == name);
        let is_up = self.is_embedded() && is_first;
        let berth = &mut self.member_mut(name)?.berth;
        match is_up {
            true => berth.spawn_up()?,
            false => berth.spawn_joined(None, &[])?,
        }
        self.host_is_ready(name)
    }

    /// The hosts.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// A host.
    pub fn member(&self, name: &str) -> Result<&Member> {
        self.members.iter().find(|member| member.name == name).with_context(|| format!("no host {name}"))
    }

    /// A host, for starting and stopping its program.
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

    /// A machine on the segment that is not a host.
    pub fn outside(&self) -> &Arc<Namespace> {
        &self.outside
    }

    /// The image server for every machine on the segment.
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

    /// The suite's own folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the pool that [`Fleet::share_pool`] makes.
    pub fn common(&self) -> PathBuf {
        self.folder().join("common")
    }

    /// Makes a pool of type Shared: on each host, a link to one folder stands for its mount. Returns the pool once all hosts have it.
    pub fn share_pool(&self, name: &str) -> Result<Value> {
        let common = self.common();
        fs::create_dir(&common)?;
        for member in self.members() {
            let folder = member.berth.pool_folder(name);
            fs::rename(&folder, folder.with_extension("own"))?;
            symlink(&common, &folder)?;
        }
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool", "metadata": {"name": name},
            "spec": {"type": "Shared"}});
        self.kubectl().apply(&pool.to_string())?;
        let (hosts, path) = (self.members().len(), format!("storagepool/{name}"));
        self.kubectl().while_hosts_look(POOL_SEEN, |limit| {
            self.kubectl()
                .until(&path, "to be there on all hosts", limit, |pool| pool["status"]["hosts"] == hosts)
        })
    }

    /// The API as the administrator, request by request.
    pub fn access(&self) -> Result<Access> {
        Access::read(&self.kubeconfig, &self.outside)
    }

    /// `berth` as an administrator's tool.
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

    /// The current resources on the hosts that belong to VMs.
    pub fn footprints(&self) -> Result<Vec<(String, Footprint)>> {
        self.members.iter().map(|member| Ok((member.name.clone(), member.footprint()?))).collect()
    }

    /// Waits until no host has any resource beyond `before`.
    pub fn nothing_beyond(&self, before: &[(String, Footprint)], limit: Duration) -> Result<()> {
        for (name, before) in before {
            let Ok(member) = self.member(name) else { continue };
            wait::until(&format!("host {name} to be clean"), limit, || {
                member.footprint()?.must_not_exceed(before)
            })?;
        }
        Ok(())
    }

    /// Stops all berth processes in order.
    pub fn stop(&mut self) -> Result<()> {
        // The control plane is on the first host: it stops last.
        for member in self.members.iter_mut().rev().filter(|member| member.berth.is_started()) {
            member.berth.stop().with_context(|| member.name.clone())?;
        }
        if let Control::Kubernetes(cluster) = &mut self.control {
            cluster.stop()?;
        }
        Ok(())
    }

    /// Keeps the evidence of a failure and returns the most useful part of it.
    pub fn keep_evidence(&self) -> String {
        let mut output = String::new();
        if let Ok(objects) =
            self.kubectl.run(&["get", "berth,events,leases", "--all-namespaces", "-o", "yaml"])
        {
            // A failure to keep the evidence must not hide the original failure.
            let _ = fs::write(self.parts.logs.join("objects.yaml"), &objects.stdout);
        }
        for member in &self.members {
            let state = member.berth.state();
            for file in footprint::files(state).iter().filter(|file| file.ends_with("serial.log")) {
                let kept = format!("{}-{}", member.name, file.replace('/', "_"));
                let _ = fs::copy(state.join(file), self.parts.logs.join(kept));
            }
            let log = fs::read_to_string(member.berth.log()).unwrap_or_default();
            output += &format!("--- {}\n{}\n", member.berth.log().display(), process::tail(&log, 2_000));
        }
        output
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
    // Named after its namespace: a machine of the same number may be created again.
    let state = folder.path().join(format!("{name}-{}", namespace.name()));
    let log = parts.logs.join(format!("{name}.log"));
    let berth = Berth::new(&parts.binaries.berth, &machine, &state, LOCAL, &log);
    Ok(Member { name, address, berth })
}
