//! A VM is stopped, paused, suspended and started again.

use berth_api::VMState;
use serde_json::json;

use crate::faults::Fault;
use crate::rig::{self, converges};
use crate::{prerequisites_are_declared, web, web_is_declared, web_is_declared_with, web_runs};

#[test]
fn a_vm_is_stopped_and_started_again() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped and ready", |vm| {
            rig::is_ready(vm) && rig::state(vm) == Some(VMState::Stopped)
        })
        .await;
        assert!(rig.system.hypervisor().instances().is_empty(), "a stopped VM has no QEMU");
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_is_created_paused_and_resumed_and_paused_again_in_one_process() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let pauses = async || {
            rig.until_vm("web", "is paused and ready", |vm| {
                rig::is_ready(vm) && rig::state(vm) == Some(VMState::Paused)
            })
            .await;
        };
        web_is_declared_with(rig, "Paused").await;
        rig.strike_from_here();
        pauses().await;
        let pid = rig.pid("web").await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.apply("VM", "web", web("Paused")).await;
        pauses().await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_is_suspended_and_goes_on_in_another_process() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let instance = rig.system.hypervisor().instances().remove(0);
        let boot = || rig.system.hypervisor().view(&instance).and_then(|view| view.boot);
        rig.until_vm("web", "has booted", |_| boot().is_some()).await;
        let before = boot();
        rig.strike_from_here();
        rig.apply("VM", "web", web("Suspended")).await;
        rig.until_vm("web", "is suspended and ready", |vm| {
            rig::is_ready(vm) && rig::state(vm) == Some(VMState::Suspended)
        })
        .await;
        assert!(rig.system.hypervisor().instances().is_empty(), "a suspended VM has no QEMU");
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        assert!(rig.system.saved_states_now().is_empty(), "a state is used once");
        assert_eq!(boot(), before, "the guest did not boot again");
        rig.must_settle().await;
    });
}

#[test]
fn a_guest_is_suspended_to_its_memory_and_woken_up_in_one_process() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let in_memory = |power: &str| {
            let mut vm = web(power);
            vm["suspendMode"] = json!("Memory");
            vm
        };
        web_is_declared(rig).await;
        web_runs(rig).await;
        let instance = rig.system.hypervisor().instances().remove(0);
        let boot = || rig.system.hypervisor().view(&instance).and_then(|view| view.boot);
        rig.until_vm("web", "has booted", |_| boot().is_some()).await;
        let before = boot();
        rig.strike_from_here();
        rig.apply("VM", "web", in_memory("Suspended")).await;
        rig.until_vm("web", "is suspended and ready", |vm| {
            rig::is_ready(vm) && rig::state(vm) == Some(VMState::Suspended)
        })
        .await;
        assert!(rig.system.saved_states_now().is_empty(), "its memory is in no file");
        rig.apply("VM", "web", in_memory("Running")).await;
        web_runs(rig).await;
        assert_eq!(boot(), before, "the guest did not boot again");
        rig.must_settle().await;
    });
}

/// The fake host reports a machine that goes on with its memory and without its scratch disk.
#[test]
fn a_scratch_disk_is_kept_while_its_vm_is_suspended_and_no_longer() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let with_scratch = |power: &str| {
            let mut vm = web(power);
            vm["scratchDisk"] = json!({"size": "1Gi", "filesystem": {"type": "ext4"}});
            vm
        };
        prerequisites_are_declared(rig).await;
        rig.apply("PublicIP", "web", json!({})).await;
        rig.apply("VM", "web", with_scratch("Running")).await;
        web_runs(rig).await;
        rig.strike_from_here();
        for (power, state) in [("Suspended", VMState::Suspended), ("Stopped", VMState::Stopped)] {
            rig.apply("VM", "web", with_scratch(power)).await;
            rig.until_vm("web", "is off and ready", |vm| rig::is_ready(vm) && rig::state(vm) == Some(state))
                .await;
            assert_eq!(rig.system.scratch_disks_now(), usize::from(power == "Suspended"));
            rig.apply("VM", "web", with_scratch("Running")).await;
            web_runs(rig).await;
            assert_eq!(rig.system.scratch_disks_now(), 1);
        }
        rig.must_settle().await;
    });
}

#[test]
fn a_scratch_disk_goes_with_a_machine_that_ends_by_itself() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let started = |token: &str| {
            let mut vm = web("Running");
            vm["scratchDisk"] = json!({"size": "1Gi"});
            vm["restartPolicy"] = json!("Never");
            vm["restartToken"] = json!(token);
            vm
        };
        prerequisites_are_declared(rig).await;
        rig.apply("PublicIP", "web", json!({})).await;
        rig.apply("VM", "web", started("1")).await;
        web_runs(rig).await;
        assert_eq!(rig.system.scratch_disks_now(), 1);
        rig.strike_from_here();
        let instance = rig.system.hypervisor().instances().remove(0);
        rig.system.hypervisor().crash(&instance);
        rig.until_vm("web", "is off", |vm| rig::state(vm).is_some_and(|state| state != VMState::Running))
            .await;
        rig.must_settle().await;
        assert!(rig.system.hypervisor().instances().is_empty(), "it is not started again");
        assert_eq!(rig.system.scratch_disks_now(), 0);
        rig.apply("VM", "web", started("2")).await;
        web_runs(rig).await;
        assert_eq!(rig.system.scratch_disks_now(), 1);
    });
}
