//! The choice of one of several objects. Pure.

use serde_json::Value as Json;
use tfplugin6::Value;

use super::is_ready;

/// The largest number of objects that are chosen from.
pub(super) const MATCHES: usize = 10_000;
/// The largest number of objects that an error names.
pub(super) const LISTED: usize = 10;

/// How one of several objects is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// There must be one.
    Only,
    /// The one that was created last, of those that are ready.
    MostRecent,
    /// The one with the highest version, of those that are ready.
    LatestVersion,
}

impl Choice {
    pub(super) fn of(config: &Value) -> Self {
        let is_set = |name: &str| config.get(name).as_bool() == Some(true);
        match (is_set("latest_version"), is_set("most_recent")) {
            (true, _) => Self::LatestVersion,
            (false, true) => Self::MostRecent,
            (false, false) => Self::Only,
        }
    }
}

/// Chooses one of the objects. *Errors*: why there is none, for people.
pub(super) fn choose(mut found: Vec<Json>, choice: Choice) -> Result<Json, String> {
    let all = found.len();
    match choice {
        Choice::Only => only(found),
        Choice::MostRecent => {
            found.retain(is_ready);
            // Of those of one second, the last by name: the order of the list.
            found.into_iter().max_by_key(created).ok_or_else(|| match all {
                0 => "No object has them.".to_owned(),
                all => format!("{all} objects have them, and none is ready."),
            })
        }
        Choice::LatestVersion => {
            found.retain(|object| is_ready(object) && version(object).is_some());
            let key = |object: &Json| (version(object).map(parts), created(object));
            found.into_iter().max_by_key(key).ok_or_else(|| match all {
                0 => "No object has them.".to_owned(),
                all => format!("{all} objects have them, and none is ready and has a version."),
            })
        }
    }
}

fn only(mut found: Vec<Json>) -> Result<Json, String> {
    match found.len() {
        0 => Err("No object has them.".to_owned()),
        1 => Ok(found.remove(0)),
        several => {
            let names = found.iter().filter_map(|object| object.pointer("/metadata/name")?.as_str());
            let names: Vec<&str> = names.take(LISTED).collect();
            let number = if several < MATCHES { several.to_string() } else { format!("At least {MATCHES}") };
            Err(format!(
                "{number} objects have them, among them {}: add labels until one is left, or set most_recent = true.",
                names.join(", ")
            ))
        }
    }
}

fn created(object: &Json) -> Option<String> {
    object.pointer("/metadata/creationTimestamp").and_then(Json::as_str).map(str::to_owned)
}

fn version(object: &Json) -> Option<&str> {
    object.pointer("/spec/version").and_then(Json::as_str)
}

/// A part of a version, in the order of versions that differ in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// A version before the one without this part: `-rc`, `~beta`.
    Before(String),
    End,
    Text(String),
    /// A number of any length: its digits without leading zeros, after their count.
    Number(usize, String),
}

/// The beginnings of parts for versions before a release.
const BEFORE: [&str; 5] = ["alpha", "beta", "dev", "pre", "rc"];

/// Splits a version into numbers and the text between them, so that `4.10` is after `4.9`, and `4.9` after `4.9-rc1`.
fn parts(version: &str) -> Vec<Part> {
    let characters: Vec<char> = version.chars().collect();
    let runs = characters.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    let part = |run: &[char]| {
        let text: String = run.iter().collect();
        if run.iter().all(char::is_ascii_digit) {
            let digits = text.trim_start_matches('0').to_owned();
            return Part::Number(digits.len(), digits);
        }
        let text = text.to_lowercase();
        let word = text.trim_start_matches(['-', '.', '_', '+']);
        match text.starts_with('~') || BEFORE.iter().any(|before| word.starts_with(before)) {
            true => Part::Before(text),
            false => Part::Text(text),
        }
    };
    runs.map(part).chain([Part::End]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, created: &str, ready: &str) -> Json {
        json!({"metadata": {"name": name, "creationTimestamp": created, "generation": 1}, "status": {
            "observedGeneration": 1, "conditions": [{"type": "Ready", "status": ready, "observedGeneration": 1}]}})
    }

    fn with_version(name: &str, version: &str, ready: &str) -> Json {
        let mut object = object(name, "2026-01-01T00:00:00Z", ready);
        object["spec"] = json!({"version": version});
        object
    }

    fn name(chosen: Result<Json, String>) -> String {
        let object = chosen.expect("an object");
        object.pointer("/metadata/name").and_then(Json::as_str).unwrap_or_default().to_owned()
    }

    #[test]
    fn the_newest_that_is_ready_is_chosen() {
        let all = vec![
            object("a", "2026-01-02T00:00:00Z", "True"),
            object("b", "2026-01-03T00:00:00Z", "True"),
            object("c", "2026-01-04T00:00:00Z", "False"),
        ];
        assert_eq!(name(choose(all.clone(), Choice::MostRecent)), "b");
        let error = choose(all[2..].to_vec(), Choice::MostRecent).expect_err("not ready");
        assert!(error.contains("none is ready"), "{error}");
    }

    #[test]
    fn without_a_choice_there_is_exactly_one() {
        let all =
            vec![object("a", "2026-01-02T00:00:00Z", "True"), object("b", "2026-01-03T00:00:00Z", "True")];
        assert_eq!(name(choose(all[..1].to_vec(), Choice::Only)), "a");
        let error = choose(all, Choice::Only).expect_err("two");
        assert!(error.starts_with("2 objects have them, among them a, b"), "{error}");
        assert!(choose(Vec::new(), Choice::Only).is_err());
    }

    #[test]
    fn the_highest_version_that_is_ready_is_chosen() {
        let all = vec![
            with_version("a", "13.9", "True"),
            with_version("b", "13.10", "True"),
            with_version("c", "13.11", "False"),
            object("d", "2026-02-01T00:00:00Z", "True"),
        ];
        assert_eq!(name(choose(all.clone(), Choice::LatestVersion)), "b");
        let error = choose(all[2..].to_vec(), Choice::LatestVersion).expect_err("none");
        assert!(error.contains("none is ready and has a version"), "{error}");
    }

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let ordered = [
            "",
            "0.9",
            "1",
            "1.0-rc1",
            "1.0-rc2",
            "1.0~x",
            "1.0",
            "1.0-2",
            "1.0a",
            "1.1",
            "1.02",
            "1.10",
            "2026-11-02",
        ];
        let sorted = |versions: &[&str]| {
            let mut versions: Vec<String> = versions.iter().map(|version| (*version).to_owned()).collect();
            versions.sort_by_key(|version| parts(version));
            versions
        };
        let mut reversed = ordered;
        reversed.reverse();
        assert_eq!(sorted(&reversed), ordered);
        assert!(parts(&"9".repeat(64)) > parts("1"));
    }
}
