//! The suites: groups of test cases with the same prerequisites that can run separately.

pub mod architecture;
pub mod attack;
pub mod backups;
pub mod block_device;
pub mod cargo_tests;
pub mod changes;
pub mod console;
pub mod crash;
pub mod debian;
pub mod defaults;
pub mod demo;
pub mod differential;
pub mod disks_of_a_vm;
pub mod downloads;
pub mod dual_stack;
pub mod encryption;
pub mod faults;
pub mod formatted_disks;
pub mod gitops;
pub mod graduate;
pub mod guest_access;
pub mod guest_examples;
pub mod guest_users;
pub mod hardware;
pub mod host_shutdown;
pub mod hosts;
pub mod inputs;
pub mod install;
mod kit;
pub mod kube_rs;
pub mod kubectl;
pub mod kubernetes;
pub mod lifecycle;
pub mod load;
pub mod made_images;
pub mod modules;
pub mod moves;
pub mod networks;
pub mod pools;
pub mod probes;
pub mod quotas;
pub mod rbd;
pub mod read_only_disk;
pub mod read_write_disk;
pub mod restrictions;
pub mod routes;
pub mod rules;
pub mod scale;
pub mod screen;
pub mod second_interface;
pub mod secure_boot;
pub mod shared_folders;
pub mod site;
pub mod size;
pub mod snapshot_schedule;
pub mod snapshots;
pub mod static_addresses;
pub mod status;
pub mod terraform;
pub mod terraform_new;
pub mod tofu;
pub mod traffic;
pub mod upgrade;
pub mod uploads;
pub mod vault_keys;
pub mod verbs;
pub mod vm_group;
pub mod vm_names;

use std::time::Duration;

use anyhow::Result;
pub use kit::Kit;
use site::ControlPlane;

use crate::report::Report;
use crate::{manifests, prerequisites, tools};

/// A group of test cases.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// The name on the command line.
    pub name: &'static str,
    /// The description.
    pub about: &'static str,
    /// The time limit, after which the suite fails.
    pub limit: Duration,
    /// The reason this machine cannot run the suite, if there is one.
    pub obstacle: fn() -> Option<String>,
    /// Whether the suite needs the machine to itself: it measures, or keeps all processors busy.
    pub alone: bool,
    /// Whether it is too long for a usual run: it runs when it is named, and with `--extended`.
    pub extended: bool,
    /// Runs the cases.
    pub run: fn(&Kit, &mut Report) -> Result<()>,
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// All suites, in the order of a run: those that have the machine to themselves; then those that need no Go program, because these
/// are built meanwhile; then the others, the longest first. The extended ones come last.
pub const ALL: &[Suite] = &[
    Suite {
        name: "unit",
        about: "unit and property tests of every crate",
        limit: minutes(40),
        obstacle: || None,
        alone: true,
        extended: false,
        run: cargo_tests::unit,
    },
    Suite {
        name: "converge",
        about: "the reconciler on a fake QEMU, failing and crashing at its external calls in turn",
        limit: minutes(50),
        obstacle: || None,
        alone: true,
        extended: false,
        run: cargo_tests::converge,
    },
    Suite {
        name: "scale",
        about: "many VMs on simulated hosts: all bound, all converged, few writes, none for each host",
        limit: minutes(15),
        obstacle: needs_root,
        alone: true,
        extended: false,
        run: scale::run,
    },
    Suite {
        name: "crash",
        about: "kill -9 amid writes, over and over: what was acknowledged is there, watches miss and repeat nothing",
        limit: minutes(8),
        obstacle: needs_root,
        alone: true,
        extended: false,
        run: crash::run,
    },
    Suite {
        name: "load",
        about: "1,000 watchers, 10,000 objects, 100 writers, hostile clients: nothing lost, others answered, memory bounded",
        limit: minutes(10),
        obstacle: needs_root,
        alone: true,
        extended: false,
        run: load::run,
    },
    Suite {
        name: "kubectl",
        about: "kubectl against `berth up`: every verb, every admission error",
        limit: minutes(15),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: kubectl::run,
    },
    Suite {
        name: "attack",
        about: "a tenant, a guest and its QEMU against `berth up`: what each must not reach",
        limit: minutes(15),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: attack::embedded,
    },
    Suite {
        name: "terraform",
        about: "Terraform and a small guest: apply, change, drift, import, destroy, Terraform's rules, bad input",
        limit: minutes(35),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: terraform::run,
    },
    Suite {
        name: "guests",
        about: "the examples with a small guest: firmware, size, hardware, screen, access, probes, shared folders",
        limit: minutes(25),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: |kit, report| guest_examples::guests(kit, report, ControlPlane::Embedded),
    },
    Suite {
        name: "disks",
        about: "the examples of disks, pools, snapshots and encryption with a small guest",
        limit: minutes(25),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: |kit, report| guest_examples::disks(kit, report, ControlPlane::Embedded),
    },
    Suite {
        name: "addresses",
        about: "the examples of networks, names, limits and IPv6 on one host with a small guest",
        limit: minutes(25),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: |kit, report| guest_examples::addresses(kit, report, ControlPlane::Embedded),
    },
    Suite {
        name: "images",
        about: "images made of disks and snapshots, and uploaded ones, with a small guest",
        limit: minutes(15),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: |kit, report| guest_examples::images(kit, report, ControlPlane::Embedded),
    },
    Suite {
        name: "modules",
        about: "examples that no suite applies; the modules: their tests, then all of them on one site; configuration for libvirt's domains",
        limit: minutes(20),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: modules::run,
    },
    Suite {
        name: "debian",
        about: "Terraform and a real Debian 12: cloud-init, ssh, HTTP, guest agent",
        limit: minutes(30),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: debian::run,
    },
    Suite {
        name: "hosts",
        about: "three hosts and more: joining, a spread group, networks between hosts, tenants, drained and silent hosts",
        limit: minutes(25),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: hosts::embedded,
    },
    Suite {
        name: "networks",
        about: "guests on bridges of two hosts: static addresses and those of another DHCP server, filters, faults; a network encrypted between them, and one without IPv4",
        limit: minutes(15),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: networks::embedded,
    },
    Suite {
        name: "rbd",
        about: "disks in a Ceph cluster: a guest with two of them, growth, no monitor, a lost host whose QEMU runs on, and a TPM of that host, an encrypted disk",
        limit: minutes(25),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: |kit, report| rbd::run(kit, report, ControlPlane::Embedded),
    },
    Suite {
        name: "faults",
        about: "a host with a full disk, QEMUs that die or stand still, firewalls of other programs, DHCP servers that die: refusals, running guests, recovery",
        limit: minutes(35),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: faults::run,
    },
    Suite {
        name: "demo",
        about: "`cargo demo`, interrupted at several points: it ends at once and leaves nothing",
        limit: minutes(10),
        obstacle: needs_root,
        alone: false,
        extended: false,
        run: demo::run,
    },
    Suite {
        name: "differential",
        about: "several hundred requests to berth's control plane and to a real kube-apiserver: equal answers",
        limit: minutes(15),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: false,
        run: differential::run,
    },
    Suite {
        name: "kubernetes",
        about: "the terraform suite's cases on a real kube-apiserver and etcd",
        limit: minutes(50),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: false,
        run: kubernetes::run,
    },
    Suite {
        name: "graduate",
        about: "a site of two hosts moves from `berth up` to a real kube-apiserver and back, its guests running on",
        limit: minutes(15),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: false,
        run: graduate::run,
    },
    Suite {
        name: "backup",
        about: "backups of a guest's disk in a folder and in a real S3 server, disks made from them, single files, verification, and the total loss of a site",
        limit: minutes(15),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: false,
        run: |kit, report| backups::run(kit, report, ControlPlane::Embedded),
    },
    Suite {
        name: "converge-every-call",
        about: "the same as converge, with each fault at every call",
        limit: minutes(120),
        obstacle: || None,
        alone: true,
        extended: true,
        run: cargo_tests::converge_every_call,
    },
    Suite {
        name: "upgrade",
        about: "two builds of berth under running guests: this version, the next one, and back; hosts of either version",
        limit: minutes(25),
        obstacle: needs_root,
        alone: false,
        extended: true,
        run: upgrade::run,
    },
    Suite {
        name: "clocks",
        about: "hosts with clocks that jump by hours: no host counts as silent, no VM is started twice, credentials keep their time",
        limit: minutes(20),
        obstacle: needs_root,
        alone: false,
        extended: true,
        run: faults::clocks,
    },
    Suite {
        name: "endings",
        about: "the ways in which a guest ends by itself, also while no agent runs; state directories that are copied or moved below a guest",
        limit: minutes(20),
        obstacle: needs_root,
        alone: false,
        extended: true,
        run: faults::endings,
    },
    Suite {
        name: "changes",
        about: "each change of a VM and its class while that runs, is paused, suspended and off: what goes on, what waits, what a start brings",
        limit: minutes(30),
        obstacle: needs_root,
        alone: false,
        extended: true,
        run: changes::run,
    },
    Suite {
        name: "debian-power",
        about: "a real Debian 12 paused, suspended to a file and to its memory, restarted with other user data, off and on; memory that it gives back; frozen snapshots; an upgrade of berth while it writes",
        limit: minutes(25),
        obstacle: needs_root,
        alone: false,
        extended: true,
        run: debian::powers,
    },
    Suite {
        name: "rbd-snapshots",
        about: "a Ceph cluster: snapshots, backups and images, an OSD that stands still, full clones, snapshots with memory and over several pools, copies in other pools, an encrypted disk of an image",
        limit: minutes(20),
        obstacle: needs_root,
        alone: false,
        extended: true,
        run: rbd::snapshots_and_copies,
    },
    Suite {
        name: "gitops",
        about: "Helm 3 and 4 and Argo's engine: create, health, drift, upgrade, rollback, prune, uninstall",
        limit: minutes(30),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: gitops::helm_and_argo,
    },
    Suite {
        name: "flux",
        about: "the cases of gitops with Flux's controllers",
        limit: minutes(45),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: gitops::flux,
    },
    Suite {
        name: "kube-rs",
        about: "kube-rs's own integration tests, those that need no pods, against `berth up`",
        limit: minutes(30),
        obstacle: needs_root,
        alone: false,
        extended: true,
        run: kube_rs::run,
    },
    Suite {
        name: "terraform-new",
        about: "a newer Terraform: write-only user data, import by identity, queries, actions",
        limit: minutes(45),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: terraform_new::run,
    },
    Suite {
        name: "tofu",
        about: "the terraform suite's cases with OpenTofu",
        limit: minutes(60),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: tofu::run,
    },
    Suite {
        name: "hosts-kubernetes",
        about: "hosts, their placement and faults on a real kube-apiserver; what a host's credential opens there",
        limit: minutes(20),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: hosts::kubernetes,
    },
    Suite {
        name: "networks-kubernetes",
        about: "the cases of networks on a real kube-apiserver",
        limit: minutes(20),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: networks::kubernetes,
    },
    Suite {
        name: "attack-kubernetes",
        about: "the attacks of attack on a real kube-apiserver",
        limit: minutes(20),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: attack::kubernetes,
    },
    Suite {
        name: "guests-kubernetes",
        about: "the cases of guests on a real kube-apiserver",
        limit: minutes(40),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: |kit, report| guest_examples::guests(kit, report, ControlPlane::Kubernetes),
    },
    Suite {
        name: "disks-kubernetes",
        about: "the cases of disks on a real kube-apiserver",
        limit: minutes(40),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: |kit, report| guest_examples::disks(kit, report, ControlPlane::Kubernetes),
    },
    Suite {
        name: "addresses-kubernetes",
        about: "the cases of addresses on a real kube-apiserver",
        limit: minutes(35),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: |kit, report| guest_examples::addresses(kit, report, ControlPlane::Kubernetes),
    },
    Suite {
        name: "images-kubernetes",
        about: "the cases of images on a real kube-apiserver",
        limit: minutes(25),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: |kit, report| guest_examples::images(kit, report, ControlPlane::Kubernetes),
    },
    Suite {
        name: "rbd-kubernetes",
        about: "the cases of rbd on a real kube-apiserver",
        limit: minutes(35),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: |kit, report| rbd::run(kit, report, ControlPlane::Kubernetes),
    },
    Suite {
        name: "backup-kubernetes",
        about: "the cases of backup, without the loss of the site, on a real kube-apiserver",
        limit: minutes(25),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        alone: false,
        extended: true,
        run: |kit, report| backups::run(kit, report, ControlPlane::Kubernetes),
    },
];

fn needs_root() -> Option<String> {
    (!prerequisites::is_root()).then(|| "it needs root: it makes network namespaces and taps".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_suite_on_kubernetes_is_extended_and_repeats_another_suite() {
        let of_kubernetes: Vec<&Suite> =
            ALL.iter().filter(|suite| suite.name.ends_with("-kubernetes")).collect();
        assert!(!of_kubernetes.is_empty());
        for suite in of_kubernetes {
            let repeats = |other: &Suite| ControlPlane::Kubernetes.suite(other.name) == suite.name;
            assert!(suite.extended && ALL.iter().any(repeats), "{}", suite.name);
        }
    }
}
