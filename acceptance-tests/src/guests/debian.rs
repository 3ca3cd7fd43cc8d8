//! The Debian guest: a stock Debian 12 userland with cloud-init, OpenSSH and the QEMU guest agent, started under UEFI by a unified
//! kernel image.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::GuestImage;
use super::cpio::Archive;
use super::disk_image::{self, FIRST_PARTITION, Partition, PartitionKind};
use super::kernel::{self, Kernel};
use crate::cache::Cache;
use crate::{prerequisites, process};

const SUITE: &str = "bookworm";
const PACKAGES: &[&str] = &[
    "systemd-sysv",
    "udev",
    "dbus",
    "kmod",
    "cloud-init",
    "cloud-guest-utils",
    "openssh-server",
    AGENT,
    "iproute2",
    "e2fsprogs",
    "fdisk",
    "python3",
    "sudo",
];
/// Packages that the tests do not need.
const LEFT_OUT: &[&str] = &[
    "/usr/share/man/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/i18n/*",
    "/usr/share/info/*",
];
const MODULES: &[&str] =
    &["virtio_pci", "virtio_net", "virtio_scsi", "virtio_blk", "virtio_console", "virtio_rng", "sd_mod"];
const INITRAMFS: &str = include_str!("debian/init.sh");
const SETTINGS: &str = include_str!("debian/settings.sh");
const COMMAND_LINE: &str = "console=tty0 console=ttyS0,115200 quiet loglevel=3 root=LABEL=berth-root mitigations=off \
                            no_timer_check systemd.show_status=0 audit=0 net.ifnames=0";
const WITH_AGENT: &str = "disk.qcow2";
const WITHOUT_AGENT: &str = "without-agent.qcow2";
const ESP: u64 = 48 << 20;
/// The size of the root partition, in bytes: room for the system and a little more; cloud-init grows it to the disk.
const ROOT: u64 = 1100 << 20;
/// The version of the recipe's part in Rust.
const RECIPE: &str = "2";
/// The package that one of the images lacks.
pub const AGENT: &str = "qemu-guest-agent";

/// Two images of the same system.
#[derive(Debug, Clone)]
pub struct DebianGuests {
    pub with_agent: GuestImage,
    /// It has all that the agent's package depends on.
    pub without_agent: GuestImage,
}

/// Returns the images from the cache, or builds them.
pub fn images(cache: &Cache) -> Result<DebianGuests> {
    let (package, version) = kernel::package()?;
    let mut ingredients = vec![RECIPE, INITRAMFS, SETTINGS, COMMAND_LINE, SUITE, &package, &version];
    ingredients.extend(PACKAGES);
    ingredients.extend(MODULES);
    let entry = cache.entry("debian-guest", &ingredients, |folder| build(&package, folder))?;
    Ok(DebianGuests {
        with_agent: GuestImage::at(entry.join(WITH_AGENT))?,
        without_agent: GuestImage::at(entry.join(WITHOUT_AGENT))?,
    })
}

fn build(package: &str, folder: &Path) -> Result<()> {
    // Beside the entry: /tmp may be too small, and a file system there may not preserve owners.
    let work = tempfile::tempdir_in(folder)?;
    let kernel = Kernel::unpack(package, &work.path().join("kernel"))?;
    let root = work.path().join("root");
    bootstrap(&root, work.path())?;
    let modules = root.join("lib/modules");
    fs::create_dir_all(&modules)?;
    process::run(Command::new("cp").arg("-a").arg(kernel.modules()).arg(&modules), Duration::from_secs(60))?
        .success()?;
    let mut depmod = Command::new("chroot");
    depmod.arg(&root).args(["depmod", kernel.release()]);
    process::run(&mut depmod, Duration::from_secs(60))?.success()?;
    let mut settle = Command::new("chroot");
    settle.arg(&root).args(["sh", "-eu", "-c", SETTINGS]);
    process::run(&mut settle, Duration::from_secs(60))?.success()?;

    let initramfs = work.path().join("initramfs");
    fs::write(&initramfs, archive(&kernel)?)?;
    let unified = work.path().join("unified.efi");
    kernel::unified(&kernel.image(), &initramfs, COMMAND_LINE, work.path(), &unified)?;
    make_disk(&root, &unified, work.path(), &folder.join(WITH_AGENT))?;
    let mut purge = Command::new("chroot");
    purge.arg(&root).args(["dpkg", "--purge", AGENT]);
    process::run(&mut purge, Duration::from_secs(60))?.success()?;
    make_disk(&root, &unified, work.path(), &folder.join(WITHOUT_AGENT))
}

fn make_disk(root: &Path, unified: &Path, work: &Path, disk: &Path) -> Result<()> {
    let file_system = work.join("root.ext4");
    disk_image::make_ext4(root, "berth-root", ROOT, &file_system)?;
    let raw = work.join("disk.raw");
    let esp = Partition { kind: PartitionKind::Efi, start: FIRST_PARTITION, length: ESP };
    // Last, so that it can grow.
    let system = Partition { kind: PartitionKind::Root, start: esp.start + esp.length, length: ROOT };
    File::create(&raw)?.set_len(system.start + system.length + FIRST_PARTITION)?;
    disk_image::write_gpt(&raw, &[esp, system])?;
    disk_image::write_fat(&raw, esp.start, esp.length, "ESP", &[("EFI/BOOT/BOOTX64.EFI", unified)])?;
    disk_image::place(&raw, system.start, &file_system)?;
    disk_image::compress(&raw, disk)?;
    fs::remove_file(&file_system)?;
    Ok(fs::remove_file(&raw)?)
}

fn bootstrap(root: &Path, temporary: &Path) -> Result<()> {
    let mut make = Command::new("mmdebstrap");
    // If it is killed, it leaves its temporary files, which are removed with ours.
    make.env("TMPDIR", temporary);
    make.args(["--quiet", "--mode=root", "--variant=minbase"]);
    make.arg(format!("--include={}", PACKAGES.join(",")));
    make.args(["--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\""]);
    for path in LEFT_OUT {
        make.arg(format!("--dpkgopt=path-exclude={path}"));
    }
    make.arg(SUITE).arg(root);
    process::run(&mut make, Duration::from_secs(900))?
        .success()
        .context("installing Debian into a folder")?;
    Ok(())
}

fn archive(kernel: &Kernel) -> Result<Vec<u8>> {
    let busybox = prerequisites::command("busybox").unwrap_or_else(|| "/bin/busybox".into());
    let mut archive = Archive::new();
    for folder in ["dev", "proc", "sys", "run", "root"] {
        archive.folder(folder);
    }
    archive.copy("bin/busybox", 0o755, &busybox)?;
    archive.file("init", 0o755, INITRAMFS.as_bytes());
    kernel.add_modules(&mut archive, MODULES)?;
    Ok(archive.finish())
}
