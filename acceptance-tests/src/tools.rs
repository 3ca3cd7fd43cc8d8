//! Programs the tests drive that are neither ours nor ordinary Debian packages of a machine: terraform (or OpenTofu), kubectl, etcd,
//! kube-apiserver and a clock that can be set. Taken from PATH, unpacked from Debian or built from a pinned `go.mod`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::{prerequisites, process, report, workspace};

/// A Terraform-compatible program.
#[derive(Debug, Clone)]
pub struct TerraformCli {
    /// The program.
    pub program: PathBuf,
    /// What it is called.
    pub name: &'static str,
}

/// `terraform`, or `tofu`, or OpenTofu built here.
pub fn terraform(cache: &Cache) -> Result<TerraformCli> {
    for name in ["terraform", "tofu"] {
        if let Some(program) = prerequisites::command(name) {
            return Ok(TerraformCli { program, name });
        }
    }
    opentofu(cache)
}

/// OpenTofu at the pinned version, built here.
pub fn opentofu(cache: &Cache) -> Result<TerraformCli> {
    let release = Stamp::Fixed("-X github.com/opentofu/opentofu/version.dev=no");
    let program =
        go_build(cache, "opentofu", "github.com/opentofu/opentofu/cmd/tofu", "tofu", Some(release))?;
    Ok(TerraformCli { program, name: "tofu" })
}

/// Terraform at the pinned version, newer than what a machine may have, built here.
pub fn newer_terraform(cache: &Cache) -> Result<TerraformCli> {
    let release = Stamp::Fixed("-X github.com/hashicorp/terraform/version.dev=no");
    let program = go_build(cache, "terraform", "github.com/hashicorp/terraform", "terraform", Some(release))?;
    Ok(TerraformCli { program, name: "terraform" })
}

/// kubectl: any that speaks server-side apply.
pub fn kubectl(cache: &Cache) -> Result<PathBuf> {
    from_debian(cache, "kubectl", "kubernetes-client", "usr/bin/kubectl")
}

/// etcd. Installing its package would start a service, so it is only unpacked.
pub fn etcd(cache: &Cache) -> Result<PathBuf> {
    from_debian(cache, "etcd", "etcd-server", "usr/bin/etcd")
}

/// libfaketime, which stands between a program and the clock.
pub fn faketime(cache: &Cache) -> Result<PathBuf> {
    from_debian(
        cache,
        "libfaketime.so",
        "libfaketime",
        "usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    )
}

/// A real kube-apiserver.
pub fn kube_apiserver(cache: &Cache) -> Result<PathBuf> {
    // Without it the server would call itself v0.0.0.
    let version = Stamp::Version("-X k8s.io/component-base/version.gitVersion=");
    go_build(cache, "kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver", Some(version))
}

/// A linker flag by which a program is told what it is.
#[derive(Debug, Clone, Copy)]
pub enum Stamp {
    /// As it stands.
    Fixed(&'static str),
    /// The version is appended.
    Version(&'static str),
}

/// Why nothing can be built from Go sources here, if so.
pub fn cannot_build_go() -> Option<String> {
    go().err().map(|error| format!("{error:#}"))
}

fn from_debian(cache: &Cache, name: &str, package: &str, inside: &str) -> Result<PathBuf> {
    if let Some(program) = prerequisites::command(name) {
        return Ok(program);
    }
    let version = prerequisites::candidate(package)?;
    let entry = cache.entry(name, &[package, &version], |folder| {
        report::note(&format!("unpacking {name} from Debian's {package}"));
        let unpacked = folder.join("unpacked");
        prerequisites::unpack(package, &unpacked)?;
        fs::rename(unpacked.join(inside), folder.join(name))?;
        fs::remove_dir_all(unpacked)?;
        Ok(())
    })?;
    Ok(entry.join(name))
}

fn go() -> Result<PathBuf> {
    prerequisites::command("go")
        .or_else(|| Some(PathBuf::from("/usr/local/go/bin/go")).filter(|program| program.is_file()))
        .context(
            "no Go toolchain in PATH or /usr/local/go (kube-apiserver, OpenTofu and a newer Terraform are built from source)",
        )
}

/// Builds the package of one of the modules below `go/`.
pub fn go_build(
    cache: &Cache,
    module: &str,
    package: &str,
    program: &str,
    stamp: Option<Stamp>,
) -> Result<PathBuf> {
    let go = go()?;
    let folder = workspace::root().join("acceptance-tests/go").join(module);
    let pins = fs::read_to_string(folder.join("go.mod"))?;
    let stamp = match stamp {
        Some(Stamp::Fixed(flag)) => flag.to_owned(),
        Some(Stamp::Version(flag)) => format!("{flag}{}", pinned(&pins, package)?),
        None => String::new(),
    };
    let flags = format!("-ldflags=-s -w {stamp}");
    let ingredients = [pins, fs::read_to_string(folder.join("go.sum"))?, version(&go)?, flags.clone()];
    let ingredients: Vec<&str> = ingredients.iter().map(String::as_str).collect();
    let entry = cache.entry(module, &ingredients, |into| {
        report::note(&format!("building {program} from source (once; some minutes)"));
        let started = Instant::now();
        let mut build = Command::new(&go);
        build.args(["build", "-p", "2", "-trimpath", &flags, "-o"]).arg(into.join(program));
        build.arg(package).current_dir(&folder);
        // Pinned means pinned: neither another toolchain nor another go.mod.
        build.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly").env("CGO_ENABLED", "0");
        process::run(&mut build, Duration::from_secs(2_400))?.success()?;
        report::note(&format!("built {program} in {}", report::spoken(started.elapsed())));
        Ok(())
    })?;
    Ok(entry.join(program))
}

/// The version that a `go.mod` requires of the module that holds `package`.
fn pinned<'a>(pins: &'a str, package: &str) -> Result<&'a str> {
    pins.lines()
        .filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '))
        .find(|(module, version)| package.starts_with(&format!("{module}/")) && version.starts_with('v'))
        .map(|(_, version)| version.split_whitespace().next().unwrap_or(version))
        .with_context(|| format!("go.mod does not require {package}"))
}

fn version(go: &Path) -> Result<String> {
    process::run(Command::new(go).arg("version").env("GOTOOLCHAIN", "local"), Duration::from_secs(30))?
        .success()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_version_is_that_of_the_package_and_not_of_a_tool_line() {
        let pins = "tool k8s.io/kubernetes/cmd/kube-apiserver\nrequire k8s.io/kubernetes v1.34.4\n";
        assert_eq!(pinned(pins, "k8s.io/kubernetes/cmd/kube-apiserver").expect("it is required"), "v1.34.4");
    }
}
