//! A control plane under more load than it can handle, and with hostile clients: the guarantees that must still hold.
//!
//! ```text
//! writers and watchers ─▶ acknowledged writes are delivered once, in order      hostile clients ─▶ others still get responses
//! ```

mod crowd;
mod flood;
mod informers;
mod watchers;
mod writers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::access::Access;
use crate::api::Request;
use crate::namespace::Namespace;
use crate::proc;
use crate::process::Daemon;
use crate::scratch::Scratch;
use crate::wait;
pub use crowd::Crowd;
pub use flood::flood;
pub use watchers::Totals;

/// The time limit of a start.
const START: Duration = Duration::from_secs(60);
/// Objects of a Kubernetes kind, which nothing else touches.
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
/// The metric for watchers that were too slow.
pub const CUT_OFF: &str = "berth_apiserver_watches_cut_off_total";
/// The interval between two reads of the metric.
const LOOK: Duration = Duration::from_millis(200);
/// The stack size of a thread that only waits for bytes.
const STACK: usize = 256 << 10;

/// The size of the load.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The number of concurrent writers.
    pub writers: usize,
    /// The number of objects they create, some of which they change and delete.
    pub objects: usize,
    /// The number of watchers of all these objects.
    pub followers: usize,
    /// The number of those watchers that do not read for a while.
    pub sleepers: usize,
    /// The number of watchers of a few objects that change often.
    pub watchers: usize,
    /// The number of changes of those objects.
    pub changes: usize,
    /// The number of hostile clients of each kind.
    pub hostile: usize,
}

/// A separate control plane.
#[derive(Debug)]
pub struct Site {
    daemon: Daemon,
    access: Access,
    // Dropped after the processes in it.
    _namespace: Arc<Namespace>,
    _folder: Scratch,
}

/// The results. Violations are errors and not part of them.
#[derive(Debug, Clone, Copy)]
pub struct Findings {
    /// The number of acknowledged writes.
    pub writes: usize,
    /// The events that the watchers of all objects received, including those that did not read for a while.
    pub followers: Totals,
    /// The events that the many watchers of a few objects received.
    pub watchers: Totals,
}

/// The data that informers with a simultaneous start received.
#[derive(Debug, Clone, Copy)]
pub struct Informed {
    /// The number of informers.
    pub count: usize,
    /// The number of objects that each received.
    pub objects: usize,
    /// The number of bytes that each received, without those of HTTP and TLS.
    pub bytes: usize,
    /// The time until the last informer had everything.
    pub took: Duration,
    /// The processor time that the server used in that time.
    pub spent: Duration,
}

impl Informed {
    /// The processor time that the server used per thousand objects sent.
    pub fn per_thousand(&self) -> Result<Duration> {
        Ok(self.spent / u32::try_from((self.count * self.objects / 1_000).max(1))?)
    }
}

impl Site {
    /// Starts a control plane.
    pub fn start(berth: &Path, log: &Path) -> Result<Self> {
        Self::start_on(berth, log, None)
    }

    /// Like [`Self::start`], only on `core` if given.
    pub fn start_on(berth: &Path, log: &Path, core: Option<usize>) -> Result<Self> {
        // One file descriptor per connection.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let (folder, namespace) = (Scratch::new()?, Namespace::new()?);
        let mut up = match core {
            Some(core) => {
                let mut up = namespace.command("taskset");
                up.args(["--cpu-list", &core.to_string()]).arg(berth);
                up
            }
            None => namespace.command(berth),
        };
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

    /// Runs writers and watchers.
    ///
    /// # Errors
    /// The first write that is lost or duplicated, or event that is missed, repeated or out of order.
    pub fn write_and_watch(&self, size: Size) -> Result<Findings> {
        let maps = watchers::start(&self.access, MAPS, size.followers, size.sleepers)?;
        let accounts = watchers::start(&self.access, ACCOUNTS, size.watchers, 0)?;
        let made = std::thread::scope(|scope| {
            let writing = scope.spawn(|| writers::write(&self.access, MAPS, size.writers, size.objects));
            // The server soon gives up on a sleeping watcher, which does not read, and closes its watch.
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

    /// Creates this many objects and leaves them unchanged.
    pub fn fill(&self, objects: usize) -> Result<()> {
        writers::fill(&self.access, MAPS, objects)
    }

    /// Starts this many informers at once and waits until the last has everything; only on `core` if given.
    pub fn inform(&self, count: usize, core: Option<usize>) -> Result<Informed> {
        let pid = i32::try_from(self.daemon.pid())?;
        let before = proc::cpu_of_all(pid)?;
        let informers::Synced { objects, bytes, took } = informers::sync(&self.access, MAPS, count, core)?;
        let spent = proc::cpu_of_all(pid)?.saturating_sub(before);
        let listed = self.access.connect()?.read(MAPS)?;
        let there = listed["items"].as_array().map_or(0, Vec::len);
        ensure!(objects == there, "{objects} objects were sent, there are {there}");
        Ok(Informed { count, objects, bytes, took, spent })
    }

    /// Starts hostile clients of every kind, which stay connected.
    pub fn gather(&self, each: usize) -> Result<Crowd> {
        Crowd::gather(&self.access, each)
    }

    /// Runs a well-behaved client during `during`. Returns the number of its responses. Any refusal is an error.
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

    /// The requests of an ordinary client.
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

    /// A value in `/metrics`.
    pub fn metric(&self, name: &str) -> Result<u64> {
        let text = self.access.connect()?.get("/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {name} in /metrics"))?.parse()?)
    }

    /// The number of responses of this class, such as `5xx`, in `/metrics`.
    pub fn answers(&self, class: &str) -> Result<u64> {
        let text = self.access.connect()?.get("/metrics")?;
        let counts = text.lines().filter(|line| line.contains(&format!("code=\"{class}\"}}")));
        Ok(counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }

    /// The peak resident memory, in MiB.
    pub fn peak(&self) -> Result<f64> {
        proc::peak(i32::try_from(self.daemon.pid())?)
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Checks that it still runs, and that it ends on request.
    pub fn stop(self) -> Result<()> {
        let status = self.daemon.terminate(START)?;
        ensure!(status.success(), "berth up ended with {status}");
        Ok(())
    }
}
