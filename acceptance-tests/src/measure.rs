//! The numbers of `docs/SPECIFICATION.md`, measured here and now, each beside its anchor from the same run.
//!
//! ```text
//! figures (what is promised) ─▶ one file a number (how it is measured) ─▶ readings ─▶ table, JSON, the document
//! ```

pub mod api;
pub mod bare;
pub mod figure;
pub mod figures;
pub mod fleet;
pub mod handshake;
pub mod host;
pub mod hotswap;
pub mod idle;
pub mod libvirt;
pub mod machine;
pub mod many;
pub mod memory;
pub mod peers;
pub mod planes;
pub mod proc;
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

/// Something that is measured as one.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    /// Its name in the document; several where they are measured together.
    pub names: &'static [&'static str],
    /// What it is.
    pub about: &'static str,
    /// Measures all its figures.
    pub measure: fn(&Bench) -> Result<Vec<Reading>>,
}

/// All that can be measured, quickest first.
pub const ALL: &[Number] = &[
    Number { names: &["N13"], about: "size of the binaries", measure: sizes::measure },
    Number { names: &["N5"], about: "provider start to handshake", measure: handshake::measure },
    Number { names: &["N4"], about: "everything on one machine, idle", measure: idle::measure },
    Number { names: &["N6"], about: "a thousand VMs in Terraform", measure: scale::measure },
    Number { names: &["N11", "N12"], about: "disks on a running VM", measure: hotswap::measure },
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
];

impl Number {
    /// Its names as one word.
    pub fn name(&self) -> String {
        self.names.join("+")
    }
}

/// What measurements share.
#[derive(Debug)]
pub struct Bench {
    /// Our programs.
    pub binaries: Binaries,
    cache: Cache,
    peers: OnceCell<Peers>,
}

impl Bench {
    /// With these programs of ours.
    pub fn new(binaries: Binaries) -> Result<Self> {
        Ok(Self { binaries, cache: Cache::open()?, peers: OnceCell::new() })
    }

    /// The providers ours is held against, built when first asked for.
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

    /// Where a number's log goes.
    pub fn log(&self, number: &str) -> PathBuf {
        workspace::artifacts().join("measure").join(format!("{number}.log"))
    }
}
