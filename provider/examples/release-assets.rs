//! Writes the files of a release into a directory, as a filesystem mirror and the registry take them:
//! `cargo run --example release-assets -- DIRECTORY [BINARY]`.
//!
//! ```text
//! terraform-provider-berth_0.1.0_linux_amd64.zip    the binary, terraform-provider-berth_v0.1.0
//! terraform-provider-berth_0.1.0_manifest.json      the protocol versions
//! terraform-provider-berth_0.1.0_SHA256SUMS         of both; the registry also requires its signature
//! ```

use std::{
    env, fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use flate2::{Compression, Crc, write::DeflateEncoder};
use sha2::{Digest as _, Sha256};

const NAME: &str = "terraform-provider-berth";
/// The date of 1980-01-01, the first that the format has: equal binaries give equal archives.
const DATE: u16 = 1 << 5 | 1;
const DEFLATE: u16 = 8;
/// A regular file that everybody may run, in the upper half of a zip entry's external attributes.
const MODE: u32 = 0o100_755 << 16;

/// The names of the written files.
pub(crate) struct Assets {
    pub(crate) archive: PathBuf,
    pub(crate) sums: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (directory, binary) = match arguments.as_slice() {
        [directory] => (directory, "target/release/terraform-provider-berth"),
        [directory, binary] => (directory, binary.as_str()),
        _ => {
            eprintln!("cargo run --example release-assets -- DIRECTORY [BINARY]");
            return ExitCode::FAILURE;
        }
    };
    match write(directory.as_ref(), binary.as_ref(), Compression::best()) {
        Ok(Assets { archive, sums }) => {
            eprintln!(
                "{}\nSign the checksums for the registry: gpg --detach-sign {}",
                archive.display(),
                sums.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("writing the release of {binary} into {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the archive of a binary, the manifest and their checksums.
pub(crate) fn write(directory: &Path, binary: &Path, compression: Compression) -> io::Result<Assets> {
    let version = env!("CARGO_PKG_VERSION");
    let architecture = match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let archive = zip(&format!("{NAME}_v{version}"), &fs::read(binary)?, compression)?;
    let manifest = r#"{"version":1,"metadata":{"protocol_versions":["6.0"]}}"#;
    let files = [
        (format!("{NAME}_{version}_{}_{architecture}.zip", env::consts::OS), archive),
        (format!("{NAME}_{version}_manifest.json"), manifest.as_bytes().to_vec()),
    ];
    fs::create_dir_all(directory)?;
    let mut sums = String::new();
    for (name, bytes) in &files {
        fs::write(directory.join(name), bytes)?;
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        sums.push_str(&format!("{digest}  {name}\n"));
    }
    let path = directory.join(format!("{NAME}_{version}_SHA256SUMS"));
    fs::write(&path, sums)?;
    Ok(Assets { archive: directory.join(&files[0].0), sums: path })
}

/// A zip archive of one executable file.
fn zip(name: &str, content: &[u8], compression: Compression) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), compression);
    encoder.write_all(content)?;
    let packed = encoder.finish()?;
    let mut crc = Crc::new();
    crc.update(content);
    let size =
        |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| io::Error::other("it is larger than 4 GiB"));
    // Version, flags, method, time, date, checksum, sizes, lengths of name and extra field: the same in both headers.
    let mut entry = Vec::new();
    for half in [20, 0, DEFLATE, 0, DATE] {
        entry.extend(u16::to_le_bytes(half));
    }
    for word in [crc.sum(), size(&packed)?, size(content)?, size(name.as_bytes())?] {
        entry.extend(u32::to_le_bytes(word));
    }
    let mut archive = [b"PK\x03\x04", entry.as_slice(), name.as_bytes(), &packed].concat();
    let directory_at = size(&archive)?;
    // Made on Unix; no comment, the first disk, no internal attributes; the mode; the entry is at the beginning.
    let further = [&[0; 6], MODE.to_le_bytes().as_slice(), &[0; 4]].concat();
    let directory = [b"PK\x01\x02", [20, 3].as_slice(), &entry, &further, name.as_bytes()].concat();
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    archive.extend(size(&directory)?.to_le_bytes());
    archive.extend(directory_at.to_le_bytes());
    archive.extend([0; 2]);
    Ok(archive)
}
