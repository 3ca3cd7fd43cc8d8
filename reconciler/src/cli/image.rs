//! Options of the commands about images.

use std::path::PathBuf;

use berth_api::{ImageCompression, ImageFormat};
use berth_host::Compression;
use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;

use super::{Connection, DownloadOptions, StateDir, TimeSpan, time::time};

/// `berth image`
#[derive(Args, Debug)]
pub struct ImageOptions {
    /// The action.
    #[command(subcommand)]
    pub action: ImageAction,
}

/// Actions on images.
#[derive(Debug, Subcommand)]
pub enum ImageAction {
    /// Creates an Image from a file of this machine: uploads the file to a host, which verifies it. An upload that was interrupted
    /// continues where it ended, by the same command.
    Push(ImagePushOptions),
    /// Downloads the file of an Image that was made from a disk or a snapshot, was uploaded, or is a copy of another Image, and verifies
    /// it. A download that was interrupted continues where it ended, by the same command.
    Download(DownloadOptions),
}

/// `berth image push`
#[derive(Args, Debug)]
pub struct ImagePushOptions {
    /// The file, of at most 256 GiB.
    pub file: PathBuf,
    /// The Image's name.
    #[arg(long)]
    pub name: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// The format of the file: qcow2, raw, iso, vmdk, vdi, vhdx, vhd or ova.
    // The log has a global option of this name.
    #[arg(id = "image_format", long = "format", default_value = "qcow2", value_parser = word::<ImageFormat>)]
    pub format: ImageFormat,
    /// The compression of the file: gzip, xz, zstd or bzip2. Default: none.
    #[arg(long, value_parser = word::<ImageCompression>)]
    pub compression: Option<ImageCompression>,
    /// The number of the disk in an ova, from 1. Default: the only one.
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..=64))]
    pub ova_disk: Option<i64>,
    /// The Image's name for people. This and the next three have no effect on an Image that exists.
    #[arg(long)]
    pub display_name: Option<String>,
    /// The Image's description.
    #[arg(long)]
    pub description: Option<String>,
    /// The Image's version.
    // A command has an option of this name.
    #[arg(id = "image_version", long = "image-version", value_name = "VERSION")]
    pub image_version: Option<String>,
    /// The person or the team that answers for the Image.
    #[arg(long)]
    pub owner: Option<String>,
    /// How long to wait for a host that takes the file, and again until it is verified. The upload itself may take longer.
    #[arg(long, value_parser = time, default_value = "30m")]
    pub timeout: TimeSpan,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// A word of an enumeration of the API.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error: serde_json::Error| error.to_string())
}

/// Options of `berth unpack-image`.
#[derive(Debug, Args)]
pub struct UnpackImageOptions {
    pub input: PathBuf,
    /// Exists and is empty.
    pub output: PathBuf,
    /// The image is the only file below `disk/` of a tar archive.
    #[arg(long)]
    pub archive: bool,
    /// The image is the disk with this number in an OVA; 0 is the only one.
    #[arg(long, conflicts_with = "archive")]
    pub ova: Option<u8>,
    #[arg(long, value_parser = compression)]
    pub compression: Option<Compression>,
}

fn compression(text: &str) -> Result<Compression, String> {
    let all = [Compression::Gzip, Compression::Xz, Compression::Zstd, Compression::Bzip2];
    let found = all.into_iter().find(|compression| compression.name() == text);
    found.ok_or_else(|| "gzip, xz, zstd or bzip2 is needed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_a_word_of_the_api() {
        assert_eq!(word::<ImageFormat>("vmdk"), Ok(ImageFormat::Vmdk));
        assert_eq!(word::<ImageCompression>("xz"), Ok(ImageCompression::Xz));
        let error = word::<ImageFormat>("qcow3").expect_err("none");
        assert!(error.contains("qcow3") && error.contains("qcow2"), "{error}");
    }
}
