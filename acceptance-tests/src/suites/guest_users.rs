//! SSH keys and passwords that change in a running Debian guest, by its guest agent; and a probe that runs a program in it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubectl::contains_all;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{process, wait};

const VM: &str = "vm/web";
const SOON: Duration = Duration::from_secs(90);
/// For the package manager of an emulated guest.
const PACKAGE: Duration = Duration::from_secs(600);
const PLACE: &str = "  power    = \"Running\"";
/// The user's entry in the configuration, with the key of this file.
const ENTRY: &str = "  guest_users = [{ name = \"debian\", ssh_authorized_keys = [file(\"FILE\")], ssh_authorized_keys_secret = \"rotated\" }]\n";
/// Has the agent refuse the command that reads keys.
const FORBID: &str = "printf '[general]\\nblacklist=guest-ssh-get-authorized-keys\\n' | sudo tee /etc/qemu/qemu-ga.conf && \
                      sudo systemctl restart qemu-guest-agent";
const ALLOW: &str = "sudo rm /etc/qemu/qemu-ga.conf && sudo systemctl restart qemu-guest-agent";

/// A guest whose user's keys change.
struct Guest<'a> {
    platform: &'a Platform,
    project: &'a Project,
    address: &'a str,
}

/// Runs the cases on the VM of the quickstart.
pub fn cases(report: &mut Report, platform: &Platform, project: &Project, address: &str) {
    let guest = Guest { platform, project, address };
    report.case("keys that are changed reach the running guest, and no other key is touched", || {
        guest.change()
    });
    report.case("keys that are rotated in their Secret reach the running guest", || guest.rotate());
    report.case(
        "a password that changes in its Secret reaches the running guest, and no plan shows it",
        || guest.password(),
    );
    report
        .case("an agent that may not read keys is named in the status, and allowed again it is used", || {
            guest.forbid()
        });
    report.case("a user that is taken off the list has the keys of cloud-init left", || guest.take_off());
}

/// A readiness probe that runs a program by the guest agent.
pub fn exec_probe(platform: &Platform, project: &Project, address: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    let probe = |command: &[&str]| {
        let probe = json!({"exec": {"command": command}, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 2});
        let patch = json!({"spec": {"readinessProbe": probe}}).to_string();
        kubectl.ok(&["patch", "vm", "web", "--type=merge", "-p", &patch])
    };
    let fails = |words: &str| {
        kubectl.until(VM, "its readiness probe to fail", SOON, |vm| {
            let conditions = vm["status"]["conditions"].to_string();
            conditions.contains("\"ProbeFailed\"") && conditions.contains(words)
        })
    };
    let guest = Guest { platform, project, address };
    probe(&["/nonexistent"])?;
    fails("the guest agent did not run the program")?;
    probe(&["test", "-e", "/run/is-ready"])?;
    fails("the program ended with exit code 1")?;
    guest.ssh("id", "sudo touch /run/is-ready")?.success()?;
    kubectl.condition(VM, "Ready=True", Some("Running"), SOON)?;
    guest.ssh("id", "sudo rm /run/is-ready")?.success()?;
    fails("the program ended with exit code 1")?;
    kubectl.ok(&[
        "patch",
        "vm",
        "web",
        "--type=merge",
        "-p",
        &json!({"spec": {"readinessProbe": null}}).to_string(),
    ])?;
    kubectl.condition(VM, "Ready=True", Some("Running"), SOON)?;
    project.plan_is_empty()
}

/// The package of the guest agent is upgraded, then removed. Nothing needs the agent afterwards.
pub fn agent_package(platform: &Platform, project: &Project) -> Result<()> {
    const KIND: &str = "GuestAgentSynced=True";
    let kubectl = platform.kubectl();
    project.edit("main.tf", PLACE, &format!("  guest_agent = {{ policy = \"Upgrade\" }}\n{PLACE}"))?;
    project.apply()?;
    let vm = kubectl.condition(VM, KIND, Some("Synced"), PACKAGE)?;
    ensure!(vm["status"]["guestAgent"]["time"].is_string(), "{}", vm["status"]["guestAgent"]);
    ensure!(vm["status"]["guest"]["agent"] == true, "the agent is gone: {}", vm["status"]["guest"]);
    let process = vm["status"]["process"].clone();
    project.edit("main.tf", "policy = \"Upgrade\"", "policy = \"Remove\"")?;
    // Without an agent, a disk is unplugged by force.
    let mut variables: serde_json::Value = serde_json::from_str(&project.read("terraform.tfvars.json")?)?;
    variables["guest_agent"] = false.into();
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.apply()?;
    let removed = |vm: &serde_json::Value| vm["status"]["guestAgent"]["policy"] == "Remove";
    kubectl.until(VM, "the removal of the guest agent", PACKAGE, removed)?;
    let vm = kubectl.condition(VM, KIND, Some("Synced"), PACKAGE)?;
    ensure!(vm["status"]["process"] == process, "the VM was restarted");
    project.plan_is_empty()
}

impl Guest<'_> {
    /// Runs a script in the guest over ssh with this key of the project.
    fn ssh(&self, key: &str, script: &str) -> Result<process::Finished> {
        self.platform.ssh(&self.project.folder().join(key), self.address, script)
    }

    /// Returns the identity of the guest's boot.
    fn gets_in(&self, key: &str) -> Result<String> {
        wait::until(&format!("ssh with key {key}"), SOON, || {
            self.ssh(key, "cat /proc/sys/kernel/random/boot_id")?.success()
        })
    }

    fn refuses(&self, key: &str) -> Result<()> {
        wait::until(&format!("ssh with key {key} to be refused"), SOON, || {
            contains_all(&self.ssh(key, "true")?.failure()?, &["Permission denied"])
        })
    }

    /// Makes a key; returns its public part.
    fn make_key(&self, name: &str) -> Result<String> {
        let mut generate = Command::new("ssh-keygen");
        generate
            .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
            .arg(self.project.folder().join(name));
        process::run(&mut generate, Duration::from_secs(30))?.success()?;
        self.project.read(&format!("{name}.pub"))
    }

    fn set_secret(&self, key: &str) -> Result<()> {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rotated"}, "stringData": {"keys": key}});
        self.platform.kubectl().apply(&secret.to_string()).map(drop)
    }

    fn synced(&self) -> Result<()> {
        self.platform.kubectl().condition(VM, "GuestUsersSynced=True", Some("Synced"), SOON).map(drop)
    }

    fn change(&self) -> Result<()> {
        self.make_key("first")?;
        self.make_key("second")?;
        let third = self.make_key("third")?;
        self.set_secret(&third)?;
        let boot = self.gets_in("id")?;
        let entry = |file: &str| ENTRY.replace("FILE", file);
        self.project.edit("main.tf", PLACE, &format!("{}{PLACE}", entry("first.pub")))?;
        self.project.apply()?;
        self.synced()?;
        for key in ["first", "third"] {
            ensure!(self.gets_in(key)? == boot, "the guest has booted again");
        }
        self.project.edit("main.tf", "first.pub", "second.pub")?;
        let plan = self.project.plan()?;
        contains_all(&format!("{:?}", plan.changes()), &["berth_vm.web"])?;
        self.project.apply()?;
        self.refuses("first")?;
        for key in ["second", "third", "id"] {
            ensure!(self.gets_in(key)? == boot, "the guest has booted again");
        }
        self.project.plan_is_empty()
    }

    fn rotate(&self) -> Result<()> {
        let fourth = self.make_key("fourth")?;
        self.set_secret(&fourth)?;
        self.gets_in("fourth")?;
        self.refuses("third")?;
        self.synced()
    }

    fn password(&self) -> Result<()> {
        let kubectl = self.platform.kubectl();
        let set = |text: &str| {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"password": text}});
            kubectl.apply(&secret.to_string()).map(drop)
        };
        let hash = || self.ssh("id", "sudo getent shadow debian | cut -d: -f2")?.success();
        let changes = |before: &str| {
            wait::until("another password", SOON, || {
                let hash = hash()?;
                ensure!(hash.starts_with("$6$rounds=25000$") && hash != before, "the hash is {hash}");
                Ok(hash)
            })
        };
        let before = hash()?;
        set("first password")?;
        let declared = "ssh_authorized_keys_secret = \"rotated\"";
        self.project.edit("main.tf", declared, &format!("{declared}, password_secret = \"login\""))?;
        self.project.apply()?;
        let first = changes(&before)?;
        self.synced()?;
        set("second password")?;
        changes(&first)?;
        self.synced()?;
        let vm = kubectl.ok(&["get", VM, "-o", "json"])?;
        ensure!(!vm.contains("second password") && !vm.contains("rounds=25000"), "the password is in the VM");
        self.project.plan_is_empty()
    }

    fn forbid(&self) -> Result<()> {
        self.ssh("id", FORBID)?.success()?;
        let kubectl = self.platform.kubectl();
        kubectl.condition(VM, "GuestUsersSynced=False", Some("GuestAgentRefused"), SOON)?;
        let why = crate::suites::console::administrator(self.platform).run(&["why", VM])?.success()?;
        contains_all(&why, &["guest-ssh-get-authorized-keys"])?;
        self.ssh("id", ALLOW)?.success()?;
        self.synced()
    }

    fn take_off(&self) -> Result<()> {
        let main = self.project.read("main.tf")?;
        let start = main.find("  guest_users = ").context("the entry of the user")?;
        let end = main[start..].find('\n').context("the end of its line")? + start + 1;
        self.project.write("main.tf", &format!("{}{}", &main[..start], &main[end..]))?;
        self.project.apply()?;
        for key in ["second", "fourth"] {
            self.refuses(key)?;
        }
        self.gets_in("id")?;
        let has_none = |vm: &serde_json::Value| vm["status"]["guestUsers"].is_null();
        self.platform.kubectl().until(VM, "to have no such users", SOON, has_none)?;
        self.project.plan_is_empty()
    }
}
