//! Measurements of the numbers in `docs/SPECIFICATION.md`, each beside its anchor from the same run.
//!
//! ```text
//! figures (targets) ─▶ one file per number (measurement) ─▶ readings ─▶ table, JSON, the document
//! ```

pub mod bare;
pub mod copies;
pub mod figure;
pub mod figures;
pub mod filters;
pub mod fleet;
pub mod guest;
pub mod handshake;
pub mod host;
pub mod hotswap;
pub mod idle;
pub mod libvirt;
pub mod lost_host;
pub mod machine;
pub mod many;
pub mod memory;
pub mod pairs;
pub mod peers;
pub mod planes;
pub mod samples;
pub mod scale;
pub mod site;
pub mod sizes;
pub mod specification;
pub mod starts;

use std::cell::OnceCell;
use std::path::PathBuf;

use anyhow::Result;

use crate::cache::Cache;
use crate::guests::{self, GuestImage};
use crate::tools::{self, TerraformCli};
use crate::workspace::{self, Binaries};
use figure::Reading;
use peers::Peers;

/// A group of figures that are measured together.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    /// The name in the document; several for numbers that are measured together.
    pub names: &'static [&'static str],
    /// The description.
    pub about: &'static str,
    /// Measures all figures of the number.
    pub measure: fn(&Bench) -> Result<Vec<Reading>>,
}

/// All measurements, quickest first.
pub const ALL: &[Number] = &[
    Number { names: &["N13"], about: "size of the binaries", measure: sizes::measure },
    Number { names: &["N5"], about: "provider start to handshake", measure: handshake::measure },
    Number { names: &["N4"], about: "everything on one machine, idle", measure: idle::measure },
    Number { names: &["N6"], about: "a thousand VMs in Terraform", measure: scale::measure },
    Number { names: &["N11", "N12"], about: "disks on a running VM", measure: hotswap::measure },
    Number {
        names: &["N10"],
        about: "a host that is lost, and its VM on another one",
        measure: lost_host::measure,
    },
    Number {
        names: &["N14", "N16", "N19"],
        about: "network, disks and start of a guest beside a bare QEMU",
        measure: guest::measure,
    },
    Number {
        names: &["N14"],
        about: "network between guests, on one host and through VXLAN, beside bare QEMUs",
        measure: pairs::measure,
    },
    Number {
        names: &["N17", "N20"],
        about: "copies, snapshots and incremental backups of disks, and the start of a console",
        measure: copies::measure,
    },
    Number { names: &["N2", "N3"], about: "memory of a VM and of a host's agent", measure: memory::measure },
    Number { names: &["N1"], about: "VM written to running, a hundred of them", measure: starts::measure },
    Number {
        names: &["N7"],
        about: "the control plane beside kube-apiserver with etcd",
        measure: planes::measure,
    },
    Number {
        names: &["N8", "N9"],
        about: "ten thousand VMs, and the cost of growth",
        measure: many::measure,
    },
    Number {
        names: &["N15"],
        about: "a change of a security group, in force on every host with a member",
        measure: filters::measure,
    },
];

impl Number {
    /// The names as one word.
    pub fn name(&self) -> String {
        self.names.join("+")
    }
}

/// The resources that measurements share.
#[derive(Debug)]
pub struct Bench {
    /// Our programs.
    pub binaries: Binaries,
    /// A hashicorp/kubernetes with `kubernetes_manifest`.
    pub kubernetes_2: Option<PathBuf>,
    cache: Cache,
    peers: OnceCell<Peers>,
}

impl Bench {
    /// A bench with these programs.
    pub fn new(binaries: Binaries, kubernetes_2: Option<PathBuf>) -> Result<Self> {
        Ok(Self { binaries, kubernetes_2, cache: Cache::open()?, peers: OnceCell::new() })
    }

    /// The providers for comparison, built on first use.
    pub fn peers(&self) -> Result<Peers> {
        if let Some(peers) = self.peers.get() {
            return Ok(peers.clone());
        }
        let peers = Peers::get(&self.cache)?;
        Ok(self.peers.get_or_init(|| peers).clone())
    }

    /// The small guest.
    pub fn small_guest(&self) -> Result<GuestImage> {
        guests::small::image(&self.cache)
    }

    /// Terraform.
    pub fn terraform(&self) -> Result<TerraformCli> {
        tools::terraform(&self.cache)
    }

    /// The path of a number's log.
    pub fn log(&self, number: &str) -> PathBuf {
        workspace::artifacts().join("measure").join(format!("{number}.log"))
    }
}
