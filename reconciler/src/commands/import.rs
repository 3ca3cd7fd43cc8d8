//! `berth import`: writes HCL for the guests of another hypervisor.

mod libvirt;
mod ova;
mod qemu;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use berth_host::linux::libvirt::{DiskFileError, image_checksum};

use crate::{
    cli::{LibvirtOptions, OvaOptions, QemuOptions, WrittenOptions},
    import::{self, Configuration, DiskFiles, Domain, ImageFile, Network, Unread},
};

/// The file with the configuration.
const FILE: &str = "main.tf";

pub(super) async fn libvirt(options: LibvirtOptions) -> anyhow::Result<()> {
    check(&options.written)?;
    let (domains, networks) = libvirt::read(&options).await?;
    write(&domains, &networks, &options.written)
}

pub(super) fn qemu(options: &QemuOptions) -> anyhow::Result<()> {
    check(&options.written)?;
    write(&qemu::read(&options.guests)?, &[], &options.written)
}

pub(super) fn ova(options: &OvaOptions) -> anyhow::Result<()> {
    check_target(&options.out)?;
    ova::run(options)
}

/// Refuses options before anything is read.
fn check(options: &WrittenOptions) -> anyhow::Result<()> {
    check_target(&options.out)?;
    image_dir(&options.image_dir).map(drop)
}

fn check_target(out: &Path) -> anyhow::Result<()> {
    let target = out.join(FILE);
    // Also a link that leads nowhere is in the way.
    ensure!(
        fs::symlink_metadata(&target).is_err(),
        "{} exists: give another folder with --out",
        target.display()
    );
    Ok(())
}

fn write(domains: &[Domain], networks: &[Network], options: &WrittenOptions) -> anyhow::Result<()> {
    ensure!(!domains.is_empty(), "there is no guest to import");
    let files = DiskFiles { image_dir: image_dir(&options.image_dir)?, in_place: options.in_place };
    let mut read_disk = |path: &str, format: &str| {
        if options.no_checksums {
            return Err(Unread::Unasked);
        }
        tracing::info!(path, "reading a disk for its checksum");
        match image_checksum(Path::new(path), format) {
            Ok(sha256) => Ok(ImageFile { sha256 }),
            Err(DiskFileError::Unfit(why)) => Err(Unread::Unfit(why)),
            Err(DiskFileError::Unreadable(why)) => Err(Unread::Unreadable(why)),
        }
    };
    let written = import::configuration(domains, networks, files, &mut read_disk);
    let target = save(&written, &options.out)?;
    let mut out = std::io::stdout().lock();
    let (vms, images, taken) = (written.vms, written.images, written.taken);
    let disks = match taken {
        0 => String::new(),
        taken => format!(" and of {taken} disks that are taken over"),
    };
    writeln!(
        out,
        "{}: {vms} VMs. The comments of its {images} images{disks} have the steps that bring the disks in.",
        target.display()
    )
    .context("printing")
}

/// Writes the configuration into the folder, and its notes to standard error. Returns its path.
fn save(written: &Configuration, out: &Path) -> anyhow::Result<PathBuf> {
    let target = out.join(FILE);
    fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
    let about = || format!("writing {}", target.display());
    let mut file = OpenOptions::new().write(true).create_new(true).open(&target).with_context(about)?;
    if let Err(error) = file.write_all(written.text.as_bytes()) {
        // Half a configuration would be in the way of the next import.
        let _ = fs::remove_file(&target);
        return Err(error).with_context(about);
    }
    for note in &written.notes {
        notice!("berth: {}", note.replace(char::is_control, " "));
    }
    Ok(target)
}

/// The folder for images, which commands and URLs in the configuration name.
fn image_dir(folder: &Path) -> anyhow::Result<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let text = folder.to_str().unwrap_or_default();
    let is_usable = text.starts_with('/') && text.chars().all(is_plain) && !text.contains("/../");
    ensure!(
        is_usable,
        "--image-dir {folder:?}: give an absolute path of letters, digits, \".\", \"_\", \"-\" and \"/\""
    );
    Ok(text.trim_end_matches('/'))
}
