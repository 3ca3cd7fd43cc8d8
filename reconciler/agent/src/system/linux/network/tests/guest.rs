//! Machines of the network tests: a thread in a network namespace, wired to a bridge or straight to the host.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::dhcp::{self, Offer};
use super::ip;

/// Beyond any answer on one machine, short enough to wait for where none may come.
const PATIENCE: Duration = Duration::from_millis(1500);

type Work = Box<dyn FnOnce() + Send>;

pub(super) struct Guest {
    work: Sender<Work>,
    last: u8,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Guest {
    /// On a bridge, without an address. `last` is the last octet of its MAC.
    pub(super) fn join(bridge: &str, last: u8) -> Self {
        let (guest, outer) = Self::wired(last);
        ip(&format!("link set {outer} master {bridge} up"));
        if super::filters_bridged() {
            // As taps have it then.
            ip(&format!("link set {outer} type bridge_slave hairpin on"));
        }
        guest
    }

    /// On a bridge, with an address.
    pub(super) fn at(bridge: &str, address: &'static str, gateway: &'static str) -> Self {
        let guest = Self::join(bridge, 0x40);
        guest.on(move || {
            ip(&format!("addr add {address} dev eth0"));
            ip(&format!("route add default via {gateway}"));
        });
        guest
    }

    /// A machine next to the host, which uses it as its router.
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
        let (tell, told) = channel();
        std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("as root");
            tell.send(nix::unistd::gettid()).expect("somebody waits");
            inbox.into_iter().for_each(|work| work());
        });
        let thread = told.recv().expect("it started");
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
        // Those with a lease have MACs by their number; the others' only have to differ.
        let third = if self.last < 0x40 { 0 } else { NUMBER.load(Ordering::Relaxed) as u8 };
        [0x52, 0x54, 0, 0, third, self.last]
    }

    /// Runs something inside and waits for it.
    pub(super) fn on<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        let work = move || tell.send(work()).expect("somebody waits");
        self.work.send(Box::new(work)).expect("the thread lives as long as the guest");
        told.recv().expect("the work inside did not panic")
    }

    pub(super) fn dhcp(&self) -> Option<Offer> {
        let mac = self.mac();
        self.on(move || dhcp::ask("eth0", mac))
    }

    /// Answers each connection with the address it came from.
    pub(super) fn serve(&self, port: u16) {
        self.on(move || serve_here(port));
    }

    /// Takes in whatever is sent to this port; the lengths of it.
    pub(super) fn listen(&self, port: u16) -> Receiver<usize> {
        let socket = self.on(move || UdpSocket::bind(("0.0.0.0", port)).expect("a free port"));
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let mut packet = [0; 9000];
            while let Ok(length) = socket.recv(&mut packet) {
                if tell.send(length).is_err() {
                    return;
                }
            }
        });
        told
    }

    /// Sends a packet of this many bytes in all, which nobody on the way may take apart if `whole`.
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
            // The headers of IPv4 and UDP take 28.
            socket.send_to(&vec![0x55; bytes - 28], (address, port)).map(|_| ())
        })
    }

    pub(super) fn fetch(&self, address: &'static str, port: u16) -> Option<String> {
        self.on(move || fetch(address, port))
    }
}

/// The same in the namespace of whoever calls.
pub(super) fn serve_here(port: u16) {
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("a free port");
    // A socket stays in the namespace it was made in.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("connection");
            let peer = stream.peer_addr().expect("peer").ip().to_string();
            // A peer that went away is its own problem.
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

/// What the server there answers; None if nothing does.
pub(super) fn fetch(address: &str, port: u16) -> Option<String> {
    let address = SocketAddr::new(address.parse().expect("address"), port);
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    (!text.is_empty()).then_some(text)
}
