//! What a simulated host has: processes, links, firewall rules, files. Two of them are compared to see what was left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::namespace::Namespace;
use crate::process;

/// What was found at one moment, one line a thing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Footprint {
    things: BTreeSet<String>,
}

impl Footprint {
    /// Looks at a namespace and at the files below `folder` that `counts` says matter.
    pub fn of(namespace: &Namespace, folder: &Path, counts: impl Fn(&str) -> bool) -> Result<Self> {
        let mut things = BTreeSet::new();
        for (_, line) in namespace.processes()? {
            things.insert(format!("process {line}"));
        }
        for line in namespace.ip(&["-o", "link", "show"])?.lines() {
            let name = line.split(": ").nth(1).unwrap_or(line);
            things.insert(format!("link {}", name.split('@').next().unwrap_or(name)));
        }
        for line in namespace.ip(&["-o", "addr", "show"])?.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Link-local addresses come by themselves, a while after their link.
            if words.len() > 3 && !words[3].starts_with("fe80:") {
                things.insert(format!("address {} {}", words[1], words[3]));
            }
        }
        let mut nft = namespace.command("nft");
        let rules =
            process::run(nft.args(["--stateless", "list", "ruleset"]), Duration::from_secs(20))?.success()?;
        let mut place = String::new();
        for rule in rules.lines().map(str::trim).filter(|rule| !rule.is_empty() && *rule != "}") {
            if let Some(block) = rule.strip_suffix('{') {
                block.trim().clone_into(&mut place);
            }
            things.insert(format!("nft {place}: {rule}"));
        }
        for file in files(folder) {
            if counts(&file) {
                things.insert(format!("file {file}"));
            }
        }
        Ok(Self { things })
    }

    /// Everything that is here and was not in `before`.
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        self.things.difference(&before.things).cloned().collect()
    }

    /// Fails when anything came since `before`.
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
