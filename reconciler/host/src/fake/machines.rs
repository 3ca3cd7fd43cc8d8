//! Machines of the fake host.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::block;
use berth_qemu::console::ConsoleStream;
use berth_qemu::guest_agent::GuestAgent;
use berth_qemu::hypervisor::{CpuTime, Hypervisor as _, ProcessIdentity, ProcessState, StateFile};
use berth_qemu::machine::{
    Affinity, DiskSpec, Firmware, LaunchSpec, MachineFiles, MachinePaths, Medium, NicSpec, ShareSpec,
    SharedFolder, Tap, TpmFiles, UefiFiles, VirtiofsFiles,
};
use berth_qemu::nics::LentTap;
use berth_qemu::process::LaunchError;
use berth_qemu::qmp::{Events, Qmp};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::{
    BootstrapFile, DeviceSpecs, FirmwareCopy, InstanceFacts, InterfaceUse, LaunchRequest, MachineUse,
    Machines, ProcessFacts, Result, StateAccess, SystemError,
};

use crate::dedicated_cpus::{GuestCpus, choose};

use super::FakeSystem;
use super::state::{instance_path, saved_state_path};

/// The name of the file of an instance's temporary disk.
pub(super) const SCRATCH: &str = "scratch.qcow2";

impl FakeSystem {
    fn paths(instance: &str) -> MachinePaths {
        MachinePaths::in_directory(instance_path(instance))
    }

    async fn lend(&self, instance: &str, qmp: &Qmp, access: StateAccess) -> Result<()> {
        let path = saved_state_path(instance);
        let file = match access {
            StateAccess::Write { at_most } => {
                let free = self.state().facts.storage_free_bytes;
                if at_most > free {
                    let what = path.display().to_string();
                    return Err(SystemError::NoSpace { what, needed: at_most, free });
                }
                StateFile::Empty(&path)
            }
            StateAccess::Read => StateFile::Saved(&path),
        };
        Ok(self.hypervisor.lend_state(qmp, &Self::paths(instance), file).await?)
    }

    async fn running(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        let found = self.hypervisor.find(instance).await?;
        let started = |identity: ProcessIdentity| {
            let started_at = self.state().started.get(&identity.pid).copied();
            let dedicated = self.state().dedicated.get(instance).cloned();
            ProcessFacts { started_at: started_at.unwrap_or_else(|| self.clock.now()), identity, dedicated }
        };
        Ok(found.map(started))
    }

    async fn start(&self, request: &LaunchRequest) -> Result<ProcessFacts> {
        if let Some(running) = self.running(&request.machine.instance).await? {
            return Ok(running);
        }
        if let Err(missing) = &self.state().facts.qemu {
            tracing::debug!(missing, "no QEMU");
            return Err(LaunchError::NoBinary { binary: "qemu-system-x86_64".into() }.into());
        }
        let mut spec = self.spec(&self.with_chains(request))?;
        spec.affinity = self.affinity(request).await?;
        let identity = self.hypervisor.launch(&spec, request.limits).await?;
        self.state().opened.extend(spec.machine.disks.iter().map(|disk| disk.file.clone()));
        self.keep_firmware(&request.machine);
        let started_at = self.clock.now();
        self.state().started.insert(identity.pid, started_at);
        let dedicated = self.state().dedicated.get(&request.machine.instance).cloned();
        Ok(ProcessFacts { identity, started_at, dedicated })
    }

    /// Gives the disks the chains that their volumes are based on now.
    fn with_chains(&self, request: &LaunchRequest) -> LaunchRequest {
        let (state, mut request) = (self.state(), request.clone());
        for disk in &mut request.machine.disks {
            let volume = state.volumes.get(&disk.id).filter(|volume| volume.facts.path == disk.file);
            if let Some(volume) = volume.filter(|_| disk.backing.is_some()) {
                disk.backing = volume.facts.backing.clone();
            }
        }
        request
    }

    /// Chooses CPUs as the real host does.
    async fn affinity(&self, request: &LaunchRequest) -> Result<Affinity> {
        let running = self.hypervisor.instances();
        let runs = |instance: &String| running.contains(instance);
        let mut state = self.state();
        let instance = &request.machine.instance;
        state.dedicated.remove(instance);
        let Some(wanted) = request.dedicated else { return Ok(Affinity::default()) };
        let free = state.free_cpus(runs);
        let guest = GuestCpus::of(&request.machine);
        let Some(chosen) = choose(&free, &BTreeMap::new(), guest, wanted) else {
            let needed = guest.vcpus + usize::from(wanted.isolate_emulator_thread);
            return Err(SystemError::NoDedicatedCpus { needed, free: free.len() });
        };
        state.dedicated.insert(instance.clone(), chosen.clone());
        Ok(Affinity { vcpus: chosen.vcpus, ..Affinity::default() })
    }

    /// Removes the temporary disk of an instance without a saved state.
    fn discard_scratch(&self, instance: &str) {
        if self.files.size_of(&saved_state_path(instance)).is_none() {
            self.files.remove(&instance_path(instance).join(SCRATCH));
        }
    }

    fn spec(&self, request: &LaunchRequest) -> Result<LaunchSpec> {
        let machine = request.machine.clone();
        let mut files = MachineFiles::new(Self::paths(&machine.instance));
        let directory = instance_path(&machine.instance);
        let seed = directory.join("seed.img");
        let has_seed = request.seed.is_some() || self.files.size_of(&seed).is_some();
        files.seed = has_seed.then_some(seed);
        files.from_saved_state = request.from_saved_state;
        if !request.from_saved_state {
            self.files.remove(&saved_state_path(&machine.instance));
        }
        if let Some(seed) = &files.seed {
            self.files.put(seed, 1 << 20);
        }
        let scratch = directory.join(SCRATCH);
        let had_scratch = self.files.size_of(&scratch).is_some();
        files.scratch = request.scratch.as_ref().map(|_| scratch.clone());
        match &request.scratch {
            Some(new) if !request.from_saved_state => self.files.put(&scratch, new.size),
            None => self.files.remove(&scratch),
            Some(_) => {}
        }
        let mut state = self.state();
        if request.scratch.is_some() && request.from_saved_state && !had_scratch {
            state.violations.push(format!("{} goes on without its scratch disk", machine.instance));
        }
        for disk in machine.disks.iter().filter(|disk| disk.format.is_encrypted()) {
            files.keys.extend(state.key_of_disk(&disk.id)?.map(|key| (disk.id.clone(), key)));
        }
        if !state.journals.contains_key(&machine.instance) {
            state.violations.push(format!("{} launched without a journal", machine.instance));
        }
        let taps = machine.nics.iter().filter_map(|nic| match &nic.tap {
            Tap::Name(tap) => Some(tap.clone()),
            _ => None,
        });
        state.check_filters(taps.collect());
        for nic in &machine.nics {
            if let Tap::Name(name) = &nic.tap
                && !state.taps.contains_key(name)
            {
                let source = io::ErrorKind::NotFound.into();
                return Err(LaunchError::Tap { name: name.clone(), source }.into());
            }
        }
        let lacks =
            |held_by: Option<&Option<String>>| held_by.and_then(Option::as_ref) != Some(&machine.instance);
        let facts = &state.facts;
        let pci = machine.pci_devices.iter().filter(|device| {
            let found = facts.pci_devices.iter().find(|facts| facts.functions == device.functions);
            lacks(found.map(|facts| &facts.held_by))
        });
        let usb = machine.usb_devices.iter().filter(|device| {
            let found = facts.usb_devices.iter().find(|facts| facts.port == device.port);
            lacks(found.map(|facts| &facts.held_by))
        });
        let vgpus = machine.vgpus.iter().filter(|vgpu| {
            let holder = facts.vgpus.iter().find_map(|facts| facts.held_by.get(&vgpu.uuid));
            holder != Some(&machine.instance)
        });
        if pci.count() + usb.count() + vgpus.count() > 0 {
            state
                .violations
                .push(format!("{} launched with a device that it does not have", machine.instance));
        }
        if machine.firmware != Firmware::Bios {
            files.uefi =
                Some(UefiFiles { code: "/fake/code.fd".into(), vars: directory.join("vars.fd"), smm: false });
        }
        if machine.tpm {
            files.tpm = Some(TpmFiles { program: "/fake/swtpm".into(), state: directory.join("tpm") });
        }
        for share in &machine.shares {
            let refuse =
                |detail: &str| SystemError::Share { name: share.name.clone(), detail: detail.to_owned() };
            let facts = state.facts.shares.iter().find(|facts| facts.name == share.name);
            let facts = facts.ok_or_else(|| refuse("this host does not share it"))?;
            if facts.problem.is_some() || (facts.read_only && !share.read_only) {
                return Err(refuse("this host shares it otherwise"));
            }
        }
        if !machine.shares.is_empty() {
            let folder = |share: &ShareSpec| SharedFolder {
                path: format!("/fake/{}", share.name).into(),
                read_only: share.read_only,
            };
            let folders = machine.shares.iter().map(folder).collect();
            files.virtiofs = Some(VirtiofsFiles { program: "/fake/virtiofsd".into(), folders });
        }
        Ok(LaunchSpec { machine, files, affinity: Affinity::default() })
    }
}

#[async_trait]
impl Machines for FakeSystem {
    async fn launch(&self, request: &LaunchRequest) -> Result<ProcessFacts> {
        self.call("launch", self.start(request)).await
    }

    async fn cpu_time(&self, instance: &str) -> Result<CpuTime> {
        Ok(self.hypervisor.cpu_time(instance).await?)
    }

    async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<()> {
        self.call("set_cpu_time", async { Ok(self.hypervisor.set_cpu_time(instance, time).await?) }).await
    }

    async fn oom_kills(&self, instance: &str) -> Result<u64> {
        Ok(self.hypervisor.oom_kills(instance).await)
    }

    async fn set_oom_preference(&self, process: &ProcessIdentity, preference: u16) -> Result<()> {
        Ok(self.hypervisor.set_oom_preference(process, preference).await?)
    }

    async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        self.call("process", self.running(instance)).await
    }

    async fn machine_use(
        &self,
        _instance: &str,
        _process: &ProcessIdentity,
        taps: &[String],
    ) -> Result<Option<MachineUse>> {
        // A fake guest uses nothing.
        Ok(Some(MachineUse {
            interfaces: vec![InterfaceUse::default(); taps.len()],
            ..MachineUse::default()
        }))
    }

    async fn process_state(&self, process: &ProcessIdentity) -> Result<Option<ProcessState>> {
        Ok(self.hypervisor.process_state(process).await?)
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
            self.discard_scratch(instance);
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
            self.files.remove(&saved_state_path(instance));
            self.discard_scratch(instance);
            self.state().give_back(instance);
            self.state().firmware.remove(instance);
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

    async fn instance_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.call("instance_bytes", async { Ok(self.state().used_by_instances.clone()) }).await
    }

    async fn stderr_tail(&self, _: &str) -> Result<String> {
        self.call("stderr_tail", async { Ok(String::new()) }).await
    }

    async fn serial(&self, instance: &str, port: u8) -> Result<Option<ConsoleStream>> {
        Ok(self.hypervisor.serial(&Self::paths(instance).with_serial_port(port)).await.ok())
    }

    async fn vnc(&self, instance: &str) -> Result<Option<ConsoleStream>> {
        Ok(self.hypervisor.vnc(&Self::paths(instance)).await.ok())
    }

    async fn free_vsock_cid(&self, wanted: u32) -> Result<Option<u32>> {
        let work = async {
            let has_vsock = self.state().facts.qemu.as_ref().is_ok_and(|qemu| qemu.vsock);
            Ok(has_vsock.then_some(wanted))
        };
        self.call("free_vsock_cid", work).await
    }

    /// A fake guest has the ports of this machine's loopback interface.
    async fn connect_to_vsock(&self, cid: u32, port: u32) -> Result<ConsoleStream> {
        let work = async {
            let connected = match u16::try_from(port) {
                Ok(port) => TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await,
                Err(_) => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
            };
            connected.map(ConsoleStream::over).map_err(|error| SystemError::Network {
                attempt: "connect to",
                name: format!("vsock port {port} of context id {cid}"),
                detail: error.to_string(),
            })
        };
        self.call("connect_to_vsock", work).await
    }

    async fn serial_log(&self, instance: &str, port: u8, max_bytes: u64) -> Result<Vec<u8>> {
        let name = if port == 1 { "serial console".to_owned() } else { format!("serial port {port}") };
        let mut log = format!("{name} of {instance}\r\n").into_bytes();
        let most = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        Ok(log.split_off(log.len().saturating_sub(most)))
    }

    async fn grant_disk(&self, _: &str, disk: &DiskSpec) -> Result<DiskSpec> {
        let work = async {
            self.hypervisor.grant(&disk.file, true).await?;
            let mut below = disk.backing.as_ref();
            while let Some(backing) = below {
                self.hypervisor.grant(&backing.file, false).await?;
                below = backing.backing.as_deref();
            }
            Ok(disk.clone())
        };
        self.call("grant_disk", work).await
    }

    async fn revoke_disk(&self, _: &str, _: &str) -> Result<()> {
        self.call("revoke_disk", async { Ok(()) }).await
    }

    async fn grant_medium(&self, _: &str, medium: &Medium) -> Result<Medium> {
        let work = async {
            self.hypervisor.grant(&medium.file, false).await?;
            Ok(medium.clone())
        };
        self.call("grant_medium", work).await
    }

    async fn revoke_medium(&self, _: &str, _: &str) -> Result<()> {
        self.call("revoke_medium", async { Ok(()) }).await
    }

    async fn take_devices(&self, instance: &str, devices: &DeviceSpecs) -> Result<()> {
        self.call("take_devices", async { self.take_devices_now(instance, devices) }).await
    }

    async fn give_back_devices(&self, instance: &str) -> Result<()> {
        let work = async {
            if let Some(process) = self.running(instance).await? {
                let (instance, pid) = (instance.to_owned(), process.identity.pid);
                return Err(SystemError::StillRunning { instance, pid });
            }
            self.state().give_back(instance);
            Ok(())
        };
        self.call("give_back_devices", work).await
    }

    async fn lend_state(&self, instance: &str, qmp: &Qmp, access: StateAccess) -> Result<()> {
        self.call("lend_state", self.lend(instance, qmp, access)).await
    }

    async fn lend_channel(&self, instance: &str, qmp: &Qmp) -> Result<ConsoleStream> {
        let work = async { Ok(self.hypervisor.lend_channel(qmp, &Self::paths(instance)).await?) };
        self.call("lend_channel", work).await
    }

    async fn lend_key(&self, qmp: &Qmp, disk: &DiskSpec) -> Result<()> {
        let work = async {
            let key = self.state().key_of_disk(&disk.id)?;
            if let Some(key) = key {
                block::add_key(qmp, &disk.id, &key).await.map_err(SystemError::LendKey)?;
            }
            Ok(())
        };
        self.call("lend_key", work).await
    }

    async fn lend_tap(&self, instance: &str, qmp: &Qmp, nic: &NicSpec) -> Result<LentTap> {
        let work = async {
            if let Tap::Name(tap) = &nic.tap {
                let mut state = self.state();
                state.check_filters(vec![tap.clone()]);
                if !state.taps.contains_key(tap) {
                    let source = io::ErrorKind::NotFound.into();
                    return Err(LaunchError::Tap { name: tap.clone(), source }.into());
                }
            }
            Ok(self.hypervisor.lend_tap(qmp, &Self::paths(instance), nic).await?)
        };
        self.call("lend_tap", work).await
    }

    async fn seal_state(&self, instance: &str) -> Result<()> {
        let work = async {
            let path = saved_state_path(instance);
            match self.files.size_of(&path) {
                Some(_) => Ok(()),
                None => {
                    let source = io::ErrorKind::NotFound.into();
                    Err(SystemError::File { attempt: "write", path, source })
                }
            }
        };
        self.call("seal_state", work).await
    }

    async fn has_state(&self, instance: &str) -> Result<bool> {
        self.call("has_state", async { Ok(self.files.size_of(&saved_state_path(instance)).is_some()) }).await
    }

    async fn remove_scratch(&self, instance: &str) -> Result<()> {
        let work = async {
            if self.running(instance).await?.is_none() {
                self.discard_scratch(instance);
            }
            Ok(())
        };
        self.call("remove_scratch", work).await
    }

    async fn remove_state(&self, instance: &str) -> Result<()> {
        let work = async {
            self.files.remove(&saved_state_path(instance));
            Ok(())
        };
        self.call("remove_state", work).await
    }

    async fn keep_state(&self, instance: &str, id: &str, note: &Value) -> Result<()> {
        self.call("keep_state", async { self.keep(instance, id, note) }).await
    }

    async fn seal_kept_state(&self, id: &str) -> Result<()> {
        self.call("seal_kept_state", async { self.seal_kept(id) }).await
    }

    async fn kept_states(&self) -> Result<Vec<String>> {
        self.call("kept_states", async { Ok(self.kept_states_now()) }).await
    }

    async fn kept_state(&self, id: &str) -> Result<Option<Value>> {
        self.call("kept_state", async { Ok(self.kept(id)) }).await
    }

    async fn lay_state(&self, instance: &str, id: &str) -> Result<()> {
        self.call("lay_state", async { self.lay(instance, id) }).await
    }

    async fn remove_kept_state(&self, id: &str) -> Result<()> {
        let work = async {
            self.remove_kept(id);
            Ok(())
        };
        self.call("remove_kept_state", work).await
    }

    async fn bootstrap_data(&self, instance: &str) -> Result<Vec<String>> {
        let seed = instance_path(instance).join("seed.img");
        let work = async { Ok(self.files.size_of(&seed).map(|_| "seed".to_owned()).into_iter().collect()) };
        self.call("bootstrap_data", work).await
    }

    async fn bootstrap_files(&self, instance: &str) -> Result<Vec<BootstrapFile>> {
        let seed = instance_path(instance).join("seed.img");
        let work = async {
            let file =
                self.files.size_of(&seed).map(|_| BootstrapFile { name: "seed".to_owned(), bytes: vec![0] });
            Ok(file.into_iter().collect())
        };
        self.call("bootstrap_files", work).await
    }

    async fn write_bootstrap_files(&self, instance: &str, files: &[BootstrapFile]) -> Result<()> {
        let seed = instance_path(instance).join("seed.img");
        let work = async {
            match files.is_empty() {
                true => self.files.remove(&seed),
                false => self.files.put(&seed, 1 << 20),
            }
            Ok(())
        };
        self.call("write_bootstrap_files", work).await
    }

    async fn firmware_state(&self, instance: &str) -> Result<Vec<u8>> {
        self.call("firmware_state", async { Ok(self.firmware_now(instance).unwrap_or_default()) }).await
    }

    async fn install_firmware_state(&self, instance: &str, archive: &[u8]) -> Result<()> {
        let work = async { self.install_firmware(instance, archive, self.running(instance).await?) };
        self.call("install_firmware_state", work).await
    }

    async fn has_tpm_state(&self, instance: &str) -> Result<bool> {
        self.call("has_tpm_state", async { Ok(self.has_tpm_memory(instance)) }).await
    }

    async fn write_firmware_copy(&self, pool: &str, instance: &str, copy: &FirmwareCopy) -> Result<()> {
        self.call("write_firmware_copy", async { self.put_firmware_copy(pool, instance, copy) }).await
    }

    async fn firmware_copy(&self, pool: &str, instance: &str, uid: &str) -> Result<Option<FirmwareCopy>> {
        self.call("firmware_copy", async { self.firmware_copy_now(pool, instance, uid) }).await
    }

    async fn remove_firmware_copy(&self, pool: &str, instance: &str) -> Result<()> {
        self.call("remove_firmware_copy", async { self.take_firmware_copy(pool, instance) }).await
    }

    fn instance_directory(&self, instance: &str) -> PathBuf {
        instance_path(instance)
    }
}
