//! Guests that come from other hosts while they run: the machine that one comes to, until its VM is bound here.
//!
//! ```text
//!   prepare: journal Receiving ─▶ files ─▶ networks, taps ─▶ QEMU waits      start: journal Started (durable) ─▶ the guest runs
//!      │ an error, a lost connection, a crash                                  │ a crash: it is started by the next agent
//!      ▼                                                                       ▼
//!   remove: QEMU, taps, files, journal                                      the VM is bound here: the usual plan
//! ```
//!
//! In Receiving the guest never runs here, so that its removal is proof enough for the other host to let it go on there.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_api::live_move::MovedMachine;
use berth_api::{Disk, StoragePoolType, VM};
use berth_host::{BootstrapFile, InstanceFacts, NewTake, VolumeFacts};
use berth_qemu::machine::{DiskSpec, MachineSpec, Tap};
use berth_qemu::power::RunState;
use futures::future::join_all;
use kube::ResourceExt;
use tokio::time::{Instant, sleep, timeout};

use crate::admission::{Admission, Offer};
use crate::context::Context;
use crate::definitions::VersionSkew;
use crate::error::Error;
use crate::index::{declared_profile, instance_of, volume_of};
use crate::journal::{Arrival, ArrivalPhase, Journal, Run};
use crate::key::{Key, ObjectName};
use crate::kinds::image::local::{self, LocalImage};
use crate::kinds::vm::{end_process, launch_arriving};
use crate::machine::Machine;
use crate::networking::tap_prefix;
use crate::pools;
use crate::pulls::Wanted;
use crate::typed_api::TypedApi;

/// The longest time for the images below the disks.
const IMAGES: Duration = Duration::from_secs(480);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often a guest is started, if QEMU refuses it.
const STARTS: u32 = 10;
const START_AGAIN: Duration = Duration::from_millis(500);
/// How long an attempt to settle what an earlier agent has left may take: the start of the agent waits for the first one.
const FIRST_LIMIT: Duration = Duration::from_secs(10);
const LATE_LIMIT: Duration = Duration::from_secs(120);
/// The pause before the next attempt, which doubles up to the longest.
const SETTLE_AGAIN: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The end of an attempt to start a guest that has come.
#[derive(Debug)]
pub(crate) enum StartEnd {
    Started,
    /// It does not run here and never will.
    Refused(String),
}

/// A guest that comes.
#[derive(Debug)]
pub(crate) struct Coming<'a> {
    pub(crate) vm: &'a VM,
    /// Of the attempt.
    pub(crate) id: &'a str,
    /// The host that it leaves.
    pub(crate) from: &'a str,
    /// Of the binding that it leaves.
    pub(crate) epoch: i64,
}

/// Makes everything for the machine, and returns it when it waits for the guest. The error is for people; what was made is left to
/// [`remove`].
pub(crate) async fn prepare(
    ctx: &Context,
    coming: &Coming<'_>,
    moved: &MovedMachine,
) -> Result<Machine, String> {
    let vm = coming.vm;
    let instance = instance_of(vm).ok_or("the VM has no instance")?;
    let (theirs, machine) = read(moved)?;
    let is_its = theirs.uid == vm.uid().unwrap_or_default() && machine.instance == instance;
    if !is_its || theirs.run.is_none() {
        return Err("the machine that is sent is not that of the VM".to_owned());
    }
    check(ctx, vm, &machine)?;
    let facts = ctx.facts().await.map_err(|error| error.chain())?.for_guests_of(machine.architecture());
    if let Some(why) = facts.refusal(machine.architecture()) {
        return Err(why);
    }
    admit(ctx, vm, &facts)?;
    clear(ctx, vm, instance).await?;
    let disks = disks(ctx, coming).await?;
    let volumes = disks.iter().map(|disk| (disk.pool.clone(), disk.id.clone())).collect();
    let arrival = Arrival {
        id: coming.id.to_owned(),
        from: coming.from.to_owned(),
        phase: ArrivalPhase::Receiving,
        volumes,
    };
    let epoch = coming.epoch.saturating_add(1);
    let journal = received(vm, theirs, epoch).with_arrival(Some(arrival));
    // Before anything is made: without it, nothing would remove that.
    write(ctx, instance, &journal).await?;
    let mut files = Vec::new();
    for disk in &disks {
        files.push(ctx.system.prepare_arriving(disk).await.map_err(|error| error.chain())?);
    }
    let machine = on_files(machine, &files)?;
    let run = journal.run.clone().map(|run| Run { machine: Some(Box::new(machine.clone())), ..run });
    let journal = Journal { run, ..journal };
    write(ctx, instance, &journal).await?;
    let bootstrap = bootstrap(moved)?;
    let written = ctx.system.write_bootstrap_files(instance, &bootstrap).await;
    written.map_err(|error| error.chain())?;
    ctx.networks.set_arriving(instance, Some(journal.clone()));
    ctx.networks.ports.record(instance, &journal, &[]);
    let launched = Box::pin(launch_arriving(ctx, vm, &journal, machine, &facts)).await;
    launched.map_err(|error| error.chain())
}

fn read(moved: &MovedMachine) -> Result<(Journal, MachineSpec), String> {
    let journal = Journal::parse(moved.journal.clone()).map_err(|error| error.chain())?;
    let machine = serde_json::from_value(moved.machine.clone())
        .map_err(|error| format!("the machine that is sent cannot be read: {error}"))?;
    Ok((journal, machine))
}

/// Checks a machine that another host describes: nothing but the files of its disks, its taps and its bootstrap data is opened for it.
fn check(ctx: &Context, vm: &VM, machine: &MachineSpec) -> Result<(), String> {
    let declared = declared_profile(&ctx.index.read(), &ObjectName::of(vm), vm).qemu_options;
    let has_devices =
        !machine.pci_devices.is_empty() || !machine.usb_devices.is_empty() || !machine.vgpus.is_empty();
    let refusals = [
        (has_devices, "it has devices of the other host"),
        (!machine.shares.is_empty(), "it has shared folders of the other host"),
        (machine.tpm, "its TPM is on the other host"),
        (machine.cdroms.iter().any(|drive| drive.medium.is_some()), "there is a medium in a CD-ROM drive"),
        (
            machine.nics.iter().any(|nic| !matches!(nic.tap, Tap::Name(_))),
            "it has a network card without a tap",
        ),
        (
            machine.extras.options != declared,
            "it was started with other qemuOptions than its class declares now",
        ),
    ];
    match refusals.iter().find(|(refuses, _)| *refuses) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(()),
    }
}

/// The journal of a guest with the decisions that were made about it on the host that it leaves.
fn received(vm: &VM, theirs: Journal, epoch: i64) -> Journal {
    let run = theirs.run.map(|run| Run { process: None, started_at: None, ..run });
    let journal = Journal {
        epoch,
        pins: theirs.pins,
        slots: theirs.slots,
        in_ports: theirs.in_ports,
        disk_places: theirs.disk_places,
        // Decided by the controllers: the word of the other host does not count.
        interfaces: vm.status.as_ref().map(|status| status.interfaces.clone()).unwrap_or_default(),
        run,
        bootstrap: theirs.bootstrap,
        loaded: theirs.loaded,
        restarts: theirs.restarts,
        last_end: theirs.last_end,
        failures: theirs.failures,
        ..Journal::new(vm)
    };
    journal.with_suspension(None)
}

/// The error is why the VM does not fit here.
fn admit(ctx: &Context, vm: &VM, facts: &berth_host::HostFacts) -> Result<(), String> {
    let offer = Offer {
        host: ctx.host().to_owned(),
        capacity: ctx.offered(facts),
        reservable: ctx.reservable(facts),
        overhead: facts.overhead_bytes,
        // The controllers choose no live move for a member of a required group.
        group: None,
        has_claims: false,
        outdated: matches!(ctx.definitions.version_skew(), VersionSkew::Newer(_)),
    };
    match ctx.reservations.judge(&ctx.index.read(), vm, offer) {
        Admission::Refused(why) => Err(why),
        Admission::Unknown => Err("the size of the VM is not known on this host yet".to_owned()),
        Admission::Recorded | Admission::Granted | Admission::Fits(_) => Ok(()),
    }
}

/// Removes what is left of an earlier stay of the VM, or of an earlier attempt.
async fn clear(ctx: &Context, vm: &VM, instance: &str) -> Result<(), String> {
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain())?;
    let Some(journal) = read else { return Ok(()) };
    let journal = Journal::parse(journal).map_err(|error| error.chain())?;
    let is_its = Some(&journal.uid) == vm.metadata.uid.as_ref();
    let is_over = journal.released.is_some() || is_receiving(&journal);
    if !is_its || !is_over {
        return Err("this host has a machine of the VM already".to_owned());
    }
    remove(ctx, instance).await
}

fn is_receiving(journal: &Journal) -> bool {
    journal.arrival.as_ref().is_some_and(|arrival| arrival.phase == ArrivalPhase::Receiving)
}

/// Returns the volumes of the disks of the VM, once the images below them are here.
async fn disks(ctx: &Context, coming: &Coming<'_>) -> Result<Vec<NewTake>, String> {
    let name = ObjectName::of(coming.vm);
    let api: TypedApi<Disk> = TypedApi::namespaced(ctx.client.clone(), &name.namespace);
    pools::declare(ctx);
    let mut found = Vec::new();
    for declared in &coming.vm.spec.disks {
        let disk = api.get_opt(declared.name.as_str()).await;
        let disk = disk.map_err(|error| format!("reading Disk {}: {error}", declared.name))?;
        let disk = disk.ok_or_else(|| format!("Disk {} does not exist", declared.name))?;
        let status = disk.status.clone().unwrap_or_default();
        let is_there = status.binding.as_ref().is_some_and(|binding| binding.host == coming.from);
        let uid = coming.vm.metadata.uid.as_ref();
        let is_used = status.used_by.iter().any(|user| Some(&user.vm_uid) == uid);
        let id =
            volume_of(&disk).filter(|_| is_there && is_used && disk.metadata.deletion_timestamp.is_none());
        let id =
            id.ok_or_else(|| format!("Disk {} is not one of the VM on host {}", declared.name, coming.from))?;
        let pool = disk.pool().to_string();
        let of_pool = ctx.index.read().pools.get(&ObjectName::new("", &pool));
        if of_pool.is_none_or(|of| of.spec.pool_type != StoragePoolType::Shared) {
            return Err(format!("Disk {} is in no pool of type Shared", declared.name));
        }
        let base = base(ctx, &name, &disk).await?;
        found.push(NewTake { id: id.to_owned(), pool, from: coming.from.to_owned(), uid: disk.uid(), base });
    }
    Ok(found)
}

/// Returns the digest of the image below a disk, once it is here.
async fn base(ctx: &Context, vm: &ObjectName, disk: &Disk) -> Result<Option<String>, String> {
    // Its pool is not in Ceph.
    let Some(image) = disk.image_below(false) else { return Ok(None) };
    let key = Key::new::<VM>(vm.clone());
    let until = Instant::now() + IMAGES;
    loop {
        let found = local::observe(ctx, &vm.namespace, image.as_str(), &key).await;
        match found.map_err(|error| error.chain())? {
            LocalImage::Cached(facts) => return Ok(Some(facts.digest)),
            LocalImage::Absent(source) => ctx.pulls.start(&Wanted::Image(source), key.clone()),
            LocalImage::NotHere(why) => return Err(format!("Image {image} {why}")),
            LocalImage::Lost(readiness) => return Err(format!("Image {image}: {}", readiness.message())),
            LocalImage::Missing | LocalImage::Unknown => {
                return Err(format!("Image {image} is not known on this host"));
            }
            LocalImage::Elsewhere(..) | LocalImage::Pulling(..) => {}
        }
        if Instant::now() >= until {
            return Err(format!("Image {image} is not on this host in time"));
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Returns the machine with the files of its disks on this host.
fn on_files(machine: MachineSpec, files: &[VolumeFacts]) -> Result<MachineSpec, String> {
    let disk = |disk: &DiskSpec| {
        let volume = files.iter().find(|volume| volume.id == disk.id);
        let volume = volume
            .ok_or_else(|| format!("the machine has a disk {} that the VM does not declare", disk.id))?;
        Ok(DiskSpec {
            file: volume.path.clone(),
            format: volume.format,
            backing: volume.backing.clone(),
            cache: volume.cache,
            keeps_space: volume.reserved.is_some(),
            ..disk.clone()
        })
    };
    let disks: Result<Vec<DiskSpec>, String> = machine.disks.iter().map(disk).collect();
    Ok(MachineSpec { disks: disks?, ..machine })
}

fn bootstrap(moved: &MovedMachine) -> Result<Vec<BootstrapFile>, String> {
    let decode = |file: &berth_api::live_move::MovedFile| {
        let bytes = STANDARD.decode(&file.base64);
        let bytes = bytes.map_err(|_| "the bootstrap data that is sent cannot be read".to_owned())?;
        Ok(BootstrapFile { name: file.name.clone(), bytes })
    };
    moved.bootstrap.iter().map(decode).collect()
}

async fn write(ctx: &Context, instance: &str, journal: &Journal) -> Result<(), String> {
    let written = ctx.system.write_journal(instance, &journal.to_value()).await;
    written.map_err(|error| error.chain())
}

/// Starts a guest that is loaded: from the record on, it is this host's.
pub(crate) async fn start(ctx: &Context, instance: &str, machine: &Machine) -> StartEnd {
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain());
    let recorded = match read.map(|journal| journal.map(Journal::parse)) {
        Ok(Some(Ok(mut journal))) => {
            if let Some(arrival) = journal.arrival.as_mut() {
                arrival.phase = ArrivalPhase::Started;
            }
            write(ctx, instance, &journal).await
        }
        Ok(_) => Err("the record of the move is gone".to_owned()),
        Err(why) => Err(why),
    };
    if let Err(why) = recorded {
        return refuse(ctx, instance, why).await;
    }
    let mut why = "QEMU does not answer".to_owned();
    let mut is_paused = false;
    for _ in 0..STARTS {
        if let Err(problem) = own_disks(ctx, instance).await {
            why = problem;
        } else if let Err(error) = machine.start().await {
            why = Error::from(error).chain();
        } else {
            return started(ctx, instance, machine).await;
        }
        let state = machine.state().await.ok().map(|state| state.run_state);
        if state == Some(RunState::Running) {
            return started(ctx, instance, machine).await;
        }
        is_paused = state == Some(RunState::Paused);
        if machine.is_closed() {
            break;
        }
        sleep(START_AGAIN).await;
    }
    match is_paused {
        true => refuse(ctx, instance, format!("QEMU does not start the guest: {why}")).await,
        // It may have run: it is this host's, whatever becomes of it.
        false => StartEnd::Started,
    }
}

/// Gives the disks to the QEMU here: the one of the other host has given them up.
async fn own_disks(ctx: &Context, instance: &str) -> Result<(), String> {
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain())?;
    let journal = read.and_then(|journal| Journal::parse(journal).ok());
    for (pool, id) in journal.iter().filter_map(|j| j.arrival.as_ref()).flat_map(|arrival| &arrival.volumes) {
        ctx.system.own_arriving(pool, id, instance).await.map_err(|error| error.chain())?;
    }
    Ok(())
}

async fn started(ctx: &Context, instance: &str, machine: &Machine) -> StartEnd {
    tracing::info!(instance, "the guest has come from another host, and runs");
    // Bridges elsewhere have its addresses on the other host; the guest may announce itself.
    if let Err(error) = machine.announce().await {
        tracing::debug!(instance, error = Error::from(error).chain(), "its addresses are not announced");
    }
    machine.set_clock().await;
    ctx.queue.add(Key::networks());
    StartEnd::Started
}

/// Removes a machine whose guest has not run. As long as that fails, nothing is answered.
async fn refuse(ctx: &Context, instance: &str, why: String) -> StartEnd {
    while let Err(problem) = Box::pin(unmake(ctx, instance)).await {
        tracing::warn!(instance, problem, "the machine of a guest that did not come cannot be removed");
        sleep(LOOK_AGAIN).await;
    }
    StartEnd::Refused(why)
}

/// Ends the machine, and only then takes the record back that its guest is this host's.
async fn unmake(ctx: &Context, instance: &str) -> Result<(), String> {
    end_process(ctx, instance).await.map_err(|error| error.chain())?;
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain())?;
    if let Some(mut journal) = read.and_then(|journal| Journal::parse(journal).ok()) {
        if let Some(arrival) = journal.arrival.as_mut() {
            arrival.phase = ArrivalPhase::Receiving;
        }
        write(ctx, instance, &journal).await?;
    }
    remove(ctx, instance).await
}

/// Removes what was made for this attempt, which has not started the guest. Does nothing to anything else that the instance has here.
pub(crate) async fn remove_attempt(ctx: &Context, instance: &str, id: &str) -> Result<(), String> {
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain())?;
    let journal = read.and_then(|journal| Journal::parse(journal).ok());
    let is_its =
        journal.is_some_and(|j| is_receiving(&j) && j.arrival.is_some_and(|arrival| arrival.id == id));
    if is_its { remove(ctx, instance).await } else { Ok(()) }
}

/// Removes everything that was made for a guest that does not come. The record is the last.
pub(crate) async fn remove(ctx: &Context, instance: &str) -> Result<(), String> {
    end_process(ctx, instance).await.map_err(|error| error.chain())?;
    ctx.machines.forget(instance);
    let taps = ctx.system.taps().await.map_err(|error| error.chain())?;
    let prefix = tap_prefix(instance);
    for tap in taps.iter().filter(|tap| tap.name.starts_with(&prefix)) {
        ctx.system.remove_tap(&tap.name).await.map_err(|error| error.chain())?;
    }
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain())?;
    let journal = read.and_then(|journal| Journal::parse(journal).ok());
    for (pool, id) in journal.iter().filter_map(|j| j.arrival.as_ref()).flat_map(|arrival| &arrival.volumes) {
        ctx.system.drop_arriving(pool, id).await.map_err(|error| error.chain())?;
    }
    ctx.networks.set_arriving(instance, None);
    ctx.system.remove_instance(instance).await.map_err(|error| error.chain())?;
    ctx.queue.add(Key::networks());
    Ok(())
}

/// Answers whether this host runs the guest of an attempt. One that is not started is removed first.
pub(crate) async fn settle(ctx: &Context, coming: &Coming<'_>) -> Result<StartEnd, String> {
    let instance = instance_of(coming.vm).ok_or("the VM has no instance")?;
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain())?;
    let refused = || StartEnd::Refused("the guest was not started on the other host".to_owned());
    let Some(journal) = read else { return Ok(refused()) };
    let journal = Journal::parse(journal).map_err(|error| error.chain())?;
    match journal.arrival.as_deref() {
        Some(arrival) if arrival.id != coming.id || arrival.from != coming.from => match arrival.phase {
            ArrivalPhase::Receiving => Ok(refused()),
            ArrivalPhase::Started => Err("the guest has come by another move".to_owned()),
        },
        Some(arrival) if arrival.phase == ArrivalPhase::Started => {
            resume(ctx, instance, &journal).await.map_err(|error| error.chain())?;
            Ok(StartEnd::Started)
        }
        Some(_) => {
            remove(ctx, instance).await?;
            Ok(refused())
        }
        // It is none of an earlier stay only if the host gave the VM up.
        None if journal.released.is_some() => Ok(refused()),
        None => Err("this host has a machine of the VM that has not come by this move".to_owned()),
    }
}

/// Lets a guest run that was to be started when the agent ended.
async fn resume(ctx: &Context, instance: &str, journal: &Journal) -> Result<(), Error> {
    // Without a process it has run here, and has ended: once its VM is bound here, that is decided about.
    let Some(process) = ctx.system.process(instance).await? else { return Ok(()) };
    let key = Key::new::<VM>(ObjectName::new(&journal.namespace, &journal.name));
    let machine = ctx.machines.connect(instance, Some(&journal.uid), Some(key), &process).await?;
    let state = machine.state().await?;
    if state.run_state == RunState::Paused {
        for (pool, id) in journal.arrival.iter().flat_map(|arrival| &arrival.volumes) {
            ctx.system.own_arriving(pool, id, instance).await?;
        }
        machine.start().await?;
        let _ = machine.announce().await;
    }
    Ok(())
}

/// Settles what an earlier agent has left: guests that were to be started are, and others are removed. Needs no control plane. Returns the
/// instances that are not settled, for [`settle_late`].
pub(crate) async fn settle_left(ctx: &Context) -> Vec<String> {
    let instances = match ctx.system.instances().await {
        Ok(instances) => instances,
        Err(error) => {
            tracing::warn!(%error, "it is not known whether guests were coming to this host");
            return Vec::new();
        }
    };
    let came = instances.into_iter().filter(|InstanceFacts { journal, .. }| {
        let journal = journal.clone().and_then(|journal| Journal::parse(journal).ok());
        journal.is_some_and(|journal| journal.arrival.is_some())
    });
    let settled = came.map(|InstanceFacts { instance, .. }| async move {
        (!try_to_settle(ctx, &instance, FIRST_LIMIT).await).then_some(instance)
    });
    join_all(settled).await.into_iter().flatten().collect()
}

/// Goes on with the instances that were not settled at the start of the agent: a pool may have been away, or may not answer.
pub(crate) async fn settle_late(ctx: Arc<Context>, mut left: Vec<String>) {
    let mut pause = SETTLE_AGAIN;
    while !left.is_empty() {
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        let mut again = Vec::new();
        for instance in left {
            if !try_to_settle(&ctx, &instance, LATE_LIMIT).await {
                again.push(instance);
            }
        }
        left = again;
    }
}

/// Tries to settle an instance, and returns whether it is.
async fn try_to_settle(ctx: &Context, instance: &str, limit: Duration) -> bool {
    let why = match timeout(limit, Box::pin(settle_instance(ctx, instance))).await {
        Ok(Ok(())) => return true,
        Ok(Err(why)) => why,
        Err(_) => format!("it took longer than {} seconds", limit.as_secs()),
    };
    tracing::warn!(instance, why, "a guest that was coming to this host is not settled yet");
    false
}

async fn settle_instance(ctx: &Context, instance: &str) -> Result<(), String> {
    let _alone = ctx.arrival_locks.lock(instance).await;
    // A question of the other host may have settled it since it was listed.
    let read = ctx.system.read_journal(instance).await.map_err(|error| error.chain())?;
    let Some(journal) = read else { return Ok(()) };
    let journal = Journal::parse(journal).map_err(|error| error.chain())?;
    let Some(arrival) = journal.arrival.as_deref() else { return Ok(()) };
    ctx.networks.set_arriving(instance, Some(journal.clone()));
    match arrival.phase {
        ArrivalPhase::Started => resume(ctx, instance, &journal).await.map_err(|error| error.chain()),
        ArrivalPhase::Receiving => remove(ctx, instance).await,
    }
}
