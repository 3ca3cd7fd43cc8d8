//! A cache of expensive builds under `~/.cache/berth` (or `BERTH_CACHE`), named by the hash of all their ingredients.
//!
//! An entry appears atomically (built beside, then renamed), is checked against its own checksums before use, and is built by
//! one process at a time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use crate::process;
use crate::scratch::Scratch;

/// The file with the checksums of all other files in an entry; written last.
const SUMS: &str = "SHA256SUMS";
/// The number of entries kept per name: a branch switch must not cost a rebuild.
const KEPT: usize = 3;

/// The cache.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens the cache, creating its folder.
    pub fn open() -> Result<Self> {
        let root = match std::env::var_os("BERTH_CACHE") {
            Some(root) => PathBuf::from(root),
            None => {
                let home = std::env::var_os("HOME").context("neither BERTH_CACHE nor HOME is set")?;
                Path::new(&home).join(".cache/berth")
            }
        };
        Self::at(&root)
    }

    /// A cache in another folder.
    pub fn at(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
        Ok(Self { root: fs::canonicalize(root)? })
    }

    /// The folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of the entry `name` built from `ingredients`. `build` fills the given folder if the entry does not
    /// exist or is damaged.
    pub fn entry(
        &self,
        name: &str,
        ingredients: &[&str],
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let path = self.root.join(format!("{name}-{}", key(ingredients)));
        let lock = File::create(self.root.join(format!("{name}.lock")))?;
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        if intact(&path) {
            touch(&path)?;
            return Ok(path);
        }
        let scratch = Scratch::within(&self.root, &format!("building-{name}-"))?;
        build(scratch.path())?;
        seal(scratch.path())?;
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::rename(scratch.path(), &path)?;
        scratch.keep();
        self.forget_old(name)?;
        Ok(path)
    }

    fn forget_old(&self, name: &str) -> Result<()> {
        let mut entries: Vec<(SystemTime, PathBuf)> = fs::read_dir(&self.root)?
            .flatten()
            .filter(|entry| is_entry_of(name, &entry.file_name().to_string_lossy()))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        entries.sort();
        let surplus = entries.len().saturating_sub(KEPT);
        for (_, path) in entries.into_iter().take(surplus) {
            fs::remove_dir_all(path)?;
        }
        Ok(())
    }
}

fn is_entry_of(name: &str, file: &str) -> bool {
    file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).is_some_and(|key| key.len() == 16)
}

fn key(ingredients: &[&str]) -> String {
    let mut hash = Sha256::new();
    for ingredient in ingredients {
        hash.update((ingredient.len() as u64).to_le_bytes());
        hash.update(ingredient.as_bytes());
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn touch(path: &Path) -> Result<()> {
    File::open(path)?.set_modified(SystemTime::now())?;
    Ok(())
}

/// `sha256sum` rather than our own code: it is many times faster than an unoptimised build of ours.
fn seal(path: &Path) -> Result<()> {
    let mut names: Vec<String> = fs::read_dir(path)?
        .flatten()
        .filter(|entry| entry.path().is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let sums = process::run(
        Command::new("sha256sum").arg("--").args(&names).current_dir(path),
        Duration::from_secs(120),
    )?
    .success()?;
    fs::write(path.join(SUMS), sums)?;
    Ok(())
}

fn intact(path: &Path) -> bool {
    path.join(SUMS).is_file()
        && process::run(
            Command::new("sha256sum").args(["--check", "--quiet", "--strict", SUMS]).current_dir(path),
            Duration::from_secs(120),
        )
        .is_ok_and(|finished| finished.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(text: &'static str) -> impl FnOnce(&Path) -> Result<()> {
        move |path| Ok(fs::write(path.join("thing"), text)?)
    }

    fn thing(path: &Path) -> String {
        fs::read_to_string(path.join("thing")).expect("the entry holds it")
    }

    #[test]
    fn an_entry_is_built_once_for_its_ingredients() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path()).expect("a cache");
        let first = cache.entry("guest", &["a"], build("one")).expect("built");
        let again = cache.entry("guest", &["a"], build("two")).expect("found");
        assert_eq!((thing(&again).as_str(), &first), ("one", &again));
        let other = cache.entry("guest", &["b"], build("two")).expect("built");
        assert_eq!(thing(&other), "two");
    }

    #[test]
    fn a_damaged_entry_is_built_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path()).expect("a cache");
        let path = cache.entry("guest", &["a"], build("one")).expect("built");
        fs::write(path.join("thing"), "0ne").expect("damaged");
        assert_eq!(thing(&cache.entry("guest", &["a"], build("two")).expect("rebuilt")), "two");
    }

    #[test]
    fn a_failed_build_leaves_no_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path()).expect("a cache");
        cache.entry("guest", &["a"], |_| anyhow::bail!("no")).expect_err("it fails");
        assert_eq!(thing(&cache.entry("guest", &["a"], build("two")).expect("built")), "two");
    }

    #[test]
    fn ingredients_do_not_run_together() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
    }
}
