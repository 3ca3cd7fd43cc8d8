use berth_api::{MemberKind, MemberPower, Readiness, Reason, VMGroup, VMState};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::observe::{Member, Observed};
use super::order::{Decision, order};
use super::status;
use MemberPower::{Own, Running, Stopped, Waiting};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("small")
}

fn vm(name: &str, step: usize, before: MemberPower, state: Option<VMState>) -> Member {
    Member {
        kind: MemberKind::VM,
        name: name.into(),
        step,
        exists: true,
        before,
        state,
        is_up: state == Some(VMState::Running),
        is_off: matches!(state, None | Some(VMState::Stopped)),
        reason: Some("Because".into()),
        ..Member::default()
    }
}

fn observed(wanted: MemberPower, delays: &[i64], members: Vec<Member>) -> Observed {
    Observed { members, delays: delays.to_vec(), wanted, ..Observed::default() }
}

fn powers(observed: &Observed) -> Vec<MemberPower> {
    order(observed, at(0)).powers
}

/// The readiness in the status, and its message.
fn says(observed: &Observed) -> (Option<String>, String) {
    let group: VMGroup =
        serde_json::from_value(json!({"metadata": {"name": "g", "generation": 1}, "spec": {}}))
            .expect("a group");
    let status = status(&group, observed, &order(observed, at(0)), at(0));
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").expect("it is set");
    let reason = (ready.status != "True").then(|| ready.reason.clone());
    (reason, ready.message.clone())
}

#[test]
fn a_step_is_started_once_all_members_of_the_steps_before_are_ready() {
    let off = Some(VMState::Stopped);
    let on = Some(VMState::Running);
    let members = |a, b| {
        vec![vm("a", 0, a, off), vm("b", 0, b, on), vm("c", 1, Waiting, off), vm("d", 2, Stopped, off)]
    };
    let started = observed(Running, &[0, 0], members(Waiting, Stopped));
    assert_eq!(powers(&started), [Running, Running, Waiting, Waiting]);
    let first = observed(Running, &[0, 0], members(Running, Running));
    assert_eq!(powers(&first), [Running, Running, Waiting, Waiting], "a is not ready");
    let (reason, message) = says(&first);
    assert_eq!(reason.as_deref(), Some("Starting"));
    assert_eq!(message, "1 of 4 members have the declared power; VM a is Stopped (Because)");
    let ready = observed(
        Running,
        &[0, 0],
        vec![vm("a", 0, Running, on), vm("c", 1, Waiting, off), vm("d", 2, Waiting, off)],
    );
    assert_eq!(powers(&ready), [Running, Running, Waiting]);
}

#[test]
fn a_member_that_was_started_runs_on_when_one_of_an_earlier_step_ends() {
    let members =
        vec![vm("a", 0, Running, Some(VMState::CrashLoop)), vm("b", 1, Running, Some(VMState::Running))];
    let observed = observed(Running, &[0, 0], members);
    assert_eq!(powers(&observed), [Running, Running]);
    assert_eq!(says(&observed).1, "1 of 2 members have the declared power; VM a is CrashLoop (Because)");
}

#[test]
fn a_name_without_a_member_is_waited_for_and_an_empty_group_is_ready() {
    let missing = Member { name: "a".into(), ..Member::default() };
    let empty = observed(Running, &[0], vec![missing.clone()]);
    assert_eq!(says(&empty), (None, "0 members have the declared power".into()));
    let waits = observed(Running, &[0], vec![vm("b", 1, Waiting, None), missing]);
    assert_eq!(powers(&waits), [Waiting, Waiting]);
    let (reason, message) = says(&waits);
    assert_eq!(reason.as_deref(), Some("WaitingForVM"));
    assert!(message.ends_with("VM a of bootOrder does not exist, or does not name this group"), "{message}");
}

#[test]
fn a_delay_is_counted_from_the_moment_when_the_steps_before_are_ready_and_survives_a_clock_that_goes_back() {
    let members =
        || vec![vm("a", 0, Running, Some(VMState::Running)), vm("b", 1, Waiting, Some(VMState::Stopped))];
    let waits = observed(Running, &[0, 30], members());
    let Decision { powers, next_step, .. } = order(&waits, at(100));
    assert_eq!((powers, next_step), (vec![Running, Waiting], Some(at(130))));
    let (reason, message) = says(&waits);
    assert_eq!(reason.as_deref(), Some("Starting"));
    assert!(message.ends_with("the next step begins at 1970-01-01T00:00:30Z"), "{message}");
    let again = Observed { next_step: Some(at(130)), ..observed(Running, &[0, 30], members()) };
    assert_eq!(order(&again, at(129)).next_step, Some(at(130)));
    assert_eq!(order(&again, at(130)).powers, [Running, Running]);
    assert_eq!(order(&again, at(10)).next_step, Some(at(40)), "the clock was set back");
}

#[test]
fn a_group_is_stopped_in_the_reverse_order() {
    let on = Some(VMState::Running);
    let all = observed(
        Stopped,
        &[0, 0],
        vec![vm("a", 0, Running, on), vm("b", 1, Running, on), vm("c", 2, Running, on)],
    );
    assert_eq!(powers(&all), [Running, Running, Stopped]);
    let last = vm("c", 2, Stopped, Some(VMState::Stopping));
    let stopping = observed(Stopped, &[0, 0], vec![vm("a", 0, Running, on), vm("b", 1, Running, on), last]);
    assert_eq!(powers(&stopping), [Running, Running, Stopped]);
    assert_eq!(says(&stopping).0.as_deref(), Some("Stopping"));
    let last = vm("c", 2, Stopped, Some(VMState::Stopped));
    let next = observed(Stopped, &[0, 0], vec![vm("a", 0, Running, on), vm("b", 1, Waiting, None), last]);
    assert_eq!(powers(&next), [Running, Stopped, Stopped]);
    let off = vec![vm("a", 0, Stopped, None), vm("b", 1, Stopped, None)];
    assert_eq!(says(&observed(Stopped, &[0, 0], off)), (None, "2 members have the declared power".into()));
}

#[test]
fn a_member_with_a_power_of_its_own_is_left_alone_and_is_not_waited_for() {
    let own = Member { is_own: true, ..vm("a", 0, Running, Some(VMState::Paused)) };
    let both = || vec![own.clone(), vm("b", 1, Waiting, None)];
    assert_eq!(powers(&observed(Running, &[0], both())), [Own, Running]);
    assert_eq!(powers(&observed(Stopped, &[0], both())), [Own, Stopped]);
    let alone = observed(Stopped, &[0], vec![own.clone()]);
    assert_eq!(says(&alone).1, "1 members have the declared power, 1 of them one of their own");
}

#[test]
fn a_group_that_another_one_does_not_start_yet_changes_nothing() {
    let members = vec![vm("a", 0, Running, Some(VMState::Running)), vm("b", 1, Stopped, None)];
    let held = observed(Waiting, &[0], members);
    assert_eq!(powers(&held), [Running, Stopped]);
    assert_eq!(says(&held).0.as_deref(), Some("StartOrderHeld"));
    let incomplete = Observed { is_above_incomplete: true, ..held.clone() };
    assert_eq!(says(&incomplete).0.as_deref(), Some("WaitingForGroup"));
    let problem = Some(Readiness::Stalled(Reason::InvalidSpec, "in a circle".into()));
    let circle = Observed { problem, ..held };
    assert_eq!(says(&circle), (Some("InvalidSpec".into()), "in a circle".into()));
}

#[test]
fn a_member_that_is_being_deleted_holds_nothing_up() {
    let leaves = Member { leaves: true, ..vm("a", 0, Running, Some(VMState::Terminating)) };
    assert_eq!(
        powers(&observed(Running, &[0], vec![leaves.clone(), vm("b", 1, Waiting, None)])),
        [Running, Running]
    );
    let on = Some(VMState::Running);
    let stops = observed(Stopped, &[0], vec![vm("a", 0, Running, on), Member { step: 1, ..leaves }]);
    assert_eq!(powers(&stops), [Stopped, Stopped]);
}
