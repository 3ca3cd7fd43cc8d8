//! A source of apt with one package, for guests that install it.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::image_server::{Content, ImageServer};
use crate::namespace::Namespace;
use crate::scratch::Scratch;
use crate::{prerequisites, process};

/// The folder of the source, below the server's root.
const FOLDER: &str = "packages";
const ARCHIVE: &str = "package.deb";

/// The source, served inside a namespace.
#[derive(Debug)]
pub struct PackageSource {
    server: ImageServer,
    archive: String,
    _files: Scratch,
}

impl PackageSource {
    /// Serves the newest version of a Debian package on one of the namespace's addresses.
    pub fn start(package: &str, namespace: &Arc<Namespace>, address: &str) -> Result<Self> {
        let files = Scratch::new()?;
        let downloads = files.path().join("downloads");
        fs::create_dir(&downloads)?;
        let archive = prerequisites::archive(package, &downloads)?;
        let mut fields = Command::new("dpkg-deb");
        let fields = process::run(fields.arg("--field").arg(&archive), Duration::from_secs(30))?.success()?;
        let bytes = fs::read(&archive)?;
        let index = format!(
            "{}\nFilename: {FOLDER}/{ARCHIVE}\nSize: {}\nSHA256: {}\n\n",
            fields.trim_end(),
            bytes.len(),
            checksum(&bytes)
        );
        let release = format!(
            "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {} {} Packages\n",
            checksum(index.as_bytes()),
            index.len()
        );
        let server = ImageServer::start(namespace, address)?;
        for (name, text) in [("Packages", &index), ("Release", &release)] {
            let file = files.path().join(name);
            fs::write(&file, text)?;
            server.put(&format!("{FOLDER}/{name}"), Content::File(file));
        }
        let url = server.put(&format!("{FOLDER}/{ARCHIVE}"), Content::File(archive));
        Ok(Self { server, archive: url, _files: files })
    }

    /// The line of `sources.list`. The source is not signed.
    pub fn line(&self) -> Result<String> {
        let root = self.archive.strip_suffix(&format!("{FOLDER}/{ARCHIVE}")).context("another URL")?;
        Ok(format!("deb [trusted=yes] {root} {FOLDER}/"))
    }

    /// How often a guest has downloaded the package.
    pub fn downloads(&self) -> u64 {
        self.server.requests(&format!("{FOLDER}/{ARCHIVE}"))
    }
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
