//! The facts of the host, and the record of its site: [`HostInfo`].

use async_trait::async_trait;
use berth_qemu::hypervisor::ProcessIdentity;
use serde_json::Value;

use crate::linux::files::blocking;
use crate::linux::volumes::LinuxVolumes;
use crate::linux::{LinuxSystem, record, resident, units, usage};
use crate::{ForeignObject, HostFacts, HostInfo, HostUse, Result, SystemError};

#[async_trait]
impl HostInfo for LinuxSystem {
    async fn facts(&self) -> Result<HostFacts> {
        let mut facts = self.machine_facts().await?;
        if let Some(address) = facts.address {
            facts.mtu = self.networks.mtu_at(address).await?;
        }
        facts.ranges = self.networks.host_ranges().await?;
        facts.ipv6_addresses = self.networks.host_ipv6_addresses().await?;
        facts.links = self.networks.host_links().await?;
        facts.wireguard = self.networks.wireguard_facts().await;
        facts.backup_folders = self.backup_folders.facts().await;
        facts.block_devices = self.on_all_pools(LinuxVolumes::block_devices).await?;
        let (folders, in_ceph) = tokio::join!(self.pool_folders.facts(), self.rbd.facts());
        facts.pool_folders = folders;
        for pool in self.pool_folders.returned(&facts.pool_folders) {
            if let Err(error) = self.machines.revoke_departed(&pool).await {
                tracing::warn!(
                    pool,
                    error = error.chain(),
                    "files of machines that are gone keep their owner"
                );
                self.pool_folders.look_again(&pool);
            }
        }
        facts.pool_folders.extend(in_ceph);
        Ok(facts)
    }

    async fn machine_facts(&self) -> Result<HostFacts> {
        let mut facts = self.host.facts(self.layout.root()).await?;
        let (pci, usb, vgpus) = (self.passthrough.clone(), self.usb.clone(), self.vgpus.clone());
        (facts.pci_devices, facts.usb_devices, facts.vgpus) =
            blocking(move || Ok::<_, SystemError>((pci.facts()?, usb.facts()?, vgpus.facts()?))).await?;
        facts.shares = self.shares.facts().await;
        facts.dedicated = self.machines.dedicated_facts().await?;
        Ok(facts)
    }

    async fn overhead(&self, process: &ProcessIdentity, guest_memory: u64) -> Result<Option<u64>> {
        resident::above_guest_memory(process.pid, guest_memory).await
    }

    async fn shared_unit(&self, process: &ProcessIdentity) -> Result<Option<String>> {
        let pid = process.pid;
        Ok(blocking(move || units::shared_with(pid)).await)
    }

    async fn host_use(&self) -> Result<HostUse> {
        Ok(blocking(usage::host).await)
    }

    async fn foreign(&self) -> Result<Vec<ForeignObject>> {
        let mut foreign = self.machines.foreign().await?;
        foreign.extend(self.on_all_pools(LinuxVolumes::foreign).await?);
        foreign.sort();
        Ok(foreign)
    }

    async fn read_site(&self) -> Result<Option<Value>> {
        let root = self.layout.root().to_owned();
        blocking(move || record::read(&root)).await
    }

    async fn write_site(&self, record: &Value) -> Result<()> {
        let (root, record) = (self.layout.root().to_owned(), record.clone());
        blocking(move || record::write(&root, &record)).await
    }
}
