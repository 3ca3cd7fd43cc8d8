//! A client's connection to a TCP port or a vsock port of a guest.
//!
//! For TCP the agent connects from the bridge of the VM's network, which no route of the host can redirect, and only to addresses
//! that the control plane has given to this VM. For vsock it connects to the context id with which it launched the VM's machine, which no
//! other machine of the host has while that one runs.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use berth_api::VM;
use berth_api::console::{ADDRESS, PORT, vsock_port_of};
use berth_api::vm::InterfaceStatus;
use berth_qemu::console::ConsoleStream;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::copying::{Activity, copy};
use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::{IDLE, STALLED};
use crate::context::Context;
use crate::journal::Journal;

/// The time for the guest to accept the connection.
const CONNECT: Duration = Duration::from_secs(10);

/// A connection to a guest, and its place.
#[derive(Debug)]
pub(super) struct Forward {
    stream: ConsoleStream,
    _place: Place<String>,
}

impl Forward {
    /// Connects to the port that the query of a request names.
    ///
    /// *Errors*: the query names no port, or an address that is not the VM's; the guest does not accept the connection.
    pub(super) async fn connect(
        ctx: &Context,
        vm: &VM,
        query: Option<&str>,
        place: Place<String>,
    ) -> Result<Self, ConsoleRefusal> {
        let wanted = Wanted::of_query(query.unwrap_or_default())?;
        let (network, address) = target(vm, wanted)?;
        let bridge = ctx.networks.access_of(&ctx.index.read(), &network);
        let bridge = bridge.ok_or(ConsoleRefusal::NotHere)?;
        let connect = ctx.system.connect_to_guest(&bridge, SocketAddr::new(address, wanted.port));
        let failed = |detail: String| ConsoleRefusal::NoConnection { address, port: wanted.port, detail };
        match timeout(CONNECT, connect).await {
            Ok(Ok(stream)) => Ok(Self { stream: ConsoleStream::over(stream), _place: place }),
            Ok(Err(error)) => Err(failed(error.chain().to_string())),
            Err(_) => Err(failed(no_answer())),
        }
    }

    /// Connects to the vsock port that the query of a request names.
    ///
    /// *Guarantees*: the connection is to this machine. A context id is free again when its machine ends, so the process has to be the
    /// same before the connection and after it.
    ///
    /// *Errors*: the query names no port; the machine of the instance has no vsock device, or ends meanwhile; the guest does not accept the
    /// connection.
    pub(super) async fn connect_vsock(
        ctx: &Context,
        instance: &str,
        query: Option<&str>,
        place: Place<String>,
    ) -> Result<Self, ConsoleRefusal> {
        let port = vsock_port_of(query).ok_or(ConsoleRefusal::NoVsockPort)?;
        let identity = async || {
            let process = ctx.system.process(instance).await?;
            process.map(|process| process.identity).ok_or(ConsoleRefusal::NotRunning)
        };
        let before = identity().await?;
        let journal = ctx.system.read_journal(instance).await?;
        let journal = journal.and_then(|journal| Journal::parse(journal).ok());
        let machine = journal.and_then(|journal| journal.run?.machine);
        let cid = machine.and_then(|machine| machine.extras.vsock_cid).ok_or(ConsoleRefusal::NoVsock)?;
        let failed = |detail: String| ConsoleRefusal::NoVsockConnection { port, detail };
        match timeout(CONNECT, ctx.system.connect_to_vsock(cid, port)).await {
            Ok(Ok(_)) if identity().await? != before => Err(ConsoleRefusal::NotRunning),
            Ok(Ok(stream)) => Ok(Self { stream, _place: place }),
            Ok(Err(error)) => Err(failed(error.chain().to_string())),
            Err(_) => Err(failed(no_answer())),
        }
    }

    /// Copies bytes until both directions have ended, or nothing is sent for [`IDLE`].
    pub(super) async fn run(self, client: TokioIo<Upgraded>) {
        let (from_guest, mut to_guest) = self.stream.into_parts();
        let (from_client, mut to_client) = tokio::io::split(client);
        let activity = Activity::new();
        let upward = async {
            copy(from_client, &mut to_guest, &activity).await?;
            to_guest.shutdown().await
        };
        let downward = async {
            copy(from_guest, &mut to_client, &activity).await?;
            timeout(STALLED, to_client.shutdown()).await?
        };
        // A failure is the end of a connection.
        tokio::select! {
            _ = futures::future::try_join(upward, downward) => {}
            () = activity.ended(IDLE) => {}
        }
    }
}

fn no_answer() -> String {
    format!("no answer within {} seconds", CONNECT.as_secs())
}

/// The port that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    port: u16,
    address: Option<IpAddr>,
}

impl Wanted {
    fn of_query(query: &str) -> Result<Self, ConsoleRefusal> {
        let wrong = |detail: &str| ConsoleRefusal::NoSuchPort { detail: detail.to_owned() };
        let pairs: HashMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let port = pairs.get(PORT).and_then(|text| text.parse().ok()).filter(|port| *port > 0);
        let port = port.ok_or_else(|| wrong("the request names no port from 1 to 65535 (?port=22)"))?;
        let address = pairs.get(ADDRESS).map(|text| text.parse()).transpose();
        let address = address.map_err(|_| wrong("the address in the request is not an IP address"))?;
        Ok(Self { port, address })
    }
}

/// Returns network and address of the VM's interface with the wanted address, or of its first: that of IPv4 if it has one.
fn target(vm: &VM, wanted: Wanted) -> Result<(String, IpAddr), ConsoleRefusal> {
    let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    let of_interface = |interface: &InterfaceStatus| {
        let own = [&interface.address, &interface.ipv6_address].map(|text| text.parse::<IpAddr>().ok());
        let network = interface.network.clone();
        own.into_iter().flatten().map(move |address| (network.clone(), address))
    };
    let of_vm: Vec<(String, IpAddr)> = interfaces.flat_map(of_interface).collect();
    let found = match wanted.address {
        Some(address) => of_vm.iter().find(|(_, own)| *own == address),
        None => of_vm.first(),
    };
    found.cloned().ok_or_else(|| {
        let detail = if vm.status.as_ref().is_none_or(|status| status.interfaces.is_empty()) {
            "the VM has no network interface".to_owned()
        } else if of_vm.is_empty() {
            "others than berth give out the VM's addresses, and a guest may claim any: connect to one of status.observedAddresses \
             from that network"
                .to_owned()
        } else {
            let own: Vec<String> = of_vm.iter().map(|(_, address)| address.to_string()).collect();
            format!("the address is not the VM's: it has {}", own.join(", "))
        };
        ConsoleRefusal::NoSuchPort { detail }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(addresses: &[&str]) -> VM {
        let interfaces: Vec<serde_json::Value> = addresses
            .iter()
            .enumerate()
            .map(|(n, address)| {
                json!({"name": format!("nic{n}"), "network": format!("ns/net{n}"), "macAddress": "52:54:00:00:00:01",
                    "address": address})
            })
            .collect();
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"disks": []},
            "status": {"observedGeneration": 1, "interfaces": interfaces}}))
        .expect("a VM")
    }

    fn found(addresses: &[&str], query: &str) -> Result<String, String> {
        let wanted = Wanted::of_query(query).map_err(|refusal| refusal.to_string())?;
        let target = target(&vm(addresses), wanted).map_err(|refusal| refusal.to_string())?;
        Ok(format!("{} {}:{}", target.0, target.1, wanted.port))
    }

    #[test]
    fn a_connection_goes_to_an_address_of_the_vm_and_to_no_other() {
        let own = ["10.0.0.2", "10.1.0.2"];
        assert_eq!(found(&own, "port=22").as_deref(), Ok("ns/net0 10.0.0.2:22"));
        assert_eq!(found(&own, "address=10.1.0.2&port=80").as_deref(), Ok("ns/net1 10.1.0.2:80"));
        let error = found(&own, "port=22&address=10.0.0.1").expect_err("the gateway");
        assert_eq!(error, "the address is not the VM's: it has 10.0.0.2, 10.1.0.2");
        assert_eq!(found(&[], "port=22").expect_err("none"), "the VM has no network interface");
        let error = found(&[""], "port=22").expect_err("its address is not berth's");
        assert!(error.contains("connect to one of status.observedAddresses"), "{error}");
    }

    #[test]
    fn without_ipv4_a_connection_goes_to_the_ipv6_address() {
        let mut vm = vm(&[""]);
        vm.status.as_mut().expect("it has one").interfaces[0].ipv6_address = "fd00:60::2".to_owned();
        let found = |query: &str| target(&vm, Wanted::of_query(query).expect("a port"));
        let own: (String, IpAddr) = ("ns/net0".to_owned(), "fd00:60::2".parse().expect("an address"));
        assert_eq!(found("port=22").ok(), Some(own.clone()));
        assert_eq!(found("port=22&address=fd00:60::2").ok(), Some(own));
        assert!(found("port=22&address=fd00:60::3").is_err());
    }

    #[test]
    fn a_query_without_a_port_or_with_garbage_is_refused() {
        for query in
            ["", "port=", "port=0", "port=65536", "port=-1", "22", "port=22&address=web", "address=10.0.0.2"]
        {
            assert!(found(&["10.0.0.2"], query).is_err(), "{query}");
        }
    }
}
