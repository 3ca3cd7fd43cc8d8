//! berth in a simulated next version: the sources of this tree with the next minor version, built beside this version.
//!
//! For cargo, a package in another folder is another package. So the copy is built with the intermediate files of this tree's
//! own target directory: crates from the registry are found there, only the copy's own are compiled, and nothing is
//! overwritten. The finished program goes to a target directory of the copy's own, and from there into the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::workspace::{self, Binaries, Source};
use crate::{footprint, process, report};

/// The files to copy. The tests are not part of the program.
const FILES: &[&str] = &["Cargo.toml", "Cargo.lock"];
const FOLDERS: &[&str] = &[".cargo", "examples/provider", "provider", "reconciler"];
/// The line of the manifest that names the tests, and the folder of tests in a package.
const TESTS: &str = "\"acceptance-tests\",";
const TEST_FOLDERS: [&str; 2] = ["/tests/", "/proptest-regressions/"];
/// The name of the program in a folder of prebuilt binaries.
const PREBUILT: &str = "berth-next";

/// The program.
#[derive(Debug, Clone)]
pub struct NextVersion {
    /// `berth`.
    pub berth: PathBuf,
    /// The version that it reports.
    pub version: String,
}

/// Builds the program or finds it, in the cache or in the folder that `source` names. `first` are this version's programs.
///
/// # Errors
/// It cannot be built, or its version is not later than that of `first`.
pub fn get(cache: &Cache, source: &Source, first: &Binaries) -> Result<NextVersion> {
    let berth = match source {
        Source::Folder(folder) => folder.join(PREBUILT).canonicalize().with_context(|| {
            format!("{PREBUILT} (berth of the same sources, of the next version) in {}", folder.display())
        })?,
        Source::Debug | Source::Release => built(cache, *source == Source::Release, &first.berth)?,
    };
    let (version, before) = (version_of(&berth)?, version_of(&first.berth)?);
    ensure!(
        parts(&version)? > parts(&before)?,
        "{} is of {version}, {} of {before}: definitions differ between minor versions only",
        berth.display(),
        first.berth.display()
    );
    Ok(NextVersion { berth, version })
}

/// The version that a `berth` reports.
pub fn version_of(berth: &Path) -> Result<String> {
    let text = process::run(Command::new(berth).arg("--version"), Duration::from_secs(20))?.success()?;
    Ok(text.split_whitespace().last().context("berth --version prints nothing")?.to_owned())
}

fn built(cache: &Cache, release: bool, first: &Path) -> Result<PathBuf> {
    let files = sources(workspace::root())?;
    let rustc = process::run(Command::new("rustc").arg("--version"), Duration::from_secs(30))?.success()?;
    let mut ingredients = vec![if release { "release" } else { "debug" }, rustc.as_str()];
    for (name, content) in &files {
        ingredients.extend([name.as_str(), content.as_str()]);
    }
    let entry = cache.entry(PREBUILT, &ingredients, |into| {
        report::note("building berth's next version");
        let started = Instant::now();
        let (program, compiled) = build(&files, release, first)?;
        fs::copy(&program, into.join("berth"))?;
        let (count, took) = (compiled.len(), report::spoken(started.elapsed()));
        report::note(&format!("built berth's next version in {took}: {count} crates compiled"));
        Ok(())
    })?;
    Ok(entry.join("berth"))
}

/// The copy's files by path, with the next version in the manifest.
fn sources(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut names: Vec<String> = FILES.iter().map(|name| (*name).to_owned()).collect();
    for folder in FOLDERS {
        let found = footprint::files(&root.join(folder)).into_iter().map(|file| format!("{folder}/{file}"));
        names.extend(found.filter(|name| !TEST_FOLDERS.iter().any(|tests| name.contains(tests))));
    }
    let mut files = BTreeMap::new();
    for name in names {
        let path = root.join(&name);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = if name == "Cargo.toml" { raised(&text)? } else { text };
        files.insert(name, text);
    }
    Ok(files)
}

/// The workspace's manifest with the next minor version and without the tests.
fn raised(manifest: &str) -> Result<String> {
    let heading = "[workspace.package]\nversion = \"";
    let (before, rest) = manifest.split_once(heading).context("the manifest begins its package otherwise")?;
    let (version, after) = rest.split_once('"').context("a version that does not end")?;
    let (major, minor) = parts(version)?;
    // The suite measures nothing: what compiles fastest is enough.
    let after = after.replace("opt-level = 1", "opt-level = 0");
    let before = before.lines().filter(|line| line.trim() != TESTS).map(|line| format!("{line}\n"));
    Ok(format!("{}{heading}{major}.{}.0\"{after}", before.collect::<String>(), minor + 1))
}

/// Major and minor version.
fn parts(version: &str) -> Result<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => anyhow::bail!("{version:?} is no version"),
    }
}

/// Builds the program. Returns it with the crates that had to be compiled.
fn build(
    files: &BTreeMap<String, String>,
    release: bool,
    first: &Path,
) -> Result<(PathBuf, BTreeSet<String>)> {
    // Always the same place: cargo identifies compiled crates by it.
    let place = workspace::root().join("target/next-version");
    let copy = place.join("source");
    lay_out(&copy, files)?;
    let target = first.ancestors().nth(2).context("the program lies in no target directory")?;
    let mut build = workspace::cargo();
    build.args(["build", "--message-format=json", "--bin", "berth"]).args(workspace::PACKAGES);
    if release {
        build.arg("--release");
    }
    build.current_dir(&copy);
    // Of its own crates only: those of the registry have none already, and are found as they are.
    build.env("CARGO_PROFILE_DEV_DEBUG", "false");
    build.env("CARGO_BUILD_BUILD_DIR", target).env("CARGO_TARGET_DIR", place.join("target"));
    let messages = workspace::run_build(&mut build)?;
    let program = workspace::executables(&messages).remove("berth").context("cargo built no berth")?;
    ensure!(program.starts_with(&place), "cargo put it at {}", program.display());
    Ok((program, workspace::compiled(&messages)))
}

/// Makes a folder contain exactly these files. An unchanged file is not written: cargo checks the modification time.
fn lay_out(folder: &Path, files: &BTreeMap<String, String>) -> Result<()> {
    for surplus in footprint::files(folder).iter().filter(|name| !files.contains_key(*name)) {
        fs::remove_file(folder.join(surplus))?;
    }
    for (name, content) in files {
        let path = folder.join(name);
        // Cargo rewrites the lock file with the next version.
        let same = name != "Cargo.lock" && fs::read_to_string(&path).is_ok_and(|there| there == *content);
        if !same {
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_of_the_next_minor_version_and_has_no_tests() {
        let manifest = "members = [\n    \"reconciler\",\n    \"acceptance-tests\",\n]\n\n\
                        [workspace.package]\nversion = \"0.9.3\"\nedition = \"2024\"\n";
        let wanted = "members = [\n    \"reconciler\",\n]\n\n\
                      [workspace.package]\nversion = \"0.10.0\"\nedition = \"2024\"\n";
        assert_eq!(raised(manifest).expect("it is one"), wanted);
        let own = fs::read_to_string(workspace::root().join("Cargo.toml")).expect("it is there");
        let copy = raised(&own).expect("the workspace's own manifest is one");
        assert!(!copy.contains(TESTS) && copy.lines().count() + 1 == own.lines().count());
    }

    #[test]
    fn a_copy_has_the_files_it_is_to_have_and_leaves_alone_what_is_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = |list: &[(&str, &str)]| {
            list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        lay_out(folder.path(), &files(&[("a/b", "1"), ("c", "2")])).expect("written");
        let time =
            || fs::metadata(folder.path().join("a/b")).and_then(|found| found.modified()).expect("there");
        let before = time();
        lay_out(folder.path(), &files(&[("a/b", "1"), ("d", "3")])).expect("written");
        assert_eq!(time(), before);
        let there: Vec<String> = footprint::files(folder.path()).into_iter().collect();
        assert_eq!(there, ["a/b", "d"]);
    }
}
