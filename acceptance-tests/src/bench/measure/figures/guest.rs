//! N14, N16 and N19.

use super::super::figure::Figure;
use super::super::figure::Unit::{Count, MebibytesPerSecond, Milliseconds, Ratio};

/// A kind of load on the guest's network or disk.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The name in the guest's report.
    pub name: &'static str,
    /// The number of reported units that make one of the figures' unit.
    pub divisor: f64,
    /// The bare QEMU's value ÷ ours.
    pub ratio: Figure,
    /// Our guest's value.
    pub ours: Figure,
    /// The same guest's in a bare QEMU.
    pub bare: Figure,
}

/// The share of the bare QEMU's value that may be lost: 2 %.
const LIMIT: f64 = 1.02;

const fn throughput(name: &'static str, [ratio, ours, bare]: [(&'static str, &'static str); 3]) -> Load {
    Load {
        name,
        divisor: 1_048_576.0,
        ratio: Figure::at_most(ratio.0, ratio.1, Ratio, LIMIT).enforced(),
        ours: Figure::anchor(ours.0, ours.1, MebibytesPerSecond),
        bare: Figure::anchor(bare.0, bare.1, MebibytesPerSecond),
    }
}

const fn operations(name: &'static str, [ratio, ours, bare]: [(&'static str, &'static str); 3]) -> Load {
    Load {
        name,
        divisor: 1.0,
        ratio: Figure::at_most(ratio.0, ratio.1, Ratio, LIMIT).enforced(),
        ours: Figure::anchor(ours.0, ours.1, Count),
        bare: Figure::anchor(bare.0, bare.1, Count),
    }
}

/// N14: towards a machine beyond the host.
pub const NETWORK: &[Load] = &[
    throughput(
        "tcp-send",
        [
            ("N14.send.ratio", "TCP out of the guest: bare QEMU ÷ berth"),
            ("N14.send", "TCP out of the guest"),
            ("N14.send.bare", "the same in a bare QEMU"),
        ],
    ),
    throughput(
        "tcp-receive",
        [
            ("N14.receive.ratio", "TCP into the guest: bare QEMU ÷ berth"),
            ("N14.receive", "TCP into the guest"),
            ("N14.receive.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "tcp-round-trips",
        [
            ("N14.trips.ratio", "round trips of a byte on one connection: bare QEMU ÷ berth"),
            ("N14.trips", "round trips of a byte on one connection, a second"),
            ("N14.trips.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "udp-packets",
        [
            ("N14.packets.ratio", "packets of 64 bytes out of the guest that arrive: bare QEMU ÷ berth"),
            ("N14.packets", "packets of 64 bytes out of the guest that arrive, a second"),
            ("N14.packets.bare", "the same in a bare QEMU"),
        ],
    ),
];

/// N14: towards another guest of the host.
pub const LOCAL: &[Load] = &[
    throughput(
        "tcp-send",
        [
            ("N14.local.send.ratio", "TCP to another guest of the host: bare QEMU ÷ berth"),
            ("N14.local.send", "TCP to another guest of the host"),
            ("N14.local.send.bare", "the same in a bare QEMU"),
        ],
    ),
    throughput(
        "tcp-receive",
        [
            ("N14.local.receive.ratio", "TCP from it: bare QEMU ÷ berth"),
            ("N14.local.receive", "TCP from it"),
            ("N14.local.receive.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "tcp-round-trips",
        [
            ("N14.local.trips.ratio", "round trips of a byte on one connection: bare QEMU ÷ berth"),
            ("N14.local.trips", "round trips of a byte on one connection, a second"),
            ("N14.local.trips.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "udp-packets",
        [
            ("N14.local.packets.ratio", "packets of 64 bytes that arrive: bare QEMU ÷ berth"),
            ("N14.local.packets", "packets of 64 bytes that arrive, a second"),
            ("N14.local.packets.bare", "the same in a bare QEMU"),
        ],
    ),
];

/// N14: towards a guest of another host.
pub const TUNNEL: &[Load] = &[
    throughput(
        "tcp-send",
        [
            ("N14.vxlan.send.ratio", "TCP to a guest of another host, through VXLAN: bare QEMU ÷ berth"),
            ("N14.vxlan.send", "TCP to a guest of another host, through VXLAN"),
            ("N14.vxlan.send.bare", "the same in a bare QEMU"),
        ],
    ),
    throughput(
        "tcp-receive",
        [
            ("N14.vxlan.receive.ratio", "TCP from it: bare QEMU ÷ berth"),
            ("N14.vxlan.receive", "TCP from it"),
            ("N14.vxlan.receive.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "tcp-round-trips",
        [
            ("N14.vxlan.trips.ratio", "round trips of a byte on one connection: bare QEMU ÷ berth"),
            ("N14.vxlan.trips", "round trips of a byte on one connection, a second"),
            ("N14.vxlan.trips.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "udp-packets",
        [
            ("N14.vxlan.packets.ratio", "packets of 64 bytes that arrive: bare QEMU ÷ berth"),
            ("N14.vxlan.packets", "packets of 64 bytes that arrive, a second"),
            ("N14.vxlan.packets.bare", "the same in a bare QEMU"),
        ],
    ),
];

/// A kind of load between two domains of libvirt.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    /// The name in the guest's report.
    pub name: &'static str,
    /// The number of reported units that make one of the figure's unit.
    pub divisor: f64,
    /// The guest's value.
    pub figure: Figure,
}

const fn libvirt_throughput(name: &'static str, key: &'static str) -> Anchor {
    let figure = Figure::anchor(key, "the same on libvirt's network `default`", MebibytesPerSecond);
    Anchor { name, divisor: 1_048_576.0, figure }
}

const fn libvirt_operations(name: &'static str, key: &'static str) -> Anchor {
    Anchor {
        name,
        divisor: 1.0,
        figure: Figure::anchor(key, "the same on libvirt's network `default`", Count),
    }
}

/// N14: towards another guest of the host, in libvirt.
pub const LIBVIRT: &[Anchor] = &[
    libvirt_throughput("tcp-send", "N14.local.send.libvirt"),
    libvirt_throughput("tcp-receive", "N14.local.receive.libvirt"),
    libvirt_operations("tcp-round-trips", "N14.local.trips.libvirt"),
    libvirt_operations("udp-packets", "N14.local.packets.libvirt"),
];

/// N16: on a blank disk all of whose blocks were written before.
pub const DISK: &[Load] = &[
    throughput(
        "disk-write",
        [
            ("N16.write.ratio", "sequential writes of 1 MiB: bare QEMU ÷ berth"),
            ("N16.write", "sequential writes of 1 MiB, 4 at a time"),
            ("N16.write.bare", "the same in a bare QEMU"),
        ],
    ),
    throughput(
        "disk-read",
        [
            ("N16.read.ratio", "sequential reads of 1 MiB: bare QEMU ÷ berth"),
            ("N16.read", "sequential reads of 1 MiB, 4 at a time"),
            ("N16.read.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "disk-random-write",
        [
            ("N16.random.write.ratio", "random writes of 4 KiB: bare QEMU ÷ berth"),
            ("N16.random.write", "random writes of 4 KiB a second, 16 at a time"),
            ("N16.random.write.bare", "the same in a bare QEMU"),
        ],
    ),
    operations(
        "disk-random-read",
        [
            ("N16.random.read.ratio", "random reads of 4 KiB: bare QEMU ÷ berth"),
            ("N16.random.read", "random reads of 4 KiB a second, 16 at a time"),
            ("N16.random.read.bare", "the same in a bare QEMU"),
        ],
    ),
];

/// N19, compared with the bare QEMU.
pub const BOOT_RATIO: Figure = Figure::at_most(
    "N19.ratio",
    "VM written → the guest's first process runs ÷ the same of a bare QEMU, from its start",
    Ratio,
    1.05,
)
.enforced();
/// With Terraform.
pub const APPLY_RATIO: Figure = Figure::at_most(
    "N19.apply.ratio",
    "`terraform apply` started → the guest's first process runs ÷ the same bare QEMU",
    Ratio,
    1.05,
)
.enforced();
/// Ours.
pub const BOOT: Figure =
    Figure::anchor("N19.vm", "VM written → the guest's first process runs", Milliseconds);
/// With Terraform.
pub const APPLY: Figure =
    Figure::anchor("N19.apply", "`terraform apply` started → the guest's first process runs", Milliseconds);
/// The anchor.
pub const BOOT_BARE: Figure =
    Figure::anchor("N19.bare", "bare QEMU started → the guest's first process runs", Milliseconds);

const BOOTS: &[Figure] = &[BOOT_RATIO, APPLY_RATIO, BOOT, APPLY, BOOT_BARE];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Figure> {
    let loads = NETWORK
        .iter()
        .chain(LOCAL)
        .chain(TUNNEL)
        .chain(DISK)
        .flat_map(|load| [&load.ratio, &load.ours, &load.bare]);
    loads.chain(LIBVIRT.iter().map(|anchor| &anchor.figure)).chain(BOOTS)
}
