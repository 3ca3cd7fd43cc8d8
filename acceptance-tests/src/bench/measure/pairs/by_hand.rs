//! The anchor: two hosts without berth, with a plain bridge each and a VXLAN tunnel between them, and guests that are started by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::super::guest::by_hand::{Flags, create, file, qemu, qemu_img, tap};
use super::super::guest::load::{self, Course, Load};
use super::{CLIENT, RANGE, SERVER};
use crate::guests::GuestImage;
use crate::namespace::Namespace;
use crate::process::Daemon;
use crate::segment::{self, Segment};

const BRIDGE: &str = "br0";
const TUNNEL: &str = "vx0";
const BRIDGE_ADDRESS: &str = "10.88.0.1/24";
const FIRST: &str = "192.0.2.11";
const SECOND: &str = "192.0.2.12";
const SERVER_TAP: &str = "tap0";
const CLIENT_TAP: &str = "tap1";
pub(super) const SERVER_MAC: &str = "52:54:00:88:00:0a";
pub(super) const CLIENT_MAC: &str = "52:54:00:88:00:0b";
/// Of guests whose packets pass the tunnel: those of the segment have 1,500.
const MTU: u32 = 1_450;

/// Where the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On the server's host.
    SameHost,
    /// On the other one.
    OtherHost,
}

/// The hosts, with the server.
#[derive(Debug)]
pub(super) struct BareHosts {
    // Fields drop in this order: the processes, then the networks.
    _server: Daemon,
    _dhcp: Daemon,
    first: Arc<Namespace>,
    second: Arc<Namespace>,
    _segment: Segment,
    flags: Flags,
    files: PathBuf,
    log: PathBuf,
}

impl BareHosts {
    /// Connects the hosts and starts the server. `seeds`: the volumes of cloud-init of the server and the client in berth.
    pub(super) fn new(
        image: &GuestImage,
        load: &Load,
        seeds: [PathBuf; 2],
        flags: Flags,
        log: &Path,
    ) -> Result<Self> {
        let files = load.disk.with_file_name("by-hand");
        fs::create_dir_all(&files)?;
        for (seed, name) in seeds.iter().zip(["server.raw", "client.raw"]) {
            fs::copy(seed, files.join(name)).with_context(|| format!("copying {}", seed.display()))?;
        }
        fs::copy(&load.disk, files.join("load.raw"))?;
        qemu_img(&["convert", "-O", "raw"], &image.path, &files.join("boot.raw"))?;
        let segment = Segment::new()?;
        let first = host(&segment, FIRST, SECOND, &[SERVER_TAP, CLIENT_TAP])?;
        let second = host(&segment, SECOND, FIRST, &[CLIENT_TAP])?;
        first.ip(&["addr", "add", BRIDGE_ADDRESS, "dev", BRIDGE])?;
        let dhcp = dhcp(&first, &files)?;
        let server = Guest { seed: "server.raw", tap: SERVER_TAP, mac: SERVER_MAC, mtu: None };
        let folder = files.join("server");
        let process = server.start(&first, &flags, &files, &folder, log)?;
        load::course(&folder.join("serial.log")).with_context(|| process.log_tail())?;
        Ok(Self {
            _server: process,
            _dhcp: dhcp,
            first,
            second,
            _segment: segment,
            flags,
            files,
            log: log.to_owned(),
        })
    }

    /// The folder with the disks that guests share.
    pub(super) fn files(&self) -> &Path {
        &self.files
    }

    /// Runs the client with a new disk in `folder`.
    pub(super) fn run(&self, place: Place, folder: &Path) -> Result<Course> {
        let (namespace, mtu) = match place {
            Place::SameHost => (&self.first, None),
            Place::OtherHost => (&self.second, Some(MTU)),
        };
        let client = Guest { seed: "client.raw", tap: CLIENT_TAP, mac: CLIENT_MAC, mtu };
        let process = client.start(namespace, &self.flags, &self.files, folder, &self.log)?;
        load::course(&folder.join("serial.log")).with_context(|| process.log_tail())
    }
}

/// A machine on the segment with a bridge, taps and a tunnel to the other one.
fn host(segment: &Segment, own: &str, other: &str, taps: &[&str]) -> Result<Arc<Namespace>> {
    let namespace = Namespace::new()?;
    segment.plug(&namespace, &format!("{own}/24"), None)?;
    namespace.ip(&["link", "add", BRIDGE, "type", "bridge", "forward_delay", "0"])?;
    let tunnel = ["link", "add", TUNNEL, "type", "vxlan", "id", "88", "dstport", "4789"];
    let between = ["local", own, "remote", other, "dev", segment::CARD];
    namespace.ip(&[&tunnel[..], &between[..]].concat())?;
    for tap in taps {
        namespace.ip(&["tuntap", "add", tap, "mode", "tap"])?;
    }
    for port in taps.iter().chain(&[TUNNEL]) {
        namespace.ip(&["link", "set", port, "master", BRIDGE, "up"])?;
    }
    namespace.ip(&["link", "set", BRIDGE, "up"])?;
    Ok(namespace)
}

fn dhcp(namespace: &Namespace, files: &Path) -> Result<Daemon> {
    let mut command = namespace.command("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--pid-file="]);
    command.args(["--bind-interfaces", "--dhcp-authoritative", &format!("--interface={BRIDGE}")]);
    let range = RANGE.split('/').next().unwrap_or(RANGE);
    command.arg(format!("--dhcp-range={range},static"));
    for (mac, address) in [(SERVER_MAC, SERVER), (CLIENT_MAC, CLIENT)] {
        command.arg(format!("--dhcp-host={mac},{address}"));
    }
    command.arg(format!("--dhcp-leasefile={}", files.join("leases").display()));
    Daemon::spawn("dnsmasq", &mut command, &files.join("dnsmasq.log"))
}

/// A guest by hand.
struct Guest {
    seed: &'static str,
    tap: &'static str,
    mac: &'static str,
    /// The MTU that its network device gives it, if it is not the usual one.
    mtu: Option<u32>,
}

impl Guest {
    /// Starts it with a new disk in `folder`.
    fn start(
        &self,
        namespace: &Namespace,
        flags: &Flags,
        files: &Path,
        folder: &Path,
        log: &Path,
    ) -> Result<Daemon> {
        fs::create_dir_all(folder)?;
        let boot = folder.join("boot.qcow2");
        let base = files.join("boot.raw").display().to_string();
        create(&["-b", &base, "-F", "raw"], &boot, None)?;
        let disks = [
            ("boot", file("qcow2", &boot, false)),
            ("load", file("raw", &files.join("load.raw"), true)),
            ("seed", file("raw", &files.join(self.seed), true)),
        ];
        let mut command = qemu(namespace, flags, disks, &folder.join("serial.log"));
        let mtu = self.mtu.map(|mtu| format!(",host_mtu={mtu}")).unwrap_or_default();
        let device = format!("virtio-net-pci,netdev=net,mac={}{mtu}", self.mac);
        command.args(["-netdev", &tap(self.tap), "-device", &device]);
        Daemon::spawn("QEMU", &mut command, log)
    }
}
