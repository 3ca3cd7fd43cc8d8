//! The effect of each change, attribute by attribute and for each power of a VM: the pages and the plan agree.

#[path = "../../../reconciler/tests/shared/changes.rs"]
mod changes;
mod machines;
mod others;
mod vms;

use std::collections::BTreeSet;

use berth_api::Power;
use others::others;
use serde_json::{Value as Json, json};
use terraform_provider_berth::{
    BerthProvider,
    field::{Effect, Field, Shape},
    planning,
};
use tfplugin6::{AttributePath, Step, Value, resource::PlanResponse};
use vms::{changes_of_a_vm, vm};

use crate::stage::{Stage, text_of};

/// The effect that a plan announces for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    Live,
    PowerCycle,
    Reboot,
    /// Has no effect on a VM that has its host.
    Placement,
    Replace,
    Refused,
}

impl Announced {
    /// The same change of a VM with another declared power, by hand: nothing waits for the power cycle of a stopped VM, and only a
    /// running one is restarted.
    fn while_declared(self, power: Power) -> Self {
        match (self, power) {
            (Self::Reboot, Power::Stopped | Power::Paused | Power::Suspended) => Self::Refused,
            (Self::PowerCycle, Power::Stopped) => Self::Live,
            (other, _) => other,
        }
    }

    /// The announcement of an effect of the field table, with the default `user_data_policy`.
    fn of(effect: Effect) -> Self {
        match effect {
            Effect::Live | Effect::Start | Effect::Local => Self::Live,
            Effect::PowerCycle | Effect::Grow | Effect::Resize => Self::PowerCycle,
            Effect::Reboot => Self::Reboot,
            Effect::Replace => Self::Replace,
            Effect::Policy | Effect::Fixed | Effect::NotRunning => Self::Refused,
            Effect::Placement => Self::Placement,
        }
    }
}

fn announced(plan: &PlanResponse) -> Announced {
    let text = text_of(&plan.diagnostics);
    if text.contains("An apply of this plan fails") {
        Announced::Refused
    } else if text.contains("Does not move the VM") {
        Announced::Placement
    } else if text.contains("The VM will be restarted") {
        Announced::Reboot
    } else if !plan.requires_replace.is_empty() {
        Announced::Replace
    } else if text.contains("power cycle") {
        Announced::PowerCycle
    } else {
        Announced::Live
    }
}

/// The state after a create: the plan of the create, without unknown values.
async fn created(stage: &Stage, type_name: &str, config: &Json) -> Value {
    let mut state = stage.plan_from(Value::Null, config).await.planned.unknown_as_null();
    if type_name == "berth_vm" {
        state.set("host", "host-a");
    }
    state
}

/// `network_interfaces.public_ip`
fn attribute(path: &AttributePath) -> String {
    let names = path.steps().iter().filter_map(|step| match step {
        Step::Attribute(name) => Some(name.as_str()),
        _ => None,
    });
    names.collect::<Vec<_>>().join(".")
}

/// The attributes whose changes reach a VM or its object, with their effects. The name of a list's element is its key.
fn leaves(fields: &[Field], outer: &str, found: &mut Vec<(String, Effect)>) {
    for field in
        fields.iter().filter(|field| field.is_input() && !field.write_only && field.effect != Effect::Local)
    {
        let name = format!("{outer}{}", field.name);
        leaves(field.children(), &format!("{name}."), found);
        let is_key = field.name == "name" && !outer.is_empty();
        if !matches!(field.shape, Shape::Object(_)) && !is_key {
            found.push((name, field.effect));
        }
    }
}

#[tokio::test]
async fn the_plan_announces_the_effect_of_each_change() {
    let provider = BerthProvider::default();
    let of_a_vm = changes_of_a_vm().into_iter().map(|(at, to, effect)| ("berth_vm", vm(), at, to, effect));
    for (type_name, config, at, to, expected) in of_a_vm.chain(others()) {
        let stage = Stage::new(&provider, type_name);
        let powers: &[Power] = if type_name == "berth_vm" { &Power::ALL } else { &[Power::Running] };
        for power in powers {
            let (mut config, mut to) = (config.clone(), to.clone());
            let mut expected = expected;
            if *power != Power::Running {
                config["power"] = power.as_str().into();
                expected = expected.while_declared(*power);
                if at == "/power" {
                    to = "Running".into();
                }
            }
            let prior = created(&stage, type_name, &config).await;
            let unchanged = stage.plan_from(prior.clone(), &config).await;
            assert!(
                unchanged.planned == prior && unchanged.diagnostics.is_empty(),
                "{type_name}: {}",
                text_of(&unchanged.diagnostics)
            );
            let mut changed = config.clone();
            *changed.pointer_mut(at).unwrap_or_else(|| panic!("{type_name}{at}")) = to;
            let plan = stage.plan_from(prior.clone(), &changed).await;
            let text = text_of(&plan.diagnostics);
            // An error in a plan would block terraform destroy.
            assert!(!plan.diagnostics.iter().any(tfplugin6::Diagnostic::is_error), "{type_name}{at}: {text}");
            let announced = announced(&plan);
            assert_eq!(announced, expected, "{type_name}{at} while {power:?}: {text}");
            assert_ne!(plan.planned, prior, "{type_name}{at}: it is a change");
            // A restore is done as soon as no VM has the disk open, and its plan says what becomes of the data.
            if announced == Announced::Live && !at.starts_with("/restore/") {
                assert!(text.is_empty(), "{type_name}{at} while {power:?}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn more_cpus_and_memory_within_their_maxima_are_live_and_restart_nothing() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_vm");
    let mut config = vm();
    for (name, value) in [
        ("cpus", json!(2)),
        ("max_cpus", json!(4)),
        ("cpu_topology", Json::Null),
        ("allow_reboot", json!(true)),
        ("max_memory", json!("4Gi")),
    ] {
        config[name] = value;
    }
    let announced_with = async |changes: &[(&str, Json)], pending: &[&str]| {
        let mut prior = created(&stage, "berth_vm", &config).await;
        prior.set(
            "pending_power_cycle",
            Value::from(pending.iter().map(|name| Value::from(*name)).collect::<Vec<_>>()),
        );
        let mut changed = config.clone();
        for (name, value) in changes {
            changed[*name] = value.clone();
        }
        announced(&stage.plan_from(prior, &changed).await)
    };
    let to = |cpus: i64| ("cpus", json!(cpus));
    assert_eq!(announced_with(&[to(3)], &[]).await, Announced::Live);
    assert_eq!(announced_with(&[to(4)], &[]).await, Announced::Live);
    let memory = |memory: &str| ("memory", json!(memory));
    assert_eq!(announced_with(&[memory("4Gi")], &[]).await, Announced::Live);
    assert_eq!(announced_with(&[memory("2Gi"), to(4)], &[]).await, Announced::Live);
    for (changes, pending) in [
        (vec![to(1)], &[][..]),
        (vec![to(4), ("max_cpus", json!(8))], &[]),
        (vec![to(4), ("max_cpus", Json::Null)], &[]),
        (vec![to(4)], &["max_cpus"]),
        (vec![("cpus", Json::Null)], &[]),
        (vec![memory("512Mi")], &[]),
        (vec![memory("2Gi"), ("max_memory", json!("8Gi"))], &[]),
        (vec![memory("2Gi")], &["max_memory"]),
    ] {
        assert_eq!(announced_with(&changes, pending).await, Announced::Reboot, "{changes:?} {pending:?}");
    }
}

#[tokio::test]
async fn a_vm_that_moves_when_it_is_stopped_moves_at_its_next_power_cycle() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_vm");
    let mut config = vm();
    config["placement"]["move_policy"] = json!("WhenStopped");
    let prior = created(&stage, "berth_vm", &config).await;
    for (attribute, to) in [("host", json!("other")), ("host_selector", json!({"a": "c"}))] {
        let mut changed = config.clone();
        changed["placement"][attribute] = to;
        let plan = stage.plan_from(prior.clone(), &changed).await;
        assert_eq!(announced(&plan), Announced::PowerCycle, "{}", text_of(&plan.diagnostics));
        assert!(plan.planned.get("host").is_unknown(), "{attribute}: it may have another one afterwards");
        changed["allow_reboot"] = json!(true);
        let plan = stage.plan_from(prior.clone(), &changed).await;
        assert_eq!(announced(&plan), Announced::Reboot, "{}", text_of(&plan.diagnostics));
    }
}

#[tokio::test]
async fn a_vm_that_moves_live_moves_without_a_reboot_also_where_one_is_allowed() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_vm");
    let mut config = vm();
    config["placement"]["move_policy"] = json!("Live");
    let prior = created(&stage, "berth_vm", &config).await;
    for allowed in [false, true] {
        let mut changed = config.clone();
        changed["placement"]["host"] = json!("other");
        changed["allow_reboot"] = json!(allowed);
        let plan = stage.plan_from(prior.clone(), &changed).await;
        assert_eq!(announced(&plan), Announced::Live, "{}", text_of(&plan.diagnostics));
        assert!(plan.planned.get("host").is_unknown(), "it may have another one afterwards");
    }
}

#[tokio::test]
async fn every_attribute_of_a_vm_is_announced_as_its_page_shows_it_for_each_power() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_vm");
    let kind = provider.kinds().iter().find(|kind| kind.info().type_name == "berth_vm").expect("a kind");
    // The host of the VM decides, which of the disks boots, the model of a card, and the maxima of CPUs and memory.
    let decided_by_more =
        ["placement.host", "placement.host_selector", "disks", "network_interfaces", "cpus", "memory"];
    let mut expected = Vec::new();
    leaves(kind.fields(), "", &mut expected);
    for power in Power::ALL {
        let mut config = vm();
        config["power"] = power.as_str().into();
        let prior = created(&stage, "berth_vm", &config).await;
        let mut seen = BTreeSet::new();
        let further = [
            ("/name_prefix", json!("other-")),
            ("/stop/mode", json!("PowerOff")),
            ("/placement/preferred_host_selector", json!({"a": "b"})),
            ("/bootstrap/user_data_wo_version", json!(2)),
            ("/bootstrap/password_wo_version", json!(2)),
            ("/bootstrap/secret_name", json!("mine")),
        ];
        let changes = changes_of_a_vm().into_iter().map(|(at, to, _)| (at, to)).chain(further);
        for (at, to) in changes {
            let mut changed = config.clone();
            let (parent, name) = at.rsplit_once('/').expect("a pointer");
            let parent = changed.pointer_mut(parent).unwrap_or_else(|| panic!("{at}"));
            let to = if at == "/power" {
                Power::ALL[usize::from(power == Power::Running)].as_str().into()
            } else {
                to
            };
            match parent {
                Json::Array(elements) => elements[name.parse::<usize>().expect("an index")] = to,
                object => object[name] = to,
            }
            let plan = stage.plan_from(prior.clone(), &changed).await;
            let changes = planning::changes(kind.fields(), &prior, &plan.planned);
            let [change] = changes.as_slice() else {
                seen.extend(changes.iter().map(|change| attribute(&change.path)));
                continue;
            };
            let name = attribute(&change.path);
            // Without a token there is nothing to do, and the encryption of a disk stays.
            let is_removed = ["restart_token", "disks.template.encryption.key_class"]
                .contains(&name.as_str())
                && plan.planned.at(&change.path).is_null();
            if !decided_by_more.contains(&name.as_str()) && !is_removed {
                let of_page = Announced::of(change.effect.with_power(power));
                assert_eq!(
                    announced(&plan),
                    of_page,
                    "{name} while {power:?}: {}",
                    text_of(&plan.diagnostics)
                );
            }
            seen.insert(name);
        }
        let missing: Vec<_> =
            expected.iter().map(|(name, _)| name).filter(|name| !seen.contains(*name)).collect();
        assert!(missing.is_empty(), "no change of {missing:?}");
    }
    let pages = terraform_provider_berth::docs::pages();
    let page = |path: &str| pages.iter().find(|(page, _)| page == path).expect("a page").1.clone();
    for (path, row) in [
        (
            "resources/vm.md",
            "| `class` | string | optional | next power cycle, or reboot if `allow_reboot` | next start | next power cycle |",
        ),
        (
            "resources/vm.md",
            "| `cpus` | number | optional | live up to `max_cpus`, else next power cycle, or reboot if `allow_reboot` | next start | next power cycle |",
        ),
        ("resources/vm.md", "| `restart_token` | string | optional | reboot | refused | refused |"),
        ("resources/vm.md", "| `group` | string | optional | replace | replace | replace |"),
        (
            "resources/vm_class.md",
            "| `cpus` | number | required | live up to `max_cpus`, else next power cycle | next start | next power cycle |",
        ),
        ("resources/disk.md", "| `size` | string | optional | live |"),
    ] {
        assert!(page(path).contains(row), "{path} has no row {row}");
    }
}

#[tokio::test]
async fn a_change_of_ipv6_routes_is_announced_as_one_that_reaches_new_guests_only() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_network");
    let network = |to: &str, via: &str| {
        json!({"name": "n", "cidr": "10.80.0.0/24", "ipv6_cidr": "fd00:60::/64",
            "routes": [{"name": "office", "to": to, "via": via}]})
    };
    let six = network("fd09::/48", "fd00:60::9");
    let state = created(&stage, "berth_network", &six).await;
    for (config, is_announced) in [
        (network("fd0a::/48", "fd00:60::9"), true),
        (network("fd09::/48", "fe80::9"), true),
        (network("192.168.0.0/16", "10.80.0.9"), true),
        (six, false),
    ] {
        let plan = stage.plan_from(state.clone(), &config).await;
        let text = text_of(&plan.diagnostics);
        assert_eq!(text.contains("IPv6 routes reach new guests only"), is_announced, "{config}: {text}");
    }
}

#[tokio::test]
async fn a_new_image_from_a_file_that_is_named_like_a_compressed_one_is_warned_of() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_image");
    let image = |url: &str, compression: Json| json!({"name": "i", "compression": compression, "source": {"url": url, "sha256": "0".repeat(64)}});
    for (config, wanted) in [
        (image("https://a.example/d.qcow2.xz", Json::Null), Some("compression = \"xz\"")),
        (image("https://a.example/d.raw.GZ?token=a.b", Json::Null), Some("compression = \"gzip\"")),
        (image("https://a.example/d.img.zst", Json::Null), Some("compression = \"zstd\"")),
        (image("https://a.example/d.bz2#x", Json::Null), Some("compression = \"bzip2\"")),
        (image("https://a.example/d.qcow2.xz", json!("xz")), None),
        (image("https://a.example/d.qcow2?of=d.xz", Json::Null), None),
    ] {
        let plan = stage.plan_from(Value::Null, &config).await;
        let text = text_of(&plan.diagnostics);
        match wanted {
            Some(words) => {
                assert!(text.contains("The compression is not declared") && text.contains(words), "{text}");
                assert!(plan.diagnostics.iter().all(|found| !found.is_error()), "{text}");
            }
            None => assert!(!text.contains("not declared"), "{text}"),
        }
    }
}
