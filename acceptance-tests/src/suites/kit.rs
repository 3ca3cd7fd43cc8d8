//! The programs, guests and tools that suites share.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::cache::Cache;
use crate::control_plane::Programs;
use crate::guests::debian::DebianGuests;
use crate::guests::{self, GuestImage};
use crate::next_version::{self, NextVersion};
use crate::platform::Parts;
use crate::tools::{GitopsClients, TerraformCli};
use crate::workspace::{self, Binaries, Source};
use crate::{ceph, prerequisites, tools};

/// The resources that suites share, created on first use.
#[derive(Debug)]
pub struct Kit {
    cache: Cache,
    source: Source,
    binaries: OnceCell<Binaries>,
    small: OnceCell<GuestImage>,
    signed: OnceCell<GuestImage>,
    aarch64: OnceCell<GuestImage>,
    installer: OnceCell<GuestImage>,
    debian: OnceCell<DebianGuests>,
}

/// QEMU and firmware for guests of ARM, which most suites do not need.
const EMULATION: &[(&str, &str)] =
    &[("qemu-system-aarch64", "qemu-system-arm"), ("/usr/share/AAVMF/AAVMF_CODE.fd", "qemu-efi-aarch64")];

fn once<T: Clone>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<T> {
    if let Some(value) = cell.get() {
        return Ok(value.clone());
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value).clone())
}

impl Kit {
    /// Creates nothing yet.
    pub fn new(source: Source) -> Result<Self> {
        Ok(Self {
            cache: Cache::open()?,
            source,
            binaries: OnceCell::new(),
            small: OnceCell::new(),
            signed: OnceCell::new(),
            aarch64: OnceCell::new(),
            installer: OnceCell::new(),
            debian: OnceCell::new(),
        })
    }

    /// The programs, and the folder for the suite's logs.
    pub fn parts(&self, suite: &str) -> Result<Parts> {
        self.parts_with(suite, tools::terraform)
    }

    /// Like [`Self::parts`], with the Terraform that `terraform` finds or builds.
    pub fn parts_with(
        &self,
        suite: &str,
        terraform: impl FnOnce(&Cache) -> Result<TerraformCli>,
    ) -> Result<Parts> {
        let binaries = once(&self.binaries, || {
            prerequisites::ensure_installed()?;
            Binaries::get(&self.source)
        })?;
        let logs = workspace::artifacts().join(suite);
        if logs.exists() {
            std::fs::remove_dir_all(&logs)?;
        }
        Ok(Parts {
            binaries,
            kubectl: tools::kubectl(&self.cache)?,
            terraform: terraform(&self.cache)?,
            logs,
        })
    }

    /// Whether our programs are debug builds.
    pub fn is_debug(&self) -> bool {
        self.source == Source::Debug
    }

    /// Only our programs.
    pub fn binaries(&self) -> Result<Binaries> {
        Binaries::get(&self.source)
    }

    /// berth in a simulated next version.
    pub fn next_version(&self) -> Result<NextVersion> {
        let binaries = once(&self.binaries, || Binaries::get(&self.source))?;
        next_version::get(&self.cache, &self.source, &binaries)
    }

    /// kubectl.
    pub fn kubectl(&self) -> Result<PathBuf> {
        tools::kubectl(&self.cache)
    }

    /// The small guest.
    pub fn small_guest(&self) -> Result<GuestImage> {
        once(&self.small, || {
            prerequisites::ensure_installed()?;
            guests::small::image(&self.cache)
        })
    }

    /// The small guest with signed boot loaders.
    pub fn signed_guest(&self) -> Result<GuestImage> {
        once(&self.signed, || {
            prerequisites::ensure_installed()?;
            guests::small::signed_image(&self.cache)
        })
    }

    /// The small guest for ARM. Also installs what emulates it.
    pub fn aarch64_guest(&self) -> Result<GuestImage> {
        once(&self.aarch64, || {
            prerequisites::ensure_installed()?;
            prerequisites::install(EMULATION)?;
            guests::small::aarch64_image(&self.cache)
        })
    }

    /// The ISO image that installs the small guest.
    pub fn installer(&self) -> Result<GuestImage> {
        once(&self.installer, || {
            prerequisites::ensure_installed()?;
            guests::small::installer(&self.cache)
        })
    }

    /// The Debian guest, with and without the guest agent.
    pub fn debian_guests(&self) -> Result<DebianGuests> {
        once(&self.debian, || {
            prerequisites::ensure_installed()?;
            guests::debian::images(&self.cache)
        })
    }

    /// Helm and Argo's engine.
    pub fn helm_and_argo(&self) -> Result<GitopsClients> {
        tools::helm_and_argo(&self.cache)
    }

    /// Flux's controllers.
    pub fn flux(&self) -> Result<GitopsClients> {
        tools::flux(&self.cache)
    }

    /// OpenTofu.
    pub fn opentofu(&self) -> Result<TerraformCli> {
        tools::opentofu(&self.cache)
    }

    /// The newer Terraform.
    pub fn newer_terraform(&self) -> Result<TerraformCli> {
        tools::newer_terraform(&self.cache)
    }

    /// The programs with kube-rs's tests, by crate.
    pub fn kube_rs(&self) -> Result<BTreeMap<&'static str, PathBuf>> {
        crate::kube_rs::programs(&self.cache)
    }

    /// The library that gives a program a clock of its own.
    pub fn settable_clock(&self) -> Result<PathBuf> {
        tools::faketime(&self.cache)
    }

    /// A server with a Vault's API, and its client.
    pub fn openbao(&self) -> Result<PathBuf> {
        tools::openbao(&self.cache)
    }

    /// An S3 server.
    pub fn s3_server(&self) -> Result<PathBuf> {
        tools::s3_server(&self.cache)
    }

    /// The servers of a Ceph cluster, and what hosts need for it.
    pub fn ceph(&self) -> Result<PathBuf> {
        prerequisites::ensure_installed()?;
        ceph::servers(&self.cache)
    }

    /// etcd and a real kube-apiserver.
    pub fn kubernetes(&self) -> Result<Programs> {
        prerequisites::ensure_installed()?;
        Programs::get(&self.cache)
    }
}
