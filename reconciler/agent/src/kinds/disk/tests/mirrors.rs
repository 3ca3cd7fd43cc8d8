//! Disks that move to another pool while their guests run.

use std::time::Duration;

use berth_host::NewMove;
use berth_qemu::block::Mirror;
use serde_json::json;

use super::super::*;
use crate::mirrors::SeenMirror;
use crate::pulls::Wanted;

use super::{GIB, deleted, disk, reason, user, volume};

fn new() -> NewMove {
    NewMove { id: "v-1".into(), from: "default".into(), to: "slow".into() }
}

fn declared() -> Disk {
    disk(json!({"size": "1Gi", "pool": "slow"}), json!({"size": "1Gi", "pool": "default"}))
}

/// One that VM `web` has open, and that is to move.
fn due(mirror: SeenMirror) -> Observed {
    let wanted = Box::new(Wanted::Move("ns".into(), new()));
    let moving = Move::Due { to: "slow".into(), wanted, pull: None };
    Observed { moving, opener: Some("web".into()), open_size: Some(GIB), mirror, ..volume(GIB) }
}

/// The same while QEMU has this job.
fn with(state: Mirror) -> Observed {
    due(SeenMirror { state: Some(state), prepared: Some(new()), is_running: true, ..SeenMirror::default() })
}

fn cancel(failure: Option<&str>) -> Vec<Step> {
    vec![Step::CancelMirror { volume: "v-1".into(), failure: failure.map(str::to_owned) }]
}

#[test]
fn a_disk_of_a_running_guest_is_copied_switched_and_recorded() {
    let begins = plan(&declared(), &due(SeenMirror::default()));
    assert_eq!(
        (begins.steps.as_slice(), reason(&begins)),
        (&[Step::BeginMirror(new())][..], (false, Reason::Moving))
    );
    let copies = plan(&declared(), &with(Mirror::Copying { done: 1, total: 2 }));
    assert_eq!((copies.steps.len(), reason(&copies)), (0, (false, Reason::Moving)));
    assert!(copies.readiness.message().contains("(50 %)"), "{copies:?}");
    assert!(copies.requeue_after.is_some_and(|after| after <= Duration::from_secs(2)));
    let finish = [Step::FinishMirror("v-1".into())];
    for state in [Mirror::Ready, Mirror::Pending, Mirror::Switched] {
        assert_eq!(plan(&declared(), &with(state.clone())).steps, finish, "{state:?}");
    }
    // A guest that is paused for another reason is not resumed by the switch.
    let mut paused = with(Mirror::Ready);
    paused.mirror.is_running = false;
    assert_eq!(plan(&declared(), &paused).steps, []);
    let mut grows = with(Mirror::Ready);
    grows.open_size = Some(GIB / 2);
    assert_eq!(plan(&declared(), &grows).steps, finish, "it grows after that");
}

#[test]
fn a_mirror_that_is_not_declared_any_more_is_cancelled_unless_qemu_is_switched() {
    let set_back = disk(json!({"size": "1Gi"}), json!({"size": "1Gi", "pool": "default"}));
    let elsewhere = disk(json!({"size": "1Gi", "pool": "fast"}), json!({"size": "1Gi", "pool": "default"}));
    for disk in [&set_back, &elsewhere] {
        for state in [Mirror::Copying { done: 1, total: 2 }, Mirror::Ready, Mirror::Pending] {
            assert_eq!(plan(disk, &with(state.clone())).steps, cancel(None), "{state:?}");
        }
        let switched = plan(disk, &with(Mirror::Switched));
        assert_eq!(switched.steps, [Step::FinishMirror("v-1".into())], "its guest is paused");
    }
    let used = |state| Observed { users: vec![user()], ..with(state) };
    assert_eq!(plan(&deleted(declared()), &used(Mirror::Ready)).steps, cancel(None));
    assert_eq!(plan(&deleted(declared()), &used(Mirror::Switched)).steps, [Step::FinishMirror("v-1".into())]);
    let mut left = with(Mirror::Ready);
    (left.mirror.state, left.opener, left.open_size) = (None, None, None);
    assert_eq!(plan(&set_back, &left).steps, cancel(None), "its machine has ended");
    let gone = Observed { users: Vec::new(), moving: Move::Done, ..left };
    assert_eq!(plan(&deleted(set_back), &gone).steps, cancel(None), "before it goes to the trash");
}

#[test]
fn a_mirror_that_failed_is_removed_and_tried_again_after_a_pause() {
    let failed = plan(&declared(), &with(Mirror::Failed("No space left on device".into())));
    assert_eq!(failed.steps, cancel(Some("No space left on device")));
    let failure = Some(("No space left on device".to_owned(), Duration::from_secs(9)));
    let waits = plan(&declared(), &due(SeenMirror { failure, ..SeenMirror::default() }));
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (true, Reason::MoveRefused)));
    assert_eq!(waits.requeue_after, Some(Duration::from_secs(9)));
    assert!(waits.readiness.message().contains("No space left on device"), "{waits:?}");
}

#[test]
fn a_disk_that_cannot_move_under_its_guest_waits_for_its_end_and_says_why() {
    let obstacle = Some("it has files of snapshots below it".to_owned());
    let waits = plan(&declared(), &due(SeenMirror { obstacle, ..SeenMirror::default() }));
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::MoveWaits)));
    let text = waits.readiness.message();
    assert!(text.contains("VM web") && text.contains("files of snapshots"), "{text}");
}
