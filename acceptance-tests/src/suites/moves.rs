//! `moved` blocks from resources of other providers, in every program that the suites drive: Terraform, a newer one, OpenTofu.

use anyhow::ensure;
use serde_json::{Value, json};

use super::kubectl::contains_all;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::{Project, unwrapped};

/// The VMs are declared stopped: what is shown is the move, not a guest.
const CONFIGURATION: &str = r#"
moved {
  from = libvirt_domain.web
  to   = berth_vm.web
}

moved {
  from = libvirt_volume.root
  to   = berth_disk.root
}

moved {
  from = proxmox_virtual_environment_vm.app
  to   = berth_vm.app
}

resource "berth_disk" "root" {
  name = "moved-root"
  size = "16Mi"
}

resource "berth_disk" "app" {
  name = "moved-app"
  size = "16Mi"
}

resource "berth_vm" "web" {
  name               = "moved-web"
  cpus               = 2
  memory             = "2Gi"
  firmware           = "BIOS"
  power              = "Stopped"
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ mac_address = "52:54:00:aa:00:01" }]
}

resource "berth_vm" "app" {
  name               = "moved-app"
  cpus               = 2
  memory             = "1Gi"
  power              = "Stopped"
  disks              = [{ name = berth_disk.app.name, boot = true }]
  network_interfaces = [{ mac_address = "bc:24:11:00:00:01" }]
}
"#;

/// The providers of the moved resources.
const LIBVIRT: (&str, &str) = ("dmacvicar/libvirt", "0.8.3");
const PROXMOX: (&str, &str) = ("bpg/proxmox", "0.86.0");

/// Runs the case.
pub fn run(report: &mut Report, platform: &Platform) {
    let failed = report.count().failed;
    report.case("moved blocks turn a domain, a volume and a VM of Proxmox VE into berth's own", || {
        let project = platform.project_of(CONFIGURATION)?;
        // Terraform starts the other providers and asks for nothing but their schema: ours stands in for them.
        for (source, version) in [LIBVIRT, PROXMOX] {
            project.offer_stand_in(source, version)?;
        }
        project.write("terraform.tfstate", &state(&project).to_string())?;
        project.init()?;
        let plan = project.plan()?;
        ensure!(plan.text.contains("4 to add, 0 to change, 0 to destroy"), "{}", plan.text);
        contains_all(
            &unwrapped(&plan.text),
            &[
                "libvirt_domain \"moved-web\" becomes a berth_vm in Terraform only",
                "libvirt_volume \"moved-root\" becomes a berth_disk in Terraform only",
                "proxmox_virtual_environment_vm \"moved-app\" becomes a berth_vm in Terraform only",
            ],
        )?;
        project.apply()?;
        let left = project.resources()?;
        ensure!(left.len() == 4 && left.iter().all(|address| address.starts_with("berth_")), "{left:?}");
        let vm = platform.kubectl().object("vm", "moved-app")?;
        let mac = &vm["spec"]["networkInterfaces"][0]["macAddress"];
        ensure!(mac == "bc:24:11:00:00:01", "{mac}");
        project.plan_is_empty()?;
        project.destroy().map(drop)
    });
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

fn state(project: &Project) -> Value {
    let registry = project.registry();
    let domain = json!({"id": "6e0c", "name": "moved-web", "vcpu": 2, "memory": 2048, "running": false,
        "disk": [{"volume_id": "/srv/root.qcow2"}], "network_interface": [{"network_name": "default",
        "mac": "52:54:00:AA:00:01"}]});
    let volume =
        json!({"id": "/srv/root.qcow2", "name": "moved-root", "pool": "default", "size": 16_777_216});
    let vm = json!({"id": "101", "name": "moved-app", "node_name": "pve1", "vm_id": 101, "started": false,
        "cpu": [{"cores": 2, "sockets": 1}], "memory": [{"dedicated": 1024}],
        "network_device": [{"bridge": "vmbr0", "mac_address": "BC:24:11:00:00:01"}]});
    let resources = [
        (LIBVIRT, "libvirt_domain", "web", domain),
        (LIBVIRT, "libvirt_volume", "root", volume),
        (PROXMOX, "proxmox_virtual_environment_vm", "app", vm),
    ];
    let resources = resources.map(|((source, _), kind, name, attributes)| {
        let provider = format!("provider[\"{registry}/{source}\"]");
        json!({"mode": "managed", "type": kind, "name": name, "provider": provider, "instances": [
            {"schema_version": 0, "attributes": attributes, "sensitive_attributes": []}]})
    });
    json!({"version": 4, "terraform_version": "1.11.4", "serial": 1, "outputs": {},
        "lineage": "2f2d8f4a-5d0f-4c8e-9d62-0a6e0f5f7c11", "resources": resources})
}
