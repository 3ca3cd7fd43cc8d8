//! Every figure of `docs/SPECIFICATION.md` that `cargo measure` measures, with its target.

pub mod copies;
pub mod filters;
pub mod guest;
pub mod lost_host;

use super::figure::Figure;
use super::figure::Unit::{Count, Mebibytes, Megabytes, Milliseconds, Percent, Ratio, Seconds};

/// N4.
pub mod idle {
    use super::{Figure, Mebibytes, Milliseconds, Percent};

    /// The memory, which has the target.
    pub const RSS: Figure =
        Figure::at_most("N4.rss", "`berth up`, idle: resident memory (RSS)", Mebibytes, 40.0);
    /// Without memory that other processes would need anyway.
    pub const PSS: Figure =
        Figure::anchor("N4.pss", "the same, shared pages counted in part (PSS)", Mebibytes);
    /// Percent of one core.
    pub const CPU: Figure =
        Figure::at_most("N4.cpu", "`berth up`, idle: processor time, of one core", Percent, 0.5);
    /// The first start on a machine.
    pub const READY: Figure =
        Figure::at_most("N4.ready", "first start: process started → Host is Ready", Milliseconds, 300.0);
    /// The API's part of that start.
    pub const API: Figure =
        Figure::anchor("N4.api", "first start: process started → API answers", Milliseconds);
    /// A later start.
    pub const RESTART: Figure =
        Figure::anchor("N4.restart", "later start: process started → API answers", Milliseconds);
    pub(super) const ALL: &[Figure] = &[RSS, PSS, CPU, READY, API, RESTART];
}

/// N5.
pub mod handshake {
    use super::{Figure, Milliseconds, Ratio};

    /// Our provider.
    pub const START: Figure =
        Figure::at_most("N5.start", "provider: process started → handshake line", Milliseconds, 5.0);
    /// An anchor.
    pub const KUBERNETES: Figure =
        Figure::anchor("N5.kubernetes", "hashicorp/kubernetes, beside it", Milliseconds);
    /// An anchor.
    pub const LIBVIRT: Figure = Figure::anchor("N5.libvirt", "dmacvicar/libvirt, beside it", Milliseconds);
    /// Compared with the quicker of the two.
    pub const RATIO: Figure =
        Figure::at_most("N5.ratio", "ours ÷ the quicker of the two", Ratio, 0.5).enforced();
    pub(super) const ALL: &[Figure] = &[START, KUBERNETES, LIBVIRT, RATIO];
}

/// N13.
pub mod sizes {
    use super::{Figure, Megabytes};

    /// The `berth` binary.
    pub const BERTH: Figure = Figure::at_most("N13.berth", "`berth`, stripped", Megabytes, 40.0).enforced();
    /// The provider, which Terraform downloads.
    pub const PROVIDER: Figure =
        Figure::at_most("N13.provider", "`terraform-provider-berth`, stripped", Megabytes, 14.0).enforced();
    /// An anchor.
    pub const KUBERNETES: Figure =
        Figure::anchor("N13.kubernetes", "hashicorp/kubernetes, stripped", Megabytes);
    /// An anchor.
    pub const LIBVIRT: Figure = Figure::anchor("N13.libvirt", "dmacvicar/libvirt, stripped", Megabytes);
    pub(super) const ALL: &[Figure] = &[BERTH, PROVIDER, KUBERNETES, LIBVIRT];
}

/// N1.
pub mod starts {
    use super::{Figure, Milliseconds, Ratio};

    /// Started one at a time, median.
    pub const RATE_P50: Figure =
        Figure::at_most("N1.rate.p50", "100 VMs, 2 a second: VM written → Running, P50", Milliseconds, 500.0);
    /// Started one at a time, the slow ones.
    pub const RATE_P95: Figure = Figure::at_most(
        "N1.rate.p95",
        "100 VMs, 2 a second: VM written → Running, P95",
        Milliseconds,
        1000.0,
    );
    /// Compared with bare QEMU.
    pub const BURST_RATIO: Figure =
        Figure::at_most("N1.burst.ratio", "100 VMs at once: berth's P95 ÷ bare QEMU's P95", Ratio, 1.2)
            .enforced();
    /// Started all at once, median.
    pub const BURST_P50: Figure =
        Figure::anchor("N1.burst.p50", "100 VMs at once: first VM written → Running, P50", Milliseconds);
    /// Started all at once, the slow ones.
    pub const BURST_P95: Figure =
        Figure::anchor("N1.burst.p95", "100 VMs at once: first VM written → Running, P95", Milliseconds);
    /// The anchor, median.
    pub const BARE_P50: Figure = Figure::anchor(
        "N1.bare.p50",
        "100 bare QEMUs at once: first process started → running, P50",
        Milliseconds,
    );
    /// The anchor, the slow ones.
    pub const BARE_P95: Figure = Figure::anchor(
        "N1.bare.p95",
        "100 bare QEMUs at once: first process started → running, P95",
        Milliseconds,
    );
    /// Another manager, started one at a time.
    pub const LIBVIRT_RATE_P50: Figure = Figure::anchor(
        "N1.libvirt.rate.p50",
        "libvirtd: 100 domains, 2 a second: asked → running, P50",
        Milliseconds,
    );
    /// Another manager, started all at once.
    pub const LIBVIRT_P50: Figure = Figure::anchor(
        "N1.libvirt.p50",
        "libvirtd: 100 domains at once: first asked → running, P50",
        Milliseconds,
    );
    /// Another manager, the slow ones.
    pub const LIBVIRT_P95: Figure = Figure::anchor(
        "N1.libvirt.p95",
        "libvirtd: 100 domains at once: first asked → running, P95",
        Milliseconds,
    );
    pub(super) const ALL: &[Figure] = &[
        RATE_P50,
        RATE_P95,
        BURST_RATIO,
        BURST_P50,
        BURST_P95,
        BARE_P50,
        BARE_P95,
        LIBVIRT_RATE_P50,
        LIBVIRT_P50,
        LIBVIRT_P95,
    ];
}

/// N2 and N3.
pub mod memory {
    use super::{Figure, Mebibytes};

    /// The total.
    pub const ABOVE: Figure = Figure::at_most(
        "N2.above",
        "a VM's memory above its guest's, all processes, under TCG",
        Mebibytes,
        90.0,
    );
    /// QEMU's part of the total.
    pub const BARE: Figure =
        Figure::anchor("N2.bare", "the same guest in a bare QEMU with the same command line", Mebibytes);
    /// Our part of the total.
    pub const OURS: Figure = Figure::at_most(
        "N2.ours",
        "of it berth's: growth of the agent and DHCP server, a VM",
        Mebibytes,
        0.1,
    );
    /// The agent without VMs.
    pub const AGENT: Figure =
        Figure::at_most("N3.agent", "`berth host` without VMs: resident memory (RSS)", Mebibytes, 25.0);
    /// The agent's growth per VM.
    pub const GROWTH: Figure =
        Figure::at_most("N3.growth", "growth of its RSS a VM, between 20 and 60 VMs", Mebibytes, 0.1);
    /// Another manager.
    pub const LIBVIRTD: Figure =
        Figure::anchor("N3.libvirtd", "libvirtd without domains: resident memory (RSS)", Mebibytes);
    /// Another manager, growth per VM.
    pub const LIBVIRTD_GROWTH: Figure =
        Figure::anchor("N3.libvirtd.growth", "growth of its RSS a domain, between 20 and 60", Mebibytes);
    pub(super) const ALL: &[Figure] = &[ABOVE, BARE, OURS, AGENT, GROWTH, LIBVIRTD, LIBVIRTD_GROWTH];
}

/// N6.
pub mod scale {
    use super::{Count, Figure, Mebibytes, Ratio, Seconds};

    /// A plan without changes.
    pub const PLAN: Figure =
        Figure::at_most("N6.plan", "plan of 1,000 VMs that finds nothing to do", Seconds, 1.5);
    /// An apply that creates everything.
    pub const APPLY: Figure = Figure::at_most("N6.apply", "apply that creates 1,000 VMs", Seconds, 6.0);
    /// The memory during the apply.
    pub const RSS: Figure =
        Figure::at_most("N6.rss", "most resident memory of the provider in both", Mebibytes, 20.0);
    /// Compared with the anchor.
    pub const RATIO: Figure = Figure::at_most(
        "N6.ratio",
        "our apply of 1,000 VMs ÷ that of 1,000 ConfigMaps by hashicorp/kubernetes",
        Ratio,
        1.0,
    )
    .enforced();
    /// An anchor.
    pub const KUBERNETES_PLAN: Figure = Figure::anchor(
        "N6.kubernetes.plan",
        "hashicorp/kubernetes: the same plan of 1,000 ConfigMaps",
        Seconds,
    );
    /// An anchor.
    pub const KUBERNETES_APPLY: Figure = Figure::anchor(
        "N6.kubernetes.apply",
        "hashicorp/kubernetes: apply that creates 1,000 ConfigMaps",
        Seconds,
    );
    /// An anchor.
    pub const KUBERNETES_RSS: Figure =
        Figure::anchor("N6.kubernetes.rss", "hashicorp/kubernetes: most resident memory in both", Mebibytes);
    /// An anchor.
    pub const CORE_PLAN: Figure =
        Figure::anchor("N6.core.plan", "Terraform alone: the same plan of 1,000 `terraform_data`", Seconds);
    /// An anchor.
    pub const CORE_APPLY: Figure = Figure::anchor(
        "N6.core.apply",
        "Terraform alone: apply that creates 1,000 `terraform_data`",
        Seconds,
    );
    /// The part of a VM in the file that Terraform writes after each resource.
    pub const STATE: Figure = Figure::anchor("N6.state", "bytes of the state file for each VM", Count);
    /// An anchor.
    pub const KUBERNETES_STATE: Figure =
        Figure::anchor("N6.kubernetes.state", "bytes of the state file for each ConfigMap", Count);
    /// The time of an apply with a provider that costs nothing.
    pub const FLOOR_APPLY: Figure = Figure::anchor(
        "N6.floor.apply",
        "Terraform alone: apply that creates 1,000 `terraform_data` with as many bytes of state as the VMs",
        Seconds,
    );
    /// An anchor.
    pub const MANIFEST_PLAN: Figure = Figure::anchor(
        "N6.manifest.plan",
        "hashicorp/kubernetes 2.x: the same plan of 1,000 `kubernetes_manifest` of the VMs",
        Seconds,
    );
    /// An anchor.
    pub const MANIFEST_APPLY: Figure = Figure::anchor(
        "N6.manifest.apply",
        "hashicorp/kubernetes 2.x: apply that creates 1,000 `kubernetes_manifest` of the VMs",
        Seconds,
    );
    /// An anchor.
    pub const MANIFEST_STATE: Figure =
        Figure::anchor("N6.manifest.state", "bytes of the state file for each `kubernetes_manifest`", Count);
    pub(super) const ALL: &[Figure] = &[
        PLAN,
        APPLY,
        RSS,
        RATIO,
        STATE,
        KUBERNETES_PLAN,
        KUBERNETES_APPLY,
        KUBERNETES_RSS,
        KUBERNETES_STATE,
        CORE_PLAN,
        CORE_APPLY,
        FLOOR_APPLY,
        MANIFEST_PLAN,
        MANIFEST_APPLY,
        MANIFEST_STATE,
    ];
}

/// N7.
pub mod planes {
    use super::{Count, Figure, Mebibytes, Milliseconds, Ratio};

    /// Compared with the anchor.
    pub const WRITES_RATIO: Figure = Figure::at_most(
        "N7.writes.ratio",
        "durable creates a second, 100 clients: kube-apiserver + etcd ÷ berth",
        Ratio,
        0.333,
    )
    .enforced();
    /// Compared with the anchor.
    pub const EVENTS_RATIO: Figure = Figure::at_most(
        "N7.events.ratio",
        "events a second to 1,000 watchers: kube-apiserver + etcd ÷ berth",
        Ratio,
        0.333,
    )
    .enforced();
    /// Compared with the anchor.
    pub const MEMORY_RATIO: Figure =
        Figure::at_most("N7.rss.ratio", "memory after all that: berth ÷ kube-apiserver + etcd", Ratio, 0.1)
            .enforced();
    /// All clients at once.
    pub const WRITES: Figure =
        Figure::anchor("N7.writes", "berth: durable creates a second, 100 clients", Count);
    /// One of those creates, median.
    pub const P50: Figure = Figure::anchor("N7.p50", "berth: one of those creates, P50", Milliseconds);
    /// One of those creates, the slow ones.
    pub const P99: Figure = Figure::anchor("N7.p99", "berth: one of those creates, P99", Milliseconds);
    /// One client.
    pub const ALONE: Figure =
        Figure::anchor("N7.alone", "berth: a create by the only client, P50", Milliseconds);
    /// All watchers together.
    pub const EVENTS: Figure = Figure::anchor("N7.events", "berth: events a second to 1,000 watchers", Count);
    /// The memory afterwards.
    pub const MEMORY: Figure =
        Figure::anchor("N7.rss", "`berth up --no-agent`: resident memory (RSS)", Mebibytes);
    /// An anchor.
    pub const THEIR_WRITES: Figure = Figure::anchor(
        "N7.kubernetes.writes",
        "kube-apiserver + etcd: durable creates a second, 100 clients",
        Count,
    );
    /// An anchor.
    pub const THEIR_P50: Figure =
        Figure::anchor("N7.kubernetes.p50", "kube-apiserver + etcd: one of those creates, P50", Milliseconds);
    /// An anchor.
    pub const THEIR_P99: Figure =
        Figure::anchor("N7.kubernetes.p99", "kube-apiserver + etcd: one of those creates, P99", Milliseconds);
    /// An anchor.
    pub const THEIR_ALONE: Figure = Figure::anchor(
        "N7.kubernetes.alone",
        "kube-apiserver + etcd: a create by the only client, P50",
        Milliseconds,
    );
    /// An anchor.
    pub const THEIR_EVENTS: Figure = Figure::anchor(
        "N7.kubernetes.events",
        "kube-apiserver + etcd: events a second to 1,000 watchers",
        Count,
    );
    /// An anchor.
    pub const THEIR_MEMORY: Figure =
        Figure::anchor("N7.kubernetes.rss", "kube-apiserver + etcd: resident memory (RSS)", Mebibytes);
    pub(super) const ALL: &[Figure] = &[
        WRITES_RATIO,
        EVENTS_RATIO,
        MEMORY_RATIO,
        WRITES,
        P50,
        P99,
        ALONE,
        EVENTS,
        MEMORY,
        THEIR_WRITES,
        THEIR_P50,
        THEIR_P99,
        THEIR_ALONE,
        THEIR_EVENTS,
        THEIR_MEMORY,
    ];
}

/// N8 and N9.
pub mod many {
    use super::{Count, Figure, Mebibytes, Milliseconds, Percent, Ratio, Seconds};

    /// Until each VM has a host.
    pub const BOUND: Figure =
        Figure::at_most("N8.bound", "10,000 VMs with a disk each, at once: all bound", Seconds, 30.0);
    /// Until each VM runs.
    pub const CONVERGED: Figure = Figure::at_most("N8.converged", "all converged", Seconds, 60.0);
    /// The memory during the run.
    pub const MEMORY: Figure =
        Figure::at_most("N8.rss", "control plane and controllers: most resident memory", Mebibytes, 300.0);
    /// The site's own share, which does not depend on what else runs.
    pub const CPU: Figure =
        Figure::at_most("N8.cpu", "control plane and controllers: processor time a VM", Milliseconds, 3.0);
    /// The hosts' share.
    pub const HOSTS_CPU: Figure =
        Figure::at_most("N8.agents", "all agents: processor time a VM", Milliseconds, 2.0);
    /// Everything that is written for a VM with a disk.
    pub const WRITES: Figure =
        Figure::at_most("N8.writes", "writes a VM with its disk, creations and events included", Count, 7.0);
    /// The load afterwards.
    pub const STEADY: Figure = Figure::at_most(
        "N8.steady",
        "control plane and controllers afterwards: processor time, of one core",
        Percent,
        2.0,
    );
    /// The writes of all Host objects.
    pub const HOST_WRITES: Figure =
        Figure::anchor("N8.hosts", "writes of Host objects while all were made", Count);
    /// The same controllers and agents on both control planes.
    pub const KUBERNETES_CONVERGED: Figure = Figure::anchor(
        "N8.kubernetes.converged",
        "1,000 VMs on 50 hosts, all converged: berth ÷ kube-apiserver + etcd + controllers",
        Ratio,
    );
    /// The processor time of both.
    pub const KUBERNETES_CPU: Figure =
        Figure::anchor("N8.kubernetes.cpu", "the same: processor time a VM", Ratio);
    /// The memory of both.
    pub const KUBERNETES_MEMORY: Figure =
        Figure::anchor("N8.kubernetes.rss", "the same: most resident memory", Ratio);
    /// The growth of the cost to create one VM.
    pub const GROWTH: Figure = Figure::at_most(
        "N9.reconcile",
        "processor time to create, schedule and reconcile a VM: at 10,000 ÷ at 100",
        Ratio,
        1.5,
    )
    .enforced();
    /// The growth of the cost to list one VM.
    pub const LIST: Figure =
        Figure::at_most("N9.list", "processor time to list a VM: at 10,000 ÷ at 100", Ratio, 1.5).enforced();
    pub(super) const ALL: &[Figure] = &[
        BOUND,
        CONVERGED,
        MEMORY,
        CPU,
        HOSTS_CPU,
        WRITES,
        STEADY,
        HOST_WRITES,
        KUBERNETES_CONVERGED,
        KUBERNETES_CPU,
        KUBERNETES_MEMORY,
        GROWTH,
        LIST,
    ];
}

/// N11 and N12.
pub mod hotswap {
    use super::{Count, Figure, Milliseconds};

    /// A disk as large as the image.
    pub const SMALL: Figure = Figure::at_most(
        "N11.small",
        "attachment written → file of a disk of the image's size is there",
        Milliseconds,
        50.0,
    );
    /// A disk larger than any machine's.
    pub const LARGE: Figure = Figure::at_most(
        "N11.large",
        "attachment written → file of a disk of 1 TiB is there",
        Milliseconds,
        50.0,
    );
    /// Each image is downloaded once.
    pub const DOWNLOADS: Figure =
        Figure::at_most("N11.downloads", "requests for the image by a second VM on the host", Count, 0.0)
            .enforced();
    /// The attachment.
    pub const ATTACH: Figure = Figure::at_most(
        "N12.attach",
        "attachment written → guest's kernel has the disk",
        Milliseconds,
        250.0,
    );
    /// Until the attachment is reported.
    pub const READY: Figure =
        Figure::anchor("N12.ready", "attachment written → attachment Ready", Milliseconds);
    /// The detachment.
    pub const DETACH: Figure = Figure::at_most(
        "N12.detach",
        "attachment deleted → disk released, attachment gone",
        Milliseconds,
        250.0,
    );
    pub(super) const ALL_DISKS: &[Figure] = &[SMALL, LARGE, DOWNLOADS];
    pub(super) const ALL: &[Figure] = &[ATTACH, READY, DETACH];
}

/// All figures.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    [
        starts::ALL,
        memory::ALL,
        idle::ALL,
        handshake::ALL,
        scale::ALL,
        planes::ALL,
        many::ALL,
        hotswap::ALL_DISKS,
        hotswap::ALL,
        sizes::ALL,
    ]
    .into_iter()
    .flatten()
    .chain(guest::all())
    .chain(filters::all())
    .chain(copies::all())
    .chain(lost_host::all())
}
