//! The layout's rules: the allowed dependencies between crates, and the absence of cycles between the modules of a crate.

#[path = "layout/circles.rs"]
mod circles;
#[path = "layout/modules.rs"]
mod modules;
#[path = "layout/source.rs"]
mod source;
#[path = "layout/tokens.rs"]
mod tokens;
#[path = "layout/workspace.rs"]
mod workspace;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use circles::Graph;
use modules::{Modules, Place};
use workspace::{Package, packages, root};

/// A crate, the crates of ours it may depend on, and those that additionally its tests may depend on.
const MAY_KNOW: &[(&str, &[&str], &[&str])] = &[
    ("acceptance-tests", &[], &[]),
    (
        "berth",
        &[
            "berth-agent",
            "berth-api",
            "berth-apiserver",
            "berth-console-client",
            "berth-controllers",
            "berth-engine",
            "berth-filesystems",
            "berth-hcl",
            "berth-host",
        ],
        &["berth-qemu"],
    ),
    (
        "berth-agent",
        &["berth-api", "berth-console-client", "berth-engine", "berth-host", "berth-qemu", "berth-yaml"],
        &["berth-apiserver"],
    ),
    ("berth-api", &[], &[]),
    ("berth-apimachinery", &[], &[]),
    ("berth-apiserver", &["berth-apimachinery", "berth-engine", "berth-store", "berth-yaml"], &[]),
    ("berth-backup", &[], &[]),
    ("berth-console-client", &["berth-api"], &[]),
    ("berth-controllers", &["berth-api", "berth-engine"], &[]),
    ("berth-engine", &[], &[]),
    ("berth-filesystems", &[], &[]),
    ("berth-hcl", &[], &[]),
    ("berth-host", &["berth-backup", "berth-engine", "berth-qemu"], &[]),
    ("berth-qemu", &[], &[]),
    ("berth-store", &[], &[]),
    ("berth-yaml", &[], &[]),
    (
        "terraform-provider-berth",
        &["berth-api", "berth-console-client", "berth-hcl", "tfplugin6"],
        &["berth-apiserver"],
    ),
    ("tfplugin6", &[], &[]),
];

/// The entries of the workspace's folder, without files with names that begin with a dot.
const TOP_LEVEL: &[&str] = &[
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "acceptance-tests",
    "docs",
    "examples",
    "provider",
    "reconciler",
];

fn package<'a>(packages: &'a [Package], name: &str) -> &'a Package {
    packages.iter().find(|package| package.name == name).unwrap_or_else(|| panic!("no crate {name}"))
}

#[test]
fn each_crate_knows_only_what_it_must() {
    let packages = packages();
    let found: BTreeMap<&str, [BTreeSet<&str>; 2]> =
        packages.iter().map(|package| (package.name.as_str(), package.ours())).collect();
    let set = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<&str>>();
    let allowed = MAY_KNOW.iter().map(|(name, own, tests)| (*name, [set(own), set(tests)])).collect();
    assert_eq!(found, allowed);
}

#[test]
fn the_kinds_need_no_runtime_and_the_protocol_no_kubernetes() {
    let packages = packages();
    for (of, never) in [
        ("berth-api", ["tokio", "reqwest", "hyper"].as_slice()),
        ("tfplugin6", &["kube", "k8s-openapi"]),
        ("berth-qemu", &["kube", "k8s-openapi"]),
        ("berth-host", &["kube", "k8s-openapi"]),
        ("berth-backup", &["kube", "k8s-openapi"]),
        ("berth-filesystems", &["kube", "k8s-openapi", "tokio"]),
        ("berth-engine", &["kube", "k8s-openapi", "http", "hyper"]),
        ("berth-apimachinery", &["tokio", "hyper", "axum", "tower", "rusqlite", "rand", "uuid"]),
        ("berth-store", &["kube", "k8s-openapi", "http", "hyper", "axum", "tower", "rustls", "kube-cel"]),
    ] {
        for name in never {
            assert!(!package(&packages, of).dependencies().contains(name), "{of} depends on {name}");
        }
    }
}

#[test]
fn only_the_store_opens_sqlite_and_nobody_links_openssl() {
    for package in packages() {
        let opens = package.dependencies().contains("rusqlite");
        assert_eq!(opens, package.name == "berth-store", "{}", package.name);
    }
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("the lock file is committed");
    assert!(lock.contains("name = \"aws-lc-rs\""));
    for name in ["openssl", "openssl-sys", "native-tls"] {
        assert!(!lock.contains(&format!("name = \"{name}\"")), "{name} is in the lock file");
    }
}

/// A sorted map takes half the memory of an ordered one, and hashes nothing.
#[test]
fn objects_of_json_are_sorted_maps_in_every_build() {
    // The lock file lists what features of a crate need if any build turns them on: `preserve_order` needs indexmap.
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("the lock file is committed");
    let is_it = |package: &&str| package.contains("name = \"serde_json\"\n");
    let package = lock.split("[[package]]").find(is_it).expect("it is a dependency");
    assert!(!package.contains("\"indexmap"), "see cargo tree --workspace -i serde_json -e features");
    assert_eq!(serde_json::json!({"b": 1, "a": 2}).to_string(), r#"{"a":2,"b":1}"#);
}

#[test]
fn the_top_level_holds_only_what_it_must() {
    let entries = fs::read_dir(root()).expect("the workspace's folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    // Build outputs there are in .gitignore.
    let names: BTreeSet<String> =
        names.filter(|name| !name.starts_with('.') && !name.starts_with("target")).collect();
    assert_eq!(names, TOP_LEVEL.iter().map(|name| (*name).to_owned()).collect());
    for settings in [".clippy.toml", ".rustfmt.toml"] {
        assert!(root().join(settings).exists(), "{settings}");
    }
}

/// The dependencies between submodules, each with one pair of modules in them that causes it.
type Arrows = BTreeMap<(String, String), (Place, Place)>;

/// The cycles between modules of one folder of a crate, each with its shortest path and its place in the source.
fn circles_of(root_file: &Path) -> Vec<String> {
    let modules = Modules::read(root_file);
    // By the common parent of two modules: a module and its own submodules may depend on each other.
    let mut levels: BTreeMap<Place, Arrows> = BTreeMap::new();
    for (from, named) in modules.arrows() {
        for to in named {
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(shared), to.get(shared)) {
                let level = levels.entry(from[..shared].to_vec()).or_default();
                level.entry((a.clone(), b.clone())).or_insert_with(|| (from.clone(), to.clone()));
            }
        }
    }
    let source = relative(root_file.parent().expect("a root is in a folder"));
    let mut found = Vec::new();
    for arrows in levels.into_values() {
        let mut graph = Graph::new();
        for (from, to) in arrows.keys() {
            graph.entry(from.clone()).or_insert_with(BTreeSet::new).insert(to.clone());
        }
        for members in circles::circles(&graph) {
            let way = members.iter().map(|member| circles::around(&graph, member)).min_by_key(Vec::len);
            let way = way.expect("a circle has members");
            let mut output = format!("{source}: {}", way.join(" → "));
            for step in way.windows(2) {
                let (from, to) = &arrows[&(step[0].clone(), step[1].clone())];
                let (from, to) = (relative(modules.file(from)), relative(modules.file(to)));
                output += &format!("\n    {} → {}: {from} names what is in {to}", step[0], step[1]);
            }
            found.push(output);
        }
    }
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Between submodules of the crate, between submodules of each of its modules, and so between files as well.
#[test]
fn no_modules_know_each_other_in_a_circle() {
    let mut found = Vec::new();
    for package in packages() {
        for root_file in package.roots() {
            found.extend(circles_of(root_file));
        }
    }
    assert!(found.is_empty(), "circles of modules:\n{}", found.join("\n"));
}

#[test]
fn only_qemu_and_host_start_processes() {
    let mut offenders = Vec::new();
    let may = ["acceptance-tests", "berth-host", "berth-qemu"];
    for package in packages().iter().filter(|package| !may.contains(&package.name.as_str())) {
        visit(&root().join(package.folder()).join("src"), &mut |path, text| {
            // Tests may kill: some process has to be killed.
            let is_test = path.components().any(|part| part.as_os_str() == "tests");
            if text.contains("process::Command") && !is_test {
                offenders.push(path.to_owned());
            }
        });
    }
    assert!(offenders.is_empty(), "{offenders:?}");
}

/// The code that derives a definition from its type is linked into every program that can reach it, and is large.
#[test]
fn programs_embed_definitions_and_do_not_derive_them() {
    let mut offenders = Vec::new();
    for package in packages() {
        visit(&root().join(package.folder()).join("src"), &mut |path, text| {
            let derives = ["CustomResourceExt", "manifests::derived"].iter().any(|name| text.contains(name));
            let may = path.ends_with("manifests/derived.rs") || path.ends_with("tests.rs");
            if derives && !may {
                offenders.push(path.to_owned());
            }
        });
    }
    assert!(offenders.is_empty(), "{offenders:?}: use berth_api::manifests::definition or crds");
}

#[test]
fn versions_stand_in_the_root_manifest_only() {
    for folder in packages().iter().map(|package| package.folder().display().to_string()) {
        let manifest = fs::read_to_string(root().join(&folder).join("Cargo.toml")).expect("a manifest");
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

fn visit(folder: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            visit(&path, see);
        } else if path.extension().is_some_and(|e| e == "rs") {
            see(&path, &fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn the_page_for_contributors_lists_every_suite_in_order() {
    let page = fs::read_to_string(root().join("docs/contributing.md")).expect("the page exists");
    let mut listed = Vec::new();
    let mut is_table = false;
    for line in page.lines() {
        is_table = line.starts_with("| suite |") || is_table && line.starts_with('|');
        let row = line.strip_prefix("| `").filter(|_| is_table);
        listed.extend(row.and_then(|row| row.split('`').next()));
    }
    let there: Vec<&str> = acceptance_tests::suites::ALL.iter().map(|suite| suite.name).collect();
    assert_eq!(listed, there);
}
