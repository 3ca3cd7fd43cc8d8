//! Data that objects, or states of an object, have in common is in memory once.

use super::*;

#[test]
fn objects_of_a_namespace_share_its_name_and_states_share_what_is_indexed() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let boats = resource("toys.example/boats");
    let key = |name: &str| Key::new(&boats, "ns", name);
    let write = |name: &str, expect, value| block_on(store.submit(put(&key(name), expect, value))).unwrap();
    let (a, b) = (write("a", Expect::Absent, 1), write("b", Expect::Absent, 1));
    assert!(Arc::ptr_eq(&a.key.namespace, &b.key.namespace));
    let same = write("a", Expect::Revision(a.revision), 3);
    assert!(Arc::ptr_eq(&a.facts, &same.facts), "no label changed");
    let other = write("a", Expect::Revision(same.revision), 4);
    assert_eq!((same.facts.label("parity"), other.facts.label("parity")), (Some("1"), Some("0")));
    drop((store, a, b, same, other));
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let [a, b] = ["a", "b"].map(|name| store.get(&key(name)).unwrap());
    assert!(Arc::ptr_eq(&a.key.namespace, &b.key.namespace), "those that were loaded too");
}

#[test]
fn texts_share_equal_managed_fields_and_are_read_byte_by_byte_as_written() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let boats = resource("toys.example/boats");
    let key = |name: &str| Key::new(&boats, "ns", name);
    let fields: serde_json::Map<_, _> = (0..30).map(|at| (format!("f:field{at}"), json!({}))).collect();
    let write = |name: &str, expect, second: u32| {
        let manager = json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields, "manager": "m",
            "operation": "Update", "time": format!("2026-01-02T03:04:{second:02}Z")});
        let object = json!({"apiVersion": "v1", "kind": "K",
            "metadata": {"name": name, "uid": name, "managedFields": [manager]}});
        let encoded = Encoded::of(&object, &[]);
        let action = Action::Put(encoded.clone());
        let write = Write { action, ..put(&key(name), expect, 0) };
        let entry = block_on(store.submit(write)).unwrap();
        assert_eq!(entry.text.to_bytes(), with_revision(&encoded.text, entry.revision).unwrap());
        entry
    };
    let (_, mut watch) = block_on(store.subscribe(&boats, Interest::Resource, None, |_| ())).unwrap();
    let first = write("a", Expect::Absent, 1);
    let other = write("b", Expect::Absent, 2);
    let changed = write("a", Expect::Revision(first.revision), 3);
    for entry in [&first, &other, &changed] {
        assert!(format!("{:?}", entry.text).ends_with(", 1 shared parts"), "{:?}", entry.text);
        let event = watch.events.try_recv().unwrap();
        assert_eq!(event.entry.text.to_bytes(), entry.text.to_bytes());
    }
    let gone = block_on(store.submit(delete(&key("b"), other.revision))).unwrap();
    assert_eq!(gone.text.to_bytes(), with_revision(&other.text.to_bytes(), gone.revision).unwrap());
    let (text, shown) = (changed.text.to_bytes(), format!("{:?}", changed.text));
    let live = store.counters.live.load(std::sync::atomic::Ordering::Relaxed);
    drop((watch, first, other, changed, gone, store));
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let loaded = store.get(&key("a")).unwrap();
    assert_eq!((loaded.text.to_bytes(), format!("{:?}", loaded.text)), (text, shown));
    assert_eq!(store.counters.live.load(std::sync::atomic::Ordering::Relaxed), live);
}
