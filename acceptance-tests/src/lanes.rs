//! The lanes: groups of test cases that need the same things and can be run alone.

pub mod cargo_tests;
pub mod debian;
pub mod differential;
pub mod graduate;
pub mod hosts;
pub mod inputs;
pub mod kube_rs;
pub mod kubectl;
pub mod kubernetes;
pub mod load;
pub mod manifests;
pub mod misfortunes;
pub mod modern;
pub mod rules;
pub mod scale;
pub mod storms;
pub mod story;
pub mod terraform;
pub mod tofu;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Cache;
use crate::control_plane::Programs;
use crate::guests::{self, GuestImage};
use crate::platform::Parts;
use crate::report::Report;
use crate::tools::TerraformCli;
use crate::workspace::{self, Binaries, Source};
use crate::{prerequisites, tools};

/// A group of test cases.
#[derive(Debug, Clone, Copy)]
pub struct Lane {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// It ends with a failure when it takes longer.
    pub limit: Duration,
    /// Why this machine cannot run it, if it cannot.
    pub obstacle: fn() -> Option<String>,
    /// Runs its cases.
    pub run: fn(&Kit, &mut Report) -> Result<()>,
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// All lanes, cheapest first.
pub const ALL: &[Lane] = &[
    Lane {
        name: "unit",
        about: "unit and property tests of every crate",
        limit: minutes(40),
        obstacle: || None,
        run: cargo_tests::unit,
    },
    Lane {
        name: "converge",
        about: "the reconciler on a fake QEMU, failing and crashing at every external call in turn",
        limit: minutes(50),
        obstacle: || None,
        run: cargo_tests::converge,
    },
    Lane {
        name: "kubectl",
        about: "kubectl against `berth up`: every verb, every admission error",
        limit: minutes(15),
        obstacle: needs_root,
        run: kubectl::run,
    },
    Lane {
        name: "kube-rs",
        about: "kube-rs's own integration tests, those that need no pods, against `berth up`",
        limit: minutes(30),
        obstacle: needs_root,
        run: kube_rs::run,
    },
    Lane {
        name: "differential",
        about: "several hundred requests to berth's control plane and to a real kube-apiserver: equal answers",
        limit: minutes(15),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        run: differential::run,
    },
    Lane {
        name: "scale",
        about: "many VMs on simulated hosts: all bound, all converged, few writes, none for each host",
        limit: minutes(15),
        obstacle: needs_root,
        run: scale::run,
    },
    Lane {
        name: "storms",
        about: "kill -9 amid writes, over and over: what was acknowledged is there, watches miss and repeat nothing",
        limit: minutes(8),
        obstacle: needs_root,
        run: storms::run,
    },
    Lane {
        name: "load",
        about: "1,000 watchers, 10,000 objects, 100 writers, hostile clients: nothing lost, others answered, memory bounded",
        limit: minutes(10),
        obstacle: needs_root,
        run: load::run,
    },
    Lane {
        name: "terraform",
        about: "Terraform and a small guest: apply, change, drift, import, destroy, Terraform's rules, bad input",
        limit: minutes(35),
        obstacle: needs_root,
        run: terraform::run,
    },
    Lane {
        name: "tofu",
        about: "the same with OpenTofu",
        limit: minutes(60),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        run: tofu::run,
    },
    Lane {
        name: "terraform-new",
        about: "a newer Terraform: write-only user data, import by identity",
        limit: minutes(45),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        run: modern::run,
    },
    Lane {
        name: "debian",
        about: "Terraform and a real Debian 12: cloud-init, ssh, HTTP, guest agent",
        limit: minutes(25),
        obstacle: needs_root,
        run: debian::run,
    },
    Lane {
        name: "kubernetes",
        about: "the terraform lane's story on a real kube-apiserver and etcd",
        limit: minutes(50),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        run: kubernetes::run,
    },
    Lane {
        name: "hosts",
        about: "three hosts and more: joining, a spread group, networks between hosts, tenants, drained and silent hosts",
        limit: minutes(25),
        obstacle: needs_root,
        run: hosts::embedded,
    },
    Lane {
        name: "misfortunes",
        about: "a host whose disk is full, hosts whose clocks jump: what is refused, what goes on, how it heals",
        limit: minutes(20),
        obstacle: needs_root,
        run: misfortunes::run,
    },
    Lane {
        name: "hosts-kubernetes",
        about: "hosts, their placement and faults on a real kube-apiserver; what a host's credential opens there",
        limit: minutes(20),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        run: hosts::kubernetes,
    },
    Lane {
        name: "graduate",
        about: "a site of two hosts moves from `berth up` to a real kube-apiserver and back, its guests running on",
        limit: minutes(15),
        obstacle: || needs_root().or_else(tools::cannot_build_go),
        run: graduate::run,
    },
];

fn needs_root() -> Option<String> {
    (!prerequisites::is_root()).then(|| "it needs root: it makes network namespaces and taps".to_owned())
}

/// What lanes share, made when first asked for.
#[derive(Debug)]
pub struct Kit {
    cache: Cache,
    source: Source,
    binaries: OnceCell<Binaries>,
    small: OnceCell<GuestImage>,
    debian: OnceCell<GuestImage>,
}

fn once<T: Clone>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<T> {
    if let Some(value) = cell.get() {
        return Ok(value.clone());
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value).clone())
}

impl Kit {
    /// Nothing is made yet.
    pub fn new(source: Source) -> Result<Self> {
        Ok(Self {
            cache: Cache::open()?,
            source,
            binaries: OnceCell::new(),
            small: OnceCell::new(),
            debian: OnceCell::new(),
        })
    }

    /// Programs and where a lane's logs go.
    pub fn parts(&self, lane: &str) -> Result<Parts> {
        self.parts_with(lane, tools::terraform)
    }

    /// As [`Self::parts`], with the Terraform that `terraform` finds or builds.
    pub fn parts_with(
        &self,
        lane: &str,
        terraform: impl FnOnce(&Cache) -> Result<TerraformCli>,
    ) -> Result<Parts> {
        let binaries = once(&self.binaries, || {
            prerequisites::ensure_installed()?;
            Binaries::get(&self.source)
        })?;
        let logs = workspace::artifacts().join(lane);
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

    /// Our programs alone.
    pub fn binaries(&self) -> Result<Binaries> {
        Binaries::get(&self.source)
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

    /// The Debian guest.
    pub fn debian_guest(&self) -> Result<GuestImage> {
        once(&self.debian, || {
            prerequisites::ensure_installed()?;
            guests::debian::image(&self.cache)
        })
    }

    /// OpenTofu and the newer Terraform.
    pub fn other_terraforms(&self) -> Result<[TerraformCli; 2]> {
        Ok([tools::opentofu(&self.cache)?, tools::newer_terraform(&self.cache)?])
    }

    /// The programs that hold kube-rs's tests, by crate.
    pub fn kube_rs(&self) -> Result<BTreeMap<&'static str, PathBuf>> {
        crate::kube_rs::programs(&self.cache)
    }

    /// The library that gives a program a clock of its own.
    pub fn settable_clock(&self) -> Result<PathBuf> {
        tools::faketime(&self.cache)
    }

    /// etcd and kube-apiserver.
    pub fn kubernetes(&self) -> Result<Programs> {
        prerequisites::ensure_installed()?;
        Programs::get(&self.cache)
    }
}
