//! Options of the commands about images.

use std::path::PathBuf;

use berth_host::Compression;
use clap::Args;

/// Options of `berth unpack-image`.
#[derive(Debug, Args)]
pub struct UnpackImageOptions {
    pub input: PathBuf,
    /// Exists and is empty.
    pub output: PathBuf,
    /// The image is the only file below `disk/` of a tar archive.
    #[arg(long)]
    pub archive: bool,
    #[arg(long, value_parser = compression)]
    pub compression: Option<Compression>,
}

fn compression(text: &str) -> Result<Compression, String> {
    let all = [Compression::Gzip, Compression::Xz, Compression::Zstd, Compression::Bzip2];
    let found = all.into_iter().find(|compression| compression.name() == text);
    found.ok_or_else(|| "gzip, xz, zstd or bzip2 is needed".to_owned())
}
