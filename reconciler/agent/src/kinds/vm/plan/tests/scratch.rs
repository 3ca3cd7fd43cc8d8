//! Scratch disks: made with the machine, and kept for one that goes on with its memory.

use berth_host::{FilesystemKind, NewFilesystem, NewScratch};

use super::*;

fn with_scratch() -> VM {
    vm(json!({"scratchDisk": {"size": "10Gi", "filesystem": {"type": "xfs", "label": "tmp"}}}))
}

#[test]
fn the_scratch_disk_of_a_vm_is_made_with_its_machine_and_a_change_waits() {
    let object = with_scratch();
    let observed = Observed { profile: object.spec.profile(None), ..ready_to_start() };
    let planned = plan(&object, &observed);
    let launched = planned.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.scratch.clone()),
        _ => None,
    });
    let filesystem = NewFilesystem { kind: FilesystemKind::Xfs, label: Some("tmp".into()) };
    assert_eq!(launched, Some(Some(NewScratch { size: 10 << 30, filesystem: Some(filesystem) })));
    let Some(Step::WriteJournal(journal)) = planned.steps.first() else { panic!("{planned:?}") };
    let stored = Journal::parse(journal.to_value()).expect("just written");
    assert_eq!(stored, **journal, "a suspended machine is resumed with it");
    let mut running = Observed {
        journal: (**journal).clone(),
        profile: observed.profile.clone(),
        ..present(RunState::Running)
    };
    running.journal.run.as_mut().expect("a run").process = Some(identity());
    let report = |vm: &VM, observed: &Observed| {
        let status = status(vm, observed, &plan(vm, observed).readiness, at(NOW));
        (status.hardware.and_then(|hardware| hardware.scratch_disk), status.pending_power_cycle)
    };
    assert_eq!(report(&object, &running), (Some("10Gi".to_owned()), Vec::new()));
    let plain = vm(json!({}));
    running.profile = plain.spec.profile(None);
    assert_eq!(report(&plain, &running), (Some("10Gi".to_owned()), vec!["scratchDisk".to_owned()]));
}
