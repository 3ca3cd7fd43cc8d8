//! What is so about a VM.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use berth_api::condition::{find, is_true};
use berth_api::{ConditionType, IPPoolMode, Power, Quantity, VM, VMClass};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};

use super::admission::{self, Admission};
use super::journal::{Journal, Owner};
use super::plan::is_synced;
use super::seed::Bootstrap;
use crate::context::Context;
use crate::disk::volume_of;
use crate::error::Error;
use crate::index::{Tables, instance_of};
use crate::machine::{GuestFacts, Look, Machine};
use crate::network::{bridge_of, mtu_of, tap_prefix};
use crate::queue::{Key, ObjectName};
use crate::seekers::Sought;
use crate::system::{HostFacts, ProcessFacts, VolumeFacts};

/// Everything a plan for a VM is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) now: Timestamp,
    pub(crate) instance: String,
    /// Of an instance that has none: a new one, not written yet.
    /// Whether it may run here.
    pub(crate) admission: Admission,
    pub(crate) journal: Journal,
    pub(crate) journal_written: bool,
    /// Why the journal that is there cannot be used.
    pub(crate) journal_problem: Option<String>,
    pub(crate) process: Option<ProcessFacts>,
    /// None also while QEMU's monitor does not answer.
    pub(crate) look: Option<Look>,
    pub(crate) unreachable: Option<String>,
    pub(crate) guest: GuestFacts,
    pub(crate) lease_taken: bool,
    pub(crate) class: Option<Arc<VMClass>>,
    /// In the order of the spec.
    pub(crate) disks: Vec<DiskSeen>,
    /// Disks that attachments plug in: volume → (disk, attachment).
    pub(crate) attachments: BTreeMap<String, (String, String)>,
    /// Where the guest has volumes mounted that are to be taken out.
    pub(crate) mounts: BTreeMap<String, Vec<String>>,
    pub(crate) missing_networks: Vec<String>,
    pub(crate) mtus: BTreeMap<String, u16>,
    pub(crate) public: Vec<PublicSeen>,
    /// Only looked for when the VM is to be started.
    pub(crate) bootstrap: Bootstrap,
    pub(crate) host: Option<HostFacts>,
    /// CPUs and guest memory this host could give the VM were it alone here; only looked at for a start, and while the
    /// VM runs with another size than its class has.
    pub(crate) offered: Option<(i64, u64)>,
    /// Guest memory this host can still give, what its running VMs have taken off; only looked at for a start.
    pub(crate) free_memory: Option<u64>,
    /// Taps of this instance; only looked for while it has no QEMU and is to have none.
    pub(crate) taps: Vec<String>,
    /// A Disk still names this VM as its user.
    pub(crate) still_user: bool,
    /// This host is being emptied.
    pub(crate) draining: bool,
}

/// A disk the spec lists.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DiskSeen {
    pub(crate) name: String,
    pub(crate) boot: bool,
    pub(crate) volume: Option<VolumeFacts>,
    pub(crate) volume_id: Option<String>,
    pub(crate) serial: String,
    pub(crate) user: User,
    /// What the Disk says of itself when it is not ready.
    pub(crate) problem: Option<String>,
    /// The control plane knows that its file is there: it is given no other one.
    pub(crate) reported: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Nobody,
    ThisVm,
    Other(String),
}

/// A public address an interface names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicSeen {
    pub(crate) interface: String,
    pub(crate) name: String,
    /// Once allocated and given to this VM.
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) mode: IPPoolMode,
    pub(crate) forwarded: bool,
    /// Why it cannot lead here, for people.
    pub(crate) refused: Option<String>,
}

pub(super) async fn observe(ctx: &Context, vm: &VM) -> Result<Observed, Error> {
    let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
    let instance = instance_of(vm).unwrap_or_default().to_owned();
    let written = ctx.system.read_journal(&instance).await?;
    let journal_written = written.is_some();
    let (journal, journal_problem) = match written.map(Journal::parse) {
        None => (Journal::new(vm), None),
        Some(Ok(journal)) => (journal, None),
        Some(Err(error)) => (Journal::new(vm), Some(error.chain())),
    };
    // What has no journal was not started here, and whoever starts it looks for it all the same: only who lets go of
    // what it would hold has to look for it before.
    let process = match journal_written || !is_wanted(vm) {
        true => ctx.system.process(&instance).await?,
        false => None,
    };
    let admission = match &process {
        Some(_) => Admission::Done,
        // What has a journal here was let in: only its status can have been lost.
        None if journal_written && !journal.uid.is_empty() && journal.owner(vm) != Owner::Other => {
            admission::again(vm)
        }
        None => admission::observe(ctx, vm).await?,
    };
    let mut observed = Observed {
        now: ctx.now(),
        admission,
        journal_written,
        journal_problem,
        journal,
        process: process.clone(),
        look: None,
        unreachable: None,
        guest: GuestFacts::default(),
        lease_taken: false,
        disks: disks(ctx, vm, &name).await?,
        mounts: BTreeMap::new(),
        bootstrap: Bootstrap::NotLooked,
        host: None,
        offered: None,
        free_memory: None,
        taps: Vec::new(),
        instance,
        ..from_index(ctx, vm, &name)
    };
    match &process {
        // What is another VM's is not this one's to look into.
        Some(_) if observed.journal.owner(vm) == Owner::Other => {}
        Some(process) => observe_running(ctx, vm, &name, process, &mut observed).await?,
        None => observe_absent(ctx, vm, &mut observed).await?,
    }
    Ok(observed)
}

/// Whether it is to run.
fn is_wanted(vm: &VM) -> bool {
    vm.spec.power == Power::Running && vm.metadata.deletion_timestamp.is_none()
}

/// What the control plane says; everything else is left empty.
fn from_index(ctx: &Context, vm: &VM, name: &ObjectName) -> Observed {
    let tables = ctx.index.read();
    let interfaces = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let mut missing_networks = Vec::new();
    let mut mtus = BTreeMap::new();
    for interface in interfaces {
        let network = interface
            .network
            .split_once('/')
            .and_then(|(namespace, network)| tables.networks.get(&ObjectName::new(namespace, network)));
        match network {
            Some(network) => {
                mtus.insert(interface.network.clone(), mtu_of(&network));
            }
            None => missing_networks.push(interface.network.clone()),
        }
    }
    Observed {
        now: Timestamp::UNIX_EPOCH,
        instance: String::new(),
        admission: Admission::NotYet,
        journal: Journal::new(vm),
        journal_written: false,
        journal_problem: None,
        process: None,
        look: None,
        unreachable: None,
        guest: GuestFacts::default(),
        lease_taken: false,
        class: tables.classes.find(&name.namespace, vm.spec.class.as_str()),
        disks: Vec::new(),
        attachments: attachments(&tables, name),
        mounts: BTreeMap::new(),
        missing_networks,
        mtus,
        public: public(ctx, &tables, vm, name),
        bootstrap: Bootstrap::NotLooked,
        host: None,
        offered: None,
        free_memory: None,
        taps: Vec::new(),
        draining: tables.hosts.get(&ObjectName::new("", ctx.host())).is_some_and(|h| h.spec.draining),
        still_user: tables.disks.all().any(|(disk_name, disk)| {
            let users = disk.status.iter().flat_map(|s| &s.used_by);
            disk_name.namespace == name.namespace
                && users.into_iter().any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref())
        }),
    }
}

fn attachments(tables: &Tables, name: &ObjectName) -> BTreeMap<String, (String, String)> {
    let volume = |disk: &str| {
        let disk = tables.disks.get(&name.beside(disk))?;
        volume_of(&disk).map(str::to_owned)
    };
    tables
        .attachments_of(name)
        .filter_map(|a| Some((volume(a.spec.disk.as_str())?, (a.spec.disk.to_string(), a.name_any()))))
        .collect()
}

fn public(ctx: &Context, tables: &Tables, vm: &VM, name: &ObjectName) -> Vec<PublicSeen> {
    let private = |interface: &str| {
        let status = vm.status.as_ref()?;
        status.interfaces.iter().find(|i| i.name == interface)?.address.parse::<Ipv4Addr>().ok()
    };
    let named = vm.spec.network_interfaces.iter().filter_map(|n| Some((n, n.public_ip.as_ref()?)));
    named
        .map(|(interface, public_ip)| {
            let interface = interface.name.as_str();
            let (address, mode) = crate::network::public_address(tables, name, vm, interface).unzip();
            let forwarded = match (address, private(interface)) {
                (Some(public), Some(private)) => ctx.network.forwards(public, private),
                _ => false,
            };
            let name = public_ip.to_string();
            let refused = address.and_then(|a| ctx.network.refused(a)).map(|refused| refused.text);
            let mode = mode.unwrap_or_default();
            PublicSeen { interface: interface.to_owned(), name, address, mode, forwarded, refused }
        })
        .collect()
}

async fn disks(ctx: &Context, vm: &VM, name: &ObjectName) -> Result<Vec<DiskSeen>, Error> {
    let mut seen = Vec::new();
    for wanted in &vm.spec.disks {
        let disk = ctx.index.read().disks.get(&name.beside(wanted.name.as_str()));
        let status = disk.as_ref().and_then(|d| d.status.clone()).unwrap_or_default();
        let volume = match (&disk, &status.volume_id) {
            (Some(disk), Some(id)) => ctx.system.volume(disk.spec.pool.as_str(), id).await?,
            _ => None,
        };
        let user = match status.used_by.first() {
            None => User::Nobody,
            Some(user) if Some(&user.vm_uid) == vm.metadata.uid.as_ref() && user.attachment.is_none() => {
                User::ThisVm
            }
            Some(user) => User::Other(user.vm.clone()),
        };
        let ready = find(&status.conditions, "Ready").filter(|c| c.status != "True");
        let stalled = is_true(&status.conditions, ConditionType::Stalled);
        let problem = ready.filter(|_| stalled || volume.is_none()).map(|c| match c.message.as_str() {
            "" => c.reason.clone(),
            message => format!("{}: {message}", c.reason),
        });
        seen.push(DiskSeen {
            name: wanted.name.to_string(),
            boot: wanted.boot,
            volume,
            reported: status.size.is_some(),
            volume_id: status.volume_id,
            serial: status.serial.unwrap_or_default(),
            user,
            problem,
        });
    }
    Ok(seen)
}

async fn observe_running(
    ctx: &Context,
    vm: &VM,
    name: &ObjectName,
    process: &ProcessFacts,
    observed: &mut Observed,
) -> Result<(), Error> {
    let key = Some(Key::Vm(name.clone()));
    let uid = vm.metadata.uid.as_deref();
    let opened = match ctx.machines.open(&observed.instance, uid, key, process).await {
        Ok(machine) => machine.look().await.map(|look| (machine, look)),
        Err(error) => Err(error),
    };
    match opened {
        Ok((machine, look)) => {
            observed.guest = machine.guest();
            observed.mounts = mounts(&machine, &look, observed).await;
            observed.look = Some(look);
        }
        // It may be on its way out, or hang: a fact like any other.
        Err(error) => observed.unreachable = Some(error.chain()),
    }
    let synced = match (&observed.journal.run, &observed.class) {
        (Some(run), Some(class)) => is_synced(run, vm, class),
        _ => true,
    };
    if !synced {
        observed.offered = Some(offered(ctx, &ctx.system.facts().await?));
    }
    let mut sought = Vec::new();
    if !observed.guest.agent {
        sought = interfaces(vm, process);
        observed.lease_taken = lease_taken(ctx, &sought).await?;
    }
    let is_seen = observed.guest.agent || observed.lease_taken;
    ctx.seekers.seek(name, if is_seen { Vec::new() } else { sought });
    Ok(())
}

/// Asked only of disks that are to be taken out.
async fn mounts(machine: &Machine, look: &Look, observed: &Observed) -> BTreeMap<String, Vec<String>> {
    let mut mounts = BTreeMap::new();
    for disk in super::unwanted(look, observed) {
        if let Some(points) = machine.mounts(&disk.serial, disk.target).await {
            mounts.insert(disk.id.clone(), points);
        }
    }
    mounts
}

/// By what the guest of this process can be seen to have started.
fn interfaces(vm: &VM, process: &ProcessFacts) -> Vec<Sought> {
    let interfaces = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let sought = interfaces.iter().map(|interface| Sought {
        bridge: bridge_of(&interface.network),
        mac: interface.mac_address.clone(),
        since: process.started_at,
    });
    sought.collect()
}

async fn lease_taken(ctx: &Context, interfaces: &[Sought]) -> Result<bool, Error> {
    for interface in interfaces {
        let leases = ctx.system.leases_taken(&interface.bridge).await?;
        if leases.iter().any(|lease| interface.is_found(lease)) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn observe_absent(ctx: &Context, vm: &VM, observed: &mut Observed) -> Result<(), Error> {
    ctx.machines.gone(&observed.instance);
    ctx.seekers.seek(&ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any()), Vec::new());
    if !is_wanted(vm) || observed.draining {
        let prefix = tap_prefix(&observed.instance);
        let taps = ctx.system.taps().await?;
        observed.taps = taps.into_iter().filter(|tap| tap.starts_with(&prefix)).collect();
    }
    if is_wanted(vm) {
        let host = ctx.facts().await?;
        observed.free_memory = Some(free_memory(ctx, vm, &host));
        observed.offered = Some(offered(ctx, &host));
        observed.host = Some(host);
        observed.bootstrap = bootstrap(ctx, vm).await?;
    }
    Ok(())
}

fn offered(ctx: &Context, host: &HostFacts) -> (i64, u64) {
    let cpus = i64::from(host.cpus) * i64::from(ctx.config.cpu_overcommit.max(1));
    let memory = ctx.config.offered_memory(host.memory_bytes);
    (cpus, memory.saturating_sub(host.overhead_bytes))
}

/// What the other VMs that run here have is read from what was reported of them.
fn free_memory(ctx: &Context, vm: &VM, host: &HostFacts) -> u64 {
    let tables = ctx.index.read();
    let running = tables.vms.all().map(|(_, other)| other).filter(|other| {
        let runs = other.status.as_ref().is_some_and(|s| s.process.is_some());
        runs && other.metadata.uid != vm.metadata.uid
    });
    let taken = running.map(|other| {
        let hardware = other.status.as_ref().and_then(|s| s.hardware.as_ref());
        let memory = hardware.and_then(|h| Quantity(h.memory.clone()).bytes().ok());
        memory.unwrap_or(0).saturating_add(host.overhead_bytes)
    });
    offered(ctx, host).1.saturating_sub(taken.sum())
}

async fn bootstrap(ctx: &Context, vm: &VM) -> Result<Bootstrap, Error> {
    let Some(name) = vm.spec.bootstrap.as_ref().and_then(|b| b.secret_name.clone()) else {
        return Ok(Bootstrap::inline(vm));
    };
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &vm.namespace().unwrap_or_default());
    let found = match secrets.get_opt(&name).await {
        // The controllers let this host read it once the VM is bound here.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(Bootstrap::Missing(name)),
        other => other.map_err(Error::api("read the bootstrap Secret"))?,
    };
    Ok(found.map_or(Bootstrap::Missing(name), |secret| Bootstrap::secret(&secret)))
}
