//! Comparable providers for Kubernetes and libvirt, built from source at pinned versions.

use std::path::PathBuf;

use anyhow::Result;

use crate::cache::Cache;
use crate::tools::{Compiler, GoProgram};

/// The programs of the providers.
#[derive(Debug, Clone)]
pub struct Peers {
    /// hashicorp/kubernetes.
    pub kubernetes: PathBuf,
    /// dmacvicar/libvirt.
    pub libvirt: PathBuf,
}

impl Peers {
    /// Finds or builds the providers.
    pub fn get(cache: &Cache) -> Result<Self> {
        let build = |name: &'static str, package: &'static str| {
            let program =
                GoProgram { module: name, package, name, stamp: None, compiler: Compiler::Optimizing };
            program.build(cache)
        };
        Ok(Self {
            kubernetes: build(
                "terraform-provider-kubernetes",
                "github.com/hashicorp/terraform-provider-kubernetes",
            )?,
            libvirt: build("terraform-provider-libvirt", "github.com/dmacvicar/terraform-provider-libvirt")?,
        })
    }
}
