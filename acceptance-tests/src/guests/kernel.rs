//! Debian's cloud kernel, unpacked without installation, and the modules a virtual machine needs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cpio::Archive;
use crate::{prerequisites, process};

/// The package that always depends on the newest cloud kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
/// The path of systemd's EFI stub in its package.
const STUB: &str = "usr/lib/systemd/boot/efi/linuxx64.efi.stub";

/// The kernel package and its version.
pub fn package() -> Result<(String, String)> {
    prerequisites::candidate(META_PACKAGE)?;
    let package = prerequisites::dependencies(META_PACKAGE)?
        .into_iter()
        .find(|name| name.starts_with("linux-image-"))
        .context("the kernel's meta package depends on no kernel")?;
    let version = prerequisites::candidate(&package)?;
    Ok((package, version))
}

/// An unpacked kernel package.
#[derive(Debug)]
pub struct Kernel {
    root: PathBuf,
    release: String,
}

impl Kernel {
    /// Downloads the package and unpacks it below `root`.
    pub fn unpack(package: &str, root: &Path) -> Result<Self> {
        prerequisites::unpack(package, root)?;
        Ok(Self::at(package, root))
    }

    /// The package as it is unpacked below `root`.
    pub fn at(package: &str, root: &Path) -> Self {
        let release = package.trim_start_matches("linux-image-").to_owned();
        Self { root: root.to_owned(), release }
    }

    /// The kernel image.
    pub fn image(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.release))
    }

    /// The folder of its modules.
    pub fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// Its `uname -r`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Adds the wanted modules and their dependencies to an initramfs, with `/modules/order` as the load order.
    pub fn add_modules(&self, archive: &mut Archive, wanted: &[&str]) -> Result<()> {
        let files = module_files(&self.modules())?;
        let mut order = Vec::new();
        for module in wanted {
            self.order(module, &files, &mut order)?;
        }
        for module in &order {
            archive.copy(&format!("modules/{module}.ko"), 0o644, &files[module])?;
        }
        archive.file("modules/order", 0o644, format!("{}\n", order.join("\n")).as_bytes());
        Ok(())
    }

    fn order(&self, module: &str, files: &BTreeMap<String, PathBuf>, order: &mut Vec<String>) -> Result<()> {
        if order.iter().any(|known| known == module) {
            return Ok(());
        }
        let file = files.get(module).with_context(|| format!("{} has no module {module}", self.release))?;
        for needed in needs(&fs::read(file)?) {
            self.order(&needed, files, order)?;
        }
        order.push(module.to_owned());
        Ok(())
    }
}

fn module_files(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)?.flatten() {
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ko") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
                files.insert(name, path);
            }
        }
    }
    Ok(files)
}

/// The dependencies that a module names in its `.modinfo`.
fn needs(module: &[u8]) -> Vec<String> {
    const TAG: &[u8] = b"\0depends=";
    let Some(at) = module.windows(TAG.len()).position(|window| window == TAG) else { return Vec::new() };
    let list = module[at + TAG.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(list)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// Joins kernel, initramfs and command line into one EFI program.
pub fn unified(kernel: &Path, initramfs: &Path, command_line: &str, work: &Path, to: &Path) -> Result<()> {
    let stub = work.join("stub");
    prerequisites::unpack("systemd-boot-efi", &stub)?;
    let line = work.join("cmdline");
    fs::write(&line, command_line)?;
    let release = work.join("os-release");
    fs::write(&release, "ID=berth-guest\nPRETTY_NAME=\"berth guest\"\n")?;
    let mut join = Command::new("objcopy");
    // The addresses leave 64 MiB for the kernel; the initramfs comes last and may have any length.
    for (section, file, address) in [
        (".osrel", release.as_path(), 0x20000),
        (".cmdline", line.as_path(), 0x30000),
        (".linux", kernel, 0x0200_0000),
        (".initrd", initramfs, 0x0600_0000),
    ] {
        join.arg("--add-section").arg(format!("{section}={}", file.display()));
        join.arg("--change-section-vma").arg(format!("{section}={address:#x}"));
    }
    join.arg(stub.join(STUB)).arg(to);
    process::run(&mut join, Duration::from_secs(60))?.success()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modules_needs_are_read_from_its_modinfo() {
        assert_eq!(needs(b"x\0depends=scsi-mod,virtio\0y"), ["scsi_mod", "virtio"]);
        assert_eq!(needs(b"x\0depends=\0y"), Vec::<String>::new());
    }
}
