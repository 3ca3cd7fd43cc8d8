//! The programs under measurement: a control plane with its controllers, and one process with all simulated hosts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Measured;
use super::client::Plane;
use crate::cache::Cache;
use crate::control_plane::{KubernetesControlPlane, Location, Programs};
use crate::kubectl::Kubectl;
use crate::namespace::{self, Namespace};
use crate::process::{self, Daemon};
use crate::scratch::Scratch;
use crate::{proc, tools, wait};

const READY: Duration = Duration::from_secs(60);
const HOSTS_READY: Duration = Duration::from_secs(600);
/// All VMs are in one namespace, and its default Network needs an address for each.
const PRIVATE_PREFIX: [&str; 2] = ["--private-prefix", "14"];
/// The address of kube-apiserver.
const ADDRESS: &str = "192.0.2.1";

/// A running control plane with simulated hosts; stopped on drop.
#[derive(Debug)]
pub(super) struct Stage {
    // Fields drop in this order.
    hosts: Daemon,
    control: Control,
    _namespace: Arc<Namespace>,
    _folder: Scratch,
}

#[derive(Debug)]
enum Control {
    Embedded(Daemon),
    Kubernetes { controllers: Daemon, plane: Box<KubernetesControlPlane> },
}

impl Stage {
    /// Starts both and waits until every host is ready. The hosts record their packet filters in the file `record`.
    pub(super) fn start(
        measured: &Measured,
        hosts: u16,
        logs: &Path,
        record: Option<&Path>,
    ) -> Result<(Self, Plane)> {
        std::fs::create_dir_all(logs)?;
        let prefix = format!("{}{}-scale-", namespace::PREFIX, std::process::id());
        let folder = Scratch::within(&std::env::temp_dir(), &prefix)?;
        let namespace = Namespace::new()?;
        let (mut control, kubeconfig) = match measured {
            Measured::Embedded { berth } => embedded(berth, &namespace, folder.path(), logs)?,
            Measured::Kubernetes { berth, cache } => {
                kubernetes(berth, cache, &namespace, folder.path(), logs)?
            }
        };
        let plane = wait::until("the control plane", READY, || {
            control.must_run()?;
            Plane::open(&kubeconfig, &namespace)
        })?;
        let mut simulate = namespace.command(measured.berth());
        simulate.args(["host", "--simulate", &hosts.to_string(), "--kubeconfig"]).arg(&kubeconfig);
        if let Some(record) = record {
            simulate.arg("--record-filters").arg(record);
        }
        // Otherwise a log line per VM, for the hosts of a data centre on one machine, would be measured too.
        simulate.env("BERTH_LOG", "warn");
        let simulate = Daemon::spawn("berth host --simulate", &mut simulate, &logs.join("hosts.log"))?;
        let mut stage = Self { hosts: simulate, control, _namespace: namespace, _folder: folder };
        wait::until("every host to be ready", HOSTS_READY, || {
            stage.must_run()?;
            let ready = plane.ready_hosts()?;
            ensure!(ready == usize::from(hosts), "{ready} of {hosts} hosts are ready");
            Ok(())
        })?;
        Ok((stage, plane))
    }

    /// Fails when one of the processes has ended.
    pub(super) fn must_run(&mut self) -> Result<()> {
        self.control.must_run()?;
        self.hosts.must_run()
    }

    /// The processor time of control plane and controllers.
    pub(super) fn cpu(&self) -> Result<Duration> {
        self.control.pids()?.into_iter().map(proc::cpu).sum()
    }

    /// The resident memory of control plane and controllers, in MiB.
    pub(super) fn memory(&self) -> Result<f64> {
        self.control.pids()?.into_iter().map(|pid| Ok(proc::memory(pid)?.rss)).sum()
    }

    /// The peak memory of control plane and controllers, in MiB. Several processes count as if all had their peaks at once.
    pub(super) fn peak_memory(&self) -> Result<f64> {
        self.control.pids()?.into_iter().map(proc::peak).sum()
    }

    /// The process id of all hosts' agents.
    pub(super) fn hosts(&self) -> i32 {
        pid(&self.hosts)
    }
}

impl Control {
    fn must_run(&mut self) -> Result<()> {
        match self {
            Self::Embedded(up) => up.must_run(),
            Self::Kubernetes { controllers, .. } => controllers.must_run(),
        }
    }

    fn pids(&self) -> Result<Vec<i32>> {
        match self {
            Self::Embedded(up) => Ok(vec![pid(up)]),
            Self::Kubernetes { controllers, plane } => {
                Ok(plane.pids()?.into_iter().chain([pid(controllers)]).collect())
            }
        }
    }
}

fn embedded(
    berth: &Path,
    namespace: &Arc<Namespace>,
    folder: &Path,
    logs: &Path,
) -> Result<(Control, PathBuf)> {
    let mut up = namespace.command(berth);
    up.args(["up", "--no-agent"]).args(PRIVATE_PREFIX).arg("--state-dir").arg(folder);
    let up = Daemon::spawn("berth up --no-agent", &mut up, &logs.join("up.log"))?;
    Ok((Control::Embedded(up), folder.join("admin.kubeconfig")))
}

fn kubernetes(
    berth: &Path,
    cache: &Cache,
    namespace: &Arc<Namespace>,
    folder: &Path,
    logs: &Path,
) -> Result<(Control, PathBuf)> {
    namespace.ip(&["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
    let kubectl = tools::kubectl(cache)?;
    let location =
        Location { namespace, address: ADDRESS, ipv6: None, folder: &folder.join("kubernetes"), logs };
    let plane = Box::new(KubernetesControlPlane::start(&Programs::get(cache)?, location, &kubectl)?);
    let kubeconfig = plane.kubeconfig();
    let kubectl = Kubectl::new(&kubectl, &kubeconfig, &folder.join("home"), namespace);
    kubectl.apply(&process::run(Command::new(berth).arg("crds"), READY)?.success()?)?;
    kubectl.ok(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
    let mut controllers = namespace.command(berth);
    controllers.arg("controllers").args(PRIVATE_PREFIX).args([
        "--public-cidr",
        "198.51.100.0/24",
        "--kubeconfig",
    ]);
    controllers.arg(&kubeconfig);
    let controllers = Daemon::spawn("berth controllers", &mut controllers, &logs.join("controllers.log"))?;
    Ok((Control::Kubernetes { controllers, plane }, kubeconfig))
}

fn pid(daemon: &Daemon) -> i32 {
    i32::try_from(daemon.pid()).expect("a pid fits in pid_t")
}
