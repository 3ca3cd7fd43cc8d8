//! Debian packages of another architecture than this machine's. apt reads lists of their own in a temporary folder: those of the machine, and
//! the architectures that dpkg has there, stay as they are.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process;
use crate::scratch::Scratch;

/// The packages of one architecture.
#[derive(Debug)]
pub struct ForeignPackages {
    architecture: &'static str,
    folder: Scratch,
}

impl ForeignPackages {
    /// Reads the lists of the machine's sources for an architecture, by Debian's name.
    pub fn of(architecture: &'static str) -> Result<Self> {
        let folder = Scratch::new()?;
        for name in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.path().join(name))?;
        }
        // Nothing of it is installed.
        fs::write(folder.path().join("status"), "")?;
        let packages = Self { architecture, folder };
        process::run(packages.apt("apt-get").arg("update"), Duration::from_secs(300))?
            .success()
            .with_context(|| format!("apt-get update for {architecture}"))?;
        Ok(packages)
    }

    /// The newest version of a package.
    pub fn candidate(&self, package: &str) -> Result<String> {
        let mut policy = self.apt("apt-cache");
        let text = process::run(policy.args(["policy", package]), Duration::from_secs(60))?.success()?;
        let candidate = text.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
        let candidate = candidate.filter(|version| *version != "(none)").map(str::to_owned);
        candidate.with_context(|| format!("Debian has no package {package} for {}", self.architecture))
    }

    /// The direct dependencies of a package.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let mut depends = self.apt("apt-cache");
        let text = process::run(depends.args(["depends", package]), Duration::from_secs(60))?.success()?;
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Downloads a package (its newest version) and unpacks it into `into`.
    pub fn unpack(&self, package: &str, into: &Path) -> Result<()> {
        let downloads = Scratch::new()?;
        let mut download = self.apt("apt-get");
        download.args(["download", &format!("{package}={}", self.candidate(package)?)]);
        process::run(download.current_dir(downloads.path()), Duration::from_secs(300))?.success()?;
        let archive = fs::read_dir(downloads.path())?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get downloaded no archive of {package}"))?;
        let mut extract = Command::new("dpkg-deb");
        process::run(extract.arg("--extract").arg(archive).arg(into), Duration::from_secs(120))?.success()?;
        Ok(())
    }

    fn apt(&self, program: &str) -> Command {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        let mut command = Command::new(program);
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        for option in [
            format!("APT::Architecture={}", self.architecture),
            format!("APT::Architectures={}", self.architecture),
            // As the sandbox user, apt could not write into our folders.
            "APT::Sandbox::User=root".to_owned(),
            format!("Dir::State={}", self.folder.path().display()),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", self.folder.path().display()),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}
