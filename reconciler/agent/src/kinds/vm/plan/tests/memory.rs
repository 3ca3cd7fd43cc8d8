//! Memory that is plugged into a running VM and out of it.

use berth_qemu::memory::Growth;

use super::*;
use crate::journal::MemoryGrowth;

const MIB: u64 = 1 << 20;

/// A VM that was started with 512 MiB and room for 2 GiB.
fn observed(memory: &str, requested: u64, plugged: u64) -> Observed {
    let declared = json!({"cpus": 1, "memory": memory, "maxMemory": "2Gi"});
    let mut observed = Observed { size: size(declared), ..present(RunState::Running) };
    let run = observed.journal.run.as_mut().expect("it runs");
    run.growth = Some(MemoryGrowth { base: 512 * MIB, most: 2048 * MIB, changed_at: None });
    run.memory_bytes = 512 * MIB + plugged;
    observed.machine.as_mut().expect("it runs").growth = Some(Growth { requested, plugged });
    observed.free_memory = Some(4096 * MIB);
    observed
}

/// The same, some seconds after the request or the last block.
fn changed(memory: &str, requested: u64, plugged: u64, seconds: i64) -> Observed {
    let mut observed = observed(memory, requested, plugged);
    let run = observed.journal.run.as_mut().expect("it runs");
    run.growth.as_mut().expect("it grows").changed_at = Some(at(NOW - seconds));
    observed
}

fn changed_at(journal: &Journal) -> Option<Timestamp> {
    journal.run.as_ref()?.growth?.changed_at
}

/// The names in `pendingPowerCycle`, and status, reason and message of `ClassSynced`.
fn reported(observed: &Observed) -> (Vec<String>, String, String, String) {
    let object = vm(json!({}));
    let reported = status(&object, observed, &plan(&object, observed).readiness, at(NOW));
    let synced = berth_api::condition::find(&reported.conditions, "ClassSynced").expect("it runs").clone();
    (reported.pending_power_cycle, synced.status, synced.reason, synced.message)
}

#[test]
fn memory_is_requested_within_the_bounds_of_the_start_as_far_as_the_host_has_it() {
    let object = vm(json!({}));
    let step = |observed: &Observed| match plan(&object, observed).steps.as_slice() {
        [Step::WriteJournal(journal), Step::RequestMemory(bytes)] => {
            assert_eq!(changed_at(journal), Some(at(NOW)), "the time of the request is recorded");
            Some(*bytes / MIB)
        }
        [] => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(step(&observed("1Gi", 0, 0)), Some(512));
    assert_eq!(step(&observed("2Gi", 512 * MIB, 512 * MIB)), Some(1536));
    assert_eq!(step(&observed("512Mi", 512 * MIB, 512 * MIB)), Some(0), "it is given back");
    assert_eq!(step(&observed("1Gi", 512 * MIB, 0)), None, "it is requested, and the guest decides");
    assert_eq!(step(&observed("3Gi", 0, 0)), None, "more than it was started for");
    assert_eq!(step(&observed("256Mi", 0, 0)), None, "less than it was started with");

    let full = Observed { free_memory: Some(600 * MIB), ..observed("1Gi", 0, 0) };
    assert_eq!(stands(&plan(&object, &full)), (false, Reason::Unschedulable));
    assert_eq!(step(&full), None);
    let (pending, synced, reason, _) = reported(&full);
    assert_eq!((synced.as_str(), reason.as_str()), ("False", "Attaching"));
    assert!(pending.is_empty(), "a power cycle makes no room: {pending:?}");
    let less = Observed { free_memory: Some(0), ..observed("512Mi", 512 * MIB, 512 * MIB) };
    assert_eq!(step(&less), Some(0), "giving it back takes nothing");
}

#[test]
fn memory_that_the_guest_plugs_in_or_out_now_waits_for_no_power_cycle_and_the_vm_is_not_ready() {
    let object = vm(json!({}));
    for (memory, requested, plugged) in [("1Gi", 512, 0), ("1Gi", 512, 128), ("768Mi", 256, 512)] {
        for seconds in [0, 59] {
            let observed = changed(memory, requested * MIB, plugged * MIB, seconds);
            let planned = plan(&object, &observed);
            assert_eq!(stands(&planned), (false, Reason::Attaching));
            let left = u64::try_from(60 - seconds).expect("positive");
            assert_eq!(planned.requeue_after, Some(Duration::from_secs(left)), "{memory} {plugged}");
            let (pending, synced, reason, _) = reported(&observed);
            assert_eq!((synced.as_str(), reason.as_str()), ("False", "Attaching"));
            assert!(pending.is_empty(), "{pending:?}");
        }
    }
    let under_way = changed("1Gi", 512 * MIB, 128 * MIB, 1);
    insta::assert_snapshot!(plan(&object, &under_way).readiness.message(), @"the guest plugs memory in or out: the VM is to have 1Gi of memory, and has 640Mi so far");
    insta::assert_snapshot!(reported(&under_way).3, @"the VM runs with class small, 1 CPUs and 640Mi and is to have 1Gi, which it gets while it runs");

    // Another difference waits all the same.
    let mut class_too = under_way;
    class_too.journal.run.as_mut().expect("it runs").class = "other".into();
    let (pending, _, reason, message) = reported(&class_too);
    assert_eq!((pending, reason.as_str()), (vec!["class".to_owned()], "PowerCycleNeeded"));
    insta::assert_snapshot!(message, @"the VM runs with class other, 1 CPUs and 640Mi: stop and start it for the change of class to take effect");

    let mut silent = changed("1Gi", 512 * MIB, 128 * MIB, 1);
    silent.machine = None;
    assert!(reported(&silent).0.is_empty(), "its monitor does not answer for a moment");

    let paused = vm(json!({"power": "Paused"}));
    let mut observed = changed("1Gi", 512 * MIB, 0, 1);
    observed.machine.as_mut().expect("it runs").run_state = RunState::Paused;
    assert_eq!(plan(&paused, &observed).readiness, Readiness::Ready(Reason::Paused, String::new()));
}

#[test]
fn memory_that_the_guest_does_not_take_for_a_minute_waits_for_the_power_cycle() {
    let object = vm(json!({}));
    let older = observed("1Gi", 512 * MIB, 0);
    let ahead = changed("1Gi", 512 * MIB, 0, -10);
    for (observed, why) in [
        (changed("1Gi", 512 * MIB, 0, 60), "its guest has no driver"),
        (changed("1Gi", 512 * MIB, 128 * MIB, 3600), "a part of it is left"),
        (changed("768Mi", 256 * MIB, 512 * MIB, 60), "its guest does not give it back"),
        (older, "the journal of an older agent has no time"),
        (ahead, "the time is of another clock"),
    ] {
        assert_eq!(
            plan(&object, &observed),
            Plan::without_steps(Readiness::Ready(Reason::Running, String::new()))
        );
        let (pending, synced, reason, _) = reported(&observed);
        assert_eq!((synced.as_str(), reason.as_str()), ("False", "PowerCycleNeeded"), "{why}");
        assert_eq!(pending, ["memory"], "{why}");
    }
    let message = reported(&changed("1Gi", 512 * MIB, 0, 60)).3;
    insta::assert_snapshot!(message, @"the VM runs with class small, 1 CPUs and 512Mi and is to have 1Gi: its guest plugs no more memory in or out, for which it needs a driver for virtio-mem; stop and start the VM for the change to take effect");
}

#[test]
fn each_block_that_the_guest_takes_is_recorded_and_gives_it_time_for_the_next() {
    let object = vm(json!({}));
    let mut taken = changed("1Gi", 512 * MIB, 128 * MIB, 3600);
    taken.journal.run.as_mut().expect("it runs").memory_bytes = 512 * MIB;
    let steps = plan(&object, &taken).steps;
    let [Step::WriteJournal(journal)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(journal.run.as_ref().map(|run| run.memory_bytes), Some(640 * MIB), "what it has is recorded");
    assert_eq!(changed_at(journal), Some(at(NOW)));
    let next = Observed { journal: (**journal).clone(), ..taken };
    assert_eq!(stands(&plan(&object, &next)), (false, Reason::Attaching));

    let done = changed("1Gi", 512 * MIB, 512 * MIB, 1);
    let (pending, synced, reason, _) = reported(&done);
    assert_eq!((pending.len(), synced.as_str(), reason.as_str()), (0, "True", "Synced"));
    assert_eq!(plan(&object, &done).readiness, Readiness::Ready(Reason::Running, String::new()));
}

#[test]
fn a_qemu_that_makes_up_its_size_takes_no_more_of_the_host_than_it_can_have() {
    let object = vm(json!({}));
    let mut hostile = changed("1Gi", u64::MAX, u64::MAX - 512 * MIB, 1);
    hostile.machine.as_mut().expect("it runs").cpus = Some(i64::MAX);
    let run = hostile.journal.run.as_mut().expect("it runs");
    (run.memory_bytes, run.max_cpus) = (512 * MIB, Some(4));
    let steps = plan(&object, &hostile).steps;
    let [Step::WriteJournal(journal)] = steps.as_slice() else { panic!("{steps:?}") };
    let size = journal.run.as_ref().map(|run| (run.cpus, run.memory_bytes));
    assert_eq!(size, Some((4, 2048 * MIB)));
}
