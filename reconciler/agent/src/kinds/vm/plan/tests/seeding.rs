//! The bootstrap data of a start while its Secret cannot be read.

use super::*;

const DIGEST: &str = "that of the last start";

/// A VM that is off, whose Secret cannot be read. `has_files`: those of its last start are there.
fn unanswered(run: Option<Run>, has_files: bool) -> Observed {
    let mut observed = ready_to_start();
    observed.journal = Journal { run, ..observed.journal }.with_bootstrap(DIGEST.into());
    observed.bootstrap = Bootstrap::Unreadable { why: "the control plane does not answer".into(), has_files };
    observed
}

fn crashed() -> Run {
    let ending = Ended { at: at(NOW), orderly: false, how: "it crashed".into() };
    Run { process: None, ended: Some(ending), ..run() }
}

/// Returns the journal and whether the request of a launch has bootstrap data.
fn launched(plan: &Plan<Step>) -> (Journal, bool) {
    let journal = plan.steps.iter().find_map(|step| match step {
        Step::WriteJournal(journal) => Some((**journal).clone()),
        _ => None,
    });
    let has_seed = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.seed.is_some()),
        _ => None,
    });
    (journal.expect("it is written first"), has_seed.expect("it is launched"))
}

#[test]
fn a_guest_that_ended_is_restarted_with_the_data_of_its_last_start_while_its_secret_cannot_be_read() {
    let observed = unanswered(Some(crashed()), true);
    let (journal, has_seed) = launched(&plan(&vm(json!({})), &observed));
    assert!(!has_seed, "the files stay as they are");
    assert_eq!(journal.bootstrap, observed.journal.bootstrap, "it is the same data");
    assert_eq!(journal.restarts, 1);
    let never = plan(&vm(json!({"restartPolicy": "Never"})), &observed);
    assert_eq!(stands(&never), (true, Reason::GuestEnded), "its policy counts first");
}

#[test]
fn a_launch_that_failed_is_repeated_with_the_same_data() {
    let (journal, _) = launched(&plan(&vm(json!({})), &unanswered(Some(crashed()), true)));
    let run = journal.run.clone().expect("it is recorded");
    assert_eq!((run.keeps_bootstrap, run.ended.is_some()), (true, false));
    let (again, has_seed) = launched(&plan(&vm(json!({})), &unanswered(Some(run.clone()), true)));
    assert_eq!((again.restarts, has_seed), (0, false), "the restart is counted once");
    let mut answered = unanswered(Some(run), true);
    answered.bootstrap = Bootstrap::Found(Box::default());
    let (journal, has_seed) = launched(&plan(&vm(json!({})), &answered));
    assert!(has_seed && journal.run.is_some_and(|run| !run.keeps_bootstrap));
}

#[test]
fn any_other_start_waits_until_the_secret_can_be_read() {
    let waits = |vm: &VM, observed: &Observed| {
        let plan = plan(vm, observed);
        assert_eq!(stands(&plan), (false, Reason::Retrying));
        assert_eq!(plan.readiness.message(), "the control plane does not answer");
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(10)), "Secrets are not watched");
    };
    waits(&vm(json!({})), &unanswered(None, false));
    // It was stopped, or its host was drained: changed data are due.
    waits(&vm(json!({})), &unanswered(None, true));
    waits(&vm(json!({"restartToken": "another"})), &unanswered(Some(crashed()), true));
    // A launch with new data was interrupted: the files may be those of either.
    waits(&vm(json!({})), &unanswered(Some(Run { process: None, ..run() }), true));
    // The files were removed.
    waits(&vm(json!({})), &unanswered(Some(crashed()), false));
}

#[test]
fn changed_data_are_given_to_the_guest_once_they_can_be_read() {
    let (journal, _) = launched(&plan(&vm(json!({})), &unanswered(Some(crashed()), true)));
    let mut observed = ready_to_start();
    observed.journal = Journal { run: Some(crashed()), ..journal };
    let changed = vm(json!({"bootstrap": {"userData": "#!/bin/sh\n"}}));
    observed.bootstrap = Bootstrap::of(&changed, None, None);
    let (journal, has_seed) = launched(&plan(&changed, &observed));
    assert!(has_seed);
    assert_eq!(journal.cloud_instance("i-1"), "i-1-2", "cloud-init applies them");
}
