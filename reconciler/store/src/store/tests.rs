mod backup;
mod copies;
mod deferred;
mod quota;
mod sealing;

use std::collections::BTreeMap;

use futures::executor::block_on;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::*;

fn resource(name: &str) -> Arc<str> {
    name.into()
}

fn object(name: &str, value: u32) -> Encoded {
    let object = json!({"apiVersion": "v1", "kind": "K", "value": value,
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"parity": (value % 2).to_string()}}});
    Encoded::of(&object, &[])
}

fn put(key: &Key, expect: Expect, value: u32) -> Write {
    let action = Action::Put(object(&key.name, value));
    let by = Origin::default();
    Write { key: key.clone(), expect, action, guards: Vec::new(), at_ms: 1, by, deferrable: false }
}

fn delete(key: &Key, revision: u64) -> Write {
    Write { action: Action::Delete, ..put(key, Expect::Revision(revision), 0) }
}

fn back_to(revisions: u64) -> Keep {
    Keep { written_since_ms: 0, revisions, bytes: u64::MAX }
}

fn memory() -> Arc<Store> {
    Store::open(&Storage::Memory, WriterMode::Inline).unwrap()
}

fn on_disk(directory: &Path, mode: WriterMode) -> Result<Arc<Store>, OpenError> {
    Store::open(&Storage::Directory(directory.into()), mode)
}

/// The events that a watcher receives, in a comparable form.
type Reported = (u64, Change, String, u64);

fn reported(events: &[Arc<Event>]) -> Vec<Reported> {
    events
        .iter()
        .map(|event| {
            let value = event.entry.value();
            let revision = value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            assert_eq!(event.entry.revision, revision, "the text carries the revision");
            (revision, event.change, event.entry.key.name.to_string(), value["value"].as_u64().unwrap())
        })
        .collect()
}

#[derive(Debug, Clone)]
enum Op {
    Put { name: u8, value: u32, stale: bool },
    Delete { name: u8, stale: bool },
    Compact { back: u64 },
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..4_u8, 0..100_u32, prop::bool::weighted(0.2))
            .prop_map(|(name, value, stale)| Op::Put { name, value, stale }),
        3 => (0..4_u8, prop::bool::weighted(0.2)).prop_map(|(name, stale)| Op::Delete { name, stale }),
        1 => (0..8_u64).prop_map(|back| Op::Compact { back }),
        1 => Just(Op::Reopen),
    ]
}

fn with_log<T>(store: &Store, work: impl FnOnce(&Log) -> T) -> T {
    let Hands::Inline(writer) = &store.hands else { panic!("a thread writes") };
    work(&hold(writer).as_ref().unwrap().log)
}

/// The number of revisions on disk.
fn rows(store: &Store) -> usize {
    let sql = "SELECT count(*) FROM log";
    with_log(store, |log| log.db.query_row(sql, [], |row| row.get::<_, i64>(0))).unwrap().try_into().unwrap()
}

/// The reference model: current objects, and the whole history.
#[derive(Default)]
struct Model {
    objects: BTreeMap<String, (u64, u32)>,
    history: Vec<Reported>,
    compacted: u64,
}

impl Model {
    fn revision(&self) -> u64 {
        self.history.last().map_or(0, |event| event.0)
    }

    fn at(&self, revision: u64) -> BTreeMap<String, u64> {
        let mut objects = BTreeMap::new();
        for (_, change, name, value) in self.history.iter().take_while(|event| event.0 <= revision) {
            match change {
                Change::Deleted => objects.remove(name),
                Change::Added | Change::Modified => objects.insert(name.clone(), *value),
            };
        }
        objects
    }
}

fn step(store: &Arc<Store>, model: &mut Model, boats: &Arc<str>, op: &Op) {
    let name_of = |name: u8| format!("n{name}");
    match op {
        Op::Put { name, value, stale } => {
            let name = name_of(*name);
            let key = Key::new(boats, "ns", &name);
            let known = model.objects.get(&name).map(|known| known.0);
            let expect = match (known, stale) {
                (Some(revision), false) => Expect::Revision(revision),
                (Some(_), true) | (None, false) => Expect::Absent,
                (None, true) => Expect::Revision(model.revision() + 1),
            };
            let result = block_on(store.submit(put(&key, expect, *value)));
            if *stale {
                assert!(matches!(result, Err(WriteError::Conflict)), "{result:?}");
                return;
            }
            let revision = result.unwrap().revision;
            assert_eq!(revision, model.revision() + 1, "revisions have no gaps");
            let change = if known.is_some() { Change::Modified } else { Change::Added };
            model.objects.insert(name.clone(), (revision, *value));
            model.history.push((revision, change, name, u64::from(*value)));
        }
        Op::Delete { name, stale } => {
            let name = name_of(*name);
            let known = model.objects.get(&name).copied();
            let revision = known.map_or(1, |known| known.0) + u64::from(*stale);
            let result = block_on(store.submit(delete(&Key::new(boats, "ns", &name), revision)));
            match known {
                Some((_, value)) if !stale => {
                    let revision = result.unwrap().revision;
                    model.objects.remove(&name);
                    model.history.push((revision, Change::Deleted, name, u64::from(value)));
                }
                _ => assert!(matches!(result, Err(WriteError::Conflict)), "{result:?}"),
            }
        }
        Op::Compact { back } => {
            let compacted = block_on(store.compact(back_to(*back))).unwrap();
            model.compacted = model.compacted.max(model.revision().saturating_sub(*back));
            assert_eq!(compacted, model.compacted);
        }
        Op::Reopen => {}
    }
}

fn check(store: &Arc<Store>, model: &Model, boats: &Arc<str>) {
    assert_eq!(store.state().revision, model.revision());
    let listed: Vec<_> =
        store.state().list(boats, None, None).map(|e| (e.key.name.to_string(), e.revision)).collect();
    let wanted: Vec<_> =
        model.objects.iter().map(|(name, (revision, _))| (name.clone(), *revision)).collect();
    assert_eq!(listed, wanted);
    for revision in 0..=model.revision() {
        let watched = block_on(store.subscribe(boats, Interest::Resource, Some(revision), |_| ()));
        let listed = block_on(store.list_at(boats, revision, ListPart::default(), |_| true));
        if revision < model.compacted {
            assert!(matches!(watched, Err(ReadError::Compacted { .. })), "{revision} of {}", model.compacted);
            assert!(matches!(listed, Err(ReadError::Compacted { .. })));
            continue;
        }
        let wanted: Vec<Reported> =
            model.history.iter().filter(|event| event.0 > revision).cloned().collect();
        assert_eq!(reported(&watched.unwrap().1.backlog), wanted, "events after {revision}");
        let listed = listed.unwrap().entries;
        let found: BTreeMap<_, _> =
            listed.iter().map(|e| (e.key.name.to_string(), e.value()["value"].as_u64().unwrap())).collect();
        assert_eq!(found, model.at(revision), "objects at {revision}");
    }
    let future = block_on(store.subscribe(boats, Interest::Resource, Some(model.revision() + 1), |_| ()));
    assert!(matches!(future, Err(ReadError::Future { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_model_does(ops in prop::collection::vec(op(), 1..40)) {
        let (store, boats, mut model) = (memory(), resource("toys.example/boats"), Model::default());
        let live = block_on(store.subscribe(&boats, Interest::Resource, None, |_| ())).unwrap().1;
        for op in &ops {
            step(&store, &mut model, &boats, op);
        }
        check(&store, &model, &boats);
        let mut live = live;
        let mut seen = Vec::new();
        while let Some(event) = live.events.try_recv() {
            seen.push(event);
        }
        prop_assert_eq!(reported(&seen), model.history.clone());
        block_on(store.compact(back_to(0))).unwrap();
        let last_is_tombstone = matches!(model.history.last(), Some((_, Change::Deleted, ..)));
        prop_assert_eq!(rows(&store), model.objects.len() + usize::from(last_is_tombstone));
    }

    #[test]
    fn a_reopened_store_is_the_same_store(ops in prop::collection::vec(op(), 1..16)) {
        let directory = tempfile::tempdir().unwrap();
        let (boats, mut model) = (resource("toys.example/boats"), Model::default());
        let mut store = on_disk(directory.path(), WriterMode::Inline).unwrap();
        for op in &ops {
            if matches!(op, Op::Reopen) {
                drop(store);
                store = on_disk(directory.path(), WriterMode::Inline).unwrap();
            }
            step(&store, &mut model, &boats, op);
        }
        drop(store);
        check(&on_disk(directory.path(), WriterMode::Inline).unwrap(), &model, &boats);
    }
}

#[test]
fn a_watch_from_far_back_reads_a_part_of_the_past_at_once() {
    const WRITES: u64 = 5_000;
    let (store, boats) = (memory(), resource("toys.example/boats"));
    let key = Key::new(&boats, "ns", "ada");
    let mut expect = Expect::Absent;
    for value in 0..WRITES {
        let value = u32::try_from(value).unwrap();
        expect = Expect::Revision(block_on(store.submit(put(&key, expect, value))).unwrap().revision);
    }
    let mut watch = block_on(store.subscribe(&boats, Interest::Resource, Some(0), |_| ())).unwrap().1;
    assert_eq!(watch.backlog.len(), log::EVENTS_AT_ONCE);
    let mut events = watch.backlog.clone();
    let latest = block_on(store.submit(put(&key, expect, 7))).unwrap().revision;
    while watch.has_rest() {
        events.extend(block_on(watch.read_rest()).unwrap());
    }
    let revisions: Vec<u64> = events.iter().map(|event| event.entry.revision).collect();
    assert_eq!(revisions, (1..=WRITES).collect::<Vec<_>>());
    let live: Vec<u64> =
        std::iter::from_fn(|| watch.events.try_recv()).map(|event| event.entry.revision).collect();
    assert_eq!(live, [latest]);
    let previous = events[1].previous.as_ref().unwrap();
    assert!(Arc::ptr_eq(previous, &events[0].entry), "a state is read once");
    // The events that follow are not kept any more.
    let mut watch = block_on(store.subscribe(&boats, Interest::Resource, Some(0), |_| ())).unwrap().1;
    block_on(store.compact(back_to(0))).unwrap();
    assert!(matches!(block_on(watch.read_rest()), Err(ReadError::Compacted { .. })));
}

#[test]
fn a_deletion_before_a_restart_counts_as_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let (boats, gone) = (resource("toys.example/boats"), resource("toys.example/gone"));
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    block_on(store.submit(put(&Key::new(&boats, "ns", "a"), Expect::Absent, 1))).unwrap();
    let keys = [Key::new(&boats, "ns", "b"), Key::new(&gone, "ns", "c")];
    for key in &keys {
        let there = block_on(store.submit(put(key, Expect::Absent, 1))).unwrap().revision;
        block_on(store.submit(delete(key, there))).unwrap();
    }
    drop(store);
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    // The present objects of either are not those of the revision before the deletions.
    assert!(store.state().changed(&boats) >= 3, "{}", store.state().changed(&boats));
    assert!(store.state().changed(&gone) >= 5, "{}", store.state().changed(&gone));
    let then = block_on(store.list_at(&boats, 2, ListPart::default(), |_| true)).unwrap();
    assert_eq!(then.entries.len(), 2);
}

#[test]
fn a_page_of_a_past_list_reads_only_its_own_objects() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    let names: Vec<String> = (0..9).map(|number| format!("b{number}")).collect();
    for name in &names {
        for namespace in ["a", "b"] {
            block_on(store.submit(put(&Key::new(&boats, namespace, name), Expect::Absent, 1))).unwrap();
        }
    }
    let gone = Key::new(&boats, "b", "b3");
    block_on(store.submit(delete(&gone, store.get(&gone).unwrap().revision))).unwrap();
    let revision = store.state().revision;
    let later = Key::new(&boats, "b", "b7");
    block_on(store.submit(put(&later, Expect::Revision(store.get(&later).unwrap().revision), 2))).unwrap();
    let page = |namespace: &str, after: Option<(&str, &str)>, limit| {
        let read = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let part = ListPart {
            namespace: namespace.to_owned(),
            after: after.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
            limit,
        };
        let count = Arc::clone(&read);
        let listed = block_on(store.list_at(&boats, revision, part, move |_| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            true
        }))
        .unwrap();
        let named = |entry: &Arc<Entry>| {
            format!("{}/{}={}", entry.key.namespace, entry.key.name, entry.value()["value"])
        };
        let read = read.load(std::sync::atomic::Ordering::Relaxed);
        (listed.entries.iter().map(named).collect::<Vec<_>>(), read, listed.unread)
    };
    let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(page("", None, Some(2)), (texts(&["a/b0=1", "a/b1=1"]), 2, 15));
    assert_eq!(page("", Some(("a", "b8")), Some(1)), (texts(&["b/b0=1"]), 1, 7));
    assert_eq!(page("b", Some(("b", "b2")), Some(3)), (texts(&["b/b4=1", "b/b5=1", "b/b6=1"]), 3, 2));
    assert_eq!(page("b", Some(("b", "b6")), None), (texts(&["b/b7=1", "b/b8=1"]), 2, 0));
    assert_eq!(page("a", None, None).2, 0);
    assert_eq!(page("none", None, Some(1)), (Vec::new(), 0, 0));
}

#[test]
fn a_watcher_by_field_is_told_of_objects_that_have_or_had_the_value() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    store.select_by(&boats, vec![FieldPath::parse(".spec.at")].into());
    let fields = store.state().fields(&boats);
    let write = |name: &str, at: &str, expect| {
        let text = json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": name}, "spec": {"at": at}});
        let action = Action::Put(Encoded::of(&text, &fields));
        let key = Key::new(&boats, "", name);
        block_on(store.submit(Write { action, ..put(&key, expect, 0) })).unwrap().revision
    };
    let interest = Interest::Field { name: "spec.at".into(), value: "kiel".into() };
    let mut watch = block_on(store.subscribe(&boats, interest, None, |_| ())).unwrap().1;
    let first = write("a", "kiel", Expect::Absent);
    write("b", "bremen", Expect::Absent);
    let moved = write("a", "bremen", Expect::Revision(first));
    write("a", "emden", Expect::Revision(moved));
    let seen: Vec<u64> = std::iter::from_fn(|| watch.events.try_recv()).map(|e| e.entry.revision).collect();
    assert_eq!(seen, [first, moved]);
}

#[test]
fn a_watcher_that_does_not_read_is_cut_off_and_holds_nobody_and_nothing_up() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    let watch = || block_on(store.subscribe(&boats, Interest::Resource, None, |_| ())).unwrap().1;
    let (mut slow, mut quick) = (watch(), watch());
    for at in 0..=queue::WATCH_BUFFER {
        let key = Key::new(&boats, "", &format!("n{at}"));
        block_on(store.submit(put(&key, Expect::Absent, 0))).unwrap();
        assert_eq!(block_on(quick.events.recv()).unwrap().entry.key, key, "another one's pace is its own");
    }
    assert!(block_on(slow.events.recv()).is_none(), "nothing is kept for who may never read again");
    assert_eq!((store.state().cut_off, store.state().watcher_count()), (1, 1));
    // It resumes from its last event.
    let again = block_on(store.subscribe(&boats, Interest::Resource, Some(3), |_| ())).unwrap().1;
    assert_eq!(again.backlog.first().unwrap().entry.revision, 4);
}

#[test]
fn what_waits_for_a_watcher_is_bounded_in_bytes_too() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    let mut slow = block_on(store.subscribe(&boats, Interest::Resource, None, |_| ())).unwrap().1;
    let big = json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "big"}, "x": "x".repeat(1 << 20)});
    let mut most = 0;
    for at in 0..40 {
        let action = Action::Put(Encoded::of(&big, &[]));
        let key = Key::new(&boats, "", &format!("n{at}"));
        block_on(store.submit(Write { action, ..put(&key, Expect::Absent, 0) })).unwrap();
        most = most.max(store.state().longest_queue().1);
    }
    assert!((8 << 20..=17 << 20).contains(&most), "{most} bytes waited");
    assert!(block_on(slow.events.recv()).is_none());
}

#[test]
fn a_guard_that_changed_refuses_the_write() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    let guard = Key::new(&resource("/namespaces"), "", "ns");
    let at = block_on(store.submit(put(&guard, Expect::Absent, 0))).unwrap().revision;
    let guarded =
        Write { guards: vec![(guard.clone(), at)], ..put(&Key::new(&boats, "ns", "a"), Expect::Absent, 1) };
    block_on(store.submit(guarded.clone())).unwrap();
    block_on(store.submit(put(&guard, Expect::Revision(at), 1))).unwrap();
    let late = Write { key: Key::new(&boats, "ns", "b"), ..guarded };
    assert!(matches!(block_on(store.submit(late)), Err(WriteError::Conflict)));
}

#[test]
fn a_full_disk_fails_that_write_and_nothing_else() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    let kept = Key::new(&boats, "", "kept");
    block_on(store.submit(put(&kept, Expect::Absent, 1))).unwrap();
    let Hands::Inline(writer) = &store.hands else { unreachable!("a store in memory writes inline") };
    let limit = |pages| hold(writer).as_ref().expect("it is open").log.limit_pages(pages);
    limit(1);
    let big = json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "big"}, "x": "x".repeat(100_000)});
    let write = Write {
        action: Action::Put(Encoded::of(&big, &[])),
        ..put(&Key::new(&boats, "", "big"), Expect::Absent, 0)
    };
    assert!(matches!(block_on(store.submit(write.clone())), Err(WriteError::Full)));
    assert_eq!(store.get(&kept).unwrap().value()["value"], 1, "reads go on");
    limit(100_000);
    assert_eq!(block_on(store.submit(write)).unwrap().revision, 2, "the failed write took no revision");
}

#[test]
fn on_a_full_disk_status_and_deletions_go_on_in_the_room_that_was_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let boats = resource("toys.example/boats");
    let key = Key::new(&boats, "", "one");
    let mut at = block_on(store.submit(put(&key, Expect::Absent, 0))).unwrap().revision;
    block_on(store.compact(back_to(u64::MAX))).unwrap();
    let Hands::Inline(writer) = &store.hands else { unreachable!("it was asked to write inline") };
    let pages = || hold(writer).as_ref().expect("it is open").log.pages();
    let (all, free) = pages();
    assert!(u64::from(free) * 4096 >= 4 << 20, "{free} of {all} pages are free");
    hold(writer).as_ref().expect("it is open").log.limit_pages(all);
    for value in 1..500 {
        at = block_on(store.submit(put(&key, Expect::Revision(at), value))).unwrap().revision;
    }
    assert_eq!(pages().0, all, "the file has not grown");
    hold(writer).as_mut().expect("it is open").floor = Floor { below: true, ..Default::default() };
    let new = put(&Key::new(&boats, "", "two"), Expect::Absent, 1);
    assert!(matches!(block_on(store.submit(new.clone())), Err(WriteError::Full)), "nothing new is taken");
    at = block_on(store.submit(put(&key, Expect::Revision(at), 7))).unwrap().revision;
    block_on(store.submit(delete(&key, at))).unwrap();
    hold(writer).as_mut().expect("it is open").floor = Floor::default();
    block_on(store.submit(new)).unwrap();
}

#[test]
fn a_database_in_use_damaged_newer_or_foreign_is_refused_and_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("berth.db");
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    for at in 0..200 {
        let key = Key::new(&resource("toys.example/boats"), "", &format!("n{at}"));
        block_on(store.submit(put(&key, Expect::Absent, at))).unwrap();
    }
    assert!(matches!(on_disk(directory.path(), WriterMode::Inline), Err(OpenError::Locked { .. })));
    drop(store);
    let sound = std::fs::read(&path).unwrap();
    let refused = |content: &[u8]| {
        std::fs::write(&path, content).unwrap();
        let error = on_disk(directory.path(), WriterMode::Inline).expect_err("such a file is refused");
        assert_eq!(std::fs::read(&path).unwrap(), content, "{error}");
        error
    };
    let mut damaged = sound.clone();
    for byte in &mut damaged[8192..12_000] {
        *byte ^= 0x5a;
    }
    assert!(matches!(refused(&damaged), OpenError::Damaged { .. }));
    // All occurrences: some are in unused space of the file.
    let values =
        sound.windows(8).enumerate().filter(|(_, text)| *text == b"\"value\":").map(|(at, _)| at + 8);
    let mut flipped = sound.clone();
    values.for_each(|at| flipped[at] ^= 1);
    assert!(matches!(refused(&flipped), OpenError::Damaged { .. }), "a flipped bit inside a value");
    assert!(matches!(refused(&[7; 4096]), OpenError::Damaged { .. }));
    assert!(matches!(refused(&sound[..6000]), OpenError::Damaged { .. }));
    let other = directory.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE other (x)").unwrap();
    assert!(matches!(refused(&std::fs::read(other).unwrap()), OpenError::Foreign { .. }));
    let mut newer = sound.clone();
    // `user_version`, big endian, in the file's header.
    newer[60..64].copy_from_slice(&99_u32.to_be_bytes());
    assert!(matches!(refused(&newer), OpenError::Format { found: 99, .. }));
    newer[60..64].copy_from_slice(&1_u32.to_be_bytes());
    assert!(matches!(refused(&newer), OpenError::Format { found: 1, .. }), "an older one");
    std::fs::write(&path, &sound).unwrap();
    assert_eq!(on_disk(directory.path(), WriterMode::Inline).unwrap().state().revision, 200);
}

#[tokio::test]
async fn writes_of_many_clients_share_commits_and_none_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let boats = resource("toys.example/boats");
    let writes = (0..300).map(|at| {
        let (store, key) = (Arc::clone(&store), Key::new(&boats, "", &format!("n{at}")));
        tokio::spawn(async move { store.submit(put(&key, Expect::Absent, at)).await.unwrap().revision })
    });
    let mut revisions: Vec<u64> =
        futures::future::join_all(writes).await.into_iter().map(Result::unwrap).collect();
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=300).collect::<Vec<_>>());
    let commits = store.counters.commits.load(std::sync::atomic::Ordering::Relaxed);
    assert!(commits < 300, "{commits} commits for 300 writes");
    store.close();
    assert!(matches!(
        store.submit(put(&Key::new(&boats, "", "x"), Expect::Absent, 0)).await,
        Err(WriteError::Closed)
    ));
    drop(store);
    assert_eq!(on_disk(directory.path(), WriterMode::Thread).unwrap().state().count(&boats), 300);
}

#[test]
fn a_write_costs_the_same_however_many_objects_there_are() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    let mut made = 0..;
    let mut batch = || {
        let start = Instant::now();
        for at in made.by_ref().take(500) {
            block_on(store.submit(put(&Key::new(&boats, "ns", &format!("n{at}")), Expect::Absent, at)))
                .unwrap();
        }
        start.elapsed()
    };
    let first = (0..2).map(|_| batch()).min().unwrap();
    for _ in 0..12 {
        batch();
    }
    let last = (0..4).map(|_| batch()).min().unwrap();
    // A scan of the existing rows would make it tens of times slower.
    assert!(last < first * 5, "{first:?} at first, {last:?} later");
}

#[test]
fn a_compaction_does_not_read_all_that_there_is() {
    for sql in [log::SUPERSEDED, log::TOMBSTONES] {
        let plan = |log: &Log| -> rusqlite::Result<Vec<String>> {
            let mut statement = log.db.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
            statement.query_map((1, 2), |row| row.get(3))?.collect()
        };
        let plan = with_log(&memory(), plan).unwrap();
        let reads_all = |step: &String| step.starts_with("SCAN") || step.contains("PRIMARY KEY (rowid<?)");
        assert!(!plan.is_empty() && !plan.iter().any(reads_all), "{plan:?}");
    }
}

#[test]
fn the_age_of_the_history_is_found_without_reading_all_of_it() {
    let (store, boats) = (memory(), resource("toys.example/boats"));
    for at_ms in 1..=200 {
        let key = Key::new(&boats, "ns", &format!("n{at_ms}"));
        block_on(store.submit(Write { at_ms, ..put(&key, Expect::Absent, 0) })).unwrap();
    }
    let found = |after, before_ms| with_log(&store, |log| log.written_before(after, before_ms)).unwrap();
    assert_eq!(found(0, 1), (0, 1), "all are younger");
    assert_eq!(found(0, 4), (3, 4));
    assert_eq!(found(100, 4), (0, 1), "what was compacted is not read");
    assert_eq!(found(198, i64::MAX), (200, 2), "all are older");
}

fn large(key: &Key, expect: Expect, value: u32) -> Write {
    let object =
        json!({"value": value, "filling": "x".repeat(100_000), "metadata": {"name": "large", "uid": "u"}});
    Write { action: Action::Put(Encoded::of(&object, &[])), ..put(key, expect, 0) }
}

#[test]
fn history_stays_within_its_bytes_and_what_there_is_does_not_count() {
    const BUDGET: u64 = 1_000_000;
    let directory = tempfile::tempdir().unwrap();
    let keep = Keep { bytes: BUDGET, ..back_to(u64::MAX) };
    let boats = resource("toys.example/boats");
    let (first, key) = (Key::new(&boats, "", "first"), Key::new(&boats, "", "large"));
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    block_on(store.submit(large(&first, Expect::Absent, 0))).unwrap();
    let mut last = block_on(store.submit(large(&key, Expect::Absent, 0))).unwrap();
    for value in 1..60 {
        last = block_on(store.submit(large(&key, Expect::Revision(last.revision), value))).unwrap();
        block_on(store.compact(keep)).unwrap();
        assert!(store.counters.history() <= BUDGET, "after {value}");
    }
    let kept = store.counters.history();
    assert!(kept > BUDGET / 2, "no more goes than must: {kept}");
    assert_eq!(store.get(&key).unwrap().revision, last.revision);
    assert!(store.get(&first).is_some(), "what there is stays");
    block_on(store.submit(delete(&key, last.revision))).unwrap();
    let before = store.counters.history();
    drop(store);
    let again = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let found = again.counters.history();
    assert!(found.abs_diff(before) < 1_000, "{found} bytes are counted at the start, {before} were");
}
