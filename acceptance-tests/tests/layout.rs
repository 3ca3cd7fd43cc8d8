//! The layout's rules: which crate may know which.

use std::{collections::BTreeSet, fs, path::PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's root").to_owned()
}

/// The names in one table of a manifest, up to the next table.
fn table(manifest: &str, heading: &str) -> BTreeSet<String> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != heading)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn dependencies(folder: &str) -> BTreeSet<String> {
    let path = root().join(folder).join("Cargo.toml");
    let manifest = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    table(&manifest, "[dependencies]")
}

fn ours(folder: &str) -> BTreeSet<String> {
    let names = [
        "berth",
        "berth-api",
        "berth-agent",
        "berth-apiserver",
        "berth-qemu",
        "tfplugin6",
        "terraform-provider-berth",
    ];
    dependencies(folder).into_iter().filter(|name| names.contains(&name.as_str())).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn each_crate_knows_only_what_it_must() {
    assert_eq!(ours("provider"), set(&["berth-api", "tfplugin6"]));
    assert_eq!(ours("provider/tfplugin6"), set(&[]));
    assert_eq!(ours("reconciler/api"), set(&[]));
    assert_eq!(ours("reconciler/apiserver"), set(&[]));
    assert_eq!(ours("reconciler/qemu"), set(&[]));
    assert_eq!(ours("reconciler/agent"), set(&["berth-api", "berth-qemu"]));
    assert_eq!(ours("reconciler"), set(&["berth-api", "berth-agent", "berth-apiserver"]));
}

#[test]
fn the_kinds_need_no_runtime_and_the_protocol_no_kubernetes() {
    for name in ["tokio", "reqwest", "hyper"] {
        assert!(!dependencies("reconciler/api").contains(name), "api depends on {name}");
    }
    for folder in ["provider/tfplugin6", "reconciler/qemu"] {
        for name in ["kube", "k8s-openapi"] {
            assert!(!dependencies(folder).contains(name), "{folder} depends on {name}");
        }
    }
}

#[test]
fn only_the_api_server_opens_sqlite_and_nobody_links_openssl() {
    let folders = [
        "provider",
        "provider/tfplugin6",
        "reconciler",
        "reconciler/api",
        "reconciler/qemu",
        "reconciler/agent",
    ];
    for folder in folders {
        assert!(!dependencies(folder).contains("rusqlite"), "{folder}");
    }
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("the lock file is committed");
    assert!(lock.contains("name = \"aws-lc-rs\""));
    for name in ["openssl", "openssl-sys", "native-tls"] {
        assert!(!lock.contains(&format!("name = \"{name}\"")), "{name} is in the lock file");
    }
}

#[test]
fn only_qemu_and_agent_start_processes() {
    let mut offenders = Vec::new();
    for folder in [
        "provider/src",
        "provider/tfplugin6/src",
        "reconciler/src",
        "reconciler/api/src",
        "reconciler/apiserver/src",
    ] {
        visit(&root().join(folder), &mut |path, text| {
            // Tests may: somebody has to be killed.
            let is_test = path.components().any(|part| part.as_os_str() == "tests");
            if text.contains("process::Command") && !is_test {
                offenders.push(path.to_owned());
            }
        });
    }
    assert!(offenders.is_empty(), "{offenders:?}");
}

#[test]
fn versions_stand_in_the_root_manifest_only() {
    let folders = [
        "provider",
        "provider/tfplugin6",
        "reconciler",
        "reconciler/api",
        "reconciler/apiserver",
        "reconciler/qemu",
        "reconciler/agent",
        "acceptance-tests",
    ];
    for folder in folders {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        for heading in ["[dependencies]", "[dev-dependencies]", "[build-dependencies]"] {
            let lines = manifest
                .lines()
                .skip_while(|l| l.trim() != heading)
                .skip(1)
                .take_while(|l| !l.starts_with('['));
            for line in lines.filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
                assert!(line.contains("workspace = true"), "{folder}: {line}");
            }
        }
    }
}

fn visit(folder: &std::path::Path, see: &mut impl FnMut(&std::path::Path, &str)) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            visit(&path, see);
        } else if path.extension().is_some_and(|e| e == "rs") {
            see(&path, &fs::read_to_string(&path).expect("a source file"));
        }
    }
}
