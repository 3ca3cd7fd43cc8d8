//! The two servers under comparison, each started as its users start it, in one network namespace.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::wire;
use crate::access::Access;
use crate::control_plane::{KubernetesControlPlane, Location, Programs};
use crate::namespace::Namespace;
use crate::process::Daemon;
use crate::scratch::Scratch;
use crate::wait;

/// kube-apiserver requires an address that is not a loopback address.
const ADDRESS: &str = "10.254.0.1";
const READY: Duration = Duration::from_secs(60);

/// Both servers, running; stopped on drop.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) ours: Access,
    pub(super) theirs: Access,
    // Fields drop in this order.
    _berth: Daemon,
    _kubernetes: KubernetesControlPlane,
    _namespace: Arc<Namespace>,
    _folder: Scratch,
}

impl Servers {
    /// Starts both servers and waits until they serve.
    pub(super) fn start(berth: &Path, programs: &Programs, kubectl: &Path, logs: &Path) -> Result<Self> {
        std::fs::create_dir_all(logs)?;
        let folder = Scratch::new()?;
        let namespace = Namespace::new()?;
        namespace.ip(&["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
        let state = folder.path().join("berth");
        let mut up = namespace.command(berth);
        // Nothing is placed on a host: the requests only concern the control plane.
        up.args(["up", "--no-agent", "--state-dir"]).arg(&state);
        let mut up = Daemon::spawn("berth up --no-agent", &mut up, &logs.join("up.log"))?;
        let kubernetes = KubernetesControlPlane::start(
            programs,
            Location {
                namespace: &namespace,
                address: ADDRESS,
                ipv6: None,
                folder: &folder.path().join("kubernetes"),
                logs,
            },
            kubectl,
        )?;
        let theirs = Access::read(&kubernetes.kubeconfig(), &namespace)?;
        let ours = wait::until("berth's control plane", READY, || {
            up.must_run()?;
            let access = Access::read(&state.join("admin.kubeconfig"), &namespace)?;
            wire::ready(&access)?;
            Ok(access)
        })?;
        Ok(Self { ours, theirs, _berth: up, _kubernetes: kubernetes, _namespace: namespace, _folder: folder })
    }
}
