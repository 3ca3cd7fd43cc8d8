//! The anchor: the same guest in a QEMU that is started by hand, with the flags that its documentation and the best peers recommend:
//! virtio-scsi with a thread of its own, `io_uring` past the page cache, discards passed on, virtio-net on a tap.
//!
//! The accelerator and the processor model are those of berth's QEMU, the image is the same file, and the volume of cloud-init is a copy of
//! berth's, so that the guest does the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::MEMORY;
use super::load::{self, GATEWAY, Load, Outside};
use crate::guests::GuestImage;
use crate::namespace::Namespace;
use crate::process::{self, Daemon};

const BRIDGE: &str = "br0";
const TAP: &str = "tap0";
const BRIDGE_ADDRESS: &str = "10.77.0.1/24";
const RANGE: &str = "10.77.0.0/24";
const LEASES: &str = "10.77.0.2,10.77.0.9,1h";
const SOON: Duration = Duration::from_secs(30);

/// A host without berth.
#[derive(Debug)]
pub struct ByHand {
    // Fields drop in this order: the processes, then the networks.
    _dhcp: Daemon,
    _outside: Outside,
    namespace: Arc<Namespace>,
    flags: Flags,
    files: PathBuf,
    log: PathBuf,
}

impl ByHand {
    /// A host with a bridge, a tap and a DHCP server. `pid` and `instance` are those of the guest in berth, which runs.
    pub fn new(image: &GuestImage, load: &Load, instance: &Path, pid: i32, log: &Path) -> Result<Self> {
        let files = load.disk.with_file_name("by-hand");
        fs::create_dir_all(&files)?;
        fs::copy(instance.join("seed.img"), files.join("seed.raw"))?;
        fs::copy(&load.disk, files.join("load.raw"))?;
        fs::copy(&image.path, files.join("image.qcow2"))?;
        let namespace = Namespace::new()?;
        let outside = Outside::beyond(&namespace, load)?;
        outside.namespace.ip(&["route", "add", RANGE, "via", GATEWAY])?;
        namespace.ip(&["link", "add", BRIDGE, "type", "bridge", "forward_delay", "0"])?;
        namespace.ip(&["addr", "add", BRIDGE_ADDRESS, "dev", BRIDGE])?;
        namespace.ip(&["tuntap", "add", TAP, "mode", "tap"])?;
        namespace.ip(&["link", "set", TAP, "master", BRIDGE])?;
        for link in [BRIDGE, TAP] {
            namespace.ip(&["link", "set", link, "up"])?;
        }
        let mut forward = namespace.command("sysctl");
        process::run(forward.args(["-q", "-w", "net.ipv4.ip_forward=1"]), SOON)?.success()?;
        let dhcp = dhcp(&namespace, &files)?;
        let flags = Flags::of(pid)?;
        Ok(Self { _dhcp: dhcp, _outside: outside, namespace, flags, files, log: log.to_owned() })
    }

    /// Starts the guest with new disks in `folder`.
    pub fn start(&self, folder: &Path) -> Result<Started> {
        fs::create_dir_all(folder)?;
        let (boot, data) = (folder.join("boot.qcow2"), folder.join("data.qcow2"));
        let base = self.files.join("image.qcow2").display().to_string();
        create(&["-b", &base, "-F", "qcow2"], &boot, None)?;
        create(&[], &data, Some(load::DATA))?;
        let console = folder.join("serial.log");
        let disks = [
            ("boot", file("qcow2", &boot, false)),
            ("data", file("qcow2", &data, false)),
            ("load", file("raw", &self.files.join("load.raw"), true)),
            ("seed", file("raw", &self.files.join("seed.raw"), true)),
        ];
        let mut command = qemu(&self.namespace, &self.flags, disks, &console);
        command.args(["-netdev", &tap(TAP), "-device", "virtio-net-pci,netdev=net"]);
        let began = Instant::now();
        let qemu = Daemon::spawn("QEMU", &mut command, &self.log)?;
        let took = load::started(&console, began).with_context(|| qemu.log_tail())?;
        Ok(Started { _qemu: qemu, console, took })
    }
}

/// A guest that runs as long as this value exists.
#[derive(Debug)]
pub struct Started {
    _qemu: Daemon,
    /// Its serial log.
    pub console: PathBuf,
    /// The time until its first process ran.
    pub took: Duration,
}

/// The flags of berth's QEMU that depend on the host.
#[derive(Debug, Clone)]
pub struct Flags {
    accelerator: String,
    processor: String,
}

impl Flags {
    /// Those of a process.
    pub fn of(pid: i32) -> Result<Self> {
        let line = fs::read(format!("/proc/{pid}/cmdline"))?;
        let line = String::from_utf8(line).context("a command line that is no text")?;
        let arguments: Vec<&str> = line.split('\0').collect();
        let value = |option: &str| -> Result<String> {
            let at = arguments.iter().position(|argument| *argument == option);
            let value = at.and_then(|at| arguments.get(at + 1));
            Ok((*value.with_context(|| format!("berth's QEMU has no {option}"))?).to_owned())
        };
        Ok(Self { accelerator: value("-accel")?, processor: value("-cpu")? })
    }

    /// Whether the processor runs the guest itself.
    pub fn is_kvm(&self) -> bool {
        self.accelerator.starts_with("kvm")
    }
}

/// A QEMU with these disks, in this order, and without a network.
pub fn qemu<'a>(
    namespace: &Namespace,
    flags: &Flags,
    disks: impl IntoIterator<Item = (&'a str, Value)>,
    console: &Path,
) -> Command {
    let mut command = namespace.command("qemu-system-x86_64");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35,usb=off"]);
    // Emulated with one CPU, QEMU leaves memory barriers out, and its virtio devices stand still.
    let cpus = if flags.is_kvm() { "1" } else { "1,maxcpus=2" };
    command.args(["-accel", &flags.accelerator, "-cpu", &flags.processor, "-smp", cpus]);
    command.args(["-m", &(MEMORY >> 20).to_string()]);
    command.args(["-object", "iothread,id=disks", "-device", "virtio-scsi-pci,iothread=disks"]);
    for (number, (name, mut node)) in disks.into_iter().enumerate() {
        node["node-name"] = json!(name);
        command.args(["-blockdev", &node.to_string()]);
        command.args(["-device", &format!("scsi-hd,drive={name},bootindex={number}")]);
    }
    command.args(["-device", "virtio-rng-pci"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command
}

/// The network of QEMU on a tap, by vhost-net where the host has it.
pub fn tap(name: &str) -> String {
    let vhost = if Path::new("/dev/vhost-net").exists() { ",vhost=on" } else { "" };
    format!("tap,id=net,ifname={name},script=no,downscript=no{vhost}")
}

fn dhcp(namespace: &Namespace, files: &Path) -> Result<Daemon> {
    let mut command = namespace.command("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--pid-file=",
        "--bind-interfaces",
    ]);
    command.args([
        &format!("--interface={BRIDGE}"),
        &format!("--dhcp-range={LEASES}"),
        "--dhcp-authoritative",
    ]);
    command.arg(format!("--dhcp-leasefile={}", files.join("leases").display()));
    Daemon::spawn("dnsmasq", &mut command, &files.join("dnsmasq.log"))
}

/// A block device of QEMU.
pub fn file(format: &str, path: &Path, read_only: bool) -> Value {
    json!({
        "driver": format, "read-only": read_only, "discard": "unmap", "cache": {"direct": true},
        "file": {"driver": "file", "filename": path, "read-only": read_only, "aio": "io_uring", "discard": "unmap",
            "cache": {"direct": true}},
    })
}

/// Creates a disk.
pub fn create(options: &[&str], file: &Path, size: Option<u64>) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]).args(options).arg(file);
    command.args(size.map(|size| size.to_string()));
    process::run(&mut command, SOON)?.success().map(drop)
}

/// Runs `qemu-img` on a file, for another.
pub fn qemu_img(arguments: &[&str], from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args(arguments).arg(from).arg(to);
    process::run(&mut command, SOON)?.success().map(drop)
}
