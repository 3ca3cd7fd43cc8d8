use serde_json::json;

use super::*;

fn patched(patch: Value) -> Result<Value, PatchError> {
    let mut document = json!({"a": {"b": 1, "c/d~": 2}, "l": ["x", "y", "z"], "n": null});
    Patch::parse(&patch)?.apply(&mut document).map(|()| document)
}

#[test]
fn operations_do_what_the_standard_says() {
    for (patch, at, wanted) in [
        (json!({"op": "add", "path": "/a/e", "value": 3}), "/a/e", json!(3)),
        (json!({"op": "add", "path": "/l/-", "value": 3}), "/l", json!(["x", "y", "z", 3])),
        (json!({"op": "add", "path": "/l/1", "value": 3}), "/l", json!(["x", 3, "y", "z"])),
        (json!({"op": "remove", "path": "/a/c~1d~0"}), "/a", json!({"b": 1})),
        (json!({"op": "replace", "path": "/l/0", "value": 3}), "/l/0", json!(3)),
        (json!({"op": "move", "from": "/l/0", "path": "/l/1"}), "/l", json!(["y", "x", "z"])),
        (json!({"op": "copy", "from": "/a/b", "path": "/m"}), "/m", json!(1)),
        (json!({"op": "test", "path": "/n", "value": null}), "/a/b", json!(1)),
        (json!({"op": "test", "path": "/a/none", "value": null}), "/a/b", json!(1)),
    ] {
        let done = patched(json!([patch])).expect("it can be done");
        assert_eq!(done.pointer(at), Some(&wanted), "{patch}");
    }
    for patch in [
        json!({"op": "add", "path": "/x/y", "value": 1}),
        json!({"op": "add", "path": "/l/5", "value": 1}),
        json!({"op": "remove", "path": "/a/none"}),
        json!({"op": "replace", "path": "/a/none", "value": 1}),
        json!({"op": "test", "path": "/a/b", "value": 2}),
    ] {
        assert!(matches!(patched(json!([patch])), Err(PatchError::Unfit(_))), "{patch}");
    }
}

#[test]
fn malformed_and_excessive_patches_are_refused() {
    for patch in [json!({"op": "add"}), json!([{"op": 1}]), json!([{"op": "jump", "path": "/l"}])] {
        assert!(matches!(patched(patch), Err(PatchError::Malformed(_))));
    }
    let many = vec![json!({"op": "test", "path": "/n", "value": null}); MAX_OPERATIONS + 1];
    assert!(matches!(patched(many.into()), Err(PatchError::TooLong(_))));
    let double = |at: usize| json!({"op": "copy", "from": "", "path": format!("/d{at}")});
    let doubles: Vec<Value> = (0..40).map(double).collect();
    assert!(matches!(patched(doubles.into()), Err(PatchError::CopiesTooMuch)));
}

#[test]
fn moves_that_nest_a_document_thousands_of_levels_deep_are_refused() {
    let round = [
        json!({"op": "add", "path": "/t", "value": {"d": {}}}),
        json!({"op": "move", "from": "/a", "path": "/t/d/a"}),
        json!({"op": "move", "from": "/t", "path": "/a"}),
    ];
    let many: Vec<Value> = round.iter().cycle().take(9_999).cloned().collect();
    assert!(matches!(patched(many.into()), Err(PatchError::TooDeep)));
    let few: Vec<Value> = round.iter().cycle().take(90).cloned().collect();
    let nested = patched(few.into()).expect("it is not deep");
    assert_eq!(nested.pointer(&"/a/d".repeat(30)).map(|value| value["a"]["b"].clone()), Some(json!(1)));
}

#[test]
fn moves_within_a_document_do_not_count_as_nesting() {
    let within = json!({"op": "move", "from": "/l/0", "path": "/l/2"});
    assert!(patched(vec![within; 9_000].into()).is_ok());
    let [there, back] = [("/a/b", "/n"), ("/n", "/a/b")]
        .map(|(from, path)| json!({"op": "move", "from": from, "path": path}));
    let both: Vec<Value> = [there, back].iter().cycle().take(8_000).cloned().collect();
    assert!(patched(both.into()).is_ok());
}

#[test]
fn the_items_that_a_patch_shifts_are_bounded() {
    let removals = |count: usize| vec![json!({"op": "remove", "path": "/l/0"}); count];
    let list = |length: usize| vec![json!({"op": "add", "path": "/l", "value": vec![0; length]})];
    let all = |length: usize, count: usize| patched([list(length), removals(count)].concat().into());
    assert!(all(1_000, 999).is_ok());
    let append = json!({"op": "add", "path": "/l/-", "value": 0});
    assert!(patched([list(10_000), vec![append; 9_000]].concat().into()).is_ok());
    assert!(matches!(all(100_000, 9_000), Err(PatchError::ShiftsTooMuch)));
}
