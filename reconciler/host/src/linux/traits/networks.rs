//! The networks and the firewall of the host: [`Networks`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use async_trait::async_trait;
use tokio::net::TcpStream;

use crate::linux::{LinuxSystem, network};
use crate::{
    BridgedNetwork, ExternalLease, Firewall, Forwarding, HostLinks, LearnedAddress, LeaseTaken,
    NetworkConfig, Networks, Result, TapConfig, TapFacts, Trace, TraceRequest, Uplink, WireguardConfig,
};

#[async_trait]
impl Networks for LinuxSystem {
    async fn ensure_network(&self, network: &NetworkConfig) -> Result<()> {
        self.networks.ensure(network).await
    }

    async fn ensure_bridged_network(&self, network: &BridgedNetwork) -> Result<()> {
        self.networks.ensure_bridged(network).await
    }

    async fn host_links(&self) -> Result<HostLinks> {
        self.networks.host_links().await
    }

    async fn remove_network(&self, bridge: &str) -> Result<()> {
        self.networks.remove(bridge).await
    }

    async fn networks(&self) -> Result<Vec<String>> {
        self.networks.networks().await
    }

    async fn ensure_wireguard(&self, config: &WireguardConfig) -> Result<()> {
        self.networks.ensure_wireguard(config).await
    }

    async fn has_wireguard(&self) -> Result<bool> {
        self.networks.has_wireguard().await
    }

    async fn remove_wireguard(&self) -> Result<()> {
        self.networks.remove_wireguard().await
    }

    async fn ensure_tap(&self, tap: &TapConfig) -> Result<()> {
        self.networks.ensure_tap(tap).await
    }

    async fn remove_tap(&self, name: &str) -> Result<()> {
        self.networks.remove_tap(name).await
    }

    async fn taps(&self) -> Result<Vec<TapFacts>> {
        self.networks.taps().await
    }

    async fn networks_and_taps(&self) -> Result<(Vec<String>, Vec<TapFacts>)> {
        self.networks.networks_and_taps().await
    }

    async fn apply_firewall(&self, firewall: &Firewall) -> Result<()> {
        self.networks.apply_firewall(firewall).await
    }

    async fn firewall_removed(&self) -> Result<()> {
        self.networks.firewall_removed().await
    }

    async fn network_server_ended(&self) -> Result<String> {
        self.networks.network_server_ended().await
    }

    async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>> {
        self.networks.leases_taken(bridge).await
    }

    async fn seen_addresses(&self) -> Result<BTreeMap<String, BTreeSet<IpAddr>>> {
        self.networks.seen_addresses().await
    }

    async fn external_leases(&self) -> Result<Vec<ExternalLease>> {
        self.networks.external_leases().await
    }

    async fn learned_addresses(&self) -> Result<Vec<LearnedAddress>> {
        self.networks.learned_addresses().await
    }

    async fn external_leases_changed(&self) -> Result<()> {
        self.networks.external_leases_changed().await;
        Ok(())
    }

    async fn uplink(&self) -> Result<Uplink> {
        self.networks.uplink(&self.uplink).await
    }

    async fn occupant(&self, interface: &str, address: IpAddr) -> Result<Option<String>> {
        self.networks.occupant(interface, address).await
    }

    async fn connect_to_guest(&self, bridge: &str, guest: SocketAddr) -> Result<TcpStream> {
        network::guest_port::connect_to_guest(bridge, guest).await
    }

    async fn forwarding(&self) -> Result<Forwarding> {
        self.networks.forwarding().await
    }

    async fn trace(&self, request: &TraceRequest) -> Result<Trace> {
        self.networks.trace(request).await
    }
}
