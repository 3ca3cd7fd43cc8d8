//! The capacity of its host that a VM takes.

use crate::HugePages;

/// Bytes of memory in huge pages, by the size of the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HugeMemory {
    in_2mi: u64,
    in_1gi: u64,
}

impl HugeMemory {
    /// This many bytes in pages of this size; nothing in ordinary pages.
    #[must_use]
    pub fn of(pages: HugePages, bytes: u64) -> Self {
        match pages {
            HugePages::None => Self::default(),
            HugePages::TwoMebibytes => Self { in_2mi: bytes, in_1gi: 0 },
            HugePages::OneGibibyte => Self { in_2mi: 0, in_1gi: bytes },
        }
    }

    /// The bytes in pages of this size.
    #[must_use]
    pub fn bytes(&self, pages: HugePages) -> u64 {
        match pages {
            HugePages::None => 0,
            HugePages::TwoMebibytes => self.in_2mi,
            HugePages::OneGibibyte => self.in_1gi,
        }
    }

    /// The bytes in pages of all sizes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.in_2mi.saturating_add(self.in_1gi)
    }

    /// The size of its pages of which there are more than `available`, if there is one.
    #[must_use]
    pub fn exceeds(&self, available: &Self) -> Option<HugePages> {
        HugePages::SIZES.into_iter().find(|size| self.bytes(*size) > available.bytes(*size))
    }

    /// Both.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// The rest.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self { in_2mi: of(self.in_2mi, other.in_2mi), in_1gi: of(self.in_1gi, other.in_1gi) }
    }
}

/// The capacity of its host that a VM takes, or that a host offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeTaken {
    /// Virtual CPUs on the CPUs of the host that VMs share.
    pub cpus: i64,
    /// CPUs of the host for single VMs.
    pub dedicated_cpus: i64,
    /// Bytes of guest memory in ordinary pages that are kept for it.
    pub memory: u64,
    /// All bytes of guest memory in ordinary pages, of which more may be in use than are kept. Of no account in what a host offers.
    pub whole_memory: u64,
    /// Bytes of guest memory in huge pages.
    pub huge_memory: HugeMemory,
}

impl SizeTaken {
    /// That of a VM with these CPUs and bytes of guest memory, which consists of such pages.
    #[must_use]
    pub fn of(cpus: i64, memory: u64, pages: HugePages) -> Self {
        let ordinary = if pages == HugePages::None { memory } else { 0 };
        let huge_memory = HugeMemory::of(pages, memory);
        Self { cpus, dedicated_cpus: 0, memory: ordinary, whole_memory: ordinary, huge_memory }
    }

    /// The same with only this many bytes of its ordinary memory kept for it; none: all of them.
    #[must_use]
    pub fn with_reservation(self, bytes: Option<u64>) -> Self {
        Self { memory: bytes.map_or(self.memory, |bytes| self.memory.min(bytes)), ..self }
    }

    /// The same with a CPU of the host for each of the virtual CPUs, and `isolated` for one more.
    #[must_use]
    pub fn with_dedicated_cpus(self, isolated: bool) -> Self {
        Self { cpus: 0, dedicated_cpus: self.cpus.saturating_add(i64::from(isolated)), ..self }
    }

    fn fits_into(&self, offered: &Self) -> bool {
        let enough = self.cpus <= offered.cpus && self.memory.max(self.whole_memory) <= offered.memory;
        enough
            && self.dedicated_cpus <= offered.dedicated_cpus
            && self.huge_memory.exceeds(&offered.huge_memory).is_none()
    }

    fn most(self, other: Self) -> Self {
        Self {
            cpus: self.cpus.max(other.cpus),
            dedicated_cpus: self.dedicated_cpus.max(other.dedicated_cpus),
            memory: self.memory.max(other.memory),
            whole_memory: self.whole_memory.max(other.whole_memory),
            huge_memory: self.huge_memory.each(other.huge_memory, u64::max),
        }
    }
}

/// The capacity of its host that a VM takes: that of the size that it `has` or that of the one it has `declared`, whichever
/// is more, because it may be started with what is declared at any time. Of a size that was made larger than
/// all that its host has `offered` nothing counts: it cannot start with that.
pub fn size_taken(
    declared: Option<SizeTaken>,
    has: Option<SizeTaken>,
    offered: Option<SizeTaken>,
) -> Option<SizeTaken> {
    match (declared, has) {
        (Some(declared), has) if offered.is_some_and(|offered| !declared.fits_into(&offered)) => {
            Some(has.unwrap_or_default())
        }
        (Some(declared), Some(has)) => Some(declared.most(has)),
        (declared, has) => declared.or(has),
    }
}
