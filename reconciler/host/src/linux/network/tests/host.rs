//! Hosts for tests with several of them: each is a thread in its own network namespace, connected by a bridge that acts
//! as the segment between them.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::runtime::Runtime;

use super::guest::Guest;
use super::{Fixture, ip, unshare};

type Work = Box<dyn FnOnce(&Fixture, &Runtime) + Send>;

/// The bridge that connects the hosts, in the test's own namespace.
pub(super) const SEGMENT: &str = "segment";

pub(super) struct Host {
    work: Sender<Work>,
    pub(super) address: std::net::Ipv4Addr,
}

/// Creates the segment with this MTU.
pub(super) fn segment(mtu: u16) {
    ip(&format!("link add {SEGMENT} mtu {mtu} type bridge"));
    ip(&format!("link set {SEGMENT} up"));
}

/// Creates a machine on the segment that is not a host of berth's.
pub(super) fn outsider(address: &'static str) -> Guest {
    let guest = Guest::join(SEGMENT, 0x80);
    guest.on(move || ip(&format!("addr add {address} dev eth0")));
    guest
}

impl Host {
    /// Creates the host 192.0.2.`last` on the segment.
    pub(super) fn on_segment(last: u8, mtu: u16) -> Self {
        let (work, inbox): (Sender<Work>, Receiver<Work>) = channel();
        let (tell, reported) = channel();
        std::thread::spawn(move || {
            unshare().expect("as root");
            tell.send(nix::unistd::gettid()).expect("somebody waits");
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            let fixture = Fixture::new();
            inbox.into_iter().for_each(|work| work(&fixture, &runtime));
        });
        let thread = reported.recv().expect("it started");
        let outer = format!("host{last}");
        ip(&format!("link add {outer} mtu {mtu} type veth peer name up0 mtu {mtu} netns {thread}"));
        ip(&format!("link set {outer} master {SEGMENT} up"));
        let host = Self { work, address: std::net::Ipv4Addr::new(192, 0, 2, last) };
        let address = host.address;
        host.on(move |_, _| {
            ip("link set lo up");
            ip(&format!("addr add {address}/24 dev up0"));
            ip("link set up0 up");
        });
        host
    }

    /// Runs a closure on the host and waits for it.
    pub(super) fn on<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Fixture, &Runtime) -> T + Send + 'static,
    ) -> T {
        let (tell, reported) = channel();
        let work =
            move |fixture: &Fixture, runtime: &Runtime| tell.send(work(fixture, runtime)).expect("waits");
        self.work.send(Box::new(work)).expect("the thread lives as long as the host");
        reported.recv().expect("the work on the host did not panic")
    }

    /// Runs an operation of berth's on the host.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl for<'a> FnOnce(&'a Fixture) -> Pin<Box<dyn Future<Output = T> + 'a>> + Send + 'static,
    ) -> T {
        self.on(move |fixture, runtime| runtime.block_on(work(fixture)))
    }

    pub(super) fn guest(&self, bridge: &'static str, address: &'static str, gateway: &'static str) -> Guest {
        self.on(move |_, _| Guest::at(bridge, address, gateway))
    }

    pub(super) fn ip(&self, args: &'static str) -> String {
        self.on(move |_, _| ip(args))
    }
}
