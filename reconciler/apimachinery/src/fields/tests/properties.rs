use proptest::prelude::*;

use super::*;

fn spec() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec!["1", "2", "3"]);
    let name = prop::sample::select(vec!["x", "y", "z"]);
    let disks = prop::collection::btree_map(name.clone(), (text.clone(), any::<bool>()), 0..3);
    let tags = prop::collection::btree_set(name.clone(), 0..3);
    let labels = prop::collection::btree_map(name, text.clone(), 0..3);
    (
        prop::option::of(text.clone()),
        prop::option::of(disks),
        prop::option::of(tags),
        prop::option::of(labels.clone()),
        prop::option::of(prop::collection::vec(text, 0..3)),
        prop::option::of(labels),
    )
        .prop_map(|(size, disks, tags, labels, args, free)| {
            let mut spec = json!({});
            if let Some(size) = size {
                spec["size"] = json!(size);
            }
            if let Some(disks) = disks {
                let disk = |(name, (size, full)): (&str, (&str, bool))| {
                    if full { json!({"name": name, "size": size}) } else { json!({"name": name}) }
                };
                spec["disks"] = disks.into_iter().map(disk).collect();
            }
            if let Some(tags) = tags {
                spec["tags"] = tags.into_iter().map(Value::from).collect();
            }
            if let Some(labels) = labels {
                spec["labels"] = json!(labels);
            }
            if let Some(args) = args {
                spec["args"] = json!(args);
            }
            if let Some(free) = free {
                spec["free"] = json!(free);
            }
            spec
        })
}

#[derive(Clone, Debug)]
enum Step {
    Apply(&'static str, Value),
    Update(&'static str, Value),
}

fn step() -> impl Strategy<Value = Step> {
    let manager = prop::sample::select(vec!["a", "b", "c"]);
    (manager, spec(), any::<bool>())
        .prop_map(|(m, s, applies)| if applies { Step::Apply(m, s) } else { Step::Update(m, s) })
}

/// Applies the steps to an object that always has an owner: an object without any owner is not tracked, as in
/// Kubernetes.
fn after(steps: &[Step]) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.apply("keeper", json!({"count": 1}));
    for step in steps {
        match step {
            Step::Apply(manager, spec) => fixture.force(manager, spec.clone()),
            Step::Update(manager, spec) => {
                let mut spec = spec.clone();
                spec["count"] = json!(1);
                fixture.update(manager, spec);
            }
        }
    }
    fixture
}

proptest! {
    #[test]
    fn force_never_conflicts_and_what_was_applied_is_there(steps in prop::collection::vec(step(), 0..6), spec in spec()) {
        let mut fixture = after(&steps);
        fixture.force("z", spec.clone());
        let schema = schema();
        let live = field_set(fixture.live.as_ref().expect("live"), &schema);
        let applied = field_set(&object(spec), &schema);
        let missing = applied.difference(&live);
        let missing: Vec<_> = missing.paths().iter().map(|p| set::show(p))
            .filter(|p| !p.ends_with(".labels") && !p.ends_with(".free") && p != ".spec").collect();
        prop_assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn applying_twice_is_applying_once(steps in prop::collection::vec(step(), 0..6), spec in spec()) {
        let mut fixture = after(&steps);
        fixture.force("z", spec.clone());
        let once = fixture.live.clone();
        fixture.apply("z", spec);
        prop_assert_eq!(fixture.live, once);
    }

    #[test]
    fn an_applier_owns_exactly_what_it_applied(steps in prop::collection::vec(step(), 0..6), spec in spec()) {
        let mut fixture = after(&steps);
        fixture.force("z", spec.clone());
        let applied = field_set(&object(spec), &schema());
        let expected: Vec<String> = applied.paths().iter().map(|p| set::show(p))
            .filter(|p| !matches!(p.as_str(), ".apiVersion" | ".kind" | ".metadata.name")).collect();
        let mine = fixture.owners().into_iter().find_map(|o| o.strip_prefix("z/Apply: ").map(str::to_owned)).unwrap_or_default();
        let mut mine: Vec<&str> = mine.split_whitespace().collect();
        mine.sort_unstable();
        let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        expected.sort_unstable();
        prop_assert_eq!(mine, expected);
    }

    #[test]
    fn every_leaf_has_an_owner_and_nothing_owned_is_missing(steps in prop::collection::vec(step(), 1..8)) {
        let fixture = after(&steps);
        let schema = schema();
        let live = fixture.live.clone().expect("live");
        let all = field_set(&live, &schema);
        let mut owned = FieldSet::default();
        for entry in fixture.entries() {
            owned = owned.union(&FieldSet::from_v1(&entry["fieldsV1"]).expect("fieldsV1"));
        }
        let leaves: Vec<String> = all.difference(&owned).paths().iter().map(|p| set::show(p))
            .filter(|p| p.starts_with(".spec.size") || p.starts_with(".spec.args") || p.ends_with(".size") || p.contains("[=")).collect();
        prop_assert!(leaves.is_empty(), "nobody owns {leaves:?} of {live}");
        let gone: Vec<String> = owned.difference(&all).paths().iter().map(|p| set::show(p))
            .filter(|p| p.contains(".size") || p.contains("[=") || p == ".spec.args").collect();
        prop_assert!(gone.is_empty(), "owned but gone: {gone:?}");
    }

    #[test]
    fn owners_changed_in_place_are_those_of_entries_that_are_all_decoded(
        steps in prop::collection::vec(step(), 0..6),
        manager in prop::sample::select(vec!["a", "b", "new"]),
        spec in spec(),
        sends_entries in any::<bool>(),
    ) {
        let live = after(&steps).live.expect("live");
        let mut sent = object(spec);
        if sends_entries {
            sent["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
        }
        let options = WriteOptions {
            manager: manager.to_owned(),
            api_version: V.to_owned(),
            now: at(100),
            reset: Reset::Status,
            ..WriteOptions::default()
        };
        let schema = schema();
        let id = managed::ManagerId::new(manager, managed::Operation::Update, V, None);
        let mut expected = sent.clone();
        let entries = managed::take_managed_fields(&mut expected);
        crate::fields::update::track_all((Some(&live), entries), &mut expected, &id, &options, typed::Ty::root(&schema));
        let mut now = sent;
        track_update(Some(&live), &mut now, &options, &schema);
        prop_assert_eq!(now, expected);
    }

    #[test]
    fn fields_v1_of_anything_goes_there_and_back(spec in spec()) {
        let set = field_set(&object(spec), &schema());
        prop_assert_eq!(FieldSet::from_v1(&set.to_v1()).expect("fieldsV1"), set);
    }
}
