//! Networks of the fake host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use async_trait::async_trait;
use tokio::net::TcpStream;

use crate::{
    BridgeChoice, BridgedNetwork, ExternalLease, Firewall, Forwarding, HostInterface, HostLinks,
    LearnedAddress, Lease, LeaseTaken, NetworkConfig, Networks, Port, Result, StepResult, SystemError,
    TapConfig, TapFacts, Trace, TraceEnd, TraceObject, TraceRequest, TraceStep, Uplink, WireguardConfig,
};

use super::FakeSystem;
use super::calls::refused;
use super::state::State;

impl FakeSystem {
    /// Returns the leases taken on a bridge: booted guests have taken the addresses reserved for them.
    fn taken(&self, bridge: &str) -> Vec<LeaseTaken> {
        let booted = self.hypervisor.booted();
        let state = self.state();
        let Some(network) = state.networks.get(bridge) else { return Vec::new() };
        let address = |lease: &Lease| lease.served().map(IpAddr::V4).or(lease.served_ipv6().map(IpAddr::V6));
        let reserved: BTreeMap<&str, IpAddr> =
            network.leases.iter().filter_map(|lease| Some((lease.mac.as_str(), address(lease)?))).collect();
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

impl State {
    /// Records the taps in use that nothing filters, if filters are expected.
    pub(super) fn check_filters(&mut self, taps: Vec<String>) {
        for tap in taps.into_iter().filter(|_| self.filters_expected) {
            let bridge = self.taps.get(&tap).map(|tap| tap.bridge.clone());
            let is_tracked = bridge.is_some_and(|bridge| {
                let bridged = self.bridged.get(&bridge).is_some_and(|network| network.tracked);
                bridged || self.networks.get(&bridge).is_some_and(|network| network.tracked)
            });
            let is_filtered = self.firewall.filters.ports.iter().any(|filtered| filtered.port.tap == tap);
            if !is_tracked || !is_filtered {
                self.violations.push(format!("the filter of {tap} is open: {is_tracked}, {is_filtered}"));
            }
        }
    }
}

#[async_trait]
impl Networks for FakeSystem {
    async fn ensure_network(&self, network: &NetworkConfig) -> Result<()> {
        let work = async {
            let taps = self.hypervisor.taps();
            let mut state = self.state();
            if state.refused_links.contains(&network.bridge) {
                let detail = "RTNETLINK answers: No buffer space available".to_owned();
                return Err(SystemError::Program { program: "ip", detail });
            }
            state.networks.insert(network.bridge.clone(), network.clone());
            state.without_server.remove(&network.bridge);
            // The ports of another program are not the result of this call.
            if !state.firewall_lost {
                state.check_filters(taps);
            }
            if state.refused_servers.contains(&network.bridge) {
                state.without_server.insert(network.bridge.clone());
                let detail = "failed to create listening socket: Address already in use".to_owned();
                let source = Box::new(SystemError::Program { program: "dnsmasq", detail });
                return Err(SystemError::NetworkServer { bridge: network.bridge.clone(), source });
            }
            Ok(())
        };
        self.call("ensure_network", work).await
    }

    async fn ensure_bridged_network(&self, network: &BridgedNetwork) -> Result<()> {
        let work = async {
            let taps = self.hypervisor.taps();
            let mut state = self.state();
            let links = &state.facts.links;
            let (name, is_there) = match &network.to {
                BridgeChoice::Named(name) => (name, links.bridges.iter().any(|bridge| bridge.name == *name)),
                BridgeChoice::Over { interface, vlan } => {
                    let of_name = links.interfaces.iter().find(|of| of.name == *interface);
                    let usable =
                        |of: &HostInterface| if vlan.is_some() { links.vlans } else { of.in_use.is_none() };
                    (interface, of_name.is_some_and(usable))
                }
            };
            if !is_there {
                return Err(refused("find", name, "there is no such interface"));
            }
            state.bridged.insert(network.bridge.clone(), network.clone());
            if !state.firewall_lost {
                state.check_filters(taps);
            }
            Ok(())
        };
        self.call("ensure_bridged_network", work).await
    }

    async fn host_links(&self) -> Result<HostLinks> {
        self.call("host_links", async { Ok(self.state().facts.links.clone()) }).await
    }

    async fn remove_network(&self, bridge: &str) -> Result<()> {
        let work = async {
            let mut state = self.state();
            if state.taps.values().any(|tap| tap.bridge == bridge) {
                state.violations.push(format!("bridge {bridge} removed from below a tap"));
                return Err(refused("remove", bridge, "a tap is on it"));
            }
            if state.refused_removals.contains(bridge) {
                return Err(refused("remove", bridge, "Device or resource busy"));
            }
            state.networks.remove(bridge);
            state.without_server.remove(bridge);
            state.bridged.remove(bridge);
            Ok(())
        };
        self.call("remove_network", work).await
    }

    async fn networks(&self) -> Result<Vec<String>> {
        let work = async {
            let state = self.state();
            Ok(state.networks.keys().chain(state.bridged.keys()).cloned().collect())
        };
        self.call("networks", work).await
    }

    async fn ensure_wireguard(&self, config: &WireguardConfig) -> Result<()> {
        let work = async {
            self.state().wireguard = Some(config.clone());
            Ok(())
        };
        self.call("ensure_wireguard", work).await
    }

    async fn has_wireguard(&self) -> Result<bool> {
        Ok(self.state().wireguard.is_some())
    }

    async fn remove_wireguard(&self) -> Result<()> {
        let work = async {
            self.state().wireguard = None;
            Ok(())
        };
        self.call("remove_wireguard", work).await
    }

    async fn ensure_tap(&self, tap: &TapConfig) -> Result<()> {
        let work = async {
            let mut state = self.state();
            if !state.networks.contains_key(&tap.bridge) && !state.bridged.contains_key(&tap.bridge) {
                return Err(refused("join", &tap.name, "its bridge does not exist"));
            }
            state.taps.insert(tap.name.clone(), tap.clone());
            Ok(())
        };
        self.call("ensure_tap", work).await
    }

    async fn remove_tap(&self, name: &str) -> Result<()> {
        let work = async {
            let used = self.hypervisor.taps().iter().any(|tap| tap == name);
            let mut state = self.state();
            if used {
                state.violations.push(format!("tap {name} removed from below a machine"));
            }
            state.taps.remove(name);
            Ok(())
        };
        self.call("remove_tap", work).await
    }

    async fn taps(&self) -> Result<Vec<TapFacts>> {
        let bridge = |tap: &TapConfig| Some(tap.bridge.clone()).filter(|bridge| !bridge.is_empty());
        let facts = |tap: &TapConfig| TapFacts { name: tap.name.clone(), bridge: bridge(tap) };
        self.call("taps", async { Ok(self.state().taps.values().map(facts).collect()) }).await
    }

    async fn apply_firewall(&self, firewall: &Firewall) -> Result<()> {
        let work = async {
            let taps = self.hypervisor.taps();
            let mut state = self.state();
            state.firewall = firewall.clone();
            state.firewall_lost = false;
            state.check_filters(taps);
            Ok(())
        };
        self.call("apply_firewall", work).await
    }

    async fn firewall_removed(&self) -> Result<()> {
        self.firewall_removed.notified().await;
        Ok(())
    }

    async fn network_server_ended(&self) -> Result<String> {
        loop {
            let ended = self.state().ended_servers.pop_front();
            if let Some(bridge) = ended {
                return Ok(bridge);
            }
            self.server_ended.notified().await;
        }
    }

    async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>> {
        self.call("leases_taken", async { Ok(self.taken(bridge)) }).await
    }

    async fn seen_addresses(&self) -> Result<BTreeMap<String, BTreeSet<IpAddr>>> {
        let work = async {
            let state = self.state();
            let is_observed = |tap: &String| state.firewall.observed.iter().any(|port| port.tap == *tap);
            let seen = state.seen.iter().filter(|(tap, _)| is_observed(tap));
            Ok(seen.map(|(tap, addresses)| (tap.clone(), addresses.clone())).collect())
        };
        self.call("seen_addresses", work).await
    }

    async fn external_leases(&self) -> Result<Vec<ExternalLease>> {
        let work = async {
            let state = self.state();
            let is_read = |lease: &&ExternalLease| {
                state.bridged.get(&lease.bridge).is_some_and(|network| network.leased.contains(&lease.mac))
            };
            Ok(state.leases.iter().filter(is_read).cloned().collect())
        };
        self.call("external_leases", work).await
    }

    async fn learned_addresses(&self) -> Result<Vec<LearnedAddress>> {
        let work = async {
            let state = self.state();
            let is_learned = |address: &&LearnedAddress| {
                let network = state.bridged.get(&address.bridge);
                network.is_some_and(|network| network.learned.iter().any(|guest| guest.mac == address.mac))
            };
            Ok(state.learned.iter().filter(is_learned).cloned().collect())
        };
        self.call("learned_addresses", work).await
    }

    async fn external_leases_changed(&self) -> Result<()> {
        self.leases_changed.notified().await;
        Ok(())
    }

    async fn uplink(&self) -> Result<Uplink> {
        self.call("uplink", async { Ok(self.state().uplink.clone()) }).await
    }

    async fn occupant(&self, _: &str, address: IpAddr) -> Result<Option<String>> {
        self.call("occupant", async { Ok(self.state().occupied.get(&address).cloned()) }).await
    }

    /// A fake guest has the ports of this machine's loopback interface.
    async fn connect_to_guest(&self, _: &str, guest: SocketAddr) -> Result<TcpStream> {
        let work = async {
            let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, guest.port())).await;
            connected.map_err(|error| SystemError::Network {
                attempt: "connect to",
                name: guest.to_string(),
                detail: error.to_string(),
            })
        };
        self.call("connect_to_guest", work).await
    }

    async fn forwarding(&self) -> Result<Forwarding> {
        let work = async { Ok(Forwarding { ok: true, message: "nothing stands in the way".to_owned() }) };
        self.call("forwarding", work).await
    }

    /// A fake host has no rules: every packet arrives.
    async fn trace(&self, request: &TraceRequest) -> Result<Trace> {
        let packet = request.packet;
        let is_to = |port: &&Port| {
            port.address.is_some_and(|own| packet.to == own) || port.ipv6.is_some_and(|own| packet.to == own)
        };
        let end = match request.firewall.ports.iter().find(is_to) {
            Some(port) => TraceEnd::Guest { interface: port.tap.clone(), packet },
            None => TraceEnd::Outside { interface: "eth0".to_owned(), packet },
        };
        let source = TraceStep {
            place: "source check".to_owned(),
            result: StepResult::Passed,
            by: Some(TraceObject::Interface { name: request.tap.clone() }),
            detail: String::new(),
        };
        self.call("trace", async { Ok(Trace { steps: vec![source], end }) }).await
    }
}
