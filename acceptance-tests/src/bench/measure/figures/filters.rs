//! N15.

use super::super::figure::Figure;
use super::super::figure::Unit::{Milliseconds, Ratio};

/// The longest time, in milliseconds.
const LIMIT: f64 = 200.0;

/// Each kind of change with its figures.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    /// Members on all hosts, and all VMs: the target.
    pub p95: Figure,
    /// Half of those changes.
    pub p50: Figure,
    /// The longest of them.
    pub longest: Figure,
    /// Members on fifty hosts, and on two.
    pub fewer: [Figure; 2],
    /// Members on all hosts, a tenth of the VMs.
    pub few_vms: Figure,
    /// Of the medians: all VMs ÷ a tenth.
    pub growth: Figure,
}

/// A rule of a group is replaced.
pub const RULE: Change = Change {
    p95: Figure::at_most(
        "N15.rule.p95",
        "rule written → in force on the last of 500 hosts with members, 10,000 VMs, P95",
        Milliseconds,
        LIMIT,
    ),
    p50: Figure::anchor("N15.rule.p50", "the same, P50", Milliseconds),
    longest: Figure::anchor("N15.rule.longest", "the same, the longest", Milliseconds),
    fewer: [
        Figure::at_most("N15.rule.50", "the same, 50 hosts with members, P95", Milliseconds, LIMIT),
        Figure::at_most("N15.rule.2", "the same, 2 hosts with members, P95", Milliseconds, LIMIT),
    ],
    few_vms: Figure::anchor("N15.rule.few", "the same, 500 hosts with members, 1,000 VMs, P95", Milliseconds),
    growth: Figure::at_most("N15.rule.growth", "the same, P50: 10,000 VMs ÷ 1,000", Ratio, 1.5).enforced(),
};

/// A VM joins or leaves a group that a rule names.
pub const MEMBER: Change = Change {
    p95: Figure::at_most(
        "N15.member.p95",
        "VM's groups written → its address in force on the last of 500 hosts with members, 10,000 VMs, P95",
        Milliseconds,
        LIMIT,
    ),
    p50: Figure::anchor("N15.member.p50", "the same, P50", Milliseconds),
    longest: Figure::anchor("N15.member.longest", "the same, the longest", Milliseconds),
    fewer: [
        Figure::at_most("N15.member.50", "the same, 50 hosts with members, P95", Milliseconds, LIMIT),
        Figure::at_most("N15.member.2", "the same, 2 hosts with members, P95", Milliseconds, LIMIT),
    ],
    few_vms: Figure::anchor(
        "N15.member.few",
        "the same, 500 hosts with members, 1,000 VMs, P95",
        Milliseconds,
    ),
    growth: Figure::at_most("N15.member.growth", "the same, P50: 10,000 VMs ÷ 1,000", Ratio, 1.5).enforced(),
};

/// The kernel's part for a rule.
pub const KERNEL_RULE: Figure = Figure::anchor(
    "N15.nft.rule",
    "one host, 1,000 interfaces, 100 rules: another rule → in the kernel",
    Milliseconds,
);
/// The kernel's part for a member.
pub const KERNEL_MEMBER: Figure =
    Figure::anchor("N15.nft.member", "the same: another member → in the kernel", Milliseconds);

const ALL: &[Figure] = &[
    RULE.p95,
    RULE.p50,
    RULE.longest,
    RULE.fewer[0],
    RULE.fewer[1],
    RULE.few_vms,
    RULE.growth,
    MEMBER.p95,
    MEMBER.p50,
    MEMBER.longest,
    MEMBER.fewer[0],
    MEMBER.fewer[1],
    MEMBER.few_vms,
    MEMBER.growth,
    KERNEL_RULE,
    KERNEL_MEMBER,
];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Figure> {
    ALL.iter()
}
