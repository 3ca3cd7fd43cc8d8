//! kube-rs's own integration tests, of the version berth is built with: its sources as cargo has them, built beside our own.
//!
//! As they are published the crates do not know each other's newest sources, nor what their tests alone need of each other, so
//! they are put together into a workspace of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cache::Cache;
use crate::namespace::Namespace;
use crate::{process, report, workspace};

/// A crate, what its tests need of the others, and those of its tests that ask a cluster for no pod, node or service.
///
/// Of the others, those that are not named want: pods (most of them), a Node, a Service, a ComponentStatus, a Deployment, a
/// CertificateSigningRequest or an APIService.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// The crate.
    pub package: &'static str,
    needs: &'static str,
    /// By their names in full.
    pub tests: &'static [&'static str],
}

/// All there are.
pub const SUITES: &[Suite] = &[
    Suite {
        package: "kube",
        needs: "",
        tests: &[
            "test::custom_resource_generates_correct_core_structs",
            "test::derived_resource_queryable_and_has_subresources",
            "test::api_get_opt_handles_404",
        ],
    },
    Suite {
        package: "kube-client",
        needs: "[dev-dependencies.kube]\npath = \"../kube\"\nfeatures = [\"derive\"]\n",
        tests: &[
            "api::util::test::create_token_request",
            "api::entry::tests::entry_create_missing_object",
            "api::entry::tests::entry_update_existing_object",
            "api::entry::tests::entry_create_dry_run",
        ],
    },
    Suite {
        package: "kube-runtime",
        needs: "[dev-dependencies.kube]\npath = \"../kube\"\nfeatures = [\"derive\", \"runtime\"]\n",
        tests: &["events::test::event_recorder_cache_retain"],
    },
];

const WORKSPACE: &str = "[workspace]\nresolver = \"3\"\nmembers = [\"kube\", \"kube-client\", \"kube-runtime\"]\n\
    [patch.crates-io]\nkube = { path = \"kube\" }\nkube-client = { path = \"kube-client\" }\n\
    kube-runtime = { path = \"kube-runtime\" }\n[profile.dev]\ndebug = false\n";
const FEATURES: &str = "--features=kube/derive,kube/runtime,kube-client/ws";
const BUILD: Duration = Duration::from_secs(1_500);
const RUN: Duration = Duration::from_secs(120);

/// The programs that hold the tests, by crate; built unless they are in the cache.
pub fn programs(cache: &Cache) -> Result<BTreeMap<&'static str, PathBuf>> {
    let sources = sources()?;
    let rustc = process::run(Command::new("rustc").arg("--version"), Duration::from_secs(30))?.success()?;
    let lock = fs::read_to_string(workspace::root().join("Cargo.lock"))?;
    let needs: String = SUITES.iter().map(|suite| suite.needs).collect();
    let versions: String = sources.values().map(|(version, _)| version.as_str()).collect();
    let entry = cache.entry("kube-rs", &[&versions, &needs, WORKSPACE, FEATURES, &rustc], |into| {
        report::note("building kube-rs's tests (once; some minutes)");
        let started = Instant::now();
        build(&sources, &lock, into)?;
        report::note(&format!("built kube-rs's tests in {}", report::spoken(started.elapsed())));
        Ok(())
    })?;
    Ok(SUITES.iter().map(|suite| (suite.package, entry.join(suite.package))).collect())
}

/// Version and folder of each crate, as our own build has it.
fn sources() -> Result<BTreeMap<&'static str, (String, PathBuf)>> {
    let mut metadata = workspace::cargo();
    metadata.args(["metadata", "--locked", "--format-version=1"]);
    let text = process::run(&mut metadata, Duration::from_secs(300))?.success()?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let find = |suite: &Suite| {
        let package = packages.iter().find(|package| package["name"] == suite.package)?;
        let manifest = Path::new(package["manifest_path"].as_str()?);
        Some((package["version"].as_str()?.to_owned(), manifest.parent()?.to_owned()))
    };
    SUITES
        .iter()
        .map(|suite| Ok((suite.package, find(suite).with_context(|| format!("no {}", suite.package))?)))
        .collect()
}

fn build(sources: &BTreeMap<&'static str, (String, PathBuf)>, lock: &str, into: &Path) -> Result<()> {
    let folder = into.join("sources");
    fs::create_dir(&folder)?;
    fs::write(folder.join("Cargo.toml"), WORKSPACE)?;
    // What berth is built with as well; what only the tests need cargo adds.
    fs::write(folder.join("Cargo.lock"), lock)?;
    for suite in SUITES {
        let (_, source) = &sources[suite.package];
        let copy = folder.join(suite.package);
        process::run(Command::new("cp").arg("-r").arg(source).arg(&copy), RUN)?.success()?;
        fs::remove_file(copy.join("Cargo.lock"))?;
        let manifest = copy.join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        fs::write(&manifest, format!("{text}\n{}", suite.needs))?;
    }
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--workspace", "--lib", "--no-run", "--message-format=json", "--quiet", FEATURES]);
    cargo.arg("--target-dir").arg(folder.join("target")).current_dir(&folder);
    let built = process::run(&mut cargo, BUILD)?.success()?;
    let built = workspace::executables(&built);
    for suite in SUITES {
        let program = built.get(&suite.package.replace('-', "_"));
        let program = program.with_context(|| format!("cargo built no tests of {}", suite.package))?;
        fs::copy(program, into.join(suite.package))?;
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}

/// Runs one test against the cluster of a kubeconfig.
///
/// # Errors
/// It fails, or there is no such test (any more).
pub fn run(program: &Path, test: &str, kubeconfig: &Path, namespace: &Namespace) -> Result<()> {
    let mut command = namespace.command(program);
    command.args(["--ignored", "--exact", test, "--nocapture"]).env("KUBECONFIG", kubeconfig);
    let told = process::run(&mut command, RUN)?.success()?;
    ensure!(told.contains("test result: ok. 1 passed;"), "{test} was not run:\n{told}");
    Ok(())
}
