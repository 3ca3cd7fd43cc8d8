//! The numbers of `docs/SPECIFICATION.md`, measured here and now, each beside its anchor from the same run.
//!
//! ```text
//! figures (what is promised) ─▶ one file a number (how it is measured) ─▶ readings ─▶ table, JSON, the document
//! ```

pub mod api;
pub mod figure;
pub mod figures;
pub mod handshake;
pub mod idle;
pub mod machine;
pub mod peers;
pub mod proc;
pub mod samples;
pub mod site;
pub mod sizes;
pub mod specification;

use std::cell::OnceCell;
use std::path::PathBuf;

use anyhow::Result;

use crate::cache::Cache;
use crate::workspace::{self, Binaries};
use figure::Reading;
use peers::Peers;

/// Something that is measured as one.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    /// Its name in the document.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Measures all its figures.
    pub measure: fn(&Bench) -> Result<Vec<Reading>>,
}

/// All that can be measured, quickest first.
pub const ALL: &[Number] = &[
    Number { name: "N13", about: "size of the binaries", measure: sizes::measure },
    Number { name: "N5", about: "provider start to handshake", measure: handshake::measure },
    Number { name: "N4", about: "everything on one machine, idle", measure: idle::measure },
];

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

    /// Where a number's log goes.
    pub fn log(&self, number: &str) -> PathBuf {
        workspace::artifacts().join("measure").join(format!("{number}.log"))
    }
}
