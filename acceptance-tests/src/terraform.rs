//! `terraform` (or `tofu`) in a folder of its own, with our provider installed as users install it: from a file-system mirror.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::berth::KUBECONFIG_VARIABLE;
use crate::namespace::Namespace;
use crate::process::{self, Finished};
use crate::tools::TerraformCli;

/// The provider's address below a registry, and its version in the mirror.
const PROVIDER: &str = "berth-vms/berth";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The default registries of both programs: an address without a host means a different one in each.
const REGISTRIES: &[&str] = &["registry.terraform.io", "registry.opentofu.org"];
/// The time limit of an apply, which boots a guest under emulation.
const APPLY: Duration = Duration::from_secs(900);

/// Terraform with our provider installed.
#[derive(Debug, Clone)]
pub struct Installation {
    cli: TerraformCli,
    configuration: PathBuf,
    home: PathBuf,
    provider: PathBuf,
}

impl Installation {
    /// Creates the mirror and the CLI configuration below `home`.
    pub fn make(cli: &TerraformCli, provider: &Path, home: &Path) -> Result<Self> {
        let mirror = home.join("providers");
        offer(home, PROVIDER, VERSION, provider)?;
        let configuration = home.join("terraformrc");
        // Only the mirror: a test must not contact a registry.
        fs::write(
            &configuration,
            format!("provider_installation {{\n  filesystem_mirror {{\n    path = {:?}\n  }}\n}}\n", mirror),
        )?;
        Ok(Self { cli: cli.clone(), configuration, home: home.to_owned(), provider: provider.to_owned() })
    }
}

/// Puts a provider into the mirror below `home`, where the copy of each project comes from.
pub fn offer(home: &Path, source: &str, version: &str, program: &Path) -> Result<()> {
    let name = source.rsplit('/').next().unwrap_or(source);
    for registry in REGISTRIES {
        let folder = home.join("providers").join(registry).join(source).join(version).join("linux_amd64");
        let link = folder.join(format!("terraform-provider-{name}_v{version}"));
        fs::create_dir_all(&folder)?;
        if !link.exists() {
            symlink(program, link)?;
        }
    }
    Ok(())
}

/// The changes of a plan.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The plan's text for people.
    pub text: String,
    /// The plan's JSON.
    pub json: Value,
}

impl Plan {
    /// The actions on a resource, joined by `+`: `no-op`, `create`, `update`, `delete`, `delete+create`, `read`.
    pub fn actions(&self, address: &str) -> String {
        let changes = self.json["resource_changes"].as_array();
        let change = changes.into_iter().flatten().find(|change| change["address"] == address);
        change.and_then(|change| change["change"]["actions"].as_array()).map_or_else(
            || "absent".to_owned(),
            |actions| actions.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("+"),
        )
    }

    /// The resources that would change, with their actions.
    pub fn changes(&self) -> Vec<String> {
        self.json["resource_changes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|change| change["address"].as_str())
            .map(|address| format!("{address}: {}", self.actions(address)))
            .filter(|line| !line.ends_with(": no-op"))
            .collect()
    }
}

/// A folder with a configuration.
#[derive(Debug)]
pub struct Project {
    installation: Installation,
    folder: PathBuf,
    kubeconfig: PathBuf,
    namespace: Arc<Namespace>,
}

impl Project {
    /// An empty project in `folder`.
    pub fn new(
        installation: &Installation,
        folder: &Path,
        kubeconfig: &Path,
        namespace: &Arc<Namespace>,
    ) -> Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            installation: installation.clone(),
            folder: folder.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            namespace: Arc::clone(namespace),
        })
    }

    /// The same folder and state, with another kubeconfig.
    #[must_use]
    pub fn with_kubeconfig(&self, kubeconfig: &Path) -> Self {
        Self {
            installation: self.installation.clone(),
            folder: self.folder.clone(),
            kubeconfig: kubeconfig.to_owned(),
            namespace: Arc::clone(&self.namespace),
        }
    }

    /// Writes a file of the project.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        fs::write(self.folder.join(name), content).with_context(|| format!("writing {name}"))
    }

    /// Reads a file of the project.
    pub fn read(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.folder.join(name)).with_context(|| format!("reading {name}"))
    }

    /// Replaces a text in a file of the project; it must occur exactly once.
    pub fn edit(&self, name: &str, old: &str, new: &str) -> Result<()> {
        let text = self.read(name)?;
        ensure!(text.matches(old).count() == 1, "{name} does not hold exactly once: {old}");
        self.write(name, &text.replace(old, new))
    }

    /// Copies the files of a folder into the project.
    pub fn copy_from(&self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?.flatten()
        {
            if entry.path().is_file() {
                fs::copy(entry.path(), self.folder.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Copies a folder with its subfolders into the project.
    pub fn copy_tree_from(&self, folder: &Path) -> Result<()> {
        let copied = process::run(
            Command::new("cp").arg("--recursive").arg(folder.join(".")).arg(&self.folder),
            Duration::from_secs(30),
        );
        copied?.success().map(drop)
    }

    /// The project in a subfolder of this one, such as a module.
    #[must_use]
    pub fn subfolder(&self, name: &str) -> Self {
        Self { folder: self.folder.join(name), ..self.with_kubeconfig(&self.kubeconfig) }
    }

    /// Offers our provider under the address of another one to the projects of this installation.
    pub fn offer_stand_in(&self, source: &str, version: &str) -> Result<()> {
        offer(&self.installation.home, source, version, &self.installation.provider)
    }

    /// The registry that an address without one means.
    pub fn registry(&self) -> &'static str {
        if self.installation.cli.name == "tofu" { "registry.opentofu.org" } else { "registry.terraform.io" }
    }

    /// The folder of the project.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A Terraform command, for callers that start it differently from the methods here.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.namespace.command(&self.installation.cli.program);
        command.args(arguments).current_dir(&self.folder);
        command.env("TF_CLI_CONFIG_FILE", &self.installation.configuration);
        command
            .env("HOME", &self.installation.home)
            // A killed provider leaves its socket's folder, which is removed with ours.
            .env("TMPDIR", &self.installation.home)
            .env("CHECKPOINT_DISABLE", "1")
            .env("TF_IN_AUTOMATION", "1");
        command.env_remove("TF_LOG").env_remove("KUBECONFIG").env(KUBECONFIG_VARIABLE, &self.kubeconfig);
        command
    }

    /// Runs Terraform.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        process::run(&mut self.command(arguments), APPLY)
    }

    /// `init`.
    pub fn init(&self) -> Result<String> {
        self.run(&["init", "-input=false", "-no-color"])?.success()
    }

    /// `apply`; it must succeed.
    pub fn apply(&self) -> Result<String> {
        self.apply_with(&[])?.success()
    }

    /// `apply` with more arguments.
    pub fn apply_with(&self, more: &[&str]) -> Result<Finished> {
        let mut arguments = vec!["apply", "-auto-approve", "-input=false", "-no-color"];
        arguments.extend(more);
        self.run(&arguments)
    }

    /// `apply` that must fail. Returns all of its output.
    pub fn apply_refused(&self) -> Result<String> {
        self.apply_with(&[])?.failure()
    }

    /// `plan`; it must succeed.
    pub fn plan(&self) -> Result<Plan> {
        let text = self.run(&["plan", "-input=false", "-no-color", "-out=plan"])?.success()?;
        let json = self.run(&["show", "-json", "plan"])?.success()?;
        Ok(Plan { text, json: serde_json::from_str(&json).context("the plan is no JSON")? })
    }

    /// `plan` that must fail. Returns all of its output, with its line wrapping undone.
    pub fn plan_refused(&self) -> Result<String> {
        Ok(unwrapped(&self.run(&["plan", "-input=false", "-no-color"])?.failure()?))
    }

    /// A plan that must have no changes.
    pub fn plan_is_empty(&self) -> Result<()> {
        let finished = self.run(&["plan", "-detailed-exitcode", "-input=false", "-no-color"])?;
        match finished.code() {
            0 => Ok(()),
            2 => bail!("the plan is not empty:\n{}", finished.stdout),
            _ => bail!("{}", finished.output()),
        }
    }

    /// `destroy`; it must succeed.
    pub fn destroy(&self) -> Result<String> {
        self.run(&["destroy", "-auto-approve", "-input=false", "-no-color"])?.success()
    }

    /// `destroy` without prompts; it must be refused. Returns all of its output.
    pub fn destroy_refused(&self) -> Result<String> {
        self.run(&["destroy", "-auto-approve", "-input=false", "-no-color"])?.failure()
    }

    /// An output's value as text.
    pub fn output(&self, name: &str) -> Result<String> {
        Ok(self.run(&["output", "-raw", "-no-color", name])?.success()?.trim().to_owned())
    }

    /// The attributes of a resource in the state.
    pub fn attributes(&self, address: &str) -> Result<Value> {
        let json = self.run(&["show", "-json"])?.success()?;
        let state: Value = serde_json::from_str(&json).context("the state is no JSON")?;
        let resources = state["values"]["root_module"]["resources"].as_array();
        let found = resources.into_iter().flatten().find(|resource| resource["address"] == address);
        Ok(found.with_context(|| format!("no {address} in the state"))?["values"].clone())
    }

    /// The addresses in the state.
    pub fn resources(&self) -> Result<Vec<String>> {
        Ok(self.run(&["state", "list"])?.success()?.lines().map(str::to_owned).collect())
    }
}

/// A diagnostic's text without its frame and its line breaks.
pub fn unwrapped(text: &str) -> String {
    text.lines()
        .map(|line| line.trim_start_matches(['│', '╷', '╵', ' ']).trim())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_is_one_line_again() {
        assert_eq!(unwrapped("╷\n│ Error: no\n│ \n│ because of\n│ that\n╵\n"), "Error: no because of that");
    }

    #[test]
    fn a_plan_tells_what_changes() {
        let json = serde_json::json!({"resource_changes": [
            {"address": "berth_vm.web", "change": {"actions": ["delete", "create"]}},
            {"address": "berth_disk.root", "change": {"actions": ["no-op"]}},
        ]});
        let plan = Plan { text: String::new(), json };
        assert_eq!(plan.changes(), ["berth_vm.web: delete+create"]);
        assert_eq!(plan.actions("berth_vm.none"), "absent");
    }
}
