//! N13: the sizes of the files that are copied to hosts and into Terraform's plugin cache.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::sizes::{BERTH, KUBERNETES, LIBVIRT, PROVIDER};

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let peers = bench.peers()?;
    let files: [(Figure, &Path); 4] = [
        (BERTH, &bench.binaries.berth),
        (PROVIDER, &bench.binaries.provider),
        (KUBERNETES, &peers.kubernetes),
        (LIBVIRT, &peers.libvirt),
    ];
    files.iter().map(|(figure, path)| Ok(Reading::once(*figure, megabytes(path)?))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "no program has 2^52 bytes")]
fn megabytes(path: &Path) -> Result<f64> {
    let metadata = fs::metadata(path).with_context(|| format!("the size of {}", path.display()))?;
    Ok(metadata.len() as f64 / 1e6)
}
