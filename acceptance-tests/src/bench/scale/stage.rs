//! The programs under measurement: control plane and controllers in one process, all simulated hosts in another.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::client::Plane;
use crate::namespace::{self, Namespace};
use crate::process::Daemon;
use crate::scratch::Scratch;
use crate::wait;

const READY: Duration = Duration::from_secs(60);
const HOSTS_READY: Duration = Duration::from_secs(180);

/// A running control plane with simulated hosts; stopped on drop.
#[derive(Debug)]
pub(super) struct Stage {
    // Fields drop in this order.
    hosts: Daemon,
    up: Daemon,
    _namespace: Arc<Namespace>,
    _folder: Scratch,
}

impl Stage {
    /// Starts both and waits until every host is ready.
    pub(super) fn start(berth: &Path, hosts: u16, logs: &Path) -> Result<(Self, Plane)> {
        std::fs::create_dir_all(logs)?;
        let prefix = format!("{}{}-scale-", namespace::PREFIX, std::process::id());
        let folder = Scratch::within(&std::env::temp_dir(), &prefix)?;
        let namespace = Namespace::new()?;
        let kubeconfig = folder.path().join("admin.kubeconfig");
        let mut up = namespace.command(berth);
        // All VMs are in one namespace, and its default Network needs an address for each.
        up.args(["up", "--no-agent", "--private-prefix", "14", "--state-dir"]).arg(folder.path());
        let mut up = Daemon::spawn("berth up --no-agent", &mut up, &logs.join("up.log"))?;
        let plane = wait::until("the control plane", READY, || {
            up.must_run()?;
            Plane::open(&kubeconfig, &namespace)
        })?;
        let mut simulate = namespace.command(berth);
        simulate.args(["host", "--simulate", &hosts.to_string(), "--kubeconfig"]).arg(&kubeconfig);
        // Otherwise a log line per VM, for the hosts of a data centre on one machine, would be measured too.
        simulate.env("BERTH_LOG", "warn");
        let simulate = Daemon::spawn("berth host --simulate", &mut simulate, &logs.join("hosts.log"))?;
        let mut stage = Self { hosts: simulate, up, _namespace: namespace, _folder: folder };
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
        self.up.must_run()?;
        self.hosts.must_run()
    }

    /// The process id of control plane and controllers.
    pub(super) fn up(&self) -> i32 {
        pid(&self.up)
    }

    /// The process id of all hosts' agents.
    pub(super) fn hosts(&self) -> i32 {
        pid(&self.hosts)
    }
}

fn pid(daemon: &Daemon) -> i32 {
    i32::try_from(daemon.pid()).expect("a pid fits in pid_t")
}
