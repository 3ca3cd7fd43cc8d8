//! The arguments of QEMU that show a change.

use super::has_device;
use super::table::Change;

/// How a change that waits for a start is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// The options of QEMU that contain this text are other ones.
    Argument(&'static str),
    /// It waits, and a start shows nothing of it, for this reason.
    Unseen(&'static str),
    /// The host cannot give it, for this reason: nothing waits, since no start would bring it.
    Skipped(&'static str),
}

use Shown::{Argument, Skipped, Unseen};

const HUGE_PAGES: Shown = Skipped("the host has no huge pages");
const DEDICATED: Shown = Skipped("the host has no CPUs that are set apart for VMs");
const DEVICE: Shown = Skipped("the host has no such device");

/// By the first attribute of a change.
pub(super) const NAMES: &[(&str, Shown)] = &[
    ("cpus", Argument("cpus=4,")),
    ("maxCpus", Argument("maxcpus=4")),
    ("memory", Argument("size=1048576k")),
    ("maxMemory", Argument("maxmem=")),
    ("hugePages", HUGE_PAGES),
    ("firmware", Argument("pflash0=")),
    ("tpm", Argument("-tpmdev")),
    ("cpuTopology.sockets", Argument("sockets=2,cores=1,threads=1")),
    ("numaNodes", Argument("-numa")),
    ("dedicatedCpuPlacement", DEDICATED),
    ("isolateEmulatorThread", DEDICATED),
    ("ioThreadsPolicy", Unseen("no disk here is on virtio-blk; suite terraform shows it")),
    ("cpuModel", Argument("-cpu ")),
    ("guestOS", Argument("base=localtime")),
    ("pciDevices", DEVICE),
    ("usbDevices", DEVICE),
    ("vgpus", DEVICE),
    ("scratchDisk.size", Argument("\"id\":\"scratch\"")),
    ("qemuOptions", Argument("hpet=off")),
    ("networkInterfaceModel", Argument("\"driver\":\"e1000e\"")),
    // The other class has more memory.
    ("class", Argument("-m ")),
    ("machineType", Argument("pc-q35-7.1")),
    ("graphics", Argument("vga0")),
    ("resolution", Argument("\"xres\":1920")),
    ("keyboardLayout", Argument("-k de")),
    ("sound", Argument("ich9-intel-hda")),
    ("serialPorts", Argument("com2")),
    ("vsock", Argument("vhost-vsock-pci")),
    ("bootOrder", Argument("efi-virtio.rom")),
    ("uuid", Argument("-uuid ")),
    ("watchdog", Argument("i6300esb")),
    ("serialNumber", Argument("serial=A-1")),
    ("shares", Argument("vhost-user-fs-pci")),
    ("disks.boot", Argument("\"bootindex\":1,")),
    ("disks.bus", Argument("virtio-blk-pci")),
    ("disks.readOnly", Argument("\"read-only\":true")),
    ("cdroms", Argument("cdrom1")),
    ("cdroms.bootFirst", Argument("\"bootindex\":0,")),
    ("networkInterfaces.mtu", Argument("\"host_mtu\":1400")),
    ("networkInterfaces.model", Argument("\"driver\":\"e1000e\"")),
    ("networkInterfaces.queues", Argument("\"mq\":true")),
    ("networkInterfaces.acceleration", Argument("vhost=off")),
];

/// Returns how the change is seen on this machine.
pub(super) fn of(change: &Change) -> Option<Shown> {
    let name = change.attributes.first()?;
    match *name {
        "vsock" if !has_device("vhost-vsock") => Some(Skipped("this machine has no /dev/vhost-vsock")),
        "networkInterfaces.acceleration" if !has_device("kvm") || !has_device("vhost-net") => {
            Some(Skipped("this machine has no KVM or no /dev/vhost-net: QEMU moves the packets anyway"))
        }
        name => NAMES.iter().find(|(other, _)| *other == name).map(|(_, shown)| *shown),
    }
}

/// The options of a command line, as the kernel shows it, each with its value.
pub(super) fn options(line: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in line.split('\0').filter(|word| !word.is_empty()) {
        match found.last_mut().filter(|_| !word.starts_with('-')) {
            Some(option) => {
                option.push(' ');
                option.push_str(word);
            }
            None => found.push(word.to_owned()),
        }
    }
    found
}

/// The options that contain a text.
pub(super) fn arguments<'a>(options: &'a [String], text: &str) -> Vec<&'a str> {
    options.iter().map(String::as_str).filter(|option| option.contains(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_seen_with_its_value() {
        let options = options("qemu\0-S\0-m\0size=1k\0-device\0{\"id\":\"a\"}\0");
        assert_eq!(options, ["qemu", "-S", "-m size=1k", "-device {\"id\":\"a\"}"]);
        assert_eq!(arguments(&options, "-m "), ["-m size=1k"]);
        assert!(arguments(&options, "-m size=2k").is_empty());
    }
}
