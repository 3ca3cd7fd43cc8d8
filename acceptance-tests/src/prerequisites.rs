//! The Debian packages that the tests need, installed when missing.
//!
//! A package that would start a service when installed (etcd) is unpacked into the cache instead, see [`crate::tools`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::scratch::Scratch;
use crate::{process, report};

/// A file or a command that shows whether a package is installed, and the package.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("swtpm", "swtpm"),
    ("/usr/lib/qemu/virtiofsd", "qemu-system-common"),
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"),
    ("nft", "nftables"),
    ("dnsmasq", "dnsmasq-base"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("mmdebstrap", "mmdebstrap"),
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
    ("busybox", "busybox-static"),
    ("mcopy", "mtools"),
    ("syslinux", "syslinux"),
    ("/usr/lib/SYSLINUX/mbr.bin", "syslinux-common"),
    ("/usr/lib/ISOLINUX/isolinux.bin", "isolinux"),
    ("xorriso", "xorriso"),
    ("objcopy", "binutils"),
    ("mke2fs", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkntfs", "ntfs-3g"),
    ("ssh-keygen", "openssh-client"),
    ("xz", "xz-utils"),
    ("openssl", "openssl"),
];

/// The folders in a root shell's PATH: PATH here may lack the sbin folders.
const FOLDERS: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The full path of a command, from PATH and the usual folders.
pub fn command(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

fn present(probe: &str) -> bool {
    if probe.starts_with('/') { Path::new(probe).exists() } else { command(probe).is_some() }
}

/// Whether we are root: network namespaces, taps and packages require it.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Installs missing packages and prints their names.
pub fn ensure_installed() -> Result<()> {
    install(NEEDED)
}

/// Installs missing packages, each given with the file or command that shows its presence.
pub fn install(needed: &[(&str, &str)]) -> Result<()> {
    ensure!(is_root(), "this needs root: it makes network namespaces and taps, and installs Debian packages");
    let missing: BTreeSet<&str> =
        needed.iter().filter(|(probe, _)| !present(probe)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.into_iter().collect();
    report::note(&format!("installing from Debian: {}", names.join(", ")));
    let started = Instant::now();
    update_lists()?;
    let install = |option: &str| {
        let mut install = apt("apt-get");
        // Another program may install at the same time, as at the boot of a machine.
        install.args(["-o", "DPkg::Lock::Timeout=300"]);
        install.args(["install", "--yes", "--no-install-recommends", option, "--"]).args(&names);
        install
    };
    process::run(&mut install("--download-only"), Duration::from_secs(900))?
        .success()
        .context("downloading Debian packages")?;
    // If interrupted, it would leave partially installed packages on this machine.
    process::run_to_its_end(&mut install("--no-download"), Duration::from_secs(900))?
        .success()
        .context("installing Debian packages")?;
    report::note(&format!("installed in {}", report::spoken(started.elapsed())));
    let absent: Vec<&str> =
        needed.iter().filter(|(probe, _)| !present(probe)).map(|(probe, _)| *probe).collect();
    ensure!(absent.is_empty(), "still missing after installing their packages: {}", absent.join(", "));
    Ok(())
}

/// Downloads a package (its newest version) into an empty folder, and returns its archive.
pub fn archive(package: &str, into: &Path) -> Result<PathBuf> {
    if download(package, into).is_err() {
        // The lists may name a version that the mirror has replaced since.
        update_lists()?;
        download(package, into).with_context(|| format!("downloading {package}"))?;
    }
    std::fs::read_dir(into)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get downloaded no archive of {package}"))
}

/// Downloads a package (its newest version) and unpacks it into `into`, without installing it.
pub fn unpack(package: &str, into: &Path) -> Result<()> {
    let downloads = Scratch::new()?;
    let archive = archive(package, downloads.path())?;
    let mut extract = Command::new("dpkg-deb");
    process::run(extract.arg("--extract").arg(archive).arg(into), Duration::from_secs(120))?.success()?;
    Ok(())
}

fn download(package: &str, into: &Path) -> Result<()> {
    let version = candidate(package)?;
    let mut download = apt("apt-get");
    // As the sandbox user, apt could not write into our folder.
    download.args(["-o", "APT::Sandbox::User=root", "download", &format!("{package}={version}")]);
    process::run(download.current_dir(into), Duration::from_secs(300))?.success()?;
    Ok(())
}

/// The version of a package that apt would install now.
pub fn candidate(package: &str) -> Result<String> {
    if let Some(version) = known_candidate(package)? {
        return Ok(version);
    }
    update_lists()?;
    known_candidate(package)?.with_context(|| format!("Debian has no package {package} here"))
}

fn known_candidate(package: &str) -> Result<Option<String>> {
    let text =
        process::run(apt("apt-cache").args(["policy", package]), Duration::from_secs(60))?.success()?;
    Ok(text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))
        .filter(|version| *version != "(none)")
        .map(str::to_owned))
}

/// The direct dependencies of a package.
pub fn dependencies(package: &str) -> Result<Vec<String>> {
    let text =
        process::run(apt("apt-cache").args(["depends", package]), Duration::from_secs(60))?.success()?;
    Ok(text.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned).collect())
}

/// Runs `apt-get update`, once per process.
fn update_lists() -> Result<()> {
    static UPDATED: Mutex<bool> = Mutex::new(false);
    let mut updated = UPDATED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !*updated {
        process::run(apt("apt-get").arg("update"), Duration::from_secs(300))?
            .success()
            .context("apt-get update")?;
        *updated = true;
    }
    Ok(())
}

fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command
}
