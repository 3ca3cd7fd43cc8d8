//! An appliance: its files are verified by its manifest, and the disks of an OVA extracted.
//!
//! All is refused before anything is written, except a disk with another digest: its digest is computed while it is copied.

mod extraction;
mod package;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use aws_lc_rs::digest;

use crate::{
    cli::OvaOptions,
    import::{
        self, Configuration, DiskFiles, DiskSource, Domain, ImageFile, MAX_XML, Unread,
        ovf::{self, Appliance, ExpectedDigest, MAX_MANIFEST, Manifest, PackedFile, hex},
    },
};
use extraction::Extraction;
use package::{Package, StoredFile};

/// The largest file that berth uploads, in GiB.
const MAX_UPLOAD: u64 = 256;
/// The bytes that are copied at once.
const CHUNK: usize = 1 << 20;

/// The file of a disk.
struct DiskFile {
    file: PackedFile,
    stored: StoredFile,
    /// Its digest in the manifest.
    expected: Option<ExpectedDigest>,
    /// Its path in the configuration.
    path: String,
}

pub(super) fn run(options: &OvaOptions) -> anyhow::Result<()> {
    let cannot = || format!("{} cannot be imported", options.file.display());
    let package = Package::open(&options.file).with_context(cannot)?;
    let (appliance, manifest) = described(&package).with_context(cannot)?;
    let disks = disk_files(&package, &appliance.files, manifest.as_ref()).with_context(cannot)?;
    let mut domains = appliance.domains;
    if let Some(first) = domains.first_mut() {
        let own = std::mem::take(&mut first.notes);
        first.notes = notes(&package).into_iter().chain(appliance.notes).chain(own).collect();
    }
    let mut extraction = match package.folder() {
        // Disks beside their descriptor are uploaded from where they are.
        Some(_) => None,
        None => {
            let size: u64 = disks.iter().map(|disk| disk.stored.size()).sum();
            let names: Vec<&str> = disks.iter().map(|disk| disk.file.name.as_str()).collect();
            Some(Extraction::begin(&options.out, size, &names)?)
        }
    };
    let mut checksums = BTreeMap::new();
    for disk in disks {
        tracing::info!(file = ?disk.file.href, "reading a disk");
        rename(&mut domains, &disk);
        let path = disk.path.clone();
        let about = format!("its file {:?}", disk.file.href);
        let sha256 = match &mut extraction {
            Some(extraction) => extracted(disk, extraction),
            None => copied(disk, &mut std::io::sink()),
        };
        checksums.insert(path, sha256.context(about).with_context(cannot)?);
    }
    if let Some(extraction) = &mut extraction {
        extraction.name_files()?;
    }
    let written = configuration(&domains, &checksums);
    let target = super::save(&written, &options.out)?;
    if let Some(extraction) = extraction {
        extraction.complete();
    }
    let folder = package.folder().unwrap_or(&options.out).display();
    let (vms, images) = (written.vms, written.images);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}: {vms} VMs. Terraform uploads their {images} images from {folder}.", target.display())
        .context("printing")
}

/// The descriptor, once its digest is verified, and the manifest.
fn described(package: &Package) -> anyhow::Result<(Appliance, Option<Manifest>)> {
    let descriptor = package.descriptor();
    let text = package.text(descriptor, MAX_XML)?;
    let manifest = match package.manifest() {
        None => None,
        Some(name) => {
            let about = || format!("its manifest {name:?}");
            let read = ovf::read_manifest(&package.text(name, MAX_MANIFEST)?).with_context(about)?;
            let expected = read.of(descriptor);
            let expected =
                expected.with_context(|| format!("its manifest has no digest of {descriptor:?}"))?;
            let mut context = expected.context();
            context.update(text.as_bytes());
            verify(expected, context).with_context(|| format!("its descriptor {descriptor:?}"))?;
            Some(read)
        }
    };
    let appliance = ovf::read(&text).with_context(|| format!("its descriptor {descriptor:?}"))?;
    Ok((appliance, manifest))
}

/// Notes on the package as a whole.
fn notes(package: &Package) -> Vec<String> {
    let mut notes = Vec::new();
    if package.manifest().is_none() {
        let name = match package.folder() {
            None => ".mf".to_owned(),
            Some(_) => {
                format!("{} beside it", Path::new(package.descriptor()).with_extension("mf").display())
            }
        };
        notes.push(format!("its appliance has no manifest ({name}): its files were not verified"));
    }
    if package.has_certificate() {
        notes.push("its appliance is signed (.cert): the signature was not verified".to_owned());
    }
    notes
}

/// The files of the disks: each is there, with the size that the descriptor declares and a digest in the manifest.
fn disk_files(
    package: &Package,
    files: &[PackedFile],
    manifest: Option<&Manifest>,
) -> anyhow::Result<Vec<DiskFile>> {
    let mut found = Vec::new();
    for file in files {
        let href = &file.href;
        let Some(stored) = package.find(file.names())? else {
            bail!("its descriptor has the file {href:?}, which is not in the package");
        };
        let size = stored.size();
        if let Some(declared) = file.size {
            ensure!(
                declared == size,
                "its file {href:?} has {size} bytes, and its descriptor declares {declared}: it is damaged, or cut off"
            );
        }
        ensure!(
            (1..=MAX_UPLOAD << 30).contains(&size),
            "its file {href:?} has {size} bytes, and berth uploads files of 1 byte to {MAX_UPLOAD} GiB"
        );
        let expected = match manifest {
            None => None,
            Some(manifest) => {
                let expected = file.names().find_map(|name| manifest.of(&name).cloned());
                Some(expected.with_context(|| format!("its manifest has no digest of {href:?}"))?)
            }
        };
        let path = match package.folder() {
            None => file.name.clone(),
            Some(folder) => path_in(folder, stored.name())?,
        };
        found.push(DiskFile { file: file.clone(), stored, expected, path });
    }
    Ok(found)
}

fn path_in(folder: &Path, name: &str) -> anyhow::Result<String> {
    let path = folder.join(name);
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

/// Gives the disks that are made from the file its path in the configuration.
fn rename(domains: &mut [Domain], disk: &DiskFile) {
    for source in domains.iter_mut().flat_map(|domain| &mut domain.disks).map(|disk| &mut disk.source) {
        if let DiskSource::Upload { file, .. } = source
            && *file == disk.file.name
        {
            file.clone_from(&disk.path);
        }
    }
}

fn extracted(disk: DiskFile, extraction: &mut Extraction) -> anyhow::Result<String> {
    let mut to = extraction.create(&disk.file.name)?;
    let sha256 = copied(disk, &mut to)?;
    // A file system may report only now that it is full.
    to.sync_all().context("writing its copy")?;
    Ok(sha256)
}

/// Copies a file, and verifies it. Returns its SHA-256.
fn copied(disk: DiskFile, to: &mut dyn Write) -> anyhow::Result<String> {
    let DiskFile { mut stored, expected, .. } = disk;
    let mut sha256 = digest::Context::new(&digest::SHA256);
    let mut declared = expected.as_ref().map(ExpectedDigest::context);
    let mut chunk = vec![0; CHUNK];
    let mut left = stored.size();
    while left > 0 {
        let read = match stored.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.context("reading it")?,
        };
        ensure!(read > 0, "it is cut off: {left} bytes of it are missing");
        let data = chunk.get(..read).unwrap_or_default();
        sha256.update(data);
        if let Some(declared) = &mut declared {
            declared.update(data);
        }
        to.write_all(data).context("writing its copy")?;
        left = left.saturating_sub(read as u64);
    }
    if let (Some(expected), Some(declared)) = (&expected, declared) {
        verify(expected, declared)?;
    }
    Ok(hex(&sha256.finish()))
}

fn verify(expected: &ExpectedDigest, found: digest::Context) -> anyhow::Result<()> {
    ensure!(
        expected.is(&found.finish()),
        "its {} is another one than in the manifest: it is damaged, or was changed",
        expected.name()
    );
    Ok(())
}

fn configuration(domains: &[Domain], checksums: &BTreeMap<String, String>) -> Configuration {
    let files = DiskFiles { image_dir: "", in_place: false };
    let mut checksum_of = |path: &str, _: &str| {
        let sha256 = checksums.get(path).cloned();
        sha256.map(|sha256| ImageFile { sha256 }).ok_or(Unread::Unasked)
    };
    import::configuration(domains, &[], files, &mut checksum_of)
}
