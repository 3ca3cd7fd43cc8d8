//! The CPU model of VMs that declare none, on two hosts with KVM and different processors.

use berth_qemu::machine::Accelerator;

use super::*;

/// A host with KVM whose processor has these levels.
fn host(fleet: &Fleet, levels: &[&str]) -> Arc<FakeSystem> {
    let system = image::host(&fleet.clock);
    system.change_facts(|facts| {
        facts.accelerator = Accelerator::Kvm;
        if let Ok(qemu) = &mut facts.qemu {
            "host".clone_into(&mut qemu.cpu_model);
            qemu.cpu_models = levels.iter().map(|level| (*level).to_owned()).collect();
        }
    });
    system
}

#[tokio::test(start_paused = true)]
async fn vms_have_the_highest_level_that_both_hosts_have() {
    let fleet = Fleet::new().await;
    let new = ["x86-64-v2", "x86-64-v2-AES", "x86-64-v3"];
    let systems = [host(&fleet, &new), host(&fleet, &new[..2])];
    let _agents = [fleet.join("h1", "a", &systems[0]).await, fleet.join("h2", "a", &systems[1]).await];
    for name in ["h1", "h2"] {
        let hosts: Api<Host> = Api::all(fleet.admin.clone());
        let reports = async || {
            let host = hosts.get_opt(name).await.expect("it answers");
            host.and_then(|host| host.status).is_some_and(|status| !status.cpu_models.is_empty())
        };
        fleet.until("the host reports its levels", reports).await;
    }
    fleet.declare_two_vms().await;
    for name in ["one", "two"] {
        let status = fleet.until_vm(name, "runs", runs).await.status.expect("it runs");
        assert_eq!(status.cpu_baseline.as_deref(), Some("x86-64-v2-AES"));
        let hardware = status.hardware.expect("it runs");
        assert_eq!((hardware.cpu_model.as_str(), hardware.accelerator.as_str()), ("x86-64-v2-AES", "kvm"));
    }
}
