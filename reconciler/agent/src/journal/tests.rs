use berth_api::{Graphics, HugePages};
use berth_qemu::hypervisor::ProcessIdentity;

use super::*;

fn journal() -> Journal {
    let run = Run {
        class: "s".into(),
        cpus: 1,
        memory_bytes: 1,
        firmware: "UEFI".into(),
        dedicated_cpus: false,
        isolate_emulator_thread: false,
        huge_pages: HugePages::None,
        tpm: true,
        topology: None,
        numa_nodes: Some(2),
        max_cpus: Some(4),
        growth: Some(MemoryGrowth { base: 1, most: 2, changed_at: Some(Timestamp::UNIX_EPOCH) }),
        graphics: Graphics::VGA,
        cdroms: vec![RunCdrom { name: "installer".into(), boot_first: true }],
        uuid: None,
        profile: RunProfile::default(),
        machine: None,
        default_queues: None,
        enrolls: false,
        boot_volume: "v-1".into(),
        interfaces: None,
        token: None,
        process: None,
        started_at: Some(Timestamp::UNIX_EPOCH),
        booted_at: None,
        post_start: None,
        keeps_bootstrap: false,
        ended: None,
    };
    Journal { run: Some(run), ..Journal::new(&VM::default()) }
}

fn ended(second: i64) -> Ended {
    Ended {
        at: Timestamp::from_second(second).expect("small"),
        orderly: false,
        how: "crash".into(),
        out_of_memory: false,
    }
}

#[test]
fn it_survives_the_way_to_disk_and_back() {
    let journal = journal().with_slots(["nic0", "nic1"].into_iter()).with_ending(ended(3));
    assert_eq!(Journal::parse(journal.to_value()).expect("just written"), journal);
}

#[test]
fn an_older_agent_does_not_read_that_of_a_vm_which_was_given_up() {
    let released = Released { epoch: 3, volumes: BTreeSet::from(["v-1".to_owned()]) };
    let left = journal().with_release(Some(released)).stopped();
    assert_eq!(left.version, WITH_RELEASE);
    assert_eq!(Journal::parse(left.to_value()).expect("just written"), left);
    assert_eq!(left.with_release(None).version, VERSION, "it is back");
}

#[test]
fn one_of_a_newer_agent_is_refused_rather_than_misread() {
    let newer = Journal { version: WITH_LIVE_MOVE + 1, ..journal() };
    assert!(matches!(Journal::parse(newer.to_value()), Err(Error::Journal { .. })));
}

#[test]
fn the_first_restart_is_at_once_and_later_ones_wait_longer_up_to_five_minutes() {
    let mut journal = journal();
    let mut delays = Vec::new();
    for _ in 0..8 {
        journal = journal.with_ending(ended(3));
        delays.push(journal.not_before.expect("set").as_second() - 3);
    }
    assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(journal.with_ending(ended(700)).failures, 1, "it ran long enough");
}

#[test]
fn changed_bootstrap_data_is_another_instance_to_cloud_init_and_unchanged_data_is_not() {
    let mut journal = journal();
    let mut seen = Vec::new();
    for data in ["a", "a", "b", "b", "a"] {
        journal = Journal::parse(journal.with_bootstrap(data.into()).to_value()).expect("just written");
        seen.push(journal.cloud_instance("i-1"));
    }
    assert_eq!(seen, ["i-1", "i-1", "i-1-2", "i-1-2", "i-1-3"]);
}

#[test]
fn keys_count_as_enrolled_once_a_machine_was_launched_that_enrolls_them() {
    let keys = |token: &str| SecureBootKeys { secret_name: "boot".into(), token: Some(token.into()) };
    let process = ProcessFacts {
        identity: ProcessIdentity { pid: 1, start_time: 1, boot_id: "b".into() },
        started_at: Timestamp::UNIX_EPOCH,
        dedicated: None,
    };
    let started = |enrolls: bool, enrolled: Option<SecureBootKeys>| {
        let mut journal = Journal { enrolled, ..journal() };
        let run = journal.run.as_mut().expect("it runs");
        run.enrolls = enrolls;
        run.profile.secure_boot_keys = Some(keys("1"));
        Journal::parse(journal.with_process(&process).to_value()).expect("just written").enrolled
    };
    assert_eq!(started(true, None), Some(keys("1")));
    assert_eq!(started(false, None), None, "a saved state has the variables of its moment");
    assert_eq!(started(false, Some(keys("1"))), Some(keys("1")));
}

#[test]
fn an_interface_keeps_its_slot_when_others_come_and_go() {
    let journal = journal().with_slots(["a", "b"].into_iter()).with_slots(["b", "c"].into_iter());
    assert_eq!(journal.slots, BTreeMap::from([("b".to_owned(), 1), ("c".to_owned(), 0)]));
    assert_eq!((journal.port_of("b"), journal.port_of("c"), journal.port_of("a")), (Some(1), Some(0), None));
    let older = Journal { in_ports: BTreeSet::new(), ..journal }.with_slots(["b", "d"].into_iter());
    assert_eq!((older.port_of("b"), older.port_of("d")), (None, Some(0)), "b stays where it is");
}

#[test]
fn an_older_agent_cannot_read_the_journal_of_a_guest_that_moves() {
    let departure = Departure {
        id: "m-1".into(),
        migration: "m".into(),
        to: "h2".into(),
        epoch: 3,
        phase: DeparturePhase::Sending,
        since: Timestamp::UNIX_EPOCH,
    };
    let leaving = journal().with_departure(Some(departure));
    assert_eq!(leaving.version, WITH_LIVE_MOVE);
    assert!(leaving.offline.is_none(), "nothing restarts its guest without the control plane");
    let read = Journal::parse(leaving.to_value()).expect("readable");
    assert_eq!(read, leaving);
    assert_eq!(leaving.with_departure(None).version, VERSION, "it stays");
    let arrival = Arrival {
        id: "m-1".into(),
        from: "h1".into(),
        phase: ArrivalPhase::Receiving,
        volumes: vec![("site".into(), "v-1".into())],
    };
    let coming = journal().with_arrival(Some(arrival));
    assert_eq!(coming.version, WITH_LIVE_MOVE);
    assert_eq!(coming.with_arrival(None).version, VERSION);
    let back = journal().with_release(Some(Released { epoch: 3, volumes: BTreeSet::new() }));
    assert_eq!(back.with_release(None).departure, None);
}
