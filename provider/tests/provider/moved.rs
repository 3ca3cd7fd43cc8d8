//! `moved` blocks from resources of other providers: nothing is lost, nothing of berth is destroyed, and what does not map is named.

use std::{fs, os::unix::fs::symlink, path::Path};

use serde_json::{Value as Json, json};
use tfplugin6::{AttributePath, Severity, diagnostic};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
    terraform::Terraform,
};

const LIBVIRT: &str = "registry.terraform.io/dmacvicar/libvirt";
const PROXMOX: &str = "registry.terraform.io/bpg/proxmox";
const CONFIGURATION: &str = include_str!("terraform/moved.tf");

/// A domain as provider 0.8 stores it.
fn domain() -> Json {
    json!({"id": "6e0c", "name": "web", "vcpu": 2, "memory": 2048, "running": true, "machine": "pc",
        "graphics": [{"type": "spice", "autoport": true}], "disk": [{"volume_id": "/srv/web-root.qcow2"}],
        "network_interface": [{"network_name": "default", "network_id": "9", "mac": "52:54:00:AA:00:01",
            "addresses": ["192.168.122.7"]}]})
}

/// A state file with these resources: provider, type, name, attributes.
fn write_state(directory: &Path, resources: &[(&str, &str, &str, Json)]) {
    let resources = resources.iter().map(|(address, type_name, name, attributes)| {
        json!({"mode": "managed", "type": type_name, "name": name, "provider": format!("provider[\"{address}\"]"),
            "instances": [{"schema_version": 0, "attributes": attributes, "sensitive_attributes": []}]})
    });
    let state = json!({"version": 4, "terraform_version": "1.11.4", "serial": 1, "outputs": {},
        "lineage": "2f2d8f4a-5d0f-4c8e-9d62-0a6e0f5f7c11", "resources": resources.collect::<Vec<_>>()});
    fs::write(directory.join("terraform.tfstate"), state.to_string()).expect("a new file");
}

/// Installs other providers. Terraform starts them and asks for nothing but their schema.
fn install_others(directory: &Path) {
    let plugins = directory.join("plugins");
    let mut overrides = format!("    \"berth-vms/berth\" = {plugins:?}\n");
    for (source, name) in [("dmacvicar/libvirt", "libvirt"), ("bpg/proxmox", "proxmox")] {
        let folder = directory.join(name);
        fs::create_dir(&folder).expect("a new directory");
        let program = env!("CARGO_BIN_EXE_terraform-provider-berth");
        symlink(program, folder.join(format!("terraform-provider-{name}"))).expect("a new link");
        overrides.push_str(&format!("    {source:?} = {folder:?}\n"));
    }
    let cli = format!("provider_installation {{\n  dev_overrides {{\n{overrides}  }}\n  direct {{}}\n}}\n");
    fs::write(directory.join("cli.tfrc"), cli).expect("the file is replaced");
}

#[tokio::test]
async fn terraform_creates_the_vms_and_disks_that_other_providers_managed() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    install_others(&work);
    fs::write(work.join("main.tf"), CONFIGURATION).expect("the file is replaced");
    let app = json!({"id": "101", "name": "app", "node_name": "pve1", "vm_id": 101, "started": true, "bios": "ovmf",
        "cpu": [{"cores": 2, "sockets": 1}], "memory": [{"dedicated": 1024}],
        "network_device": [{"bridge": "vmbr0", "mac_address": "BC:24:11:00:00:01"}]});
    let cache = json!({"id": 3, "name": "Cache_1", "vcpu": 1, "memory": 1_048_576, "memory_unit": null,
        "os": {"firmware": "efi"}, "devices": {"disks": [], "interfaces": []}});
    let root = json!({"id": "/srv/web-root.qcow2", "name": "web-root.qcow2", "pool": "default", "size": 8_589_934_592_u64,
        "base_volume_id": "/srv/debian.qcow2"});
    let state = [
        (LIBVIRT, "libvirt_domain", "web", domain()),
        (LIBVIRT, "libvirt_volume", "root", root),
        (LIBVIRT, "libvirt_domain", "cache", cache),
        (PROXMOX, "proxmox_virtual_environment_vm", "app", app),
    ];
    write_state(&work, &state);

    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    let (code, text) = terraform.plan(&[]).await;
    assert!(code == Some(2) && text.contains("7 to add, 0 to change, 0 to destroy"), "{text}");
    let text = text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    for part in [
        "libvirt_domain \"web\" becomes a berth_vm in Terraform only",
        "cpus = 2, memory = \"2Gi\", firmware = \"BIOS\".",
        "Not moved: machine, network_interface[0].addresses.",
        "- graphics: \"VGA\", now \"None\"",
        "VM default/web differs from libvirt_domain \"web\"",
        "- network_interfaces[0].mac_address: \"52:54:00:AA:00:01\", now \"52:54:00:aa:00:02\"",
        "Disk default/web-root differs from libvirt_volume \"web-root.qcow2\"",
        "- size: \"8Gi\", now \"10Gi\"",
        "libvirt_domain \"Cache_1\" becomes a berth_vm in Terraform only",
        "Its name cannot be one in berth",
        "proxmox_virtual_environment_vm \"app\" becomes a berth_vm in Terraform only",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("VM default/app differs"), "its configuration has the values that it had: {text}");
    let (code, text) = terraform.plan(&["-refresh=false"]).await;
    assert!(code == Some(1) && text.contains("cannot be moved without a refresh"), "{text}");

    let text = terraform.ok(&["apply", "-auto-approve"]).await;
    assert!(text.contains("7 added, 0 changed, 0 destroyed"), "{text}");
    let listed = terraform.ok(&["state", "list"]).await;
    assert!(!listed.contains("libvirt") && !listed.contains("proxmox"), "{listed}");
    assert_eq!(
        plane.object("VM", "app").await["spec"]["networkInterfaces"][0]["macAddress"],
        "bc:24:11:00:00:01"
    );
    terraform.assert_nothing_to_do(&[], "after the move").await;
    plane.close().await;
}

#[tokio::test]
async fn resources_that_do_not_become_berths_are_refused_with_the_way_out() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let Some(terraform) = Terraform::new(&work, &directory.path().join("kubeconfig")) else { return };
    install_others(&work);
    let (head, _) = CONFIGURATION.split_once("\nmoved").expect("moved blocks");
    let network = "resource \"berth_network\" \"x\" {\n  name = \"x\"\n  cidr = \"10.9.0.0/24\"\n}\n";
    let class =
        "resource \"berth_vm_class\" \"x\" {\n  name   = \"x\"\n  cpus   = 1\n  memory = \"1Gi\"\n}\n";
    let vm = "resource \"berth_vm\" \"x\" {\n  name  = \"x\"\n  class = \"x\"\n  disks = [{ name = \"x\", boot = true }]\n}\n";
    let berth = "registry.terraform.io/berth-vms/berth";
    let named = || json!({"name": "x"});
    for (address, from, state, to, configuration, expected) in [
        (
            LIBVIRT,
            "libvirt_network",
            named(),
            "berth_network",
            network,
            "No resource of another provider becomes",
        ),
        (LIBVIRT, "libvirt_volume", named(), "berth_vm", vm, "proxmox_virtual_environment_vm"),
        (LIBVIRT, "libvirt_domain", json!({"vcpu": 1}), "berth_vm", vm, "without a name cannot be moved"),
        (berth, "berth_disk", named(), "berth_vm_class", class, "does not change a kind"),
    ] {
        let moved = format!("moved {{\n  from = {from}.x\n  to   = {to}.x\n}}\n");
        fs::write(work.join("main.tf"), format!("{head}\n{moved}\n{configuration}"))
            .expect("the file is replaced");
        write_state(&work, &[(address, from, "x", state)]);
        let (code, text) = terraform.plan(&[]).await;
        let words = text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(
            code == Some(1) && words.contains(expected) && words.contains("removed block"),
            "{from}: {text}"
        );
    }
}

#[tokio::test]
async fn a_move_takes_up_an_object_that_exists_and_never_destroys_it() {
    let plane = ControlPlane::in_memory().await;
    plane.stock(&["web-root"]).await;
    let ours = provider(&plane.client, "default");
    let config = json!({"name": "web", "class": "small", "disks": [{"name": "web-root", "boot": true}]});
    let made = Stage::new(&ours, "berth_vm").apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());

    let mut moved = Stage::new(&ours, "berth_vm");
    let found = moved.move_from(LIBVIRT, "libvirt_domain", &domain()).await;
    assert!(text_of(&found).contains("VM default/web is imported by a moved block"), "{found:?}");
    let mac = AttributePath::root("network_interfaces").index(0).attribute("mac_address");
    assert_ne!(moved.state.at(&mac).as_str(), Some("52:54:00:AA:00:01"), "the values are the object's");
    assert!(moved.plan_is_empty(&config).await);
    let mut stopped = config.clone();
    stopped["power"] = "Stopped".into();
    let change = moved.plan(&stopped).await;
    assert!(!diagnostic::has_errors(&change.diagnostics), "{}", text_of(&change.diagnostics));
    let mut other = config.clone();
    other["name"] = "other".into();
    for response in [moved.plan(&other).await, moved.plan_destroy().await] {
        let text = text_of(&response.diagnostics);
        let refused = response.diagnostics.iter().any(|one| one.severity == Severity::Error);
        assert!(refused && text.contains("VM default/web would be destroyed after a moved block"), "{text}");
    }

    // The next run reads a state of berth, as any other.
    assert!(moved.read().await.is_empty());
    assert!(!diagnostic::has_errors(&moved.plan_destroy().await.diagnostics));
    plane.close().await;
}
