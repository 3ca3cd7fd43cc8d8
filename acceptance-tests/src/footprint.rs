//! The resources on a simulated host: processes, links, firewall rules, files. Comparing two footprints shows leftovers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::namespace::{self, Namespace};
use crate::{cgroups, process};

/// How deep the folders of instances are below the temporary folder of a suite.
const INSTANCE_DEPTH: usize = 6;

/// The resources at one moment, one line each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Footprint {
    things: BTreeSet<String>,
}

impl Footprint {
    /// The footprint of a namespace and of the files below `folder` that `counts` selects.
    pub fn of(namespace: &Namespace, folder: &Path, counts: impl Fn(&str) -> bool) -> Result<Self> {
        let mut seen = Self::default();
        for (_, line) in namespace.processes()? {
            seen.things.insert(format!("process {line}"));
        }
        seen.network(&|program| namespace.command(program))?;
        seen.things
            .extend(files(folder).into_iter().filter(|file| counts(file)).map(|file| format!("file {file}")));
        Ok(seen)
    }

    /// The footprint of this machine: its own network, and berth's control groups and temporary folders.
    pub fn of_this_machine() -> Result<Self> {
        let mut seen = Self::default();
        seen.network(&|program| Command::new(program))?;
        let temporary = std::env::temp_dir().display().to_string();
        let folders = folders_named(&temporary, "berth-", 1);
        // While an agent of another suite is away, the groups of its QEMUs that have ended stay.
        let others = instances(folders.iter().filter(|path| is_anothers(path)));
        let is_left = |group: &&PathBuf| !others.iter().any(|instance| group.ends_with(instance));
        let groups = cgroups::idle();
        seen.things.extend(groups.iter().filter(is_left).map(|path| format!("cgroup {}", path.display())));
        seen.things
            .extend(folders.iter().filter(|path| !is_anothers(path)).map(|path| format!("folder {path}")));
        let mut running = folders_named("/run", "berth", 1);
        // The first berth creates this folder, which holds the assigned user ids until the machine restarts.
        running.remove("/run/berth");
        seen.things.extend(running.iter().map(|path| format!("folder {path}")));
        Ok(seen)
    }

    fn network(&mut self, command: &dyn Fn(&str) -> Command) -> Result<()> {
        let ask = |program: &str, arguments: &[&str]| {
            process::run(command(program).args(arguments), Duration::from_secs(20))?.success()
        };
        for line in ask("ip", &["-o", "link", "show"])?.lines() {
            let name = line.split(": ").nth(1).unwrap_or(line);
            self.things.insert(format!("link {}", name.split('@').next().unwrap_or(name)));
        }
        for line in ask("ip", &["-o", "addr", "show"])?.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Link-local addresses appear automatically, some time after their link.
            if words.len() > 3 && !words[3].starts_with("fe80:") {
                self.things.insert(format!("address {} {}", words[1], words[3]));
            }
        }
        let mut place = String::new();
        let rules = ask("nft", &["--stateless", "list", "ruleset"])?;
        for rule in rules.lines().map(str::trim).filter(|rule| !rule.is_empty() && *rule != "}") {
            if let Some(block) = rule.strip_suffix('{') {
                block.trim().clone_into(&mut place);
            }
            self.things.insert(format!("nft {place}: {rule}"));
        }
        Ok(())
    }

    /// Removes the entries with this prefix.
    #[must_use]
    pub fn without(mut self, start: &str) -> Self {
        self.things.retain(|thing| !thing.starts_with(start));
        self
    }

    /// The entries that are not in `before`.
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        self.things.difference(&before.things).cloned().collect()
    }

    /// Fails if there are entries that are not in `before`.
    pub fn must_not_exceed(&self, before: &Self) -> Result<()> {
        let left = self.beyond(before);
        ensure!(left.is_empty(), "left behind:\n{}", left.join("\n"));
        Ok(())
    }
}

/// The files below a folder, relative to it.
pub fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if let Ok(relative) = path.strip_prefix(folder) {
                found.insert(relative.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Whether a temporary folder belongs to another run of these tests that is still in progress.
fn is_anothers(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let owner = name.strip_prefix(namespace::PREFIX).and_then(|rest| rest.split('-').next());
    owner.is_some_and(|owner| {
        owner != std::process::id().to_string() && Path::new("/proc").join(owner).exists()
    })
}

/// The names of the instances whose folders are in the state directories below these folders.
fn instances<'a>(folders: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let found = folders.flat_map(|folder| folders_named(folder, "i-", INSTANCE_DEPTH));
    found.filter_map(|path| path.rsplit('/').next().map(str::to_owned)).collect()
}

/// Folders with names that start with `prefix`, at most `depth` below `root`; matching folders are not searched further.
fn folders_named(root: &str, prefix: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(entries) = fs::read_dir(root) else { return found };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let path = entry.path().display().to_string();
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.insert(path);
        } else if depth > 1 {
            found.extend(folders_named(&path, prefix, depth - 1));
        }
    }
    found
}
