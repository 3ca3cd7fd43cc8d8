//! The architecture of VMs, on a host that emulates another one beside a host that does not.

use berth_host::EmulatedFacts;
use berth_qemu::machine::Architecture;

use super::*;

/// A host of x86-64 that emulates aarch64.
fn emulating(fleet: &Fleet) -> Arc<FakeSystem> {
    let system = image::host(&fleet.clock);
    system.change_facts(|facts| {
        let qemu = facts.qemu.clone().map(|qemu| berth_host::QemuFacts {
            machine_type: "virt-7.2".to_owned(),
            machine_types: vec!["virt-7.2".to_owned()],
            cpu_models: Vec::new(),
            ..qemu
        });
        let (accelerator, overhead_bytes) = (facts.accelerator, facts.overhead_bytes);
        let architecture = Architecture::Aarch64;
        facts.emulated = Some(EmulatedFacts { architecture, qemu, accelerator, overhead_bytes });
    });
    system
}

#[tokio::test(start_paused = true)]
async fn a_vm_runs_where_its_architecture_is_emulated_and_boots_from_images_of_it() {
    let fleet = Fleet::new().await;
    let systems = [image::host(&fleet.clock), emulating(&fleet)];
    let _agents = [fleet.join("h1", "a", &systems[0]).await, fleet.join("h2", "a", &systems[1]).await];
    let hosts: Api<Host> = Api::all(fleet.admin.clone());
    let reports = async || {
        let host = hosts.get_opt("h2").await.expect("it answers").and_then(|host| host.status);
        host.is_some_and(|status| status.architectures.len() == 2)
    };
    fleet.until("the host reports what it emulates", reports).await;
    let mut of_arm = image::spec();
    of_arm["os"] = json!({"architecture": "arm64"});
    fleet.apply("Image", "arm", of_arm).await;
    let declare = async |name: &str, architecture: Value| {
        fleet.apply("Disk", name, json!({"image": "arm", "size": "2Gi"})).await;
        let mut spec = json!({"cpus": 1, "memory": "512Mi", "disks": [{"name": name, "boot": true}]});
        if !architecture.is_null() {
            spec["architecture"] = architecture;
        }
        fleet.apply("VM", name, spec).await;
    };
    declare("arm", json!("aarch64")).await;
    declare("pc", Value::Null).await;
    let arm = fleet.until_vm("arm", "runs", runs).await;
    assert_eq!(host_of(&arm), "h2");
    let hardware = arm.status.and_then(|status| status.hardware).expect("it runs");
    assert_eq!((hardware.machine_type.as_str(), hardware.accelerator.as_str()), ("virt-7.2", "tcg"));
    let pc = fleet.until_vm("pc", "is refused", |vm| ready_reason(vm) == "InvalidSpec").await;
    assert_eq!(host_of(&pc), "");
    // An image without a declared architecture is not checked.
    fleet.apply("Image", "arm", image::spec()).await;
    let pc = fleet.until_vm("pc", "runs", runs).await;
    let hardware = pc.status.and_then(|status| status.hardware).expect("it runs");
    assert_eq!(hardware.machine_type, "pc-q35-7.2");
}
