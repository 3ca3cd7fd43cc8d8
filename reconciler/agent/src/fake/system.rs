//! The host as the agent uses it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use berth_api::site::Record;
use berth_qemu::guest_agent::GuestAgent;
use berth_qemu::hypervisor::{Hypervisor, ProcessIdentity};
use berth_qemu::machine::{Backing, Firmware, Format, MachinePaths, MachineSpec, Tap};
use berth_qemu::process::LaunchError;
use berth_qemu::qmp::{Events, Qmp};
use serde_json::Value;

use super::state::{Volume, image_path, instance_path, volume_path};
use super::{FakeSource, FakeSystem, FaultAction, When};
use crate::system::{
    Firewall, FirmwareKind, Forwarding, HostFacts, ImageFacts, ImageSource, InstanceFacts, LaunchConfig,
    LeaseTaken, NetworkConfig, NewVolume, ProcessFacts, Progress, Stranger, StrangerKind, System,
    SystemError, TapConfig, TrashedVolume, Uplink, VolumeFacts, VolumeOwner,
};

type Result<T> = std::result::Result<T, SystemError>;

/// A download takes this long, in as many pieces.
const PULL_TIME: Duration = Duration::from_secs(3);
const PULL_PIECES: u64 = 10;

impl FakeSystem {
    async fn call<T>(&self, name: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
        *self.state().calls.entry(name).or_default() += 1;
        self.strike(name, When::Before).await?;
        let outcome = work.await;
        self.strike(name, When::After).await?;
        outcome
    }

    async fn strike(&self, name: &'static str, when: When) -> Result<()> {
        let faults = self.faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        match faults.fault(name, when).await {
            FaultAction::Continue => Ok(()),
            FaultAction::Error => Err(failed(name, "failed on purpose")),
            FaultAction::NoSpace => {
                Err(SystemError::NoSpace { what: name.to_owned(), needed: 1 << 30, free: 0 })
            }
            FaultAction::Hang => std::future::pending().await,
        }
    }

    fn paths(instance: &str) -> MachinePaths {
        MachinePaths::in_directory(instance_path(instance))
    }

    async fn running(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        let found = self.hypervisor.find(instance).await?;
        let started = |identity: ProcessIdentity| {
            let started_at = self.state().started.get(&identity.pid).copied();
            ProcessFacts { started_at: started_at.unwrap_or_else(|| self.clock.now()), identity }
        };
        Ok(found.map(started))
    }

    /// Whether any machine has this file open.
    fn is_open(&self, path: &Path) -> bool {
        let machines = self.hypervisor.instances();
        let views = machines.iter().filter_map(|instance| self.hypervisor.view(instance));
        views.flat_map(|view| view.disks.into_values()).any(|(file, _)| file == path)
    }

    fn facts_of(&self, volume: &Volume) -> VolumeFacts {
        let size = self.files.size_of(&volume.facts.path).unwrap_or(0);
        VolumeFacts { size, ..volume.facts.clone() }
    }

    fn make_volume(&self, new: &NewVolume) -> Result<VolumeFacts> {
        let path = volume_path(&new.pool, &new.id);
        let mut state = self.state();
        if let Some(volume) = state.volumes.get(&new.id) {
            return Ok(self.facts_of(volume));
        }
        let backing = match &new.base {
            None => None,
            Some(sha256) => {
                let image = state.images.get(sha256).cloned();
                Some(image.ok_or_else(|| SystemError::ImageNotCached { sha256: sha256.clone() })?)
            }
        };
        let least = backing.as_ref().map_or(0, |image| image.virtual_size);
        let size = new.size.unwrap_or(least);
        if size < least {
            return Err(SystemError::SmallerThanImage { size, image: least });
        }
        self.files.put(&path, size);
        let facts = VolumeFacts {
            pool: new.pool.clone(),
            id: new.id.clone(),
            size,
            base: new.base.clone(),
            owner: new.owner.clone(),
            path,
            format: Format::Qcow2,
            backing: backing.map(|image| Backing { file: image.path, format: image.format }),
        };
        state.volumes.insert(new.id.clone(), Volume { facts: facts.clone() });
        Ok(facts)
    }

    async fn download(&self, source: &ImageSource, progress: Progress<'_>) -> Result<ImageFacts> {
        if let Some(facts) = self.state().images.get(&source.sha256) {
            return Ok(facts.clone());
        }
        let url = source.url.clone();
        let found = {
            let mut state = self.state();
            state.pulls += 1;
            let any = |virtual_size| FakeSource {
                sha256: source.sha256.clone(),
                format: source.format,
                virtual_size,
                bytes: virtual_size / 8,
                refused: None,
            };
            state.sources.get(&url).cloned().or_else(|| state.any_image.map(any))
        };
        let Some(found) = found else {
            return Err(SystemError::ImageNotFound { url, detail: "404 Not Found".to_owned() });
        };
        for piece in 1..=PULL_PIECES {
            tokio::time::sleep(PULL_TIME / u32::try_from(PULL_PIECES).unwrap_or(1)).await;
            progress(found.bytes * piece / PULL_PIECES, Some(found.bytes));
        }
        if found.sha256 != source.sha256 {
            let (declared, actual) = (source.sha256.clone(), found.sha256);
            return Err(SystemError::ChecksumMismatch { url, declared, actual });
        }
        if let Some(detail) = found.refused {
            return Err(SystemError::ImageRefused { url, detail });
        }
        let facts = ImageFacts {
            sha256: source.sha256.clone(),
            format: source.format,
            virtual_size: found.virtual_size,
            bytes: found.bytes,
            path: image_path(&source.sha256),
        };
        self.files.put(&facts.path, found.virtual_size);
        self.state().images.insert(source.sha256.clone(), facts.clone());
        Ok(facts)
    }

    async fn start(&self, config: &LaunchConfig) -> Result<ProcessFacts> {
        if let Some(running) = self.running(&config.instance).await? {
            return Ok(running);
        }
        if let Err(missing) = &self.state().facts.qemu {
            tracing::debug!(missing, "no QEMU");
            return Err(LaunchError::NoBinary { binary: "qemu-system-x86_64".into() }.into());
        }
        let spec = self.spec(config)?;
        let identity = self.hypervisor.launch(&spec, config.limits).await?;
        let started_at = self.clock.now();
        self.state().started.insert(identity.pid, started_at);
        Ok(ProcessFacts { identity, started_at })
    }

    fn spec(&self, config: &LaunchConfig) -> Result<MachineSpec> {
        let directory = instance_path(&config.instance);
        let seed = config.seed.as_ref().map(|_| directory.join("seed.img"));
        if let Some(seed) = &seed {
            self.files.put(seed, 1 << 20);
        }
        let mut state = self.state();
        if !state.journals.contains_key(&config.instance) {
            state.violations.push(format!("{} launched without a journal", config.instance));
        }
        for nic in &config.nics {
            if let Tap::Name(name) = &nic.tap
                && !state.taps.contains_key(name)
            {
                let source = io::ErrorKind::NotFound.into();
                return Err(LaunchError::Tap { name: name.clone(), source }.into());
            }
        }
        Ok(MachineSpec {
            instance: config.instance.clone(),
            name: config.name.clone(),
            uuid: config.uuid.clone(),
            cpus: config.cpus,
            memory_bytes: config.memory_bytes,
            accelerator: config.accelerator,
            firmware: match config.firmware {
                FirmwareKind::Bios => Firmware::Bios,
                FirmwareKind::Uefi => {
                    Firmware::Uefi { code: "/fake/code.fd".into(), vars: directory.join("vars.fd") }
                }
            },
            machine_type: config.machine_type.clone(),
            cpu_model: config.cpu_model.clone(),
            disks: config.disks.clone(),
            nics: config.nics.clone(),
            seed,
            fw_cfg: Vec::new(),
            paths: Self::paths(&config.instance),
            vnc_socket: None,
        })
    }

    /// Guests that are up have taken the address that is reserved for them.
    fn taken(&self, bridge: &str) -> Vec<LeaseTaken> {
        let booted = self.hypervisor.booted();
        let state = self.state();
        let Some(network) = state.networks.get(bridge) else { return Vec::new() };
        let reserved: BTreeMap<&str, Ipv4Addr> =
            network.leases.iter().map(|lease| (lease.mac.as_str(), lease.address)).collect();
        let mut taken = Vec::new();
        for (pid, macs) in booted {
            let taken_at = state.started.get(&pid).copied().unwrap_or_else(|| self.clock.now());
            for mac in macs {
                if let Some(address) = reserved.get(mac.as_str()).copied() {
                    taken.push(LeaseTaken { mac, address, taken_at });
                }
            }
        }
        taken
    }
}

fn failed(name: &'static str, why: &'static str) -> SystemError {
    SystemError::File { attempt: name, path: "/fake".into(), source: io::Error::other(why) }
}

fn refused(name: &'static str, what: &str, why: &'static str) -> SystemError {
    SystemError::Network { attempt: name, name: what.to_owned(), detail: why.to_owned() }
}

#[async_trait]
impl System for FakeSystem {
    async fn image(&self, sha256: &str) -> Result<Option<ImageFacts>> {
        self.call("image", async { Ok(self.state().images.get(sha256).cloned()) }).await
    }

    async fn pull(&self, source: &ImageSource, progress: Progress<'_>) -> Result<ImageFacts> {
        self.call("pull", self.download(source, progress)).await
    }

    async fn images(&self) -> Result<Vec<ImageFacts>> {
        self.call("images", async { Ok(self.state().images.values().cloned().collect()) }).await
    }

    async fn remove_image(&self, sha256: &str) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let based = |volume: &Volume| volume.facts.base.as_deref() == Some(sha256);
            if state.volumes.values().any(based) || state.trash.values().any(|(v, ..)| based(v)) {
                state.violations.push(format!("image {sha256} removed from below a volume"));
            }
            if let Some(facts) = state.images.remove(sha256) {
                self.files.remove(&facts.path);
            }
            Ok(())
        };
        self.call("remove_image", work).await
    }

    async fn volume(&self, _: &str, id: &str) -> Result<Option<VolumeFacts>> {
        let work = async { Ok(self.state().volumes.get(id).map(|volume| self.facts_of(volume))) };
        self.call("volume", work).await
    }

    async fn create_volume(&self, volume: &NewVolume) -> Result<VolumeFacts> {
        self.call("create_volume", async { self.make_volume(volume) }).await
    }

    async fn grow_volume(&self, _: &str, id: &str, size: u64) -> Result<VolumeFacts> {
        let work = async {
            let found = self.state().volumes.get(id).cloned();
            let volume = found.ok_or_else(|| SystemError::VolumeLost { id: id.to_owned() })?;
            let now = self.facts_of(&volume);
            if self.is_open(&now.path) {
                return Err(failed("grow", "it is open in a machine"));
            }
            if size < now.size {
                return Err(SystemError::Shrink { id: id.to_owned(), from: now.size, to: size });
            }
            self.files.put(&now.path, size);
            Ok(VolumeFacts { size, ..now })
        };
        self.call("grow_volume", work).await
    }

    async fn grant_volume(&self, pool: &str, id: &str) -> Result<()> {
        let work = async {
            self.hypervisor.grant(&volume_path(pool, id), true).await?;
            let backing = self.state().volumes.get(id).and_then(|volume| volume.facts.backing.clone());
            if let Some(backing) = backing {
                self.hypervisor.grant(&backing.file, false).await?;
            }
            Ok(())
        };
        self.call("grant_volume", work).await
    }

    async fn trash_volume(&self, pool: &str, id: &str) -> Result<()> {
        let work = async {
            let path = volume_path(pool, id);
            let open = self.is_open(&path);
            let mut state = self.state();
            if open {
                state.violations.push(format!("volume {id} moved to the trash while a machine has it open"));
            }
            let now = self.clock.now();
            if let Some(volume) = state.volumes.remove(id) {
                let size = self.files.size_of(&path).unwrap_or(0);
                self.files.remove(&path);
                state.trash.insert(id.to_owned(), (volume, size, now));
            }
            Ok(())
        };
        self.call("trash_volume", work).await
    }

    async fn restore_volume(&self, _: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts> {
        let work = async {
            let mut state = self.state();
            if let Some((mut volume, size, _)) = state.trash.remove(id) {
                volume.facts.owner = owner.clone();
                self.files.put(&volume.facts.path, size);
                state.volumes.insert(id.to_owned(), volume);
            }
            let volume =
                state.volumes.get(id).ok_or_else(|| SystemError::VolumeLost { id: id.to_owned() })?;
            Ok(self.facts_of(volume))
        };
        self.call("restore_volume", work).await
    }

    async fn hand_over_volume(&self, _: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let lost = || SystemError::VolumeLost { id: id.to_owned() };
            state.volumes.get_mut(id).ok_or_else(lost)?.facts.owner = owner.clone();
            Ok(())
        };
        self.call("hand_over_volume", work).await
    }

    async fn purge_trash(&self, pool: &str, older_than: Duration) -> Result<Vec<String>> {
        let work = async {
            let now = self.clock.now();
            let mut state = self.state();
            let over = |(volume, _, at): &(Volume, u64, jiff::Timestamp)| {
                let age = Duration::try_from(now.duration_since(*at)).unwrap_or_default();
                volume.facts.pool == pool && age >= older_than
            };
            let gone: Vec<String> =
                state.trash.iter().filter(|(_, item)| over(item)).map(|(id, _)| id.clone()).collect();
            state.trash.retain(|id, _| !gone.contains(id));
            Ok(gone)
        };
        self.call("purge_trash", work).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeFacts>> {
        let work = async { Ok(self.state().volumes.values().map(|v| self.facts_of(v)).collect()) };
        self.call("volumes", work).await
    }

    async fn trash(&self) -> Result<Vec<TrashedVolume>> {
        let work = async {
            let state = self.state();
            let item = |(volume, size, deleted_at): &(Volume, u64, jiff::Timestamp)| TrashedVolume {
                volume: VolumeFacts { size: *size, ..volume.facts.clone() },
                deleted_at: *deleted_at,
            };
            Ok(state.trash.values().map(item).collect())
        };
        self.call("trash", work).await
    }

    async fn ensure_network(&self, network: &NetworkConfig) -> Result<()> {
        let work = async {
            self.state().networks.insert(network.bridge.clone(), network.clone());
            Ok(())
        };
        self.call("ensure_network", work).await
    }

    async fn remove_network(&self, bridge: &str) -> Result<()> {
        let work = async {
            let mut state = self.state();
            if state.taps.values().any(|tap| tap.bridge == bridge) {
                state.violations.push(format!("bridge {bridge} removed from below a tap"));
                return Err(refused("remove", bridge, "a tap is on it"));
            }
            state.networks.remove(bridge);
            Ok(())
        };
        self.call("remove_network", work).await
    }

    async fn networks(&self) -> Result<Vec<String>> {
        self.call("networks", async { Ok(self.state().networks.keys().cloned().collect()) }).await
    }

    async fn ensure_tap(&self, tap: &TapConfig) -> Result<()> {
        let work = async {
            let mut state = self.state();
            if !state.networks.contains_key(&tap.bridge) {
                return Err(refused("join", &tap.name, "its bridge does not exist"));
            }
            state.taps.insert(tap.name.clone(), tap.clone());
            Ok(())
        };
        self.call("ensure_tap", work).await
    }

    async fn remove_tap(&self, name: &str) -> Result<()> {
        let work = async {
            let instances = self.hypervisor.instances();
            let views = instances.iter().filter_map(|instance| self.hypervisor.view(instance));
            let used = views
                .flat_map(|view| view.spec.nics)
                .any(|nic| matches!(&nic.tap, Tap::Name(tap) if tap == name));
            let mut state = self.state();
            if used {
                state.violations.push(format!("tap {name} removed from below a machine"));
            }
            state.taps.remove(name);
            Ok(())
        };
        self.call("remove_tap", work).await
    }

    async fn taps(&self) -> Result<Vec<String>> {
        self.call("taps", async { Ok(self.state().taps.keys().cloned().collect()) }).await
    }

    async fn apply_firewall(&self, firewall: &Firewall) -> Result<()> {
        let work = async {
            self.state().firewall = firewall.clone();
            Ok(())
        };
        self.call("apply_firewall", work).await
    }

    async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>> {
        self.call("leases_taken", async { Ok(self.taken(bridge)) }).await
    }

    async fn occupant(&self, _: &str, address: Ipv4Addr) -> Result<Option<String>> {
        self.call("occupant", async { Ok(self.state().occupied.get(&address).cloned()) }).await
    }

    async fn uplink(&self) -> Result<Uplink> {
        self.call("uplink", async { Ok(self.state().uplink.clone()) }).await
    }

    async fn forwarding(&self) -> Result<Forwarding> {
        let work = async { Ok(Forwarding { ok: true, message: "nothing stands in the way".to_owned() }) };
        self.call("forwarding", work).await
    }

    async fn launch(&self, config: &LaunchConfig) -> Result<ProcessFacts> {
        self.call("launch", self.start(config)).await
    }

    async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        self.call("process", self.running(instance)).await
    }

    async fn exited(&self, process: &ProcessIdentity) -> Result<()> {
        self.call("exited", async { Ok(self.hypervisor.exited(process).await?) }).await
    }

    async fn connect(&self, instance: &str) -> Result<(Qmp, Events)> {
        self.call("connect", async { Ok(self.hypervisor.connect(&Self::paths(instance)).await?) }).await
    }

    async fn guest_agent(&self, instance: &str) -> Result<GuestAgent> {
        self.call("guest_agent", async { Ok(self.hypervisor.guest_agent(&Self::paths(instance)).await?) })
            .await
    }

    async fn kill(&self, instance: &str, grace: Duration) -> Result<()> {
        let work = async {
            if let Some(process) = self.running(instance).await? {
                self.hypervisor.kill(&process.identity, grace).await?;
            }
            Ok(())
        };
        self.call("kill", work).await
    }

    async fn remove_instance(&self, instance: &str) -> Result<()> {
        let work = async {
            if let Some(process) = self.running(instance).await? {
                let (instance, pid) = (instance.to_owned(), process.identity.pid);
                return Err(SystemError::StillRunning { instance, pid });
            }
            self.files.remove(&instance_path(instance).join("seed.img"));
            self.state().journals.remove(instance);
            Ok(())
        };
        self.call("remove_instance", work).await
    }

    async fn instances(&self) -> Result<Vec<InstanceFacts>> {
        let work = async {
            let mut names: Vec<String> = self.state().journals.keys().cloned().collect();
            names.extend(self.hypervisor.instances());
            names.sort();
            names.dedup();
            let mut found = Vec::new();
            for instance in names {
                let process = self.running(&instance).await?;
                let journal = self.state().journals.get(&instance).cloned();
                found.push(InstanceFacts { instance, journal, process });
            }
            Ok(found)
        };
        self.call("instances", work).await
    }

    async fn read_journal(&self, instance: &str) -> Result<Option<Value>> {
        self.call("read_journal", async { Ok(self.state().journals.get(instance).cloned()) }).await
    }

    async fn write_journal(&self, instance: &str, journal: &Value) -> Result<()> {
        let work = async {
            self.state().journals.insert(instance.to_owned(), journal.clone());
            Ok(())
        };
        self.call("write_journal", work).await
    }

    async fn last_words(&self, _: &str) -> Result<String> {
        self.call("last_words", async { Ok(String::new()) }).await
    }

    async fn read_site(&self) -> Result<Option<Record>> {
        self.call("read_site", async { Ok(self.state().site.clone()) }).await
    }

    async fn write_site(&self, record: &Record) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let older = state.site.as_ref().filter(|kept| kept.term > record.term).cloned();
            if let Some(kept) = older {
                state.violations.push(format!("term {} kept after {}", record.term, kept.term));
            }
            state.site = Some(record.clone());
            Ok(())
        };
        self.call("write_site", work).await
    }

    async fn facts(&self) -> Result<HostFacts> {
        self.call("facts", async { Ok(self.state().facts.clone()) }).await
    }

    async fn overhead(&self, _: &ProcessIdentity, _: u64) -> Result<Option<u64>> {
        // A fake QEMU takes nothing of the host.
        Ok(None)
    }

    async fn strangers(&self) -> Result<Vec<Stranger>> {
        let work = async {
            let stranger = |(pid, name): (i32, String)| Stranger {
                kind: StrangerKind::Process,
                name: format!("{pid} {name}"),
                detail: "a QEMU that berth did not start".to_owned(),
            };
            Ok(self.hypervisor.foreign().into_iter().map(stranger).collect())
        };
        self.call("strangers", work).await
    }

    fn instance_directory(&self, instance: &str) -> PathBuf {
        instance_path(instance)
    }
}
