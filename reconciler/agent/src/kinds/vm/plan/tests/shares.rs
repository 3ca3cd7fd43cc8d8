//! Folders of the host for a VM.

use berth_host::ShareFacts;
use berth_qemu::machine::ShareSpec;

use super::*;

fn shared(name: &str, read_only: bool) -> ShareFacts {
    ShareFacts { name: name.into(), read_only, problem: None }
}

fn with(shares: Vec<ShareFacts>) -> Observed {
    Observed { host: Some(HostFacts { shares, ..host() }), ..ready_to_start() }
}

fn both() -> VM {
    vm(json!({"shares": [{"name": "media", "tag": "films", "readOnly": true}, {"name": "data"}]}))
}

fn launched(plan: &Plan<Step>) -> Vec<ShareSpec> {
    let request = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request),
        _ => None,
    });
    request.expect("it is launched").machine.shares.clone()
}

#[test]
fn a_machine_has_the_declared_shares_by_their_tags_in_any_order() {
    let spec = |name: &str, tag: &str, read_only| ShareSpec { name: name.into(), tag: tag.into(), read_only };
    let offered = || with(vec![shared("media", true), shared("data", false)]);
    let has = [spec("data", "data", false), spec("media", "films", true)];
    assert_eq!(launched(&plan(&both(), &offered())), has);
    let turned =
        vm(json!({"shares": [{"name": "data"}, {"name": "media", "tag": "films", "readOnly": true}]}));
    assert_eq!(launched(&plan(&turned, &offered())), has);
}

#[test]
fn a_host_that_lacks_a_share_or_shares_it_read_only_starts_no_vm_that_needs_it() {
    let message = |shares: Vec<ShareFacts>| {
        let refused = plan(&both(), &with(shares));
        assert_eq!(stands(&refused), (true, Reason::ShareUnavailable));
        assert!(refused.requeue_after.is_some() && refused.steps.is_empty(), "the host is looked at again");
        refused.readiness.message().to_owned()
    };
    insta::assert_snapshot!(message(Vec::new()), @"this host shares no folder data: its administrator does with --share");
    insta::assert_snapshot!(message(vec![shared("media", true), shared("data", true)]), @"this host shares the folder data read-only: set readOnly, or change --share there");
    let broken = ShareFacts { problem: Some("it is not a folder".into()), ..shared("media", false) };
    insta::assert_snapshot!(message(vec![broken, shared("data", false)]), @"share media: it is not a folder");
}

#[test]
fn another_list_waits_for_the_power_cycle_and_a_machine_with_shares_is_not_suspended() {
    let running = |declared: &VM| {
        let mut running = present(RunState::Running);
        let run = running.journal.run.as_mut().expect("a run");
        run.profile = RunProfile::declared(declared, &Profile::default());
        let shares = run.profile.shares.clone();
        if let Some(machine) = &mut run.machine {
            machine.shares = shares;
        }
        running
    };
    let pending = |vm: &VM, observed: &Observed| {
        status(vm, observed, &plan(vm, observed).readiness, at(NOW)).pending_power_cycle
    };
    assert_eq!(pending(&both(), &running(&both())), [""; 0]);
    let writes = vm(json!({"shares": [{"name": "media", "tag": "films"}, {"name": "data"}]}));
    assert_eq!(pending(&writes, &running(&both())), ["shares"]);
    assert_eq!(pending(&vm(json!({})), &running(&both())), ["shares"]);
    let turned =
        vm(json!({"shares": [{"name": "data"}, {"name": "media", "tag": "films", "readOnly": true}]}));
    assert_eq!(pending(&turned, &running(&both())), [""; 0], "their order is of no account");
}

#[test]
fn a_vm_whose_share_has_lost_its_server_needs_a_person() {
    let with = |lost: Option<Vec<String>>| {
        let mut observed = present(RunState::Running);
        observed.machine.as_mut().expect("it runs").lost_shares = lost;
        plan(&vm(json!({})), &observed)
    };
    let failed = with(Some(vec!["data".to_owned()]));
    assert_eq!(stands(&failed), (true, Reason::ShareFailed));
    insta::assert_snapshot!(failed.readiness.message(), @"the server of the VM's share data (virtiofsd) has ended, and the guest cannot reach the folder: restart the VM (restartToken)");
    let works = with(Some(Vec::new()));
    assert_eq!(stands(&works), (false, Reason::Running));
    assert!(works.requeue_after.is_some(), "QEMU is asked again");
    assert_eq!(stands(&with(None)), (false, Reason::Running));
}
