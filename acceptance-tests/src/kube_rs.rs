//! kube-rs's own integration tests, in the version that berth is built with: cargo's copy of its sources, built beside our
//! own.
//!
//! The published crates depend neither on each other's newest sources nor on the parts of each other that only tests need, so
//! they are combined into a workspace of their own.

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

/// A crate, the dependencies of its tests on the other crates, and those of its tests that need no pod, node or service.
///
/// The tests that are not listed need pods (most of them), a Node, a Service, a ComponentStatus, a Deployment, a
/// CertificateSigningRequest, an APIService or the scale subresource.
#[derive(Debug, Clone, Copy)]
pub struct TestedCrate {
    /// The crate.
    pub name: &'static str,
    needs: &'static str,
    /// The full names of the tests.
    pub tests: &'static [&'static str],
}

/// The tested crates.
pub const CRATES: &[TestedCrate] = &[
    TestedCrate {
        name: "kube",
        needs: "",
        tests: &["test::custom_resource_generates_correct_core_structs", "test::api_get_opt_handles_404"],
    },
    TestedCrate {
        name: "kube-client",
        needs: "[dev-dependencies.kube]\npath = \"../kube\"\nfeatures = [\"derive\"]\n",
        tests: &[
            "api::util::test::create_token_request",
            "api::entry::tests::entry_create_missing_object",
            "api::entry::tests::entry_update_existing_object",
            "api::entry::tests::entry_create_dry_run",
        ],
    },
    TestedCrate {
        name: "kube-runtime",
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

/// The test programs, by crate; built unless they are in the cache.
pub fn programs(cache: &Cache) -> Result<BTreeMap<&'static str, PathBuf>> {
    let sources = sources()?;
    let rustc = process::run(Command::new("rustc").arg("--version"), Duration::from_secs(30))?.success()?;
    let lock = fs::read_to_string(workspace::root().join("Cargo.lock"))?;
    let needs: String = CRATES.iter().map(|tested| tested.needs).collect();
    let versions: String = sources.values().map(|(version, _)| version.as_str()).collect();
    let entry = cache.entry("kube-rs", &[&versions, &needs, WORKSPACE, FEATURES, &rustc], |into| {
        report::note("building kube-rs's tests (once; some minutes)");
        let started = Instant::now();
        build(&sources, &lock, into)?;
        report::note(&format!("built kube-rs's tests in {}", report::spoken(started.elapsed())));
        Ok(())
    })?;
    Ok(CRATES.iter().map(|tested| (tested.name, entry.join(tested.name))).collect())
}

/// The version and folder of each crate in our own build.
fn sources() -> Result<BTreeMap<&'static str, (String, PathBuf)>> {
    let mut metadata = workspace::cargo();
    metadata.args(["metadata", "--locked", "--format-version=1"]);
    let text = process::run(&mut metadata, Duration::from_secs(300))?.success()?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let find = |tested: &TestedCrate| {
        let package = packages.iter().find(|package| package["name"] == tested.name)?;
        let manifest = Path::new(package["manifest_path"].as_str()?);
        Some((package["version"].as_str()?.to_owned(), manifest.parent()?.to_owned()))
    };
    CRATES
        .iter()
        .map(|tested| Ok((tested.name, find(tested).with_context(|| format!("no {}", tested.name))?)))
        .collect()
}

fn build(sources: &BTreeMap<&'static str, (String, PathBuf)>, lock: &str, into: &Path) -> Result<()> {
    let folder = into.join("sources");
    fs::create_dir(&folder)?;
    fs::write(folder.join("Cargo.toml"), WORKSPACE)?;
    // The versions that berth is built with; cargo adds those that only the tests need.
    fs::write(folder.join("Cargo.lock"), lock)?;
    for tested in CRATES {
        let (_, source) = &sources[tested.name];
        let copy = folder.join(tested.name);
        process::run(Command::new("cp").arg("-r").arg(source).arg(&copy), RUN)?.success()?;
        fs::remove_file(copy.join("Cargo.lock"))?;
        let manifest = copy.join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        fs::write(&manifest, format!("{text}\n{}", tested.needs))?;
    }
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--workspace", "--lib", "--no-run", "--message-format=json", "--quiet", FEATURES]);
    cargo.arg("--target-dir").arg(folder.join("target")).current_dir(&folder);
    let built = process::run(&mut cargo, BUILD)?.success()?;
    let built = workspace::executables(&built);
    for tested in CRATES {
        let program = built.get(&tested.name.replace('-', "_"));
        let program = program.with_context(|| format!("cargo built no tests of {}", tested.name))?;
        fs::copy(program, into.join(tested.name))?;
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
    let output = process::run(&mut command, RUN)?.success()?;
    ensure!(output.contains("test result: ok. 1 passed;"), "{test} was not run:\n{output}");
    Ok(())
}
