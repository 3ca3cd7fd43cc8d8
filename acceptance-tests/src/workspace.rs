//! This repository: its location, and its binaries, built once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{process, progress};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

/// The folder for logs and other artifacts.
pub fn artifacts() -> PathBuf {
    root().join("target/acceptance")
}

/// The source of our programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `cargo build`: shares what `cargo test` has compiled.
    Debug,
    /// `cargo build --release`: what users get.
    Release,
    /// Prebuilt programs in this folder.
    Folder(PathBuf),
}

impl Source {
    /// The folder if one is named, else a build.
    pub fn new(folder: Option<&Path>, is_release: bool) -> Self {
        match folder {
            Some(folder) => Self::Folder(folder.to_owned()),
            None if is_release => Self::Release,
            None => Self::Debug,
        }
    }
}

/// The packages of the programs. They are always selected together: the selection determines the features of their shared
/// crates.
pub const PACKAGES: &[&str] = &["--package", "berth", "--package", "terraform-provider-berth"];

/// The two programs that users have.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// `berth`.
    pub berth: PathBuf,
    /// `terraform-provider-berth`.
    pub provider: PathBuf,
}

impl Binaries {
    /// Builds or finds the programs.
    pub fn get(source: &Source) -> Result<Self> {
        if let Source::Folder(folder) = source {
            let find = |name: &str| {
                folder.join(name).canonicalize().with_context(|| format!("{name} in {}", folder.display()))
            };
            return Ok(Self { berth: find("berth")?, provider: find("terraform-provider-berth")? });
        }
        let mut build = cargo();
        build.args(["build", "--message-format=json", "--bins"]).args(PACKAGES);
        if *source == Source::Release {
            build.arg("--release");
        }
        let messages = run_build(&mut build)?;
        let mut built: BTreeMap<String, PathBuf> = executables(&messages);
        let mut take = |name: &str| built.remove(name).with_context(|| format!("cargo built no {name}"));
        Ok(Self { berth: take("berth")?, provider: take("terraform-provider-berth")? })
    }
}

/// Runs a `cargo build --message-format=json` and shows its progress. Returns its messages.
///
/// # Errors
/// The compiler's errors, if the build fails.
pub fn run_build(build: &mut Command) -> Result<String> {
    // Cargo prints progress also into a pipe; shown where progress is.
    build.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "100");
    let output = |line: &str| {
        if let Some(doing) = progress::of_cargo(line) {
            progress::set(&doing);
        }
    };
    let finished = process::run_observed(build, Duration::from_secs(3_000), |_| {}, output)?;
    if !finished.status.success() {
        anyhow::bail!("cargo build:\n{}", rendered(&finished.stdout) + &without_progress(&finished.stderr));
    }
    Ok(finished.stdout)
}

/// The cargo that runs this program, at the repository's root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

fn messages(text: &str) -> impl Iterator<Item = serde_json::Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// The executables in cargo's messages, by the name of their target.
pub fn executables(text: &str) -> BTreeMap<String, PathBuf> {
    messages(text)
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect()
}

/// A program that holds tests.
#[derive(Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// The name of its target.
    pub name: String,
    /// The executable.
    pub path: PathBuf,
    /// Its package's folder.
    pub folder: PathBuf,
}

/// The test programs in cargo's messages, in their order.
pub fn test_programs(text: &str) -> Vec<TestProgram> {
    let program = |message: serde_json::Value| {
        let is_test = message["profile"]["test"].as_bool().unwrap_or(false);
        Some(TestProgram {
            name: message["target"]["name"].as_str()?.to_owned(),
            path: message["executable"].as_str().filter(|_| is_test)?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    };
    messages(text).filter_map(program).collect()
}

/// The packages that were compiled, rather than reused from an earlier build.
pub fn compiled(text: &str) -> BTreeSet<String> {
    messages(text)
        .filter(|message| message["reason"] == "compiler-artifact" && message["fresh"] == false)
        .filter_map(|message| Some(message["target"]["name"].as_str()?.to_owned()))
        .collect()
}

fn without_progress(text: &str) -> String {
    let lines = text.split(['\n', '\r']).filter(|line| progress::of_cargo(line).is_none());
    lines.filter(|line| !line.trim().is_empty()).map(|line| format!("{line}\n")).collect()
}

fn rendered(text: &str) -> String {
    messages(text).filter_map(|message| Some(message["message"]["rendered"].as_str()?.to_owned())).collect()
}
