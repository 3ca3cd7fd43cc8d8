//! The provider's rules, as Terraform shows them: labels, permitted restarts, timeouts, fields that another manager declares,
//! objects that exist already. The guest boots by BIOS here.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use super::{console, manifests};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::{Project, unwrapped};

pub(super) const ANSWER: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(45);

const HEAD: &str = r#"
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}
"#;

const GUEST: &str = r#"
variable "image_url" { type = string }
variable "image_sha256" { type = string }

resource "berth_vm_class" "small" {
  name     = "rules-small"
  cpus     = 1
  memory   = "256Mi"
  firmware = "BIOS"
}

resource "berth_vm_class" "large" {
  name     = "rules-large"
  cpus     = 2
  memory   = "256Mi"
  firmware = "BIOS"
}

resource "berth_image" "guest" {
  name   = "rules"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_disk" "root" {
  name  = "rules-first"
  image = berth_image.guest.name
  size  = "64Mi"
  lifecycle { create_before_destroy = true }
}

resource "berth_public_ip" "rules" {
  name = "rules"
}

resource "berth_vm" "rules" {
  name               = "rules"
  class              = berth_vm_class.small.name
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.rules.name }]
  labels             = { team = "red" }
  allow_reboot       = false
  restart_token      = "users"
  wait_for           = "guest"
}

resource "berth_disk" "stopped" {
  name = "rules-stopped"
  size = "1Mi"
}

resource "berth_public_ip" "stopped" {
  name = "rules-stopped"
}

# All its addresses are in the state after one apply, though it never runs.
resource "berth_vm" "stopped" {
  name               = "rules-stopped"
  class              = "rules-small"
  disks              = [{ name = berth_disk.stopped.name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.stopped.name }]
  power              = "Stopped"
  wait_for           = "none"
  depends_on         = [berth_vm_class.small]
}

output "address" {
  value = berth_public_ip.rules.address
}

output "stopped" {
  value = [berth_vm.stopped.private_address, berth_vm.stopped.public_address]
}
"#;

/// Facts of the guest and its host, read while a plan is made.
const FACTS: &str = r#"
data "berth_vm" "rules" {
  name = "rules"
}

data "berth_vms" "red" {
  label_selector = "team in (red)"
  field_selector = "spec.class=rules-small"
  ready          = true
}

data "berth_hosts" "ready" {
  ready = true
}

data "berth_image" "rules" {
  name = data.berth_disk.root.image
}

data "berth_vm" "by_labels" {
  label_selector = "team=red"
  most_recent    = true
}

data "berth_disk" "root" {
  name = one([for disk in data.berth_vm.rules.disks : disk.name if disk.boot])
}

output "facts" {
  value = jsonencode({
    host     = data.berth_hosts.ready.hosts[*].name
    red      = data.berth_vms.red.vms[*].name
    running  = data.berth_vm.rules.status.conditions["Running"].status
    cpus     = data.berth_vm.rules.status.hardware.cpus
    qemu     = can(regex("^[0-9]", data.berth_vm.rules.status.facts["qemuVersion"]))
    idle     = data.berth_vm.rules.status.operation == null
    attached = data.berth_vm.rules.status.disks["rules-first"].attached
    address  = data.berth_vm.rules.status.interfaces["nic0"].address
    user     = data.berth_disk.root.status.used_by[*].vm
    image    = data.berth_image.rules.ready
    newest   = data.berth_vm.by_labels.name
    memory   = can(regex("^[0-9]", data.berth_hosts.ready.hosts[0].status.capacity.memory))
  })
}
"#;

/// A network and a pool of a configuration's own, and labels of the host.
const INFRASTRUCTURE: &str = r#"
data "berth_hosts" "all" {}

resource "berth_host" "first" {
  name   = data.berth_hosts.all.hosts[0].name
  labels = { rack = "7" }
}

resource "berth_network" "backend" {
  name = "rules-backend"
  cidr = "10.93.0.0/24"
}

resource "berth_storage_pool" "fast" {
  name                    = "rules-fast"
  trash_retention_seconds = 0
}

resource "berth_disk" "member" {
  name = "rules-member"
  size = "1Mi"
  pool = berth_storage_pool.fast.name
}

resource "berth_vm_class" "member" {
  name   = "rules-member"
  cpus   = 1
  memory = "64Mi"
}

resource "berth_vm" "member" {
  name               = "rules-member"
  class              = berth_vm_class.member.name
  disks              = [{ name = berth_disk.member.name, boot = true }]
  network_interfaces = [{ network = berth_network.backend.name }]
  placement          = { host_selector = berth_host.first.labels }
  power              = "Stopped"
}

data "berth_network" "backend" {
  name       = "rules-backend"
  depends_on = [berth_network.backend]
}

output "address" {
  value = berth_vm.member.private_address
}

output "mtu" {
  value = data.berth_network.backend.status.mtu
}
"#;

const CLASS: &str = r#"
resource "berth_vm_class" "contested" {
  name            = "contested"
  cpus            = 1
  memory          = "128Mi"
  force_conflicts = false
}
"#;

const PROTECTED: &str = r#"
resource "berth_disk" "kept" {
  name                = "kept"
  size                = "64Mi"
  deletion_protection = true
}
"#;

/// A VM that is never ready: nothing is on its disk, and it has no interface.
const LATE: &str = r#"
resource "berth_vm_class" "late" {
  name   = "late"
  cpus   = 1
  memory = "64Mi"
}

resource "berth_disk" "late" {
  name = "late"
  size = "64Mi"
}

resource "berth_vm" "late" {
  name               = "late"
  class              = berth_vm_class.late.name
  disks              = [{ name = berth_disk.late.name, boot = true }]
  network_interfaces = []
  stop               = { mode = "Hard" }
  wait_for           = "guest"
  on_timeout         = "warn"
  timeouts {
    create = "10s"
  }
}
"#;

/// Runs the cases; each cleans up after itself.
pub fn run(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let failed = report.count().failed;
    // A failed step has been counted, and the steps after it cannot run.
    let _ = living(report, platform, guest);
    infrastructure(report, platform);
    timeouts(report, platform);
    declared_elsewhere(report, platform);
    adoption(report, platform);
    in_use(report, platform);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

pub(super) fn project(platform: &Platform, configuration: &str) -> Result<Project> {
    let project = platform.project()?;
    project.write("main.tf", &format!("{HEAD}{configuration}"))?;
    Ok(project)
}

fn living(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    let kubectl = platform.kubectl();
    let (project, address) = report.step("a small guest boots by BIOS", || {
        let project = project(platform, GUEST)?;
        let url = platform.images().put("guest.qcow2", Content::File(guest.path.clone()));
        let variables = json!({"image_url": url, "image_sha256": guest.sha256});
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.init()?;
        project.apply()?;
        let address = project.output("address")?;
        let text = http::get_within(platform.neighbour(), &address, "/", ANSWER)?;
        ensure!(field(&text, "firmware")? == "bios", "{text}");
        project.plan_is_empty()?;
        Ok((project, address))
    })?;
    report.case("data sources show the guest and its host in a plan", || {
        let project = self::project(platform, FACTS)?;
        project.init()?;
        let plan = project.plan()?;
        let facts = plan.json["planned_values"]["outputs"]["facts"]["value"].as_str().unwrap_or_default();
        let facts: Value = serde_json::from_str(facts)?;
        let host = kubectl.object("vm", "rules")?["status"]["binding"]["host"].clone();
        let private = kubectl.object("vm", "rules")?["status"]["privateAddress"].clone();
        let expected = json!({
            "host": [host], "red": ["rules"], "running": "True", "cpus": 1, "attached": true, "address": private,
            "user": ["rules"], "image": true, "memory": true, "newest": "rules", "qemu": true,
            "idle": true,
        });
        ensure!(facts == expected, "{facts:#}");
        Ok(())
    });
    report.case("labels are the object's, and those of others are left alone", || {
        kubectl.ok(&["label", "vm", "rules", "theirs=kept"])?;
        project.plan_is_empty()?;
        kubectl.ok(&["label", "--overwrite", "vm", "rules", "team=green"])?;
        project.apply()?;
        let labels = kubectl.object("vm", "rules")?["metadata"]["labels"].clone();
        ensure!(labels == json!({"team": "red", "theirs": "kept"}), "{labels}");
        project.edit("main.tf", r#"{ team = "red" }"#, r#"{ team = "blue", tier = "web" }"#)?;
        project.apply()?;
        let labels = kubectl.object("vm", "rules")?["metadata"]["labels"].clone();
        ensure!(labels == json!({"team": "blue", "tier": "web", "theirs": "kept"}), "{labels}");
        project.edit("main.tf", r#"  labels             = { team = "blue", tier = "web" }"#, "")?;
        project.apply()?;
        let labels = kubectl.object("vm", "rules")?["metadata"]["labels"].clone();
        ensure!(labels == json!({"theirs": "kept"}), "{labels}");
        project.plan_is_empty()
    });
    report.case(
        "with allow_reboot another class restarts the VM in the same apply, and the plan warns of it",
        || {
            let boot = boot_of(platform, &address)?;
            project.edit(
                "main.tf",
                "class              = berth_vm_class.small",
                "class              = berth_vm_class.large",
            )?;
            let waits = project.plan()?;
            contains_all(&unwrapped(&waits.text), &["next power cycle"])?;
            project.edit("main.tf", "allow_reboot       = false", "allow_reboot       = true")?;
            let plan = project.plan()?;
            contains_all(&unwrapped(&plan.text), &["The VM will be restarted"])?;
            ensure!(plan.changes() == ["berth_vm.rules: update"], "{:?}", plan.changes());
            project.apply()?;
            let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
            ensure!(field(&text, "cpus")? == "2", "{text}");
            ensure!(field(&text, "boot_id")? != boot, "the same boot: {text}");
            kubectl.condition("vm/rules", "ClassSynced=True", None, SOON)?;
            project.plan_is_empty()
        },
    );
    report.case("CPUs, memory, topology, NUMA nodes and TPM of the VM itself come before its class's, and need no class", || {
        project.edit(
            "main.tf",
            "class              = berth_vm_class.large.name",
            "cpus               = 4\n  memory             = \"128Mi\"\n  firmware           = \"BIOS\"\n  cpu_topology       = { sockets = 2, cores = 2 }\n  numa_nodes         = 2\n  tpm                = true",
        )?;
        contains_all(&unwrapped(&project.plan()?.text), &["The VM will be restarted"])?;
        project.apply()?;
        let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
        let memory: u64 = field(&text, "memory_kib")?.parse()?;
        ensure!(field(&text, "cpus")? == "4" && memory < 128 << 10, "{text}");
        let topology = kubectl.ok(&["get", "vm", "rules", "-o", "jsonpath={.status.hardware.cpuTopology}"])?;
        ensure!(topology == r#"{"cores":2,"sockets":2,"threads":1}"#, "{topology}");
        ensure!(field(&text, "node_cpus")? == "0-1:2-3:", "{text}");
        let memory = field(&text, "node_memory_kib")?.split_terminator(':').map(str::parse::<u64>);
        let memory: Vec<u64> = memory.collect::<Result<_, _>>()?;
        // The kernel itself takes some of the 64 MiB of a node.
        ensure!(memory.len() == 2 && memory.iter().all(|kib| (16 << 10..=64 << 10).contains(kib)), "{text}");
        let nodes = kubectl.ok(&["get", "vm", "rules", "-o", "jsonpath={.status.hardware.numaNodes}"])?;
        ensure!(nodes == "2", "{nodes}");
        kubectl.condition("vm/rules", "ClassSynced=True", None, SOON)?;
        contains_all(&kubectl.ok(&["get", "vm", "rules"])?, &["CPUS", "MEMORY", "128Mi"])?;
        let text =
            http::get_within(platform.neighbour(), &address, "/cgi-bin/tpm?write=berth001", ANSWER)?;
        ensure!(field(&text, "tpm")? == "2" && field(&text, "word")? == "berth001", "{text}");
        let boot = boot_of(platform, &address)?;
        for power in ["Suspended", "Running"] {
            let patch = json!({"spec": {"power": power}}).to_string();
            kubectl.ok(&["patch", "vm", "rules", "--type", "merge", "-p", &patch])?;
            kubectl.condition("vm/rules", "Ready=True", Some(power), SOON)?;
        }
        let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/tpm", ANSWER)?;
        ensure!(field(&text, "word")? == "berth001", "the TPM is suspended with its guest: {text}");
        ensure!(boot_of(platform, &address)? == boot, "another boot");
        project.plan_is_empty()?;
        project.edit(
            "main.tf",
            "  cpu_topology       = { sockets = 2, cores = 2 }\n  numa_nodes         = 2\n",
            "",
        )?;
        project.edit("main.tf", "cpus               = 4", "class              = berth_vm_class.large.name")?;
        project.apply()?;
        let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
        ensure!(field(&text, "cpus")? == "2" && field(&text, "node_cpus")? == "0-1:", "{text}");
        let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/tpm", ANSWER)?;
        ensure!(field(&text, "word")? == "berth001", "the TPM keeps its memory over a power cycle: {text}");
        project.plan_is_empty()
    });
    report.case("another boot disk is booted from in the same apply, and the one before goes", || {
        let boot = boot_of(platform, &address)?;
        project.edit("main.tf", r#""rules-first""#, r#""rules-second""#)?;
        let plan = project.plan()?;
        contains_all(&unwrapped(&plan.text), &["The VM will be restarted"])?;
        project.apply()?;
        ensure!(boot_of(platform, &address)? != boot, "the same boot");
        kubectl.refused(&["get", "disk", "rules-first"])?;
        project.plan_is_empty()
    });
    report.case(
        "addresses that were decided can be written down, and what is changed later is applied",
        || {
            let given = kubectl.object("vm", "rules")?["status"]["interfaces"][0].clone();
            let interface = format!(
                "[{{ public_ip = berth_public_ip.rules.name, mac_address = {}, address = {} }}]",
                given["macAddress"], given["address"]
            );
            project.edit("main.tf", "[{ public_ip = berth_public_ip.rules.name }]", &interface)?;
            project.plan_is_empty()?;
            project.edit(
                "main.tf",
                r#"  name = "rules"
}"#,
                &format!("  name    = \"rules\"\n  address = {address:?}\n  labels  = {{ a = \"b\" }}\n}}"),
            )?;
            project.edit(
                "main.tf",
                r#"restart_token      = "users""#,
                "restart_token      = \"users\"\n  labels = { a = \"b\" }",
            )?;
            project.apply()?;
            project.plan_is_empty()
        },
    );
    report.case(
        "with the network before the disk, the firmware tries the network and then boots the disk",
        || {
            let boot = boot_of(platform, &address)?;
            project.edit(
                "main.tf",
                r#"restart_token      = "users""#,
                "restart_token      = \"users\"\n  boot_order = [\"Network\", \"Disk\"]",
            )?;
            project.apply()?;
            ensure!(boot_of(platform, &address)? != boot, "the same boot");
            contains_all(&console::log(platform, "rules")?, &["iPXE"])?;
            project.plan_is_empty()
        },
    );
    report.case("destroy takes it away, though the configuration would shrink its disk", || {
        project.edit("main.tf", r#""64Mi""#, r#""32Mi""#)?;
        contains_all(&unwrapped(&project.apply_refused()?), &["A disk cannot shrink"])?;
        project.destroy().map(drop)
    });
    Ok(())
}

fn boot_of(platform: &Platform, address: &str) -> Result<String> {
    let text = http::get_within(platform.neighbour(), address, "/cgi-bin/uptime", ANSWER)?;
    Ok(field(&text, "boot_id")?.to_owned())
}

fn infrastructure(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case("a network, a pool and labels of the host are declared and used in one apply", || {
        let project = project(platform, INFRASTRUCTURE)?;
        project.init()?;
        project.apply()?;
        ensure!(project.output("address")?.starts_with("10.93.0."), "{}", project.output("address")?);
        ensure!(project.output("mtu")?.parse::<u32>()? >= 576, "{}", project.output("mtu")?);
        let hosts = kubectl.ok(&["get", "hosts", "-l", "rack=7", "-o", "name"])?;
        ensure!(hosts.lines().count() == 1, "{hosts}");
        project.plan_is_empty()?;
        project.destroy()?;
        kubectl.refused(&["get", "network", "rules-backend"])?;
        ensure!(
            kubectl.ok(&["get", "hosts", "-l", "rack=7", "-o", "name"])?.is_empty(),
            "the host has the label"
        );
        let hosts = kubectl.ok(&["get", "hosts", "-o", "name"])?;
        ensure!(hosts.lines().count() == 1, "destroy deletes no host: {hosts:?}");
        Ok(())
    });
}

fn timeouts(report: &mut Report, platform: &Platform) {
    report.case("a timeout is a warning that keeps the state and names the condition", || {
        let project = project(platform, LATE)?;
        project.init()?;
        let output = unwrapped(&project.apply()?);
        contains_all(&output, &["Warning", "late", "not ready yet", "GuestNotSeen"])?;
        ensure!(project.resources()?.iter().any(|address| address == "berth_vm.late"), "not in the state");
        project.destroy().map(drop)
    });
    report.case("with on_timeout = \"fail\" it is an error, and nothing is lost track of", || {
        let project = project(platform, &LATE.replace("\"warn\"", "\"fail\""))?;
        project.init()?;
        let output = unwrapped(&project.apply_refused()?);
        contains_all(&output, &["Error", "late", "not ready yet", "GuestNotSeen"])?;
        ensure!(project.resources()?.iter().any(|address| address == "berth_vm.late"), "not in the state");
        project.destroy()?;
        platform.kubectl().refused(&["get", "vm", "late"]).map(drop)
    });
}

fn declared_elsewhere(report: &mut Report, platform: &Platform) {
    report.case("force_conflicts takes over what another program declares", || {
        let kubectl = platform.kubectl();
        let project = project(platform, CLASS)?;
        project.init()?;
        project.apply()?;
        let theirs = manifests::class("contested", 4, "128Mi").to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-"];
        kubectl.with_input(&apply, &theirs)?.success()?;
        contains_all(&unwrapped(&project.apply_refused()?), &["gitops", "cpus", "force_conflicts"])?;
        project.edit("main.tf", "force_conflicts = false", "force_conflicts = true")?;
        project.apply()?;
        let class = kubectl.object("vmclass", "contested")?;
        ensure!(class["spec"]["cpus"] == 1, "{:#}", class["spec"]);
        project.plan_is_empty()?;
        project.destroy().map(drop)
    });
}

fn in_use(report: &mut Report, platform: &Platform) {
    report.case("destroy of a class that somebody else's VM only waits with is not held up by it", || {
        let kubectl = platform.kubectl();
        let project = project(platform, CLASS)?;
        project.init()?;
        project.apply()?;
        kubectl.apply(&manifests::vm("holds", "contested", "no-such-disk").to_string())?;
        kubectl.until("vmclass/contested", "to list its user", SOON, |class| {
            class["status"]["usedBy"][0]["name"] == "holds"
        })?;
        project.destroy()?;
        kubectl.delete("vm/holds")
    });
    report.case("destroy of what is protected is refused at plan, naming the attribute", || {
        let project = project(platform, PROTECTED)?;
        project.init()?;
        project.apply()?;
        let output = unwrapped(&project.destroy_refused()?);
        contains_all(&output, &["Disk default/kept is protected", "deletion_protection = false"])?;
        contains_all(
            &platform.kubectl().refused(&["delete", "disk/kept"])?,
            &["spec.deletionProtection to false"],
        )?;
        project.edit("main.tf", "deletion_protection = true", "deletion_protection = false")?;
        project.apply()?;
        project.destroy().map(drop)
    });
}

fn adoption(report: &mut Report, platform: &Platform) {
    let uid = |platform: &Platform| -> Result<Value> {
        Ok(platform.kubectl().object("vmclass", "contested")?["metadata"]["uid"].clone())
    };
    report.case("what this configuration made is adopted when its state was lost", || {
        let project = project(platform, CLASS)?;
        project.init()?;
        project.apply()?;
        let made = uid(platform)?;
        project.run(&["state", "rm", "berth_vm_class.contested"])?.success()?;
        project.apply()?;
        ensure!(uid(platform)? == made, "another object");
        project.plan_is_empty()?;
        project.run(&["state", "rm", "berth_vm_class.contested"])?.success()?;
        project.edit("main.tf", "cpus            = 1", "cpus            = 2")?;
        let output = unwrapped(&project.apply_refused()?);
        contains_all(&output, &["contested", "exists already", "differs", "import"])?;
        project.edit("main.tf", "cpus            = 2", "cpus            = 1")?;
        project.apply()?;
        project.destroy().map(drop)
    });
    report.case("an object of another owner is not, and the error explains the import", || {
        let ours = project(platform, CLASS)?;
        ours.init()?;
        ours.apply()?;
        let theirs = project(platform, CLASS)?;
        theirs.edit("main.tf", r#"provider "berth" {}"#, "provider \"berth\" {\n  owner = \"other\"\n}")?;
        theirs.init()?;
        let output = unwrapped(&theirs.apply_refused()?);
        contains_all(&output, &["exists already", "owner", "import berth_vm_class", "default/contested"])?;
        let arguments = ["get", "vmclass", "contested", "-o", "yaml", "--show-managed-fields"];
        let object = platform.kubectl().ok(&arguments)?;
        contains_all(&object, &["manager: terraform:default"])?;
        ensure!(!object.contains("terraform:other"), "{object}");
        ours.destroy().map(drop)
    });
}
