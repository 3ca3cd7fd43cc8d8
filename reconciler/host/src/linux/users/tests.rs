use super::*;

const SHARED: RunAs = RunAs { uid: 60_927, gid: 60_927 };

fn small() -> UidRange {
    "2147000000-2147000255".parse().expect("a range")
}

fn users(folder: &Path, state: &str, range: UidRange) -> Users {
    let layout = Layout::new(folder.join(state));
    Users::new(layout, Some(range), Some(SHARED)).with_registry(&folder.join("registry"))
}

fn owners(users: &Users) -> BTreeSet<u32> {
    users.owners_in(&users.layout.pool_names().expect("listed")).expect("listed")
}

fn make(users: &Users, instance: &str) -> RunAs {
    files::ensure_folder(&users.layout.instance(instance)).expect("a folder");
    users.assign(instance, &owners(users)).expect("assigned").expect("a user")
}

#[test]
fn a_range_is_two_user_ids_apart_enough() {
    assert_eq!("5000-6000".parse(), Ok(UidRange { first: 5000, last: 6000 }));
    for bad in ["", "5000", "6000-5000", "5000-5010", "0-6000", "1-2-3", "5000-4294967295"] {
        assert!(bad.parse::<UidRange>().is_err(), "{bad}");
    }
}

#[test]
fn each_instance_has_a_user_of_its_own_and_keeps_it() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let users = users(folder.path(), "state", small());
    let given: Vec<RunAs> = (0..256).map(|n| make(&users, &format!("i-{n}"))).collect();
    let distinct: BTreeSet<u32> = given.iter().map(|user| user.uid).collect();
    assert_eq!(distinct.len(), 256);
    assert!(given.iter().all(|user| user.uid == user.gid && small().from(0).any(|uid| uid == user.uid)));
    for (n, user) in given.iter().enumerate() {
        assert_eq!(make(&users, &format!("i-{n}")), *user, "the same at its next start");
    }
    files::ensure_folder(&users.layout.instance("i-too-many")).expect("a folder");
    let error = users.assign("i-too-many", &owners(&users)).expect_err("none is left");
    assert!(error.to_string().contains("--qemu-uid-range"), "{error}");
    users.forget("i-7").expect("forgotten");
    fs::remove_dir_all(users.layout.instance("i-7")).expect("removed");
    assert_eq!(make(&users, "i-too-many"), given[7]);
}

#[test]
fn an_instance_keeps_its_user_as_long_as_the_record() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let users = users(folder.path(), "state", small());
    assert_eq!(users.kept("i-1").expect("looked"), None);
    let user = make(&users, "i-1");
    assert_eq!(users.kept("i-1").expect("looked"), Some(user));
    // A reboot empties the registry.
    fs::remove_dir_all(folder.path().join("registry")).expect("removed");
    assert_eq!(users.kept("i-1").expect("looked"), Some(user));
    fs::remove_file(users.layout.user("i-1")).expect("removed");
    assert_eq!(users.kept("i-1").expect("looked"), None);
}

#[test]
fn two_berths_on_one_machine_give_out_different_users() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let [one, two] = ["one", "two"].map(|state| users(folder.path(), state, small()));
    let mine: BTreeSet<u32> = (0..128).map(|n| make(&one, &format!("i-{n}")).uid).collect();
    let others: BTreeSet<u32> = (0..128).map(|n| make(&two, &format!("i-{n}")).uid).collect();
    assert!(mine.is_disjoint(&others));
    // A reboot empties the registry, and the other berth starts first.
    fs::remove_dir_all(folder.path().join("registry")).expect("removed");
    let stolen = make(&one, "i-0").uid;
    let path = two.layout.user("i-0");
    files::write_json(&path, &Record { uid: stolen }, 0o600).expect("as chance would have it");
    assert_ne!(make(&two, "i-0").uid, stolen);
    // The users of a removed state directory are free again.
    fs::remove_dir_all(folder.path().join("two")).expect("removed");
    for n in 128..256 {
        make(&one, &format!("i-{n}"));
    }
}

#[test]
fn a_user_that_a_disk_a_process_or_an_account_has_is_not_given_out() {
    if !Uid::effective().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let users = users(folder.path(), "state", small());
    let volumes = users.layout.volumes("default");
    let trash = users.layout.trash("default");
    let mut all = small().from(0);
    let mut free = BTreeSet::new();
    for (n, uid) in all.by_ref().enumerate() {
        let folder = if n % 2 == 0 { &volumes } else { &trash };
        files::ensure_folder(folder).expect("a folder");
        if n % 100 == 0 {
            free.insert(uid);
            continue;
        }
        let file = folder.join(format!("v-{n}.qcow2"));
        fs::write(&file, b"disk").expect("written");
        std::os::unix::fs::chown(&file, Some(uid), Some(uid)).expect("given away");
    }
    let given: BTreeSet<u32> = (0..free.len()).map(|n| make(&users, &format!("i-{n}")).uid).collect();
    assert_eq!(given, free);
    let us = Taken { single: processes(), ranges: vec![(100_000, 65_536)] };
    assert!(us.has(0) && us.has(100_000) && us.has(165_535) && !us.has(165_536) && !us.has(99_999));
    assert_eq!(range_of("user:100000:65536"), Some((100_000, 65_536)));
}

#[test]
fn files_of_a_pool_that_was_away_do_not_stay_with_the_users_of_machines_that_are_gone() {
    if !Uid::effective().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let users = users(folder.path(), "state", small());
    let user = make(&users, "i-there");
    let gone = small().from(0).find(|uid| *uid != user.uid).expect("the range has more than one");
    let volumes = users.layout.volumes("fast");
    files::ensure_folder(&volumes).expect("a folder");
    let owner_after = |name: &str, uid: u32| {
        let file = volumes.join(name);
        fs::write(&file, b"disk").expect("written");
        std::os::unix::fs::chown(&file, Some(uid), Some(uid)).expect("given away");
        super::super::machines::revoke_departed(&users.layout, &users, "fast").expect("looked at");
        fs::metadata(&file).expect("there").uid()
    };
    assert_eq!(owner_after("v-1.qcow2", gone), 0);
    assert_eq!(owner_after("v-2.qcow2", user.uid), user.uid, "its machine may run");
    assert_eq!(owner_after("v-3.qcow2", 1), 1, "no user of machines");
    let readers = users.layout.snapshot_readers("fast");
    for name in ["i-there", "i-gone", "backup-1"] {
        files::ensure_folder(&readers.join(name)).expect("a folder");
    }
    super::super::machines::revoke_departed(&users.layout, &users, "fast").expect("looked at");
    assert_eq!(files::names(&readers).expect("listed"), ["backup-1", "i-there"]);
}

#[test]
fn a_process_is_an_instances_only_by_its_user() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let users = users(folder.path(), "state", small());
    let (a, b) = (make(&users, "i-a"), make(&users, "i-b"));
    assert!(users.may_be("i-a", a.uid) && users.may_be("i-b", b.uid));
    // A QEMU that a guest has taken over can imitate another's command line.
    assert!(!users.may_be("i-b", a.uid) && !users.may_be("i-a", SHARED.uid));
    // A QEMU that was started before each instance had its own user has no record.
    assert!(users.may_be("i-old", SHARED.uid) && !users.may_be("i-old", a.uid));
    assert_eq!(users.of("i-old"), Some(SHARED));
}
