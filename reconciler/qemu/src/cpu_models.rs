//! CPU models: those that QEMU knows by name, and the levels of the x86-64 architecture.
//!
//! A level is a set of features that every processor from some year on has, of Intel and AMD alike. QEMU has no models for them:
//! here they are made from its plainest one.

use serde_json::Value;

use crate::machine::Architecture;

/// The levels, as in the psABI of x86-64. The second one with AES is what most processors of its age have.
pub const LEVELS: [&str; 4] = ["x86-64-v2", "x86-64-v2-AES", "x86-64-v3", "x86-64-v4"];

const V2: [&str; 7] = ["cx16", "lahf-lm", "popcnt", "pni", "sse4.1", "sse4.2", "ssse3"];
const AES: [&str; 1] = ["aes"];
const V3: [&str; 9] = ["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave", "abm"];
const V4: [&str; 5] = ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"];
/// The models of QEMU's machine `virt` that have 64 bits and are emulated, as far as every version from 7.2 on has them.
const AARCH64: [&str; 6] = ["a64fx", "cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76"];
/// Models that are not for guests.
const NOT_FOR_GUESTS: [&str; 2] = ["base", "max"];

/// Returns the features of a level.
fn features(level: &str) -> Option<Vec<&'static str>> {
    let parts: &[&[&str]] = match level {
        "x86-64-v2" => &[&V2],
        "x86-64-v2-AES" => &[&V2, &AES],
        "x86-64-v3" => &[&V2, &AES, &V3],
        "x86-64-v4" => &[&V2, &AES, &V3, &V4],
        _ => return None,
    };
    Some(parts.concat())
}

/// Whether the model is a level.
#[must_use]
pub fn is_level(model: &str) -> bool {
    LEVELS.contains(&model)
}

/// Returns the highest level of those for which this holds.
pub fn highest_level(holds: impl Fn(&str) -> bool) -> Option<&'static str> {
    LEVELS.into_iter().rev().find(|level| holds(level))
}

/// Whether the text can be the name of a model: in QEMU's value, a comma begins a feature.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Returns QEMU's `-cpu` value for a model or a level. QEMU ends at once if the host lacks one of its features.
#[must_use]
pub fn argument(architecture: Architecture, model: &str) -> String {
    match (architecture, features(model)) {
        // There QEMU checks it without being asked.
        (Architecture::Aarch64, _) => model.to_owned(),
        (Architecture::X86_64, Some(features)) => format!("qemu64,+{},enforce", features.join(",+")),
        (Architecture::X86_64, None) => format!("{model},enforce"),
    }
}

/// Returns the models that a guest of aarch64 can have, from QEMU's answer to `query-cpu-definitions`. KVM has the host's processor alone.
pub(crate) fn of_aarch64(definitions: &Value, kvm: bool) -> Vec<String> {
    if kvm {
        return vec!["host".to_owned()];
    }
    let names = definitions.as_array().into_iter().flatten().filter_map(|model| model["name"].as_str());
    let mut models: Vec<String> = names.filter(|name| AARCH64.contains(name)).map(str::to_owned).collect();
    models.sort();
    models.dedup();
    models
}

/// Returns the models and levels that a guest can have, from QEMU's answers: `query-cpu-definitions`, and the expansion of the
/// model `max` by `query-cpu-model-expansion`. Versions of a model (`NAME-v1`) are left out: the machine type determines which one a name
/// stands for.
pub(crate) fn runnable(definitions: &Value, max: &Value) -> Vec<String> {
    let has = |feature: &&str| max["model"]["props"][*feature] == true;
    let levels = LEVELS.iter().filter(|level| features(level).is_some_and(|all| all.iter().all(&has)));
    let mut models: Vec<String> = levels.map(|level| (*level).to_owned()).collect();
    for definition in definitions.as_array().into_iter().flatten() {
        let Some(name) = definition["name"].as_str().filter(|name| !NOT_FOR_GUESTS.contains(name)) else {
            continue;
        };
        let is_complete = definition["unavailable-features"].as_array().is_some_and(Vec::is_empty);
        if is_complete && definition["deprecated"] != true && !is_version(name) {
            models.push(name.to_owned());
        }
    }
    models.sort();
    models.dedup();
    models
}

/// Whether the name ends in `-v` and a number.
fn is_version(name: &str) -> bool {
    let number = name.rsplit_once("-v").map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_level_is_a_plain_model_with_features_and_another_model_is_itself() {
        let argument_of = |model| argument(Architecture::X86_64, model);
        insta::assert_snapshot!(argument_of("x86-64-v2-AES"), @"qemu64,+cx16,+lahf-lm,+popcnt,+pni,+sse4.1,+sse4.2,+ssse3,+aes,enforce");
        insta::assert_snapshot!(argument_of("Skylake-Server"), @"Skylake-Server,enforce");
        for (level, above) in LEVELS.iter().zip(&LEVELS[1..]) {
            assert!(argument_of(above).len() > argument_of(level).len(), "{above}");
        }
    }

    #[test]
    fn aarch64_has_models_of_64_bits_by_name_and_with_kvm_that_of_the_host() {
        assert_eq!(argument(Architecture::Aarch64, "cortex-a72"), "cortex-a72");
        let definitions =
            json!([{"name": "cortex-a72"}, {"name": "cortex-a15"}, {"name": "max"}, {"name": "a64fx"}, {}]);
        assert_eq!(of_aarch64(&definitions, false), ["a64fx", "cortex-a72"]);
        assert_eq!(of_aarch64(&definitions, true), ["host"]);
        assert!(of_aarch64(&Value::Null, false).is_empty());
    }

    #[test]
    fn the_highest_level_is_the_last_one_that_holds() {
        assert_eq!(highest_level(|_| true), Some("x86-64-v4"));
        assert_eq!(highest_level(|level| level != "x86-64-v4"), Some("x86-64-v3"));
        assert_eq!(highest_level(|_| false), None);
        assert!(is_level("x86-64-v2-AES") && !is_level("max"));
    }

    #[test]
    fn the_name_of_a_model_adds_no_features() {
        assert!(is_name("Skylake-Server") && is_name("x86-64-v2"));
        for wrong in ["", "host,+vmx", "-x", "a b", &"a".repeat(65)] {
            assert!(!is_name(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn models_with_all_their_features_are_offered_by_name_without_versions() {
        let model = |name: &str, missing: &[&str]| json!({"name": name, "unavailable-features": missing});
        let definitions = json!([
            model("Westmere-v1", &[]), model("Westmere", &[]), model("EPYC", &["svm"]), model("max", &[]), model("base", &[]),
            {"name": "old", "unavailable-features": [], "deprecated": true}, {"name": "unknown"}, {}, 7,
        ]);
        let mut features: serde_json::Map<String, Value> =
            V2.iter().chain(&AES).chain(&V3).map(|f| ((*f).to_owned(), json!(true))).collect();
        let of = |features: &serde_json::Map<String, Value>| {
            runnable(&definitions, &json!({"model": {"props": features}}))
        };
        assert_eq!(of(&features), ["Westmere", "x86-64-v2", "x86-64-v2-AES", "x86-64-v3"]);
        features.insert("avx2".into(), json!(false));
        assert_eq!(of(&features), ["Westmere", "x86-64-v2", "x86-64-v2-AES"]);
        assert_eq!(runnable(&json!({}), &Value::Null), Vec::<String>::new());
    }
}
