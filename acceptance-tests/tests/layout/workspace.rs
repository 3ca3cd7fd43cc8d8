//! The workspace as described by cargo.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// One crate of ours.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// None for a dependency of the program itself; otherwise `dev` or `build`.
    kind: Option<String>,
    /// The path, if it is in this workspace.
    path: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's root").to_owned()
}

pub(crate) fn packages() -> Vec<Package> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo's metadata is JSON");
    metadata.packages
}

impl Package {
    /// The folder below the workspace's root.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self.manifest_path.parent().expect("a manifest is in a folder");
        folder.strip_prefix(root()).expect("it is in the workspace").to_owned()
    }

    /// The names of the program's own dependencies.
    pub(crate) fn dependencies(&self) -> BTreeSet<&str> {
        let own = self.dependencies.iter().filter(|found| found.kind.is_none());
        own.map(|found| found.name.as_str()).collect()
    }

    /// The other crates of ours that the program itself depends on, and those that only its tests or its build depend on.
    pub(crate) fn ours(&self) -> [BTreeSet<&str>; 2] {
        let ours = self.dependencies.iter().filter(|found| found.path.is_some() && found.name != self.name);
        let ours: BTreeSet<&str> = ours.map(|found| found.name.as_str()).collect();
        let own = self.dependencies();
        ours.into_iter().partition::<BTreeSet<_>, _>(|name| own.contains(name)).into()
    }

    /// The root files of its library and of its programs.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Path> {
        let built = |target: &&Target| target.kind.iter().any(|kind| kind == "lib" || kind == "bin");
        self.targets.iter().filter(built).map(|target| target.src_path.as_path())
    }
}
