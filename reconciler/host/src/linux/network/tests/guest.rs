//! Machines for the network tests: a thread in a network namespace, connected to a bridge or directly to the host.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::dhcp::{self, Offer};
use super::ip;

/// Longer than any reply on one machine takes, short enough to wait for a reply that may not come.
const PATIENCE: Duration = Duration::from_millis(1500);

type Work = Box<dyn FnOnce() + Send>;

pub(super) struct Guest {
    work: Sender<Work>,
    last: u8,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Guest {
    /// Attaches a machine without an address to a bridge. `last` is the last octet of its MAC.
    pub(super) fn join(bridge: &str, last: u8) -> Self {
        let (guest, outer) = Self::wired(last);
        ip(&format!("link set {outer} master {bridge} up"));
        if super::filters_bridged() {
            // Taps have this setting in that case.
            ip(&format!("link set {outer} type bridge_slave hairpin on"));
        }
        guest
    }

    /// Attaches a machine without an address to a bridge, by a link with the name of a tap.
    pub(super) fn by_tap(bridge: &str, tap: &str, last: u8) -> Self {
        let (guest, outer) = Self::wired(last);
        ip(&format!("link set {outer} name {tap}"));
        ip(&format!("link set {tap} master {bridge} up"));
        if super::filters_bridged() {
            ip(&format!("link set {tap} type bridge_slave hairpin on"));
        }
        guest
    }

    /// Attaches a machine with an address to a bridge.
    pub(super) fn at(bridge: &str, address: &'static str, gateway: &'static str) -> Self {
        let guest = Self::join(bridge, 0x40);
        guest.on(move || {
            ip(&format!("addr add {address} dev eth0"));
            ip(&format!("route add default via {gateway}"));
        });
        guest
    }

    /// Creates a machine next to the host, with the host as its router.
    pub(super) fn beside(address: &'static str, hosts: &str) -> Self {
        let (guest, outer) = Self::wired(0x80);
        ip(&format!("addr add {hosts} dev {outer}"));
        ip(&format!("link set {outer} up"));
        let router = hosts.split('/').next().expect("address").to_owned();
        guest.on(move || {
            ip(&format!("addr add {address} dev eth0"));
            ip(&format!("route add default via {router}"));
        });
        guest
    }

    fn wired(last: u8) -> (Self, String) {
        let (work, inbox): (Sender<Work>, Receiver<Work>) = channel();
        let (tell, reported) = channel();
        std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("as root");
            tell.send(nix::unistd::gettid()).expect("somebody waits");
            inbox.into_iter().for_each(|work| work());
        });
        let thread = reported.recv().expect("it started");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let outer = format!("veth{number}");
        ip(&format!("link add {outer} type veth peer name eth0 netns {thread}"));
        let guest = Self { work, last };
        let mac = guest.mac();
        guest.on(move || {
            let mac = mac.map(|b| format!("{b:02x}")).join(":");
            ip(&format!("link set dev eth0 address {mac}"));
            ip("link set eth0 up");
            ip("link set lo up");
        });
        (guest, outer)
    }

    fn mac(&self) -> [u8; 6] {
        // Machines with a lease have MACs by their number; other MACs only have to be unique.
        let third = if self.last < 0x40 { 0 } else { NUMBER.load(Ordering::Relaxed) as u8 };
        [0x52, 0x54, 0, 0, third, self.last]
    }

    /// Runs a closure inside the namespace and waits for it.
    pub(super) fn on<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, reported) = channel();
        let work = move || tell.send(work()).expect("somebody waits");
        self.work.send(Box::new(work)).expect("the thread lives as long as the guest");
        reported.recv().expect("the work inside did not panic")
    }

    pub(super) fn dhcp(&self) -> Option<Offer> {
        let mac = self.mac();
        self.on(move || dhcp::ask("eth0", mac))
    }

    /// Requests an offered address under so many client identifiers.
    pub(super) fn request_as(&self, offer: Offer, identifiers: u16) {
        let mac = self.mac();
        self.on(move || dhcp::request_as("eth0", mac, &offer, identifiers));
    }

    /// Replies to each connection with the address it came from.
    pub(super) fn serve(&self, port: u16) {
        self.on(move || serve_here(port));
    }

    /// As [`Guest::serve`], by IPv6.
    pub(super) fn serve6(&self, port: u16) {
        self.on(move || serve_here6(port));
    }

    /// Receives packets on this port and returns their lengths.
    pub(super) fn listen(&self, port: u16) -> Receiver<usize> {
        let socket = self.on(move || UdpSocket::bind(("0.0.0.0", port)).expect("a free port"));
        let (tell, reported) = channel();
        std::thread::spawn(move || {
            let mut packet = [0; 9000];
            while let Ok(length) = socket.recv(&mut packet) {
                if tell.send(length).is_err() {
                    return;
                }
            }
        });
        reported
    }

    /// Sends a packet of this total size; `whole` forbids fragmentation.
    pub(super) fn send(
        &self,
        address: &'static str,
        port: u16,
        bytes: usize,
        whole: bool,
    ) -> std::io::Result<()> {
        self.on(move || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            let discover = if whole { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
            set_discovery(&socket, discover)?;
            // The IPv4 and UDP headers take 28 bytes.
            socket.send_to(&vec![0x55; bytes - 28], (address, port)).map(|_| ())
        })
    }

    /// Whether a connection is accepted there.
    pub(super) fn connects(&self, address: &'static str, port: u16) -> bool {
        self.on(move || {
            let address = SocketAddr::new(address.parse().expect("address"), port);
            TcpStream::connect_timeout(&address, PATIENCE).is_ok()
        })
    }

    /// Sends a raw frame.
    pub(super) fn inject(&self, frame: Vec<u8>) {
        self.on(move || super::send_raw("eth0", &frame));
    }

    /// Receives every frame from now on, until it is dropped.
    pub(super) fn frames(&self) -> Receiver<Vec<u8>> {
        let (tell, reported) = channel();
        self.on(move || super::receive_raw(tell));
        reported
    }

    pub(super) fn fetch(&self, address: &'static str, port: u16) -> Option<String> {
        self.on(move || fetch(address, port))
    }
}

/// Does the same in the caller's namespace.
pub(super) fn serve_here(port: u16) {
    serve_on(TcpListener::bind(("0.0.0.0", port)).expect("a free port"));
}

/// As [`serve_here`], by IPv6. A port that is served already stays so.
pub(super) fn serve_here6(port: u16) {
    if let Ok(listener) = TcpListener::bind(("::", port)) {
        serve_on(listener);
    }
}

fn serve_on(listener: TcpListener) {
    // A socket stays in the namespace it was created in.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("connection");
            let peer = stream.peer_addr().expect("peer").ip().to_string();
            // The peer may have disconnected.
            let _ = stream.write_all(peer.as_bytes());
        }
    });
}

#[allow(unsafe_code, reason = "nix has no name for this option")]
fn set_discovery(socket: &UdpSocket, value: libc::c_int) -> std::io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("four");
    // SAFETY: the kernel reads one integer, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(socket),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const value).cast(),
            size,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Returns the server's response; None if there is none.
pub(super) fn fetch(address: &str, port: u16) -> Option<String> {
    let address = SocketAddr::new(address.parse().expect("address"), port);
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    (!text.is_empty()).then_some(text)
}
