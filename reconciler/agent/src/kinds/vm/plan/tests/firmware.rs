use super::super::super::FirmwareOrigin;
use super::*;

/// The VM of the tests, bound to host h under the epoch 3, with this status beside that.
fn moved(annotation: Option<&str>, power: &str, status: &[(&str, Value)]) -> VM {
    let mut vm = serde_json::to_value(vm(json!({"power": power}))).expect("JSON");
    if let Some(epoch) = annotation {
        vm["metadata"]["annotations"] = json!({"berth.dev/accept-firmware-loss": epoch});
    }
    vm["status"]["binding"] = json!({"host": "h", "epoch": 3});
    vm["status"]["admittedEpoch"] = json!(3);
    for (field, value) in status {
        vm["status"][*field] = value.clone();
    }
    serde_json::from_value(vm).expect("a VM")
}

fn left_on(host: &str) -> (&'static str, Value) {
    ("formerHost", json!(host))
}

fn had_tpm() -> (&'static str, Value) {
    let hardware = json!({"cpus": 1, "memory": "1Gi", "firmware": "UEFI", "tpm": true, "machineType": "q35",
        "cpuModel": "max", "accelerator": "tcg", "uuid": "u"});
    ("hardware", hardware)
}

fn origin(plan: &Plan<Step>) -> Option<&FirmwareOrigin> {
    match plan.steps.as_slice() {
        [Step::TakeFirmware(origin), Step::WriteJournal(journal)] => {
            assert_eq!((journal.firmware, journal.epoch), (Some(3), 3), "recorded once it is here");
            Some(origin)
        }
        _ => None,
    }
}

#[test]
fn the_firmware_state_comes_from_the_former_host_before_anything_is_started() {
    let host = |name: &str| FirmwareOrigin::Host(name.to_owned());
    for power in ["Running", "Stopped", "Paused"] {
        let from = |vm: &VM| origin(&plan(vm, &ready_to_start())).cloned();
        assert_eq!(from(&moved(None, power, &[left_on("a")])), Some(host("a")), "{power}");
        assert_eq!(from(&moved(None, power, &[left_on("h")])), Some(FirmwareOrigin::Here), "it is back");
        let accepted = moved(Some("3"), power, &[left_on("a")]);
        assert_eq!(from(&accepted), Some(FirmwareOrigin::Nowhere));
        let accepted_at_home = moved(Some("3"), power, &[left_on("h")]);
        assert_eq!(from(&accepted_at_home), Some(FirmwareOrigin::Here), "nothing is removed that is there");
        let accepted_before = moved(Some("2"), power, &[left_on("a")]);
        assert_eq!(from(&accepted_before), Some(host("a")), "of another move");
        assert_eq!(from(&moved(None, power, &[])), None);
    }
}

#[test]
fn a_vm_is_started_only_after_it_is_reported_that_its_firmware_state_is_here() {
    let vm = moved(None, "Running", &[left_on("a")]);
    let journal = Journal { epoch: 3, firmware: Some(3), ..Journal::new(&vm) };
    let observed = Observed { journal, journal_written: true, ..ready_to_start() };
    let waits = plan(&vm, &observed);
    assert_eq!((waits.steps.len(), waits.readiness.reason()), (0, Reason::Moving));
    assert_eq!(status(&vm, &observed, &waits.readiness, at(NOW)).former_host, None);
    let before = Observed { journal: Journal::new(&vm), ..observed.clone() };
    let kept = status(&vm, &before, &waits.readiness, at(NOW)).former_host;
    assert_eq!(kept.as_deref(), Some("a"), "it is not recorded yet");
    let reported = moved(None, "Running", &[]);
    assert!(!plan(&reported, &observed).steps.is_empty(), "it is started");
}

#[test]
fn a_vm_does_not_start_with_an_empty_tpm_unless_that_is_accepted() {
    let size = ready_to_start().size.map(|size| Size { tpm: true, ..size });
    let seen = |has_tpm_state| Observed { size: size.clone(), has_tpm_state, ..ready_to_start() };
    let vm = moved(None, "Running", &[had_tpm()]);
    let stalled = plan(&vm, &seen(false));
    let Readiness::Stalled(reason, text) = &stalled.readiness else { panic!("{stalled:?}") };
    assert_eq!((*reason, stalled.steps.len()), (Reason::FirmwareStateLost, 0));
    assert!(text.contains("kubectl annotate --overwrite vm web berth.dev/accept-firmware-loss=3"), "{text}");
    assert!(!plan(&vm, &seen(true)).steps.is_empty());
    assert!(!plan(&moved(Some("3"), "Running", &[had_tpm()]), &seen(false)).steps.is_empty());
    assert!(!plan(&moved(None, "Running", &[]), &seen(false)).steps.is_empty(), "it never had one");
    let journal = Journal { epoch: 3, firmware: Some(3), ..Journal::new(&vm) };
    let failed = Observed { journal, journal_written: true, ..seen(false) };
    assert!(!plan(&vm, &failed).steps.is_empty(), "its first start failed before the TPM was made");
}

#[test]
fn a_guest_of_an_earlier_stay_does_not_stand_for_the_state_of_the_former_host() {
    let vm = moved(None, "Running", &[left_on("a")]);
    let reported = |epoch: i64| {
        let seen = present(RunState::Running);
        let journal = Journal { epoch, ..seen.journal.clone() };
        let seen = Observed { journal, ..seen };
        status(&vm, &seen, &plan(&vm, &seen).readiness, at(NOW)).former_host
    };
    assert_eq!(reported(3), None, "it runs with what is here");
    assert_eq!(reported(1).as_deref(), Some("a"), "the next start takes the newer one");
}
