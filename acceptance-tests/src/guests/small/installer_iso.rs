//! The ISO image of the installer: isolinux for BIOS, a FAT image with a unified kernel for UEFI, and the disk to install.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::{COMMAND_LINE, archive, syslinux_menu, write_disk};
use crate::guests::disk_image;
use crate::guests::kernel::{self, Kernel};
use crate::process;
use crate::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(120);
/// The size of the FAT image for UEFI.
const ESP: u64 = 40 << 20;
const ISOLINUX: &str = "/usr/lib/ISOLINUX/isolinux.bin";
const LDLINUX: &str = "/usr/lib/syslinux/modules/bios/ldlinux.c32";

/// Builds `installer.iso` in this folder.
pub(super) fn build(package: &str, folder: &Path) -> Result<()> {
    let work = Scratch::new()?;
    let kernel = Kernel::unpack(package, &work.path().join("kernel"))?;
    let initramfs = work.path().join("initramfs");
    fs::write(&initramfs, archive(&kernel)?)?;
    let unified = work.path().join("unified.efi");
    kernel::unified(&kernel.image(), &initramfs, COMMAND_LINE, work.path(), &unified)?;
    let disk = write_disk(work.path(), &kernel, &initramfs, &unified)?;

    let tree = work.path().join("iso");
    fs::create_dir_all(tree.join("isolinux"))?;
    process::run(Command::new("gzip").arg("-1").arg(&disk), LIMIT)?.success()?;
    fs::rename(disk.with_extension("raw.gz"), tree.join("disk.gz"))?;
    let command_line = format!("{COMMAND_LINE} berth.install");
    fs::copy(kernel.image(), tree.join("vmlinuz"))?;
    fs::copy(&initramfs, tree.join("initramfs"))?;
    fs::copy(ISOLINUX, tree.join("isolinux/isolinux.bin"))?;
    fs::copy(LDLINUX, tree.join("isolinux/ldlinux.c32"))?;
    let menu = syslinux_menu("/vmlinuz", "/initramfs", &command_line);
    fs::write(tree.join("isolinux/isolinux.cfg"), menu)?;

    let unified = work.path().join("installer.efi");
    kernel::unified(&kernel.image(), &initramfs, &command_line, work.path(), &unified)?;
    let esp = tree.join("efi.img");
    File::create(&esp)?.set_len(ESP)?;
    disk_image::write_fat(&esp, 0, ESP, "EFI", &[("EFI/BOOT/BOOTX64.EFI", &unified)])?;
    let mut make = Command::new("xorriso");
    make.args(["-as", "mkisofs", "-quiet", "-V", "INSTALLER", "-r", "-o"]).arg(folder.join("installer.iso"));
    make.args(["-b", "isolinux/isolinux.bin", "-c", "isolinux/boot.cat", "-no-emul-boot"]);
    make.args(["-boot-load-size", "4", "-boot-info-table"]);
    make.args(["-eltorito-alt-boot", "-e", "efi.img", "-no-emul-boot"]).arg(&tree);
    process::run(&mut make, LIMIT)?.success()?;
    Ok(())
}
