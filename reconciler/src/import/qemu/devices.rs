//! Notes on the devices and options that berth does not take over.

use super::hardware::is_screen;
use super::nics::is_card;
use super::options::short;
use super::{CommandLineError, Guest, Properties};

/// Options that are read elsewhere, or that are QEMU's own affair.
const SILENT: &str = "\
    accel action async-teardown audiodev bios blockdev boot cdrom chardev compat cpu D d daemonize debugcon device \
    display drive enable-kvm fda fdb fsdev full-screen global hda hdb hdc hdd id iscsi k L localtime m M machine \
    mem-path mem-prealloc mon monitor msg mtdblock name net netdev nic no-acpi no-fd-bootchk no-hpet no-kvm \
    no-reboot no-shutdown no-user-config nodefaults nographic object only-migratable overcommit parallel pflash \
    pidfile qmp qmp-pretty rtc run-with runas s S sandbox sd serial show-cursor smbios smp spice tpmdev trace usb \
    uuid vga vnc watchdog-action";
/// Devices that every VM of berth has too, or that a server does without, by the start of their names.
const SILENT_DEVICES: &str = "\
    ahci dmi i82801b11 ich9-ahci ich9-usb ide- ioh3420 isa-debug isa-fdc isa-serial nec-usb nvme \
    pc-dimm pci-bridge pci-ohci pci-serial pcie- piix pvpanic pxb qemu-xhci scsi- usb-ehci usb-hub usb-kbd \
    usb-mouse usb-redir usb-storage usb-tablet usb-uhci usb-wacom virtconsole virtio-balloon virtio-blk \
    virtio-keyboard virtio-mouse virtio-rng virtio-scsi virtio-serial virtio-tablet virtserialport vmgenid";
/// Controllers of SCSI disks beside virtio's, by the start of their names.
const CONTROLLERS: [&str; 7] = ["am53c974", "dc390", "lsi", "megasas", "mptsas", "pvscsi", "spapr-vscsi"];
/// Files of Proxmox VE with buses and controllers only.
const PROXMOX_FILES: &str = "/usr/share/qemu-server/";

pub(super) fn note(guest: &Guest<'_>, notes: &mut Vec<String>) -> Result<(), CommandLineError> {
    let mut options: Vec<String> = Vec::new();
    for argument in &guest.arguments {
        let text = match argument.name.as_str() {
            name if SILENT.split(' ').any(|silent| silent == name) => continue,
            "kernel" => "it boots a kernel given by the host; in berth it boots from its disk".to_owned(),
            "initrd" | "append" | "dtb" => continue,
            "snapshot" => {
                "the guest's writes are lost at its end (-snapshot): its disks have none of them".to_owned()
            }
            "loadvm" => "it continues a saved state (-loadvm); in berth it boots".to_owned(),
            "virtfs" => FOLDER.to_owned(),
            "readconfig" if argument.value.starts_with(PROXMOX_FILES) => continue,
            "readconfig" => format!("the devices of its file {} are not taken over", short(&argument.value)),
            "usbdevice" if matches!(argument.value.as_str(), "tablet" | "mouse" | "keyboard") => continue,
            "watchdog" => WATCHDOG.to_owned(),
            name => {
                let option = format!("-{}", short(name));
                if !options.contains(&option) {
                    options.push(option);
                }
                continue;
            }
        };
        push(notes, text);
    }
    if !options.is_empty() {
        options.truncate(20);
        notes.push(format!("it has options that are not taken over: {}", options.join(", ")));
    }
    for (driver, device) in guest.devices()? {
        if let Some(text) = on_device(&driver, &device) {
            push(notes, text);
        }
    }
    Ok(())
}

const FOLDER: &str = "it has a folder of its host: share it there with --share, and add it to shares";
const WATCHDOG: &str = "it has a watchdog: set watchdog of the VM";
const SOUND: &str = "it has a sound card: set sound of the VM, for which the guest sees Intel HD Audio";

const VSOCK: &str =
    "it has a vsock device: set vsock of the VM, for which its host chooses another context id";

fn on_device(driver: &str, device: &Properties) -> Option<String> {
    let starts = |names: &[&str]| names.iter().any(|name| driver.starts_with(name));
    let name = short(driver);
    if is_screen(driver) || is_card(driver, device) {
        return None;
    }
    if driver.starts_with("vfio-") {
        let host = ["host", "sysfsdev"].into_iter().find_map(|name| device.get(name)).unwrap_or_default();
        let list = if host.contains("/mdev/") { "vgpus" } else { "pci_devices" };
        return Some(format!(
            "it has the device {} of its host, which is not taken over: see {list}",
            short(host)
        ));
    }
    if starts(&CONTROLLERS) {
        return Some(format!(
            "its SCSI controller is {name}; in berth it is virtio-scsi, for which the guest needs a driver before the move"
        ));
    }
    if starts(&["virtio-9p", "vhost-user-fs"]) {
        return Some(FOLDER.to_owned());
    }
    if starts(&["tpm-"]) {
        return Some("it has a TPM: set tpm of the VM. The keys in it are not taken over".to_owned());
    }
    if starts(&["i6300esb", "ib700"]) {
        return Some(WATCHDOG.to_owned());
    }
    if starts(&["vhost-vsock"]) {
        return Some(VSOCK.to_owned());
    }
    if starts(&["ich9-intel-hda", "intel-hda", "AC97", "ES1370", "sb16", "virtio-sound"]) {
        return Some(SOUND.to_owned());
    }
    // The codec of such a card.
    if starts(&["hda-"]) {
        return None;
    }
    if SILENT_DEVICES.split(' ').any(|silent| driver.starts_with(silent)) {
        return None;
    }
    Some(format!("it has the device {name}, which is not taken over"))
}

fn push(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}
