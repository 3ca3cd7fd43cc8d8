//! Another anchor: the same guests as domains of libvirt, on its network `default`, where Debian's libvirtd and iptables can be had.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::super::guest::MEMORY;
use super::super::guest::by_hand::{Flags, create};
use super::super::guest::load::{self, Course};
use super::super::libvirt::Libvirt;
use super::by_hand::{CLIENT_MAC, SERVER_MAC};
use super::{CLIENT, SERVER};
use crate::prerequisites;

/// libvirt filters the packets of the network with it.
const NEEDED: &[(&str, &str)] = &[("iptables", "iptables")];

/// The machine with libvirtd, and the server.
#[derive(Debug)]
pub(super) struct InLibvirt {
    libvirt: Libvirt,
    flags: Flags,
    files: PathBuf,
}

impl InLibvirt {
    /// Starts libvirtd in `folder`, its network and the server. `files`: the disks of the hosts without berth.
    pub(super) fn start(flags: Flags, files: &Path, folder: &Path, log: &Path) -> Result<Self> {
        prerequisites::install(NEEDED)?;
        let libvirt = Libvirt::start(folder, log)?;
        let file = folder.join("network.xml");
        fs::write(&file, network())?;
        libvirt.virsh(&["net-define", file.to_str().context("a path that is no text")?])?;
        libvirt.virsh(&["net-start", "default"])?;
        let all = Self { libvirt, flags, files: files.to_owned() };
        all.domain("server", ("server.raw", SERVER_MAC), &folder.join("server"))?;
        Ok(all)
    }

    /// Runs the client with a new disk in `folder`.
    pub(super) fn run(&self, folder: &Path) -> Result<Course> {
        let course = self.domain("client", ("client.raw", CLIENT_MAC), folder);
        // A failure has its own message.
        let ended = self
            .libvirt
            .virsh(&["destroy", "client"])
            .and_then(|_| self.libvirt.virsh(&["undefine", "client"]));
        course.and_then(|course| ended.map(|_| course))
    }

    /// Starts a domain and waits for its report.
    fn domain(&self, name: &str, (seed, mac): (&str, &str), folder: &Path) -> Result<Course> {
        fs::create_dir_all(folder)?;
        let (boot, console) = (folder.join("boot.qcow2"), folder.join("serial.log"));
        let base = self.files.join("boot.raw").display().to_string();
        create(&["-b", &base, "-F", "raw"], &boot, None)?;
        let disks = [("qcow2", boot), ("raw", self.files.join("load.raw")), ("raw", self.files.join(seed))];
        self.libvirt.define(&description(name, mac, &self.flags, (&disks[..], console.as_path())))?;
        self.libvirt.virsh(&["start", name])?;
        load::course(&console)
    }
}

/// The network that libvirt's packages define, with the addresses of these guests.
fn network() -> String {
    let host = |mac: &str, address: &str| format!("<host mac='{mac}' ip='{address}'/>");
    format!(
        "<network><name>default</name><forward mode='nat'/><bridge name='virbr0' stp='on' delay='0'/>\
         <ip address='10.88.0.1' netmask='255.255.255.0'><dhcp>\
         <range start='10.88.0.100' end='10.88.0.110'/>{}{}</dhcp></ip></network>",
        host(SERVER_MAC, SERVER),
        host(CLIENT_MAC, CLIENT)
    )
}

fn description(
    name: &str,
    mac: &str,
    flags: &Flags,
    (disks, console): (&[(&str, PathBuf)], &Path),
) -> String {
    // Emulated, with a place for a second CPU, as the others.
    let (kind, processor, cpus) = if flags.is_kvm() {
        ("kvm", "host-passthrough", "<vcpu>1</vcpu>")
    } else {
        ("qemu", "maximum", "<vcpu current='1'>2</vcpu>")
    };
    let disk = |(number, (format, file)): (usize, &(&str, PathBuf))| {
        let letter = ["a", "b", "c"][number.min(2)];
        let read_only = if number == 0 { "" } else { "<readonly/>" };
        format!(
            "<disk type='file' device='disk'><driver name='qemu' type='{format}' cache='none' io='io_uring'/>\
             <source file='{}'/><target dev='sd{letter}' bus='scsi'/>{read_only}</disk>",
            file.display()
        )
    };
    let disks: String = disks.iter().enumerate().map(disk).collect();
    format!(
        "<domain type='{kind}'><name>{name}</name><memory unit='MiB'>{}</memory>{cpus}\
         <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>\
         <cpu mode='{processor}'/><devices><controller type='scsi' model='virtio-scsi'/>{disks}\
         <interface type='network'><source network='default'/><mac address='{mac}'/><model type='virtio'/></interface>\
         <serial type='file'><source path='{}'/></serial>\
         <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng></devices></domain>",
        MEMORY >> 20,
        console.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_has_the_addresses_that_the_guests_scripts_name() {
        let text = network();
        assert!(text.contains("<host mac='52:54:00:88:00:0a' ip='10.88.0.10'/>"), "{text}");
        assert!(text.contains("<host mac='52:54:00:88:00:0b' ip='10.88.0.11'/>"), "{text}");
    }
}
