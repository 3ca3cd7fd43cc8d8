//! The machines of the host: [`Machines`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::block;
use berth_qemu::console::ConsoleStream;
use berth_qemu::guest_agent::GuestAgent;
use berth_qemu::hypervisor::{CpuTime, ProcessIdentity, ProcessState};
use berth_qemu::machine::{DiskSpec, Medium, NicSpec};
use berth_qemu::nics::LentTap;
use berth_qemu::qmp::{Events, Qmp};
use serde_json::Value;

use crate::linux::files::blocking;
use crate::linux::{LinuxSystem, process_details, usage, vsock};
use crate::{
    BootstrapFile, DeviceSpecs, FirmwareCopy, InstanceFacts, LaunchRequest, MachineUse, Machines,
    ProcessDetails, ProcessFacts, Result, StateAccess, SystemError,
};

#[async_trait]
impl Machines for LinuxSystem {
    async fn launch(&self, request: &LaunchRequest) -> Result<ProcessFacts> {
        self.rbd.begin_use(&request.machine.disks).await?;
        let installation = self.host.installation_of(request.machine.architecture()).await?;
        let in_ceph = self.rbd.keys_of(&request.machine.disks, self.volumes.keys()).await?;
        let (mut request, disks) = (request.clone(), request.machine.disks.clone());
        // Files of snapshots may have been merged since the request was made: a suspended machine has one from before.
        let pools = disks.iter().filter_map(|disk| self.layout.pool_of(&disk.file)).collect();
        let (disks, mut keys) = self
            .on_pools(pools, move |v| {
                let keys = v.keys_of(&disks)?;
                Ok((v.with_chains(disks)?, keys))
            })
            .await?;
        keys.extend(in_ceph);
        request.machine.disks = disks;
        let started = self.machines.launch(&request, &installation, keys).await?;
        match self.rbd.note_clients(&request.machine.disks).await {
            Ok(()) => {}
            // Another host has taken one of the disks just now, or its restore has begun. The guest does not run yet.
            Err(error @ (SystemError::VolumeLost { .. } | SystemError::VolumeBusy { .. })) => {
                self.machines.kill(&request.machine.instance, Duration::from_secs(5)).await?;
                return Err(error);
            }
            // Not fatal: the cluster knows the clients while they are connected.
            Err(error) => {
                tracing::warn!(
                    instance = request.machine.instance,
                    error = error.chain(),
                    "clients of Ceph not noted"
                );
            }
        }
        Ok(started)
    }

    async fn mark_started(&self, instance: &str, just_now: bool) {
        self.machines.mark_started(instance, just_now).await;
    }

    async fn cpu_time(&self, instance: &str) -> Result<CpuTime> {
        self.machines.cpu_time(instance).await
    }

    async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<()> {
        self.machines.set_cpu_time(instance, time).await
    }

    async fn oom_kills(&self, instance: &str) -> Result<u64> {
        self.machines.oom_kills(instance).await
    }

    async fn set_oom_preference(&self, process: &ProcessIdentity, preference: u16) -> Result<()> {
        Ok(self.machines.hypervisor().await?.set_oom_preference(process, preference).await?)
    }

    async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        self.machines.process(instance).await
    }

    async fn machine_use(
        &self,
        instance: &str,
        process: &ProcessIdentity,
        taps: &[String],
    ) -> Result<Option<MachineUse>> {
        let (pid, instance, taps) = (process.pid, instance.to_owned(), taps.to_vec());
        Ok(blocking(move || usage::machine(pid, &instance, &taps)).await)
    }

    async fn process_state(&self, process: &ProcessIdentity) -> Result<Option<ProcessState>> {
        Ok(self.machines.hypervisor().await?.process_state(process).await?)
    }

    async fn process_details(&self, process: &ProcessIdentity) -> Result<ProcessDetails> {
        let pid = process.pid;
        Ok(blocking(move || process_details::of(pid)).await)
    }

    async fn exited(&self, process: &ProcessIdentity) -> Result<()> {
        self.machines.exited(process).await
    }

    async fn connect(&self, instance: &str) -> Result<(Qmp, Events)> {
        self.machines.connect(instance).await
    }

    async fn guest_agent(&self, instance: &str) -> Result<GuestAgent> {
        self.machines.guest_agent(instance).await
    }

    async fn kill(&self, instance: &str, grace: Duration) -> Result<()> {
        self.machines.kill(instance, grace).await
    }

    async fn remove_instance(&self, instance: &str) -> Result<()> {
        self.give_back_devices(instance).await?;
        self.machines.remove(instance).await
    }

    async fn instances(&self) -> Result<Vec<InstanceFacts>> {
        self.machines.instances().await
    }

    async fn read_journal(&self, instance: &str) -> Result<Option<Value>> {
        self.machines.read_journal(instance).await
    }

    async fn write_journal(&self, instance: &str, journal: &Value) -> Result<()> {
        self.machines.write_journal(instance, journal).await
    }

    async fn instance_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.machines.instance_bytes().await
    }

    async fn stderr_tail(&self, instance: &str) -> Result<String> {
        self.machines.stderr_tail(instance).await
    }

    async fn serial(&self, instance: &str, port: u8) -> Result<Option<ConsoleStream>> {
        self.machines.serial(instance, port).await
    }

    async fn vnc(&self, instance: &str) -> Result<Option<ConsoleStream>> {
        self.machines.vnc(instance).await
    }

    async fn free_vsock_cid(&self, wanted: u32) -> Result<Option<u32>> {
        blocking(move || vsock::free_cid(wanted)).await
    }

    async fn connect_to_vsock(&self, cid: u32, port: u32) -> Result<ConsoleStream> {
        vsock::connect(cid, port).await
    }

    async fn serial_log(&self, instance: &str, port: u8, max_bytes: u64) -> Result<Vec<u8>> {
        self.machines.serial_log(instance, port, max_bytes).await
    }

    async fn rotate_logs(&self) {
        self.machines.rotate_logs().await;
    }

    async fn grant_disk(&self, instance: &str, disk: &DiskSpec) -> Result<DiskSpec> {
        // Also because a QEMU that opens an image stands still while the cluster does not answer.
        self.rbd.begin_use(std::slice::from_ref(disk)).await?;
        if let Some(pool) = self.layout.pool_of(&disk.file) {
            let (of_pool, disk) = (pool.clone(), disk.clone());
            self.on_pool(&pool, move |v| v.ensure_present(&of_pool, &disk)).await?;
        }
        let granted = self.machines.grant(instance, disk).await?;
        self.rbd.note_clients_later(disk);
        Ok(granted)
    }

    async fn revoke_disk(&self, instance: &str, volume: &str) -> Result<()> {
        let id = volume.to_owned();
        if let Some(device) = self.on_all_pools(move |v| v.device_of(&id)).await? {
            self.machines.take_back_device(instance, &device).await?;
        }
        self.machines.revoke(instance, volume).await
    }

    async fn grant_medium(&self, instance: &str, medium: &Medium) -> Result<Medium> {
        self.machines.grant_medium(instance, medium).await
    }

    async fn revoke_medium(&self, instance: &str, digest: &str) -> Result<()> {
        self.machines.revoke_medium(instance, digest).await
    }

    async fn take_devices(&self, instance: &str, devices: &DeviceSpecs) -> Result<()> {
        let (pci, usb, vgpus) = (self.passthrough.clone(), self.usb.clone(), self.vgpus.clone());
        let (instance, devices) = (instance.to_owned(), devices.clone());
        blocking(move || {
            pci.take(&instance, &devices.pci)?;
            usb.take(&instance, &devices.usb)?;
            vgpus.take(&instance, &devices.vgpus)
        })
        .await
    }

    async fn give_back_devices(&self, instance: &str) -> Result<()> {
        if let Some(process) = self.machines.process(instance).await? {
            return Err(SystemError::StillRunning {
                instance: instance.to_owned(),
                pid: process.identity.pid,
            });
        }
        let (pci, usb, vgpus) = (self.passthrough.clone(), self.usb.clone(), self.vgpus.clone());
        let instance = instance.to_owned();
        blocking(move || {
            vgpus.give_back(&instance)?;
            pci.give_back(&instance)?;
            usb.give_back(&instance)
        })
        .await
    }

    async fn lend_state(&self, instance: &str, qmp: &Qmp, access: StateAccess) -> Result<()> {
        self.machines.lend_state(instance, qmp, access).await
    }

    async fn lend_key(&self, qmp: &Qmp, disk: &DiskSpec) -> Result<()> {
        let disks = [disk.clone()];
        let in_ceph = self.rbd.keys_of(&disks, self.volumes.keys()).await?;
        let pools = self.layout.pool_of(&disk.file).into_iter().collect();
        let in_files = self.on_pools(pools, move |v| v.keys_of(&disks)).await?;
        for (id, key) in in_ceph.into_iter().chain(in_files) {
            block::add_key(qmp, &id, &key).await.map_err(SystemError::LendKey)?;
        }
        Ok(())
    }

    async fn lend_channel(&self, instance: &str, qmp: &Qmp) -> Result<ConsoleStream> {
        self.machines.lend_channel(instance, qmp).await
    }

    async fn lend_tap(&self, instance: &str, qmp: &Qmp, nic: &NicSpec) -> Result<LentTap> {
        self.machines.lend_tap(instance, qmp, nic).await
    }

    async fn seal_state(&self, instance: &str) -> Result<()> {
        self.machines.seal_state(instance).await
    }

    async fn has_state(&self, instance: &str) -> Result<bool> {
        self.machines.has_state(instance).await
    }

    async fn remove_scratch(&self, instance: &str) -> Result<()> {
        self.machines.remove_scratch(instance).await
    }

    async fn remove_state(&self, instance: &str) -> Result<()> {
        self.machines.remove_state(instance).await
    }

    async fn keep_state(&self, instance: &str, id: &str, note: &Value) -> Result<()> {
        self.machines.keep_state(instance, id, note).await
    }

    async fn seal_kept_state(&self, id: &str) -> Result<()> {
        self.machines.seal_kept_state(id).await
    }

    async fn kept_states(&self) -> Result<Vec<String>> {
        self.machines.kept_states().await
    }

    async fn kept_state(&self, id: &str) -> Result<Option<Value>> {
        self.machines.kept_state(id).await
    }

    async fn lay_state(&self, instance: &str, id: &str) -> Result<()> {
        self.machines.lay_state(instance, id).await
    }

    async fn remove_kept_state(&self, id: &str) -> Result<()> {
        self.machines.remove_kept_state(id).await
    }

    async fn bootstrap_data(&self, instance: &str) -> Result<Vec<String>> {
        self.machines.bootstrap_data(instance).await
    }

    async fn bootstrap_files(&self, instance: &str) -> Result<Vec<BootstrapFile>> {
        self.machines.bootstrap_files(instance).await
    }

    async fn write_bootstrap_files(&self, instance: &str, files: &[BootstrapFile]) -> Result<()> {
        self.machines.write_bootstrap_files(instance, files).await
    }

    async fn firmware_state(&self, instance: &str) -> Result<Vec<u8>> {
        self.machines.firmware_state(instance).await
    }

    async fn install_firmware_state(&self, instance: &str, archive: &[u8]) -> Result<()> {
        self.machines.install_firmware_state(instance, archive).await
    }

    async fn has_tpm_state(&self, instance: &str) -> Result<bool> {
        self.machines.has_tpm_state(instance).await
    }

    async fn write_firmware_copy(&self, pool: &str, instance: &str, copy: &FirmwareCopy) -> Result<()> {
        match self.rbd.get(pool) {
            Some(in_ceph) => in_ceph.write_firmware_copy(instance, copy).await,
            None => self.machines.write_firmware_copy(pool, instance, copy).await,
        }
    }

    async fn firmware_copy(&self, pool: &str, instance: &str, uid: &str) -> Result<Option<FirmwareCopy>> {
        match self.rbd.get(pool) {
            Some(in_ceph) => in_ceph.firmware_copy(instance, uid).await,
            None => self.machines.firmware_copy(pool, instance, uid).await,
        }
    }

    async fn remove_firmware_copy(&self, pool: &str, instance: &str) -> Result<()> {
        match self.rbd.get(pool) {
            Some(in_ceph) => in_ceph.remove_firmware_copies(instance).await,
            None => self.machines.remove_firmware_copy(pool, instance).await,
        }
    }

    fn instance_directory(&self, instance: &str) -> PathBuf {
        self.layout.instance(instance)
    }
}
