use super::*;

fn reported(old: &Value, new: &Value, secret: bool) -> Vec<String> {
    let text = |value: Option<Value>| value.map_or("-".to_owned(), |value| value.to_string());
    changes(old, new, secret)
        .into_iter()
        .map(|change| format!("{} {} > {}", change.path, text(change.from), text(change.to)))
        .collect()
}

#[test]
fn fields_are_told_by_their_path_and_noise_is_not() {
    let old = json!({"metadata": {"resourceVersion": "1", "managedFields": [1], "labels": {"a.b/c": "x"}},
        "spec": {"cpus": 1, "gone": {"deep": true}, "same": [1, 2]}});
    let new = json!({"metadata": {"resourceVersion": "2", "managedFields": [2], "labels": {"a.b/c": "y"}},
        "spec": {"cpus": 2, "same": [1, 2], "made": {}}});
    let wanted = [
        ".metadata.labels[\"a.b/c\"] \"x\" > \"y\"",
        ".spec.cpus 1 > 2",
        ".spec.gone.deep true > -",
        ".spec.made - > {}",
    ];
    assert_eq!(reported(&old, &new, false), wanted);
    assert!(reported(&old, &old, false).is_empty());
}

#[test]
fn lists_of_named_things_are_compared_by_name() {
    let old = json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "Old", "status": "True"}],
        "plain": [1, 2]});
    let new = json!({"conditions": [{"type": "New", "status": "True"}, {"type": "Ready", "status": "True"}],
        "plain": [2]});
    let wanted = [
        ".conditions[Ready].status \"False\" > \"True\"",
        ".conditions[Old].status \"True\" > -",
        ".conditions[Old].type \"Old\" > -",
        ".conditions[New].status - > \"True\"",
        ".conditions[New].type - > \"New\"",
        ".plain[0] 1 > 2",
        ".plain[1] 2 > -",
    ];
    assert_eq!(reported(&old, &new, false), wanted);
}

#[test]
fn of_a_secret_nothing_is_shown_but_what_is_none() {
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    let old = json!({"type": "Opaque", "data": {"a": "b2xk"}, "metadata": {"labels": {"l": "1"}, "annotations": {last: "old"}}});
    let new = json!({"type": "Opaque2", "data": {"a": "bmV3", "b": "bmV3"},
        "metadata": {"labels": {"l": "2"}, "annotations": {last: "new"}}, "typeface": "new"});
    let all = reported(&old, &new, true).join("\n");
    assert!(all.contains(".data.a \"(hidden)\" > \"(hidden)\""), "{all}");
    assert!(all.contains(".data.b - > \"(hidden)\""), "{all}");
    assert!(
        all.contains(".metadata.labels.l \"1\" > \"2\"") && all.contains(".type \"Opaque\" > \"Opaque2\"")
    );
    assert!(
        !all.contains("bmV3")
            && !all.contains("b2xk")
            && !all.contains("\"old\"")
            && !all.contains("\"new\"")
    );
}

/// With a search for each item, this would take minutes.
#[test]
fn long_lists_of_named_things_are_compared_in_one_pass() {
    let list = |numbers: std::ops::Range<u32>| -> Value {
        numbers.map(|number| json!({"name": format!("n{number}"), "value": 1})).collect()
    };
    let changes = changes(&json!({"l": list(0..50_000)}), &json!({"l": list(1..50_001)}), false);
    let paths: Vec<&str> = changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, [".l[n0].name", ".l[n0].value", ".l[n50000].name", ".l[n50000].value"]);
}
