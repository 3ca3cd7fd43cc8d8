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
