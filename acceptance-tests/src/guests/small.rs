//! The small guest: Debian's cloud kernel and busybox in one initramfs, in user space within seconds even when every
//! instruction is emulated. One image boots under BIOS (syslinux) and UEFI (a unified kernel image).

mod aarch64;
mod installer_iso;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::cpio::Archive;
use super::disk_image::{Partition, PartitionKind};
use super::kernel::{self, Kernel};
use super::{GuestImage, disk_image};
use crate::cache::Cache;
use crate::scratch::Scratch;
use crate::{prerequisites, process};

const INIT: &str = include_str!("small/init.sh");
const DHCP: &str = include_str!("small/dhcp.sh");
const CPU_ONLINE: &str = include_str!("small/cpu-online.sh");
const POWER_OFF: &str = include_str!("small/power-off.sh");
const PAGES: &[(&str, &str)] = &[
    ("disks", include_str!("small/disks.cgi")),
    ("uptime", include_str!("small/uptime.cgi")),
    ("write", include_str!("small/write.cgi")),
    ("sum", include_str!("small/sum.cgi")),
    ("tpm", include_str!("small/tpm.cgi")),
    ("network", include_str!("small/network.cgi")),
    ("reach", include_str!("small/reach.cgi")),
    ("resolve", include_str!("small/resolve.cgi")),
    ("door", include_str!("small/door.cgi")),
    ("spoof", include_str!("small/spoof.cgi")),
];
/// The kernel command line: little console output, no mitigations, which a test VM does not need, and no check of the timer: an
/// emulated processor that waits for a real one at that moment fails it, and the fallback loses interrupts. Under KVM Linux skips
/// the check by itself. Memory that is plugged in is used at once. The kernel stays at its address, as each boot would emulate its
/// relocation, and does not wait for all processors where it can ask them.
const COMMAND_LINE: &str = "console=ttyS0,115200 quiet loglevel=3 rdinit=/init mitigations=off no_timer_check panic=5 memhp_default_state=online nokaslr rcupdate.rcu_expedited=1";
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "virtio_scsi",
    "virtio_blk",
    "virtio_rng",
    "virtio_mem",
    "virtio_balloon",
    "virtiofs",
    "sd_mod",
    "sr_mod",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nls_utf8",
    "isofs",
    "evdev",
    "button",
    "pvpanic_mmio",
];
const DISK: u64 = 56 << 20;
/// The version of the recipe's part in Rust.
const RECIPE: &str = "3";
/// The packages of the signed boot loaders.
const SHIM: &str = "shim-signed";
const GRUB: &str = "grub-efi-amd64-signed";

/// Returns the image from the cache, or builds it.
pub fn image(cache: &Cache) -> Result<GuestImage> {
    let package = kernel::package()?;
    let entry =
        cache.entry("small-guest", &as_text(&ingredients(&package)?), |folder| build(&package.0, folder))?;
    GuestImage::at(entry.join("disk.qcow2"))
}

/// Returns an ISO image that boots by BIOS and UEFI and installs the small guest on the first disk.
pub fn installer(cache: &Cache) -> Result<GuestImage> {
    let package = kernel::package()?;
    let mut ingredients = ingredients(&package)?;
    ingredients.extend([prerequisites::candidate("xorriso")?, prerequisites::candidate("isolinux")?]);
    let entry = cache
        .entry("installer", &as_text(&ingredients), |folder| installer_iso::build(&package.0, folder))?;
    GuestImage::at(entry.join("installer.iso"))
}

/// Returns the image that boots with Secure Boot: by Debian's signed shim, GRUB and kernel.
pub fn signed_image(cache: &Cache) -> Result<GuestImage> {
    let package = kernel::package()?;
    let mut ingredients = ingredients(&package)?;
    ingredients.extend([prerequisites::candidate(SHIM)?, prerequisites::candidate(GRUB)?]);
    let entry =
        cache.entry("signed-guest", &as_text(&ingredients), |folder| build_signed(&package.0, folder))?;
    GuestImage::at(entry.join("disk.qcow2"))
}

/// Returns the image for 64-bit ARM.
pub fn aarch64_image(cache: &Cache) -> Result<GuestImage> {
    let sources = aarch64::Sources::find()?;
    let ingredients = sources.ingredients()?;
    let entry = cache.entry("small-guest-aarch64", &as_text(&ingredients), |folder| sources.build(folder))?;
    GuestImage::at(entry.join("disk.qcow2"))
}

fn ingredients((package, version): &(String, String)) -> Result<Vec<String>> {
    let busybox = prerequisites::candidate("busybox-static")?;
    let mut ingredients =
        vec![RECIPE, INIT, DHCP, CPU_ONLINE, POWER_OFF, COMMAND_LINE, package, version, &busybox];
    ingredients.extend(PAGES.iter().map(|(_, page)| *page));
    ingredients.extend(MODULES);
    Ok(ingredients.into_iter().map(str::to_owned).collect())
}

fn as_text(ingredients: &[String]) -> Vec<&str> {
    ingredients.iter().map(String::as_str).collect()
}

fn build(package: &str, folder: &Path) -> Result<()> {
    let work = Scratch::new()?;
    let kernel = Kernel::unpack(package, &work.path().join("kernel"))?;
    let initramfs = work.path().join("initramfs");
    fs::write(&initramfs, archive(&kernel)?)?;
    let unified = work.path().join("unified.efi");
    kernel::unified(&kernel.image(), &initramfs, COMMAND_LINE, work.path(), &unified)?;
    let disk = write_disk(work.path(), &kernel, &initramfs, &unified)?;
    disk_image::compress(&disk, &folder.join("disk.qcow2"))
}

/// Writes the raw disk.
fn write_disk(work: &Path, kernel: &Kernel, initramfs: &Path, unified: &Path) -> Result<PathBuf> {
    let menu = work.join("syslinux.cfg");
    fs::write(&menu, syslinux_menu("vmlinuz", "initramfs", COMMAND_LINE))?;
    let disk = work.join("disk.raw");
    File::create(&disk)?.set_len(DISK)?;
    let start = disk_image::FIRST_PARTITION;
    disk_image::write_mbr(&disk, Path::new("/usr/lib/SYSLINUX/mbr.bin"), start, DISK - start)?;
    disk_image::write_fat(
        &disk,
        start,
        DISK - start,
        "BERTH",
        &[
            ("EFI/BOOT/BOOTX64.EFI", unified),
            ("vmlinuz", &kernel.image()),
            ("initramfs", initramfs),
            ("syslinux.cfg", &menu),
            ("ldlinux.c32", Path::new("/usr/lib/syslinux/modules/bios/ldlinux.c32")),
        ],
    )?;
    let mut install = Command::new("syslinux");
    install.args(["--install", "--offset", &start.to_string()]).arg(&disk);
    process::run(&mut install, Duration::from_secs(60))?.success()?;
    Ok(disk)
}

/// The menu of syslinux and isolinux, with one entry.
fn syslinux_menu(kernel: &str, initramfs: &str, command_line: &str) -> String {
    format!(
        "DEFAULT guest\nPROMPT 0\nLABEL guest\n  LINUX {kernel}\n  INITRD {initramfs}\n  APPEND {command_line}\n"
    )
}

fn build_signed(package: &str, folder: &Path) -> Result<()> {
    let work = Scratch::new()?;
    let kernel = Kernel::unpack(package, &work.path().join("kernel"))?;
    let initramfs = work.path().join("initramfs");
    fs::write(&initramfs, archive(&kernel)?)?;
    let loaders = work.path().join("loaders");
    prerequisites::unpack(SHIM, &loaders)?;
    prerequisites::unpack(GRUB, &loaders)?;
    let menu = work.path().join("grub.cfg");
    fs::write(&menu, format!("linux /vmlinuz {COMMAND_LINE}\ninitrd /initramfs\nboot\n"))?;

    let disk = work.path().join("disk.raw");
    let start = disk_image::FIRST_PARTITION;
    let esp = Partition { kind: PartitionKind::Efi, start, length: DISK - 2 * start };
    File::create(&disk)?.set_len(DISK)?;
    disk_image::write_gpt(&disk, &[esp])?;
    disk_image::write_fat(
        &disk,
        esp.start,
        esp.length,
        "BERTH",
        &[
            ("EFI/BOOT/BOOTX64.EFI", &loaders.join("usr/lib/shim/shimx64.efi.signed")),
            ("EFI/BOOT/grubx64.efi", &loaders.join("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed")),
            // The folder is part of what Debian signed.
            ("EFI/debian/grub.cfg", &menu),
            ("vmlinuz", &kernel.image()),
            ("initramfs", &initramfs),
        ],
    )?;
    disk_image::compress(&disk, &folder.join("disk.qcow2"))
}

fn busybox_here() -> PathBuf {
    prerequisites::command("busybox").unwrap_or_else(|| "/bin/busybox".into())
}

fn archive(kernel: &Kernel) -> Result<Vec<u8>> {
    archive_of(kernel, &busybox_here(), (INIT, POWER_OFF), MODULES)
}

/// The files of the guest, with the busybox and the modules of its architecture. The scripts: the first process, and what the power button
/// starts. This machine's busybox, of the same version, lists the programs in it.
fn archive_of(
    kernel: &Kernel,
    busybox: &Path,
    (init, power_off): (&str, &str),
    modules: &[&str],
) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    for folder in ["dev", "proc", "sys", "run", "tmp", "etc", "mnt", "www/cgi-bin"] {
        archive.folder(folder);
    }
    archive.copy("bin/busybox", 0o755, busybox)?;
    let applets =
        process::run(Command::new(busybox_here()).arg("--list"), Duration::from_secs(10))?.success()?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        archive.symlink(&format!("bin/{applet}"), "busybox");
    }
    archive.file("init", 0o755, init.as_bytes());
    archive.file("cpu-online.sh", 0o755, CPU_ONLINE.as_bytes());
    archive.file("etc/dhcp.sh", 0o755, DHCP.as_bytes());
    // busybox acpid runs this for the power button's key.
    archive.file("etc/acpi/PWRF/00000080", 0o755, power_off.as_bytes());
    for (name, page) in PAGES {
        archive.file(&format!("www/cgi-bin/{name}"), 0o755, page.as_bytes());
    }
    kernel.add_modules(&mut archive, modules)?;
    Ok(archive.finish())
}
