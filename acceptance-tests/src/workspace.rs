//! This repository: where it is, and its binaries, built once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process;

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

/// Where logs and other things to look at later go.
pub fn artifacts() -> PathBuf {
    root().join("target/acceptance")
}

/// Where our programs come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `cargo build`: shares what `cargo test` has compiled.
    Debug,
    /// `cargo build --release`: what users get.
    Release,
    /// They were built before and lie in this folder.
    Folder(PathBuf),
}

/// The two programs a user has.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// `berth`.
    pub berth: PathBuf,
    /// `terraform-provider-berth`.
    pub provider: PathBuf,
}

impl Binaries {
    /// Builds or finds them.
    pub fn get(source: &Source) -> Result<Self> {
        if let Source::Folder(folder) = source {
            let find = |name: &str| {
                folder.join(name).canonicalize().with_context(|| format!("{name} in {}", folder.display()))
            };
            return Ok(Self { berth: find("berth")?, provider: find("terraform-provider-berth")? });
        }
        let mut build = cargo();
        build.args(["build", "--quiet", "--message-format=json", "--package", "berth", "--package"]);
        build.args(["terraform-provider-berth", "--bins"]);
        if *source == Source::Release {
            build.arg("--release");
        }
        let finished = process::run(&mut build, Duration::from_secs(3_000))?;
        let messages = finished.stdout.clone();
        if !finished.status.success() {
            anyhow::bail!("cargo build:\n{}", rendered(&messages) + &finished.stderr);
        }
        let mut built: BTreeMap<String, PathBuf> = executables(&messages);
        let mut take = |name: &str| built.remove(name).with_context(|| format!("cargo built no {name}"));
        Ok(Self { berth: take("berth")?, provider: take("terraform-provider-berth")? })
    }
}

/// The cargo that runs us, at the repository's root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

fn messages(text: &str) -> impl Iterator<Item = serde_json::Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// The programs that cargo's messages tell of, by the name of their target.
pub fn executables(text: &str) -> BTreeMap<String, PathBuf> {
    messages(text)
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect()
}

fn rendered(text: &str) -> String {
    messages(text).filter_map(|message| Some(message["message"]["rendered"].as_str()?.to_owned())).collect()
}
