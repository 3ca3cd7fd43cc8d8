//! Everything a reconcile works with: the control plane's client, the host, and the state that the agent keeps.
//!
//! Each part is a module of its own that does not know this one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::SizeTaken;
use berth_api::host::{MOST_CPUS, Reserved};
use jiff::Timestamp;
use kube::Client;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;

use crate::admission::Reservations;
use crate::config::AgentConfig;
use crate::copied_firmware::CopiedFirmware;
use crate::copies::Copies;
use crate::credentials::Secrets;
use crate::definitions::Definitions;
use crate::disk_keys::DiskKeys;
use crate::disk_use::DiskUse;
use crate::error::Error;
use crate::guest_packages::GuestPackages;
use crate::held_statuses::{HeldStatuses, LastReport, QuickGuests};
use crate::hooks::HookCalls;
use crate::huge_pages;
use crate::index::Index;
use crate::key::{Key, ObjectName};
use crate::lease::HostLease;
use crate::lease_watcher::LeaseWatcher;
use crate::live_moves::Departures;
use crate::machine::Machines;
use crate::merges::Merges;
use crate::mirror_attempts::Mirrors;
use crate::named_locks::NamedLocks;
use crate::networking::Networks;
use crate::overhead::Overhead;
use crate::probes::Probes;
use crate::pulls::Pulls;
use crate::recorder::Recorder;
use crate::site::SiteTerm;
use crate::ssh_keys::SshKeys;
use crate::start_order::StartOrder;
use crate::usage::{History, Reconciles, UsageCache};
use berth_engine::Queue;
use berth_host::{HostFacts, System};

/// Delay over which changes are batched before the host is reconciled.
const BATCH_HOST_CHANGES: Duration = Duration::from_millis(500);
/// Delay of the first retry after a failure.
const FIRST_BACK_OFF: Duration = Duration::from_millis(250);

/// State of one running agent.
pub(crate) struct Context {
    pub(crate) config: AgentConfig,
    pub(crate) client: Client,
    pub(crate) system: Arc<dyn System>,
    pub(crate) index: Index,
    pub(crate) queue: Arc<Queue<Key>>,
    pub(crate) machines: Machines,
    pub(crate) reservations: Reservations,
    pub(crate) disk_keys: DiskKeys,
    pub(crate) pulls: Pulls,
    pub(crate) merges: Merges,
    pub(crate) mirrors: Mirrors,
    /// The copies that other hosts have.
    pub(crate) copies: Copies,
    pub(crate) copied_firmware: CopiedFirmware,
    pub(crate) departures: Departures,
    /// One session at a time for each instance that comes: a question about it is answered after the session before has ended.
    pub(crate) arrival_locks: NamedLocks,
    pub(crate) networks: Networks,
    pub(crate) lease_watcher: LeaseWatcher,
    pub(crate) probes: Probes,
    pub(crate) hooks: HookCalls,
    pub(crate) ssh_keys: SshKeys,
    pub(crate) guest_packages: GuestPackages,
    /// Which VMs are started first after a boot of the host.
    pub(crate) start_order: StartOrder,
    pub(crate) recorder: Recorder,
    /// Statuses that only show progress.
    pub(crate) held_statuses: HeldStatuses,
    pub(crate) quick_guests: QuickGuests,
    pub(crate) host_reports: LastReport,
    /// Observations of the host that were not reported.
    pub(crate) host_looks: LastReport,
    pub(crate) lease: HostLease,
    /// Memory a VM takes above its guest memory, as measured on this host.
    pub(crate) overhead: Overhead,
    /// The last reading of the use of this host.
    pub(crate) usage: UsageCache,
    /// The use of the last hour.
    pub(crate) history: Mutex<History>,
    pub(crate) reconciles: Reconciles,
    /// Whether the control plane's definitions contain every reported field.
    pub(crate) definitions: Definitions,
    /// Whether objects are reconciled by now.
    pub(crate) is_working: AtomicBool,
    /// Whether this host was draining when its VMs were last enqueued for it.
    pub(crate) draining: AtomicBool,
    /// Whether it was in a recovery at that time.
    pub(crate) recovering: AtomicBool,
    /// The capacity it reserved for itself at that time.
    pub(crate) reserved: Mutex<Option<Reserved>>,
    /// The pools that were away at the last look.
    pub(crate) away_pools: Mutex<BTreeSet<String>>,
    /// The space that the files of disks take.
    pub(crate) disk_use: DiskUse,
    synced: watch::Sender<bool>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("host", &self.config.host_name).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(
        config: AgentConfig,
        client: Client,
        system: Arc<dyn System>,
        recorder: Recorder,
    ) -> Self {
        let jitter = config.seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        let queue = Arc::new(Queue::new(FIRST_BACK_OFF, jitter));
        let site = SiteTerm::new(client.clone(), system.clone());
        let (secrets, copies) =
            (Secrets::new(client.clone()), Copies::new(client.clone(), &config.host_name));
        Self {
            index: Index::default(),
            reservations: Reservations::default(),
            machines: Machines::new(system.clone(), queue.clone(), config.clock.clone()),
            disk_keys: DiskKeys::new(client.clone(), system.clone()),
            departures: Departures::new(system.clone(), copies.clone(), queue.clone()),
            copies: copies.clone(),
            copied_firmware: CopiedFirmware::default(),
            arrival_locks: NamedLocks::default(),
            pulls: Pulls::new(system.clone(), queue.clone(), secrets, copies),
            merges: Merges::new(system.clone(), queue.clone()),
            mirrors: Mirrors::default(),
            networks: Networks::new(system.clone(), queue.clone()),
            lease_watcher: LeaseWatcher::new(system.clone(), queue.clone(), config.clock.clone()),
            probes: Probes::new(system.clone(), queue.clone()),
            hooks: HookCalls::new(system.clone(), queue.clone()),
            ssh_keys: SshKeys::new(queue.clone()),
            guest_packages: GuestPackages::new(queue.clone(), config.clock.clone()),
            start_order: StartOrder::default(),
            recorder,
            held_statuses: HeldStatuses::default(),
            quick_guests: QuickGuests::default(),
            host_reports: LastReport::default(),
            host_looks: LastReport::default(),
            lease: HostLease::new(client.clone(), config.clone(), site),
            overhead: Overhead::default(),
            usage: UsageCache::default(),
            history: Mutex::default(),
            reconciles: Reconciles::default(),
            definitions: Definitions::default(),
            is_working: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            recovering: AtomicBool::new(false),
            reserved: Mutex::default(),
            away_pools: Mutex::default(),
            disk_use: DiskUse::default(),
            synced: watch::channel(false).0,
            queue,
            config,
            client,
            system,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// Returns the host's facts that the start of a VM depends on, with the measured per-VM memory overhead. Networks are not among them.
    pub(crate) async fn facts(&self) -> Result<HostFacts, Error> {
        let facts = self.system.machine_facts().await?;
        Ok(HostFacts { overhead_bytes: self.overhead.figure(facts.overhead_bytes), ..facts })
    }

    /// Returns the virtual CPUs and the memory that VMs may use here, without what the Host reserves.
    pub(crate) fn offered(&self, facts: &HostFacts) -> SizeTaken {
        let host = self.index.read().hosts.get(&ObjectName::new("", self.host()));
        let reserved = host.as_ref().and_then(|host| host.spec.reserved.as_ref());
        let (cpus, memory) = self.config.offered(facts, reserved);
        let dedicated_cpus = i64::try_from(facts.dedicated.cpus.len()).unwrap_or(MOST_CPUS);
        let huge_memory = huge_pages::offered(facts);
        SizeTaken { cpus, dedicated_cpus, memory, huge_memory, ..SizeTaken::default() }
    }

    /// Returns the bytes that the host keeps for itself of all of its memory.
    pub(crate) fn reserved_memory(&self, memory_bytes: u64) -> u64 {
        let host = self.index.read().hosts.get(&ObjectName::new("", self.host()));
        let reserved = host.as_ref().and_then(|host| host.spec.reserved.as_ref());
        self.config.reserved_of(memory_bytes, reserved)
    }

    /// Returns the thousandths of real CPUs that VMs may reserve here.
    pub(crate) fn reservable(&self, facts: &HostFacts) -> u32 {
        let host = self.index.read().hosts.get(&ObjectName::new("", self.host()));
        let reserved = host.as_ref().and_then(|host| host.spec.reserved.as_ref());
        let (cpus, _) = self.config.reserved(facts, reserved);
        let cpus = self.config.shared_cpus(facts).saturating_sub(cpus).clamp(0, MOST_CPUS);
        u32::try_from(cpus * 1000).unwrap_or(u32::MAX)
    }

    pub(crate) fn host(&self) -> &str {
        &self.config.host_name
    }

    /// Enqueues a key; changes that affect the whole host are batched for a moment.
    pub(crate) fn enqueue(&self, key: Key) {
        let delay = if key == Key::host() { BATCH_HOST_CHANGES } else { Duration::ZERO };
        self.queue.add_after(key, delay);
    }

    /// Must be called after a table has changed: releases [`Context::synced`] once all tables are synced.
    pub(crate) fn sync_changed(&self) {
        if !*self.synced.borrow() && self.index.read().is_synced() {
            self.synced.send_replace(true);
        }
    }

    /// Whether every table has held the control plane's objects.
    pub(crate) fn has_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until every table holds the control plane's objects.
    pub(crate) async fn synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender is in `self`, so it cannot be dropped.
        let _ = synced.wait_for(|synced| *synced).await;
    }
}
