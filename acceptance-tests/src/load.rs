//! A control plane with more to do than it can, and with clients that mean it no good: what holds then.
//!
//! ```text
//! writers and watchers ─▶ what was acknowledged was told, once, in order      hostile clients ─▶ others are answered all the same
//! ```

mod crowd;
mod flood;
mod watchers;
mod writers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::access::Access;
use crate::measure::api::Request;
use crate::measure::proc;
use crate::namespace::Namespace;
use crate::process::Daemon;
use crate::scratch::Scratch;
use crate::wait;
pub use crowd::Crowd;
pub use flood::flood;
pub use watchers::Told;

/// How long a start may take.
const START: Duration = Duration::from_secs(60);
/// Objects of Kubernetes' own, which nobody else touches.
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
/// How many watchers were too slow, in `/metrics`.
pub const CUT_OFF: &str = "berth_apiserver_watches_cut_off_total";
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(200);
/// A thread that waits for bytes needs little.
const STACK: usize = 256 << 10;

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Clients that write at the same time.
    pub writers: usize,
    /// Objects they make, some of which they change and delete.
    pub objects: usize,
    /// Watchers of all of these.
    pub followers: usize,
    /// Those of them that do not read for a while.
    pub sleepers: usize,
    /// Watchers of a few objects that change often.
    pub watchers: usize,
    /// Changes of these.
    pub changes: usize,
    /// Hostile clients of each kind.
    pub hostile: usize,
}

/// A control plane of its own.
#[derive(Debug)]
pub struct Site {
    daemon: Daemon,
    access: Access,
    // Dropped after what runs in it.
    _namespace: Arc<Namespace>,
    _folder: Scratch,
}

/// What was seen. Nothing that is wrong is in it: that is an error.
#[derive(Debug, Clone, Copy)]
pub struct Findings {
    /// Writes that were acknowledged.
    pub writes: usize,
    /// What the watchers of all objects were told, a few of whom did not read for a while.
    pub followers: Told,
    /// What the many watchers of few objects were told.
    pub watchers: Told,
}

impl Site {
    /// Starts it.
    pub fn start(berth: &Path, log: &Path) -> Result<Self> {
        // One for each connection.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let (folder, namespace) = (Scratch::new()?, Namespace::new()?);
        let mut up = namespace.command(berth);
        up.args(["up", "--no-agent", "--state-dir"]).arg(folder.path()).env("BERTH_LOG", "warn");
        let mut daemon = Daemon::spawn("berth up --no-agent", &mut up, log)?;
        let kubeconfig = folder.path().join("admin.kubeconfig");
        let access = wait::until("the control plane", START, || {
            daemon.must_run()?;
            let access = Access::read(&kubeconfig, &namespace)?;
            access.connect()?.get("/readyz")?;
            Ok(access)
        })?;
        Ok(Self { daemon, access, _namespace: namespace, _folder: folder })
    }

    /// Writers write and watchers watch.
    ///
    /// # Errors
    /// The first write that is lost or doubled, or event that is missed, repeated or out of order.
    pub fn write_and_watch(&self, size: Size) -> Result<Findings> {
        let maps = watchers::start(&self.access, MAPS, size.followers, size.sleepers)?;
        let accounts = watchers::start(&self.access, ACCOUNTS, size.watchers, 0)?;
        let made = std::thread::scope(|scope| {
            let writing = scope.spawn(|| writers::write(&self.access, MAPS, size.writers, size.objects));
            // Who does not read is cut off while it sleeps; the server soon gives up telling it.
            while !writing.is_finished() && self.metric(CUT_OFF)? < size.sleepers as u64 {
                std::thread::sleep(LOOK);
            }
            maps.wake();
            writing.join().map_err(|_| anyhow!("the writers panicked"))?
        })?;
        let changed = writers::write(&self.access, ACCOUNTS, size.changes.min(8), size.changes)?;
        writers::check(&self.access, MAPS, &made)?;
        writers::check(&self.access, ACCOUNTS, &changed)?;
        for path in [MAPS, ACCOUNTS] {
            self.access.connect()?.post(path, &writers::object(path, watchers::END, 0))?;
        }
        let (followers, watchers) = (maps.check(&made)?, accounts.check(&changed)?);
        Ok(Findings { writes: made.len() + changed.len(), followers, watchers })
    }

    /// Gathers hostile clients of every kind, who stay.
    pub fn gather(&self, each: usize) -> Result<Crowd> {
        Crowd::gather(&self.access, each)
    }

    /// A client that means no harm, while something else goes on: how often it was answered. Any refusal is an error.
    pub fn meanwhile(&self, during: impl FnOnce() -> Result<()>) -> Result<u32> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut answered = 0;
                while !over.load(Ordering::Relaxed) || answered == 0 {
                    self.ordinary(answered)?;
                    answered += 1;
                }
                Ok::<_, anyhow::Error>(answered)
            });
            let happened = during();
            over.store(true, Ordering::Relaxed);
            let answered = client.join().map_err(|_| anyhow!("the client panicked"))?;
            happened?;
            answered
        })
    }

    /// What an ordinary client does.
    pub fn ordinary(&self, round: u32) -> Result<()> {
        let mut api = self.access.connect()?;
        let name = format!("ordinary-{round}");
        api.post(MAPS, &writers::object(MAPS, &name, 1))?;
        api.get(&format!("{MAPS}/{name}"))?;
        api.get(&format!("{MAPS}?limit=10"))?;
        let (status, text) = api.answer(&Request::new("DELETE", &format!("{MAPS}/{name}"), ""))?;
        ensure!(status == 200, "{status}: {text}");
        Ok(())
    }

    /// A number of `/metrics`.
    pub fn metric(&self, name: &str) -> Result<u64> {
        let text = self.access.connect()?.get("/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {name} in /metrics"))?.parse()?)
    }

    /// Answers of this class, `5xx`, that `/metrics` counts.
    pub fn answers(&self, class: &str) -> Result<u64> {
        let text = self.access.connect()?.get("/metrics")?;
        let counts = text.lines().filter(|line| line.contains(&format!("code=\"{class}\"}}")));
        Ok(counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }

    /// The most memory that was ever resident, MiB.
    pub fn peak(&self) -> Result<f64> {
        proc::peak(i32::try_from(self.daemon.pid())?)
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// It still runs, and ends when it is told to.
    pub fn stop(self) -> Result<()> {
        let status = self.daemon.terminate(START)?;
        ensure!(status.success(), "berth up ended with {status}");
        Ok(())
    }
}
