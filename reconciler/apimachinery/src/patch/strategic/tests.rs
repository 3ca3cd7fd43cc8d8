use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Owners with few uids, some without one, some to be replaced or deleted.
fn owners(directives: bool) -> impl Strategy<Value = Vec<Value>> {
    let owner = (0..6_u8, 0..9_u8, any::<bool>()).prop_map(move |(uid, what, named)| {
        let mut owner = if uid == 0 { json!({}) } else { json!({"uid": uid.to_string()}) };
        if named {
            owner["name"] = what.to_string().into();
        }
        match what {
            0 if directives => owner["$patch"] = "replace".into(),
            1 | 2 if directives => owner["$patch"] = "delete".into(),
            _ => {}
        }
        owner
    });
    prop::collection::vec(owner, 0..8)
}

/// The reference for [`merge_list`] and then [`ordered`], item by item.
fn slowly(list: &[Value], patch: &[Value]) -> Vec<Value> {
    let same = |a: &Value, b: &Value| a["uid"] == b["uid"];
    let place = |list: &[Value], item: &Value| list.iter().position(|one| same(one, item));
    let mut all = list.to_vec();
    if patch.iter().any(|one| one["$patch"] == "replace") {
        all.clear();
    }
    for one in patch.iter().filter(|one| one["$patch"] != "replace") {
        if one["$patch"] == "delete" {
            all.retain(|item| !same(item, one));
        } else if let Some(at) = place(&all, one) {
            merge(&mut all[at], one);
        } else {
            all.push(one.clone());
        }
    }
    let (mut named, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|item| place(patch, item).is_some());
    named.sort_by_key(|item| place(patch, item));
    let mut named = std::collections::VecDeque::from(named);
    let mut sorted = Vec::new();
    for other in others {
        let stood = place(list, &other);
        while let Some(first) = named.front()
            && !matches!((stood, place(list, first)), (Some(other), Some(first)) if other < first)
        {
            sorted.extend(named.pop_front());
        }
        sorted.push(other);
    }
    sorted.extend(named);
    sorted
}

proptest! {
    #[test]
    fn a_keyed_list_is_merged_as_item_by_item(list in owners(false), patch in owners(true)) {
        let mut object = json!({"ownerReferences": list});
        merge(&mut object, &json!({"ownerReferences": patch}));
        prop_assert_eq!(&object["ownerReferences"], &json!(slowly(&list, &patch)));
    }
}

#[test]
fn long_lists_and_maps_are_merged_in_no_more_time_than_it_takes_to_read_them() {
    let many = |prefix: &str| (0..200_000).map(|n| json!(format!("{prefix}{n}"))).collect::<Vec<_>>();
    let mut object = json!({"finalizers": many("a")});
    merge(&mut object, &json!({"finalizers": many("b"), "$deleteFromPrimitiveList/finalizers": many("a")}));
    assert_eq!(object, json!({"finalizers": many("b")}));
    let members = |value: Value| (0..200_000).map(|n| (n.to_string(), value.clone())).collect::<Map<_, _>>();
    let mut object = json!({"data": members(json!("x")), "kind": "ConfigMap"});
    merge(&mut object, &json!({"data": members(Value::Null)}));
    assert_eq!(object, json!({"data": {}, "kind": "ConfigMap"}));
}

#[test]
fn what_the_patch_names_comes_first_unless_it_stood_later_before() {
    let merged = |before: Value, patch: Value| {
        let mut object = json!({"finalizers": before});
        merge(&mut object, &patch);
        object["finalizers"].clone()
    };
    assert_eq!(merged(json!(["a", "b"]), json!({"finalizers": ["c"]})), json!(["c", "a", "b"]));
    assert_eq!(merged(json!(["a", "b"]), json!({"finalizers": ["b"]})), json!(["a", "b"]));
    assert_eq!(
        merged(json!(["a", "b"]), json!({"finalizers": ["c"], "$setElementOrder/finalizers": ["b", "c"]})),
        json!(["a", "b", "c"])
    );
}

#[test]
fn a_directive_nobody_knows_is_told() {
    assert_eq!(unknown_directive(&json!({"a": [{"$patch": "twist"}]})), Some(&json!("twist")));
    assert_eq!(unknown_directive(&json!({"$patch": "replace", "a": [{"$patch": "delete"}]})), None);
}

#[test]
fn keyed_lists_are_merged_and_directives_are_obeyed_not_stored() {
    let mut object = json!({"metadata": {"finalizers": ["a", "b"], "ownerReferences": [{"uid": "1", "name": "x"}]},
        "data": {"k": "v", "gone": "x"}});
    merge(
        &mut object,
        &json!({
            "metadata": {"$setElementOrder/finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"],
                "finalizers": ["c"], "ownerReferences": [{"uid": "1", "name": "y"}, {"uid": "2"}]},
            "data": {"gone": null, "new": "1"},
        }),
    );
    assert_eq!(
        object,
        json!({"metadata": {"finalizers": ["b", "c"],
        "ownerReferences": [{"uid": "1", "name": "y"}, {"uid": "2"}]}, "data": {"k": "v", "new": "1"}})
    );
}
