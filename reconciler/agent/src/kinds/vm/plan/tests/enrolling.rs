//! Keys of Secure Boot.

use berth_host::LaunchRequest;
use berth_qemu::efi_variables::SecureBootKeys;
use berth_qemu::machine::Firmware;

use super::*;

fn declared(token: &str) -> berth_api::vm::SecureBootKeys {
    berth_api::vm::SecureBootKeys { secret_name: "boot".into(), token: Some(token.into()) }
}

fn with_keys(token: &str) -> VM {
    vm(json!({"secureBootKeys": {"secretName": "boot", "token": token}}))
}

fn keys() -> SecureBootKeys {
    SecureBootKeys { pk: vec![1], kek: vec![vec![2]], db: vec![vec![3]], dbx: Vec::new() }
}

/// A VM that is to be started, with firmware for Secure Boot.
fn seen(found: KeysToEnroll) -> Observed {
    let size = size(json!({"cpus": 1, "memory": "512Mi", "firmware": "UEFISecureBoot"}));
    Observed { size, secure_boot_keys: found, ..ready_to_start() }
}

/// Returns the journal that is written first, and the request of the launch.
fn launched(plan: Plan<Step>) -> (Journal, LaunchRequest) {
    let (mut journal, mut launch) = (None, None);
    for step in plan.steps {
        match step {
            Step::WriteJournal(written) => journal = journal.or(Some(*written)),
            Step::Launch(request) => launch = Some(*request),
            _ => {}
        }
    }
    (journal.expect("it is written"), launch.expect("it is launched"))
}

#[test]
fn declared_keys_are_enrolled_once_and_belong_to_the_machine() {
    let found = || KeysToEnroll::Found(Box::new(keys()));
    let (journal, request) = launched(plan(&with_keys("1"), &seen(found())));
    assert_eq!((request.machine.firmware, request.keys), (Firmware::UefiOwnKeys, Some(keys())));
    assert_eq!(journal.enrolled, None, "until it runs");
    let run = journal.run.expect("recorded");
    assert_eq!((run.profile.secure_boot_keys, run.enrolls), (Some(declared("1")), true));

    let mut enrolled = seen(KeysToEnroll::NotDue);
    enrolled.journal.enrolled = Some(declared("1"));
    let (journal, request) = launched(plan(&with_keys("1"), &enrolled));
    assert_eq!((request.machine.firmware, request.keys), (Firmware::UefiOwnKeys, None));
    assert_eq!(journal.enrolled, Some(declared("1")));
    assert!(!journal.run.expect("recorded").enrolls);

    let mut other = enrolled.clone();
    other.secure_boot_keys = found();
    let (journal, request) = launched(plan(&with_keys("2"), &other));
    assert_eq!((journal.enrolled, request.keys), (None, Some(keys())), "another token enrolls again");

    let (journal, request) = launched(plan(&vm(json!({})), &enrolled));
    assert_eq!((request.machine.firmware, request.keys), (Firmware::UefiSecureBoot, None));
    assert_eq!(journal.enrolled, Some(declared("1")), "they stay in their file");
}

#[test]
fn a_start_waits_for_keys_and_names_those_that_are_unusable() {
    let with = |found| plan(&with_keys("1"), &seen(found));
    let missing = with(KeysToEnroll::Missing("boot".into()));
    assert_eq!(stands(&missing), (false, Reason::WaitingForSecret));
    assert!(missing.requeue_after.is_some(), "Secrets are not watched");
    let unreadable = with(KeysToEnroll::Unreadable("no answer".into()));
    assert_eq!(stands(&unreadable), (false, Reason::Retrying));
    let unusable = with(KeysToEnroll::Unusable("key PK is missing".into()));
    assert_eq!(stands(&unusable), (true, Reason::InvalidSpec));
    assert_eq!(unusable.readiness.message(), "key PK is missing");
    let of_class = plan(&with_keys("1"), &ready_to_start());
    assert_eq!(stands(&of_class), (true, Reason::InvalidSpec));
    assert!(of_class.readiness.message().contains("UEFISecureBoot"));
}

#[test]
fn other_keys_wait_for_the_next_power_cycle() {
    let mut running = Observed { size: seen(KeysToEnroll::NotDue).size, ..present(RunState::Running) };
    let run = running.journal.run.as_mut().expect("it runs");
    run.firmware = "UEFISecureBoot".into();
    run.profile.secure_boot_keys = Some(declared("1"));
    let ready = Readiness::Ready(Reason::Running, String::new());
    let pending = |vm: &VM| status(vm, &running, &ready, at(NOW)).pending_power_cycle;
    assert_eq!(pending(&with_keys("1")), [""; 0]);
    assert_eq!(pending(&with_keys("2")), ["secureBootKeys"]);
    assert_eq!(pending(&vm(json!({}))), ["secureBootKeys"]);
}
