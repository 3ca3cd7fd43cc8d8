//! A second machine: `berth host` in a namespace of its own, on the control plane of a [`Site`].

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::site::Site;
use crate::api;
use crate::berth::Berth;
use crate::machine::Machine;
use crate::namespace::Namespace;
use crate::process::Daemon;

/// The name of its Host.
pub const NAME: &str = "measured";

/// The machine.
#[derive(Debug)]
pub struct Host {
    daemon: Daemon,
    namespace: Arc<Namespace>,
    state: PathBuf,
    _relay: Relay,
}

impl Host {
    /// Starts the agent and waits until its Host is ready.
    pub fn start(program: &Path, site: &Site, log: &Path) -> Result<Self> {
        let namespace = Namespace::new()?;
        let port = site.port()?;
        let relay = Relay::start(&namespace, site.namespace(), port)?;
        let state = site.folder().join(NAME);
        let berth = Berth::new(program, &Machine::plain(&namespace), &state, "", log)
            .named(NAME)
            .with_images_in(&site.images());
        let mut command = berth.host_command();
        // As by default: the suites allow it.
        command.env_remove("BERTH_EMULATE");
        command.args(["--cpu-overcommit", "64", "--kubeconfig"]).arg(site.kubeconfig());
        let daemon = Daemon::spawn("berth host", &mut command, log)?;
        let host = Self { daemon, namespace, state, _relay: relay };
        let mut watch = site.api()?.watch(api::HOST)?;
        watch.until(|host| api::name(host) == NAME && api::is_true(host, "Ready"))?;
        Ok(host)
    }

    /// The agent's process id.
    pub fn pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.daemon.pid())?)
    }

    /// The network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The folder of a VM's machine.
    pub fn instance(&self, site: &Site, vm: &str) -> Result<PathBuf> {
        let object = site.api()?.read(&format!("{}/{vm}", api::VM.path()))?;
        let id = object["status"]["instanceID"].as_str().context("the VM has no machine yet")?;
        Ok(self.state.join("instances").join(id))
    }

    /// The output of a guest on its serial console.
    pub fn serial(&self, site: &Site, vm: &str) -> Result<String> {
        let bytes = fs::read(self.instance(site, vm)?.join("serial.log")).context("the serial console")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Requests the agent to end.
    pub fn stop(self) -> Result<()> {
        self.daemon.terminate(Duration::from_secs(30)).map(drop)
    }
}

/// Forwards connections to a port of one namespace's loopback to the same port of another's, like a cable.
#[derive(Debug)]
struct Relay {
    closed: Arc<AtomicBool>,
    namespace: Arc<Namespace>,
    port: u16,
}

impl Relay {
    fn start(from: &Arc<Namespace>, to: &Arc<Namespace>, port: u16) -> Result<Self> {
        let listener = from.inside(move || Ok(TcpListener::bind(("127.0.0.1", port))?))?;
        let closed = Arc::new(AtomicBool::new(false));
        let (ended, to) = (Arc::clone(&closed), Arc::clone(to));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let far = to.inside(move || Ok(TcpStream::connect(("127.0.0.1", port))?));
                // The client sees a failure as the end of the connection.
                if let Ok(far) = far {
                    let _ = join(near, far);
                }
            }
        });
        Ok(Self { closed, namespace: Arc::clone(from), port })
    }
}

fn join(near: TcpStream, far: TcpStream) -> Result<()> {
    for (mut from, mut to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        from.set_nodelay(true)?;
        std::thread::spawn(move || {
            // Either side may disconnect at any time.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    }
    Ok(())
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // The listener blocks in accept: one connection wakes it.
        let port = self.port;
        let _ = self.namespace.inside(move || Ok(TcpStream::connect(("127.0.0.1", port))?));
    }
}
