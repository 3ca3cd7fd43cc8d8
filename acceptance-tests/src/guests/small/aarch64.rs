//! The small guest for 64-bit ARM: the same programs and kernel of that architecture, started by Debian's GRUB.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};

use super::super::disk_image::{self, Partition, PartitionKind};
use super::super::kernel::Kernel;
use super::{CPU_ONLINE, DHCP, DISK, INIT, MODULES, POWER_OFF, RECIPE, archive_of};
use crate::foreign_packages::ForeignPackages;
use crate::scratch::Scratch;

/// Debian's name of the architecture.
const ARCHITECTURE: &str = "arm64";
const KERNEL: &str = "linux-image-cloud-arm64";
const BUSYBOX: &str = "busybox-static";
const GRUB: &str = "grub-efi-arm64-signed";
const COMMAND_LINE: &str =
    "console=ttyAMA0,115200 quiet loglevel=3 rdinit=/init mitigations=off panic=5 memhp_default_state=online";
/// Part of this kernel, and the driver of a device that this machine has in another form.
const NOT_THERE: [&str; 2] = ["button", "pvpanic_mmio"];
/// The serial ports of a PC and of this machine.
const PORTS: (&str, &str) = ("/dev/ttyS0", "/dev/ttyAMA0");

/// The packages that the image consists of.
#[derive(Debug)]
pub(super) struct Sources {
    packages: ForeignPackages,
    kernel: String,
}

impl Sources {
    /// Looks up the packages.
    pub(super) fn find() -> Result<Self> {
        let packages = ForeignPackages::of(ARCHITECTURE)?;
        let needed = packages.dependencies(KERNEL)?;
        let kernel = needed.into_iter().find(|name| name.starts_with("linux-image-"));
        let kernel = kernel.context("the kernel's meta package depends on no kernel")?;
        Ok(Self { packages, kernel })
    }

    /// Everything that the image depends on.
    pub(super) fn ingredients(&self) -> Result<Vec<String>> {
        let mut ingredients: Vec<String> =
            [RECIPE, INIT, DHCP, CPU_ONLINE, POWER_OFF, COMMAND_LINE, self.kernel.as_str()]
                .map(str::to_owned)
                .into();
        for package in [self.kernel.as_str(), BUSYBOX, GRUB] {
            ingredients.push(self.packages.candidate(package)?);
        }
        ingredients.extend(super::PAGES.iter().map(|(_, page)| (*page).to_owned()));
        ingredients.extend(MODULES.iter().map(|module| (*module).to_owned()));
        Ok(ingredients)
    }

    /// Writes the image into a folder.
    pub(super) fn build(&self, folder: &Path) -> Result<()> {
        let work = Scratch::new()?;
        let at = |name: &str| work.path().join(name);
        self.packages.unpack(&self.kernel, &at("kernel"))?;
        self.packages.unpack(BUSYBOX, &at("busybox"))?;
        self.packages.unpack(GRUB, &at("grub"))?;
        let kernel = Kernel::at(&self.kernel, &at("kernel"));
        let modules: Vec<&str> =
            MODULES.iter().copied().filter(|module| !NOT_THERE.contains(module)).collect();
        let of_this_machine = |script: &str| script.replace(PORTS.0, PORTS.1);
        let scripts = (of_this_machine(INIT), of_this_machine(POWER_OFF));
        let files = archive_of(
            &kernel,
            &at("busybox/bin/busybox"),
            (scripts.0.as_str(), scripts.1.as_str()),
            &modules,
        )?;
        fs::write(at("initramfs"), files)?;
        fs::write(at("grub.cfg"), format!("linux /vmlinuz {COMMAND_LINE}\ninitrd /initramfs\nboot\n"))?;

        let disk = at("disk.raw");
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
                ("EFI/BOOT/BOOTAA64.EFI", &at("grub/usr/lib/grub/arm64-efi-signed/grubaa64.efi.signed")),
                // The folder is part of what Debian signed.
                ("EFI/debian/grub.cfg", &at("grub.cfg")),
                ("vmlinuz", &kernel.image()),
                ("initramfs", &at("initramfs")),
            ],
        )?;
        disk_image::compress(&disk, &folder.join("disk.qcow2"))
    }
}
