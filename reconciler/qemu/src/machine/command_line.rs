//! `LaunchSpec` → QEMU's arguments. Pure.
//!
//! JSON is used where QEMU accepts it (`-blockdev`, `-device`, `-object`), and needs no escaping. In the older
//! `key=value` options commas are doubled ([`escape`]).

mod screen;

use std::path::Path;

use serde_json::{Value, json};

use self::screen::{graphics, sound};
use super::boot::with_index;
use super::{
    Accelerator, Affinity, Architecture, BALLOON, Bus, Cache, DISK_THREAD, DiskSpec, Format, Graphics,
    LaunchSpec, MAX_PCI_DEVICES, MAX_VGPUS, MEMORY_BLOCK, MEMORY_DEVICE, MachineFiles, MachinePaths,
    MachineSpec, NicSpec, PciDeviceSpec, SCRATCH_ID, SCRATCH_TARGET, SCSI_CONTROLLER, SEED_ID, SEED_TARGET,
    SYSPREP_ID, ShareSpec, Tap, Topology, UefiFiles, UsbDeviceSpec, VgpuSpec, Watchdog,
};
use super::{
    backend_of, blockdevs, disk_device, key_id, medium_blockdev, nic_device, port_name, scsi_cdrom, slot,
};

/// PCI slots on the root bus. The screen has 0x1. NICs come last and have slots 0x10–0x1d; 0x1f belongs to the chipset.
const SLOT_SCSI: u8 = 0x2;
const SLOT_SERIAL: u8 = 0x3;
const SLOT_RNG: u8 = 0x4;
const SLOT_BALLOON: u8 = 0x5;
const SLOT_MEMORY: u8 = 0x6;
const SLOT_USB: u8 = 0x7;
const SLOT_WATCHDOG: u8 = 0x8;
/// A function for each of the first eight ports for network cards.
const SLOT_NIC_PORTS: u8 = 0x9;
/// A function for each port for a PCI device of the host.
const SLOT_HOST_PORTS: u8 = 0xa;
/// A function for each share.
const SLOT_SHARES: u8 = 0xb;
/// A function for each port for a vGPU.
const SLOT_VGPU_PORTS: u8 = 0xc;
/// A function for each further port for network cards.
const SLOT_MORE_NIC_PORTS: u8 = 0xd;
/// The functions of a PCI slot.
const FUNCTIONS: u8 = 8;
/// The numbers of ports that the guest sees come in this order: eight for network cards, those for devices of the host, those for vGPUs,
/// and further ones for network cards. They stay: a guest that was saved expects its ports as they were.
const CHASSIS_OF_HOST: u8 = FUNCTIONS;
const CHASSIS_OF_VGPUS: u8 = CHASSIS_OF_HOST + MAX_PCI_DEVICES;
const CHASSIS_OF_MORE_NICS: u8 = CHASSIS_OF_VGPUS + MAX_VGPUS;

const SLOT_VSOCK: u8 = 0xe;
/// On aarch64. A PC has its chipset there.
const SLOT_PANIC: u8 = 0x1f;

/// The ports of either speed of a USB controller with devices of the host, as many as QEMU allows.
const USB_PORTS: u8 = 15;

/// The threads that write to all huge pages of a guest at its start.
const MOST_PREALLOC_THREADS: u16 = 16;

/// SMBIOS manufacturer: identifies a process as berth's.
const MANUFACTURER: &str = "berth";
/// The id of QEMU's end of the guest agent's port.
pub(crate) const GUEST_AGENT_CHANNEL: &str = "qga0";
/// The id of QEMU's end of the TPM emulator's control socket.
pub(crate) const TPM_CHANNEL: &str = "tpm0";
/// The beginning of the ids of the connections to the servers of shares.
const SHARE_PREFIX: &str = "share-";
/// The requests that the guest can have under way for a share.
const SHARE_QUEUE: u16 = 1024;
/// The virtio-serial port that qemu-guest-agent opens.
const GUEST_AGENT_PORT: &str = "org.qemu.guest_agent.0";

/// Returns QEMU's arguments, without the program's name.
///
/// The machine starts stopped (`-S`): it runs only after the caller has recorded the process and sent `cont`. At
/// shutdown it pauses (`-action shutdown=pause`), so that a caller that was not connected at that time can still query
/// the reason.
pub fn command_line(spec: &LaunchSpec) -> Vec<String> {
    let mut args = Arguments::default();
    let LaunchSpec { machine: spec, files, affinity } = spec;
    identity(spec, &mut args);
    machine(spec, files, affinity, &mut args);
    if let Some(uefi) = &files.uefi {
        firmware(uefi, &mut args);
    }
    monitors(&files.paths, &mut args);
    for number in spec.serial_ports() {
        serial_port(number, spec.architecture(), &files.paths, &mut args);
    }
    guest_agent(&files.paths, &mut args);
    args.json("-object", json!({"qom-type": "iothread", "id": DISK_THREAD}));
    args.device(json!({"driver": "virtio-scsi-pci", "id": SCSI_CONTROLLER, "iothread": DISK_THREAD, "bus": "pcie.0", "addr": slot(SLOT_SCSI)}));
    for (disk, descriptor) in &files.key_files {
        let file = format!("/proc/self/fd/{descriptor}");
        args.json("-object", json!({"qom-type": "secret", "id": key_id(disk), "file": file}));
    }
    for disk in &spec.disks {
        let thread = disk.own_thread(&spec.extras);
        if let Some(thread) = &thread {
            args.json("-object", json!({"qom-type": "iothread", "id": thread}));
        }
        args.disk(disk, spec.disk_index(disk), thread.as_deref());
    }
    if let Some(seed) = &files.seed {
        args.disk(&seed_disk(seed), None, None);
    }
    if let Some(scratch) = &files.scratch {
        args.disk(&scratch_disk(scratch), None, None);
    }
    for cdrom in &spec.cdroms {
        if let Some(medium) = &cdrom.medium {
            args.json("-blockdev", medium_blockdev(cdrom.slot, medium));
        }
        args.device(scsi_cdrom(cdrom, spec.cdrom_index(cdrom)));
    }
    nic_ports(spec.nic_ports, &mut args);
    for nic in &spec.nics {
        network(spec, nic, &mut args);
    }
    for (number, device) in spec.pci_devices.iter().enumerate() {
        host_device(number, device, &mut args);
    }
    for (number, vgpu) in spec.vgpus.iter().enumerate() {
        mediated_device(number, vgpu, &mut args);
    }
    for (number, share) in spec.shares.iter().enumerate() {
        virtiofs(number, share, &files.paths, &mut args);
    }
    for item in &files.fw_cfg {
        args.pair("-fw_cfg", format!("name={},file={}", escape(&item.name), escape(&text(&item.file))));
    }
    if spec.extras.sound {
        sound(spec.nic_ports, &mut args);
    }
    if let Some(cid) = spec.extras.vsock_cid {
        vsock(cid, files.vsock_file, &mut args);
    }
    graphics(spec, &files.paths.vnc, &mut args);
    if spec.tpm {
        tpm(spec.architecture(), &files.paths.tpm, &mut args);
    }
    if files.from_saved_state {
        args.pair("-incoming", "defer");
    }
    let needs_controller = files.sysprep.is_some() || !spec.usb_devices.is_empty();
    if needs_controller && spec.graphics == Graphics::None {
        usb_controller(spec, &mut args);
    }
    for (number, device) in spec.usb_devices.iter().enumerate() {
        usb_device(number, device, &mut args);
    }
    if let Some(volume) = &files.sysprep {
        sysprep(volume, &mut args);
    }
    args.0
}

fn identity(spec: &MachineSpec, args: &mut Arguments) {
    args.pair("-name", format!("guest={},debug-threads=on", escape(&spec.name)));
    args.pair("-uuid", spec.uuid.clone());
    let (instance, product) =
        (escape(&spec.instance), format!("type=1,manufacturer={MANUFACTURER},product=VM"));
    args.pair(
        "-smbios",
        match &spec.extras.serial_number {
            None => format!("{product},serial={instance}"),
            Some(serial) => format!("{product},serial={},sku={instance}", escape(serial)),
        },
    );
}

fn machine(spec: &MachineSpec, files: &MachineFiles, affinity: &Affinity, args: &mut Arguments) {
    let architecture = spec.architecture();
    for flag in ["-nodefaults", "-no-user-config", "-S"] {
        args.0.push(flag.to_owned());
    }
    args.pair("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    let mut action = "shutdown=pause,reboot=reset,panic=pause".to_owned();
    if let Some(watchdog) = spec.extras.watchdog {
        action.push_str(match watchdog {
            Watchdog::Reset => ",watchdog=reset",
            Watchdog::Stop => ",watchdog=pause",
        });
        args.device(
            json!({"driver": "i6300esb", "id": "watchdog0", "bus": "pcie.0", "addr": slot(SLOT_WATCHDOG)}),
        );
    }
    args.pair("-action", action);
    let mut machine = format!("{},usb=off", escape(&spec.machine_type));
    if spec.numa_nodes == 1 {
        // QEMU refuses it beside memory of nodes.
        machine.push_str(",memory-backend=ram");
    }
    if spec.graphics == Graphics::None {
        // The firmware then writes to the serial line.
        machine.push_str(",graphics=off");
    }
    machine.push_str(architecture.machine_properties(spec.accelerator));
    if let Some(uefi) = &files.uefi {
        machine.push_str(",pflash0=firmware-code,pflash1=firmware-vars");
        if uefi.smm {
            machine.push_str(",smm=on");
        }
    }
    if spec.extras.without_hpet {
        // Before the options: the last value counts.
        machine.push_str(",hpet=off");
    }
    for (property, value) in spec.extras.options_of("machine") {
        machine.push_str(&format!(",{property}={value}"));
    }
    args.pair("-machine", machine);
    args.0.extend(architecture.suspension(files.uefi.as_ref().is_some_and(|uefi| uefi.smm)));
    // Before those of the firmware: the last one counts.
    for (name, value) in spec.extras.options_of("global") {
        if let Some((device, property)) = name.split_once('.') {
            args.pair("-global", format!("driver={device},property={property},value={value}"));
        }
    }
    args.pair(
        "-accel",
        match spec.accelerator {
            Accelerator::Kvm => "kvm".to_owned(),
            Accelerator::Tcg { tb_size_mib } => format!("tcg,thread=multi,tb-size={tb_size_mib}"),
        },
    );
    args.pair("-cpu", cpu(spec));
    let places = spec.places();
    let Topology { sockets, cores, threads } = places;
    let (cpus, most) = (spec.cpus, places.cpus());
    args.pair(
        "-smp",
        format!("cpus={cpus},sockets={sockets},cores={cores},threads={threads},maxcpus={most}"),
    );
    memory(spec, affinity, args);
    let base = if spec.extras.windows { "localtime" } else { "utc" };
    args.pair("-rtc", format!("base={base}{}", architecture.clock()));
    args.pair("-boot", "menu=off,strict=on");
    args.json("-object", json!({"qom-type": "rng-random", "id": "entropy", "filename": "/dev/urandom"}));
    args.device(json!({"driver": "virtio-rng-pci", "id": "rng0", "rng": "entropy", "bus": "pcie.0", "addr": slot(SLOT_RNG)}));
    // A huge page that is given back to the host may be gone when the guest uses it again.
    args.device(json!({"driver": "virtio-balloon-pci", "id": BALLOON, "deflate-on-oom": true, "free-page-reporting": spec.huge_page_bytes.is_none(), "bus": "pcie.0", "addr": slot(SLOT_BALLOON)}));
    args.device(match architecture {
        Architecture::X86_64 => json!({"driver": "pvpanic", "id": "pvpanic0"}),
        Architecture::Aarch64 => {
            json!({"driver": "pvpanic-pci", "id": "pvpanic0", "bus": "pcie.0", "addr": slot(SLOT_PANIC)})
        }
    });
}

/// The interfaces of Hyper-V that every Windows since 8 and Server 2012 uses.
const HYPER_V: &str = "hv-relaxed,hv-vapic,hv-spinlocks=0x1fff,hv-vpindex,hv-runtime,hv-synic,hv-stimer,hv-reset,hv-time,hv-frequencies,hv-tlbflush,hv-ipi";

fn cpu(spec: &MachineSpec) -> String {
    let mut cpu = spec.cpu_model.clone();
    // Only KVM implements them.
    if spec.accelerator == Accelerator::Kvm && spec.extras.windows {
        cpu.push_str(&format!(",{HYPER_V}"));
    }
    for (flag, value) in spec.extras.options_of("cpu") {
        cpu.push_str(&format!(",{flag}={value}"));
    }
    cpu
}

fn memory(spec: &MachineSpec, affinity: &Affinity, args: &mut Arguments) {
    let mut size = format!("size={}k", spec.memory_bytes / 1024);
    if let Some(most) = spec.max_memory_bytes {
        size.push_str(&format!(",maxmem={}k", most / 1024));
    }
    args.pair("-m", size);
    if spec.numa_nodes > 1 {
        return numa_nodes(spec, affinity, args);
    }
    args.json("-object", guest_memory(spec, "ram", spec.memory_bytes, affinity.memory_node(0)));
    if let Some(most) = spec.max_memory_bytes {
        let backend = format!("{MEMORY_DEVICE}-ram");
        // Without a reservation: the host has it once the guest uses it.
        let mut more = ordinary_memory(spec, &backend, most - spec.memory_bytes);
        more["reserve"] = json!(false);
        args.json("-object", more);
        args.device(json!({"driver": "virtio-mem-pci", "id": MEMORY_DEVICE, "memdev": backend, "block-size": MEMORY_BLOCK,
            "requested-size": 0, "bus": "pcie.0", "addr": slot(SLOT_MEMORY)}));
    }
}

/// Several nodes, each with as many CPUs and as much memory as the others. CPUs are numbered by socket, core and thread: those of a node are
/// consecutive.
fn numa_nodes(spec: &MachineSpec, affinity: &Affinity, args: &mut Arguments) {
    let (cpus, memory) = (spec.cpus / spec.numa_nodes, spec.memory_bytes / u64::from(spec.numa_nodes));
    for node in 0..spec.numa_nodes {
        let backend = format!("ram{node}");
        args.json("-object", guest_memory(spec, &backend, memory, affinity.memory_node(node)));
        let first = node * cpus;
        let last = first + cpus - 1;
        args.pair("-numa", format!("node,nodeid={node},cpus={first}-{last},memdev={backend}"));
    }
}

/// Memory in ordinary pages.
fn ordinary_memory(spec: &MachineSpec, id: &str, size: u64) -> Value {
    if spec.shares.is_empty() {
        return json!({"qom-type": "memory-backend-ram", "id": id, "size": size});
    }
    // The servers of the shares map it, too.
    json!({"qom-type": "memory-backend-memfd", "id": id, "size": size, "share": true})
}

/// The memory of the start, or of one node of it. Huge pages are allocated before the machine answers: a fault for which the host has no page
/// ends a process.
fn guest_memory(spec: &MachineSpec, id: &str, size: u64, host_node: Option<u32>) -> Value {
    let mut backend = ordinary_memory(spec, id, size);
    if let Some(page) = spec.huge_page_bytes {
        backend = json!({"qom-type": "memory-backend-memfd", "id": id, "size": size, "hugetlb": true,
            "hugetlbsize": page, "prealloc": true, "prealloc-threads": spec.cpus.min(MOST_PREALLOC_THREADS), "share": true});
    }
    if let Some(node) = host_node {
        backend["host-nodes"] = json!([node]);
        // Not `bind`: a guest does not end because this node has no memory left.
        backend["policy"] = json!("preferred");
    }
    backend
}

fn firmware(uefi: &UefiFiles, args: &mut Arguments) {
    for (node, path, read_only) in [("firmware-code", &uefi.code, true), ("firmware-vars", &uefi.vars, false)]
    {
        args.json(
            "-blockdev",
            json!({"driver": "raw", "node-name": node, "read-only": read_only,
                   "file": {"driver": "file", "filename": text(path), "read-only": read_only, "auto-read-only": false, "locking": "on"}}),
        );
    }
    if uefi.smm {
        args.pair("-global", "driver=cfi.pflash01,property=secure,value=on");
        // The firmware requires that the guest cannot suspend to memory: it would leave the variables unprotected.
        args.pair("-global", "driver=ICH9-LPC,property=disable_s3,value=1");
    }
}

fn monitors(paths: &MachinePaths, args: &mut Arguments) {
    for (id, path) in [("qmp0", &paths.qmp), ("qmp1", &paths.rescue)] {
        args.pair("-chardev", format!("socket,id={id},path={},server=on,wait=off", escape(&text(path))));
        args.pair("-mon", format!("chardev={id},mode=control"));
    }
}

/// A serial port: of a PC, of which the guest sees the first as `COM1` or `ttyS0`, or the one of aarch64 (`ttyAMA0`).
fn serial_port(number: u8, architecture: Architecture, paths: &MachinePaths, args: &mut Arguments) {
    let (socket, log) = paths.serial_port(number);
    let channel = format!("serial{}", number - 1);
    args.pair(
        "-chardev",
        format!(
            "socket,id={channel},path={},server=on,wait=off,logfile={},logappend=on",
            escape(&text(&socket)),
            escape(&text(&log)),
        ),
    );
    match architecture {
        Architecture::X86_64 => {
            args.device(json!({"driver": "isa-serial", "id": format!("com{number}"), "chardev": channel}));
        }
        Architecture::Aarch64 => args.pair("-serial", format!("chardev:{channel}")),
    }
}

fn guest_agent(paths: &MachinePaths, args: &mut Arguments) {
    args.device(json!({"driver": "virtio-serial-pci", "id": "virtio-serial0", "bus": "pcie.0", "addr": slot(SLOT_SERIAL)}));
    args.pair(
        "-chardev",
        format!(
            "socket,id={GUEST_AGENT_CHANNEL},path={},server=on,wait=off",
            escape(&text(&paths.guest_agent))
        ),
    );
    args.device(json!({"driver": "virtserialport", "id": "qga-port0", "bus": "virtio-serial0.0", "chardev": GUEST_AGENT_CHANNEL, "name": GUEST_AGENT_PORT}));
}

fn network(spec: &MachineSpec, nic: &NicSpec, args: &mut Arguments) {
    let source = match &nic.tap {
        Tap::Name(name) => format!("ifname={},script=no,downscript=no,vhost=off", escape(name)),
        Tap::Open { taps, vhosts } if vhosts.is_empty() => format!("fds={},vhost=off", descriptors(taps)),
        Tap::Open { taps, vhosts } => {
            format!("fds={},vhost=on,vhostfds={}", descriptors(taps), descriptors(vhosts))
        }
    };
    args.pair("-netdev", format!("tap,id={},{source}", backend_of(&nic.id)));
    let mut device = nic_device(nic);
    if spec.needs_boot_rom(nic) {
        device["romfile"] = json!(nic.model.boot_rom());
    }
    args.device(with_index(device, spec.nic_index(nic)));
}

fn descriptors(numbers: &[i32]) -> String {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(":")
}

/// Ports for network cards. They reserve no I/O ports, of which a machine has few.
fn nic_ports(count: u8, args: &mut Arguments) {
    for number in 0..count {
        let function = number % FUNCTIONS;
        let (slot, chassis) = match number < FUNCTIONS {
            true => (SLOT_NIC_PORTS, number + 1),
            false => (SLOT_MORE_NIC_PORTS, CHASSIS_OF_MORE_NICS + function + 1),
        };
        args.device(
            json!({"driver": "pcie-root-port", "id": port_name(number), "chassis": chassis, "io-reserve": 0,
            "bus": "pcie.0", "multifunction": true, "addr": format!("{slot:#x}.{function}")}),
        );
    }
}

/// A PCI device of the host in a port of its own. GPUs have I/O ports, so these ports reserve them as the firmware does by default.
fn host_device(number: usize, device: &PciDeviceSpec, args: &mut Arguments) {
    let port = format!("hostport{number}");
    args.device(json!({"driver": "pcie-root-port", "id": port, "chassis": usize::from(CHASSIS_OF_HOST) + number + 1, "bus": "pcie.0",
        "multifunction": true, "addr": format!("{SLOT_HOST_PORTS:#x}.{number}")}));
    let has_several = device.functions.len() > 1;
    for (function, address) in device.functions.iter().enumerate() {
        args.device(json!({"driver": "vfio-pci", "id": format!("host{number}-{function}"), "host": address, "bus": port,
            "multifunction": has_several, "addr": format!("0x0.{function}")}));
    }
}

/// A vGPU in a port of its own, which reserves no I/O ports, as those of network cards do. The guest sees it by its own driver alone: QEMU
/// shows its screen nowhere.
fn mediated_device(number: usize, vgpu: &VgpuSpec, args: &mut Arguments) {
    let port = format!("vgpuport{number}");
    let chassis = usize::from(CHASSIS_OF_VGPUS) + number + 1;
    args.device(json!({"driver": "pcie-root-port", "id": port, "chassis": chassis, "io-reserve": 0,
        "bus": "pcie.0", "multifunction": true, "addr": format!("{SLOT_VGPU_PORTS:#x}.{number}")}));
    args.device(json!({"driver": "vfio-pci", "id": format!("vgpu{number}"), "sysfsdev": text(&vgpu.folder()), "bus": port,
        "display": "off", "addr": "0x0"}));
}

/// The id of the connection to the server of a share.
pub(crate) fn share_channel(tag: &str) -> String {
    format!("{SHARE_PREFIX}{tag}")
}

/// The tag of the share that a connection with this id belongs to.
pub(crate) fn share_of_channel(id: &str) -> Option<&str> {
    id.strip_prefix(SHARE_PREFIX)
}

fn virtiofs(number: usize, share: &ShareSpec, paths: &MachinePaths, args: &mut Arguments) {
    let channel = share_channel(&share.tag);
    args.pair("-chardev", format!("socket,id={channel},path={}", escape(&text(&paths.share(number)))));
    args.device(json!({"driver": "vhost-user-fs-pci", "id": format!("fs{number}"), "chardev": channel, "tag": share.tag,
        "queue-size": SHARE_QUEUE, "bus": "pcie.0", "multifunction": true, "addr": format!("{SLOT_SHARES:#x}.{number}")}));
}

/// A vsock device, whose packets the host's kernel moves. QEMU cannot open the kernel's device file, and gets it open.
fn vsock(cid: u32, descriptor: Option<i32>, args: &mut Arguments) {
    let mut device = json!({"driver": "vhost-vsock-pci", "id": "vsock0", "bus": "pcie.0", "addr": slot(SLOT_VSOCK),
        "guest-cid": cid});
    if let Some(descriptor) = descriptor {
        device["vhostfd"] = json!(descriptor.to_string());
    }
    args.device(device);
}

fn tpm(architecture: Architecture, socket: &Path, args: &mut Arguments) {
    args.pair("-chardev", format!("socket,id={TPM_CHANNEL},path={}", escape(&text(socket))));
    args.pair("-tpmdev", format!("emulator,id=tpm0,chardev={TPM_CHANNEL}"));
    args.device(json!({"driver": architecture.tpm(), "tpmdev": "tpm0"}));
}

/// The controller of all USB devices. It has four ports of each speed, and with devices of the host as many as there can be: those, the
/// tablet and the disk with the answer file.
fn usb_controller(spec: &MachineSpec, args: &mut Arguments) {
    let mut controller =
        json!({"driver": "qemu-xhci", "id": "usb0", "bus": "pcie.0", "addr": slot(SLOT_USB)});
    if !spec.usb_devices.is_empty() {
        controller["p2"] = json!(USB_PORTS);
        controller["p3"] = json!(USB_PORTS);
    }
    args.device(controller);
}

/// A USB device of the host. By its device file QEMU needs nothing else of the host: its library also looks at sysfs and for devices that are
/// plugged in, and does without them.
fn usb_device(number: usize, device: &UsbDeviceSpec, args: &mut Arguments) {
    args.device(json!({"driver": "usb-host", "id": format!("hostusb{number}"), "bus": "usb0.0",
        "hostdevice": text(&device.node())}));
}

/// Windows looks for answer files on removable volumes, and has a driver for USB disks.
fn sysprep(volume: &Path, args: &mut Arguments) {
    let disk = DiskSpec { id: SYSPREP_ID.to_owned(), ..seed_disk(volume) };
    args.blockdevs(&disk);
    args.device(json!({"driver": "usb-storage", "id": SYSPREP_ID, "bus": "usb0.0", "drive": SYSPREP_ID,
        "serial": SYSPREP_ID, "removable": true}));
}

pub(crate) fn seed_disk(file: &Path) -> DiskSpec {
    DiskSpec {
        id: SEED_ID.to_owned(),
        file: file.to_owned(),
        format: Format::Raw,
        backing: None,
        serial: SEED_ID.to_owned(),
        wwn: None,
        boot: false,
        read_only: true,
        target: Some(SEED_TARGET),
        cache: Cache::Writeback,
        bus: Bus::VirtioScsi,
        keeps_space: false,
        shared: false,
    }
}

fn scratch_disk(file: &Path) -> DiskSpec {
    DiskSpec {
        id: SCRATCH_ID.to_owned(),
        format: Format::Qcow2,
        serial: SCRATCH_ID.to_owned(),
        read_only: false,
        target: Some(SCRATCH_TARGET),
        ..seed_disk(file)
    }
}

/// Returns the instance that a QEMU process was started for, if berth started it.
pub fn instance_of(argv: &[String]) -> Option<&str> {
    let value = argument(argv, "-smbios")?;
    let field = |name: &str| value.split(',').find_map(|field| field.strip_prefix(name));
    let is_ours = field("manufacturer=") == Some(MANUFACTURER);
    // A serial number of its own leaves the place of the instance.
    is_ours.then(|| field("sku=").or_else(|| field("serial="))).flatten()
}

/// Returns the guest's name on the command line of any QEMU process.
pub fn name_of(argv: &[String]) -> Option<String> {
    // The first value ends at the first comma that is not doubled.
    let mut name = String::new();
    let mut rest = argument(argv, "-name")?.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ',' && rest.next_if_eq(&',').is_none() {
            break;
        }
        name.push(c);
    }
    Some(name.strip_prefix("guest=").map(str::to_owned).unwrap_or(name))
}

fn argument<'a>(argv: &'a [String], option: &str) -> Option<&'a str> {
    argv.windows(2)
        .find(|pair| pair[0] == option || pair[0].strip_prefix('-') == Some(option))
        .map(|pair| pair[1].as_str())
}

/// Doubles commas: QEMU's `key=value` options end a value at a single comma.
fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn pair(&mut self, option: &str, value: impl Into<String>) {
        self.0.push(option.to_owned());
        self.0.push(value.into());
    }

    fn json(&mut self, option: &str, value: Value) {
        self.pair(option, value.to_string());
    }

    fn device(&mut self, value: Value) {
        self.json("-device", value);
    }

    fn blockdevs(&mut self, disk: &DiskSpec) {
        for node in blockdevs(disk) {
            self.json("-blockdev", node);
        }
    }

    /// `thread`: the I/O thread that serves this disk alone.
    fn disk(&mut self, disk: &DiskSpec, boot_index: Option<u8>, thread: Option<&str>) {
        self.blockdevs(disk);
        let mut device = with_index(disk_device(disk), boot_index);
        if let Some(thread) = thread {
            device["iothread"] = json!(thread);
        }
        self.device(device);
    }
}
