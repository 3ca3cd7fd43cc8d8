//! vsock devices.

use super::*;
use crate::journal::{Suspension, SuspensionPhase};

const CID: u32 = 70_000;

fn declared() -> VM {
    vm(json!({"vsock": true}))
}

/// An observation of a host on which this context id is free.
fn with_free(cid: Option<u32>) -> Observed {
    Observed { vsock_cid: cid, ..ready_to_start() }
}

fn launched(plan: &Plan<Step>) -> Option<Option<u32>> {
    plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine.extras.vsock_cid),
        _ => None,
    })
}

fn written(plan: &Plan<Step>) -> Journal {
    let Some(Step::WriteJournal(journal)) = plan.steps.first() else { panic!("{plan:?}") };
    (**journal).clone()
}

#[test]
fn a_machine_gets_the_free_context_id_which_is_recorded_and_reported() {
    let planned = plan(&declared(), &with_free(Some(CID)));
    assert_eq!(launched(&planned), Some(Some(CID)));
    let mut running = Observed { journal: written(&planned), ..present(RunState::Running) };
    running.journal.run.as_mut().expect("a run").process = Some(identity());
    let reported = |vm: &VM| status(vm, &running, &plan(vm, &running).readiness, at(NOW));
    let seen = reported(&declared());
    assert_eq!(seen.hardware.expect("it runs").vsock_cid, Some(i64::from(CID)));
    assert!(seen.pending_power_cycle.is_empty());
    assert_eq!(reported(&vm(json!({}))).pending_power_cycle, ["vsock"]);
    assert_eq!(Journal::parse(running.journal.to_value()).expect("just written"), running.journal);
}

#[test]
fn a_machine_without_a_declared_device_has_none() {
    assert_eq!(launched(&plan(&vm(json!({})), &with_free(Some(CID)))), Some(None));
}

#[test]
fn a_host_without_vsock_devices_starts_no_vm_with_one() {
    let without_kernel = with_free(None);
    let mut without_qemu = with_free(Some(CID));
    without_qemu.host.as_mut().and_then(|host| host.qemu.as_mut().ok()).expect("set").vsock = false;
    for observed in [without_kernel, without_qemu] {
        let refused = plan(&declared(), &observed);
        assert_eq!((launched(&refused), stands(&refused)), (None, (true, Reason::NotSupported)));
        assert!(refused.readiness.message().contains("modprobe vhost_vsock"), "{refused:?}");
        assert_eq!(launched(&plan(&vm(json!({})), &observed)), Some(None), "it has none");
    }
}

#[test]
fn a_suspended_machine_is_resumed_with_a_context_id_that_is_free_now() {
    let mut journal = written(&plan(&declared(), &with_free(Some(CID))));
    let machine = journal.run.as_ref().and_then(|run| run.machine.as_deref()).expect("recorded").clone();
    let phase = SuspensionPhase::Saved;
    let suspension = Suspension { phase, since: at(NOW - 5), machine, cpus: 1, attempts: 0 };
    journal = journal.with_suspension(Some(suspension));
    let off = |cid| Observed {
        journal: journal.clone(),
        journal_written: true,
        state_kept: true,
        ..with_free(cid)
    };
    let resumed = plan(&declared(), &off(Some(CID + 1)));
    assert_eq!(launched(&resumed), Some(Some(CID + 1)));
    let written = written(&resumed);
    let recorded = written.run.and_then(|run| run.machine).expect("recorded").extras.vsock_cid;
    let saved = written.suspension.expect("it is being resumed").machine.extras.vsock_cid;
    assert_eq!((recorded, saved), (Some(CID + 1), Some(CID + 1)));
    assert_eq!(launched(&plan(&declared(), &off(None))), None, "it stays suspended");
}
