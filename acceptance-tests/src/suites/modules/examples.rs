//! Each folder of `examples/` that no suite applies: it is a valid configuration, which has a plan. The folders are found, so that a new
//! one is checked too.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::key_data;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::workspace;

/// Folders whose subfolders each have one block of a registry page, in the layout that the registry prescribes.
const PAGES: &[&str] = &[
    "actions",
    "data-sources",
    "ephemeral-resources",
    "functions",
    "list-resources",
    "provider",
    "resources",
];
/// The pages that make one configuration with that of the provider: they refer to each other's resources.
const JOINT: &[&str] = &["resources", "data-sources", "ephemeral-resources"];
/// A folder of modules, each of which has tests of its own.
const MODULES: &str = "modules";
/// A public key of the user, which several examples read.
const KEY_FILE: &str = "id.pub";
const REQUIRED: &str =
    "terraform {\n  required_providers {\n    berth = { source = \"berth-vms/berth\" }\n  }\n}\n";

pub(super) fn run(report: &mut Report, platform: &Platform) {
    report.case("the examples of the registry pages are one valid configuration", || pages(platform));
    report.case("each example of a function is a valid configuration", || functions(platform));
    report.case(
        "each folder of examples that no suite applies is a valid configuration, and has a plan",
        || {
            let applied = applied_by_suites()?;
            let is_applied = |name: &str| applied.contains(&format!("examples/{name}\""));
            for name in configurations()?.into_iter().filter(|name| !is_applied(name)) {
                plan(platform, &name).with_context(|| format!("examples/{name}"))?;
            }
            Ok(())
        },
    );
}

fn key_file() -> String {
    format!("ssh-ed25519 {} example", key_data("example"))
}

/// The examples that need Terraform 1.14: of actions, and of a list.
pub(super) fn newest(report: &mut Report, platform: &Platform) {
    report.case("the examples of actions and those of resources are one valid configuration", || {
        let project = platform.project()?;
        let mut configuration = joint()?;
        for name in folders("actions")? {
            configuration += &texts(&root().join("actions").join(name))?;
        }
        // The example of a restart is a part of a configuration with this variable.
        let settings = "variable \"settings\" {\n  type    = string\n  default = null\n}\n";
        write_pages(&project, &(configuration + settings))?;
        project.init()?;
        project.run(&["validate", "-no-color"])?.success().map(drop)
    });
    report.case("the examples of lists are queries that find what there is", || {
        for entry in fs::read_dir(root().join("list-resources"))? {
            let query = entry?.path().join("list-resource.tfquery.hcl");
            let project = platform.project()?;
            project.write("main.tf", &texts(&root().join("provider"))?)?;
            let text = fs::read_to_string(&query).with_context(|| query.display().to_string())?;
            project.write("example.tfquery.hcl", &text)?;
            project.init()?;
            project.run(&["query", "-no-color"])?.success()?;
        }
        Ok(())
    });
}

/// Returns the names of the modules of `examples/modules`.
pub(super) fn modules() -> Result<Vec<String>> {
    folders(MODULES)
}

fn root() -> PathBuf {
    workspace::root().join("examples")
}

/// Returns the names of the subfolders that have configuration, in order.
fn folders(of: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join(of)).with_context(|| format!("reading examples/{of}"))? {
        let entry = entry?;
        if entry.path().is_dir() && has_configuration(&entry.path())? {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn has_configuration(folder: &Path) -> Result<bool> {
    Ok(!texts(folder)?.is_empty())
}

/// Returns the texts of the configuration files of a folder.
fn texts(folder: &Path) -> Result<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tf") {
            files.push(path);
        }
    }
    files.sort();
    let read = |file: PathBuf| fs::read_to_string(&file).with_context(|| file.display().to_string());
    Ok(files.into_iter().map(read).collect::<Result<Vec<_>>>()?.concat())
}

/// Returns the folders with a whole configuration, by their paths below `examples`.
fn configurations() -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(root().join(&folder))? {
            let entry = entry?;
            let name = folder.join(entry.file_name());
            let is_other = folder.as_os_str().is_empty()
                && (PAGES.iter().any(|page| name == Path::new(page)) || name == Path::new(MODULES));
            if !entry.path().is_dir() || is_other {
                continue;
            }
            if has_configuration(&entry.path())? {
                found.push(name.display().to_string());
            }
            left.push(name);
        }
    }
    found.sort();
    ensure!(found.len() > 30, "only {found:?}");
    Ok(found)
}

/// Returns the source of the suites: each names the folder that it applies, as a text.
fn applied_by_suites() -> Result<String> {
    let mut source = String::new();
    let mut left = vec![workspace::root().join("acceptance-tests/src/suites")];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else {
                source += &fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(source)
}

fn plan(platform: &Platform, name: &str) -> Result<()> {
    let project = platform.project()?;
    project.copy_from(&root().join(name))?;
    project.write(KEY_FILE, &key_file())?;
    project.init()?;
    let mut variables = required_variables(&texts(project.folder())?);
    if name == "windows" {
        // Its second image too.
        variables.insert("generalized".to_owned(), json!(true));
    }
    project.write("terraform.tfvars.json", &Value::Object(variables).to_string())?;
    let changes = project.plan()?.changes();
    ensure!(changes.iter().any(|change| change.ends_with(": create")), "{changes:?}");
    Ok(())
}

/// Returns a value for each variable without a default: they are strings, and their names say which.
fn required_variables(configuration: &str) -> Map<String, Value> {
    let mut variables = Map::new();
    for block in configuration.split("\nvariable \"").skip(1) {
        let Some((name, rest)) = block.split_once('"') else { continue };
        let declaration = rest.split("\n}").next().unwrap_or_default();
        if declaration.contains("\n  default") {
            continue;
        }
        let value = if name.ends_with("sha256") {
            "a".repeat(64)
        } else if name.ends_with("url") {
            "https://images.example/disk.qcow2".to_owned()
        } else if name.ends_with("public_key") {
            format!("ssh-ed25519 {}", key_data("ada"))
        } else {
            "example".to_owned()
        };
        variables.insert(name.to_owned(), json!(value));
    }
    variables
}

fn pages(platform: &Platform) -> Result<()> {
    let project = platform.project()?;
    write_pages(&project, &joint()?)?;
    project.init()?;
    project.run(&["validate", "-no-color"])?.success().map(drop)
}

/// Returns the configuration of the pages that refer to each other's resources.
fn joint() -> Result<String> {
    let mut configuration = texts(&root().join("provider"))?;
    for kind in JOINT {
        for name in folders(kind)? {
            configuration += &texts(&root().join(kind).join(name))?;
        }
    }
    Ok(configuration)
}

/// Writes the configuration of pages, and the files that it reads.
fn write_pages(project: &Project, configuration: &str) -> Result<()> {
    project.write("main.tf", &without_other_providers(configuration))?;
    project.write(KEY_FILE, &key_file())?;
    let user_data = "cloud-init.yaml";
    project.write(user_data, &fs::read_to_string(root().join("quickstart").join(user_data))?)
}

/// The configuration without the block of a provider that no test has.
fn without_other_providers(configuration: &str) -> String {
    let Some((before, block)) = configuration.split_once("provider \"kubernetes\" {") else {
        return configuration.to_owned();
    };
    let after = block.split_once("\n}\n").map_or("", |(_, after)| after);
    format!("{before}{after}")
}

fn functions(platform: &Platform) -> Result<()> {
    let project = platform.project()?;
    let mut calls = REQUIRED.to_owned();
    for name in folders("functions")? {
        let example = texts(&root().join("functions").join(&name))?;
        fs::create_dir(project.folder().join(&name))?;
        project.write(&format!("{name}/main.tf"), &format!("{REQUIRED}{example}"))?;
        calls += &format!("module \"{name}\" {{\n  source = \"./{name}\"\n}}\n");
    }
    project.write("main.tf", &calls)?;
    project.init()?;
    project.run(&["validate", "-no-color"])?.success().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_variables_of_an_example_get_values_by_their_names() {
        let text = "# An image.\n\nvariable \"image_url\" {\n  type = string\n}\nvariable \"zone\" {\n  type    = string\n  \
                    default = \"a\"\n}\n\nvariable \"image_sha256\" {\n  type = string\n}\n";
        let variables = required_variables(text);
        assert_eq!(variables.keys().collect::<Vec<_>>(), ["image_sha256", "image_url"]);
        assert_eq!(variables["image_sha256"], json!("a".repeat(64)));
    }

    #[test]
    fn the_block_of_another_provider_is_left_out_of_the_pages() {
        let text = "a\nprovider \"kubernetes\" {\n  host = 1\n}\nb\n";
        assert_eq!(without_other_providers(text), "a\nb\n");
    }
}
