//! Whole sites in one process: berth on the embedded control plane, and mostly with controllers and with agents on hosts in memory.
//!
//! One program, since each is linked with all of berth. The files beside this one are its modules; `converges.rs` is a program of its
//! own, which has a suite of its own.

#![allow(
    clippy::duplicate_mod,
    reason = "several modules add methods of their own to the `Site` of a shared file, each to its own copy of that type"
)]

mod disk_templates;
mod graduates;
mod host_access;
#[path = "shared/image.rs"]
mod image;
mod in_use;
#[path = "shared/installed.rs"]
mod installed;
mod key_classes;
mod load_balancing;
mod networks;
mod orphans;
mod pool_choice;
mod qemu_options;
mod quota_policies;
mod quotas;
mod read_only_disks;
mod read_write_disks;
mod restrictions;
#[path = "shared/setup.rs"]
mod setup;
mod two_hosts;
mod zones;

use std::{collections::BTreeSet, fs, path::Path};

/// Cargo builds the two programs that the manifest names: a file that neither has as a module would run no test.
#[test]
fn each_file_is_a_module_of_a_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = names_in(&folder);
    let own = include_str!("sites.rs");
    let is_missing = |name: &&String| {
        !["converges", "sites"].contains(&name.as_str()) && !own.contains(&format!("\nmod {name};"))
    };
    let missing: Vec<&String> = files.iter().filter(is_missing).collect();
    assert!(files.len() > 2 && missing.is_empty(), "no module: {missing:?}");
    for name in &files {
        let own = fs::read_to_string(folder.join(format!("{name}.rs"))).expect("a file of Rust");
        for below in names_in(&folder.join(name)) {
            assert!(own.contains(&format!("\nmod {below};")), "no module: {name}/{below}");
        }
    }
}

/// The files of Rust in a folder, without their extension. None: there is no such folder.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = folder.read_dir().into_iter().flatten();
    let names =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8"));
    names.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned)).collect()
}
