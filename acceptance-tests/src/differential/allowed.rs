//! The differences that do not fail the suite, each with its reason: the intended ones (`allowed.yaml`) and those still to be
//! fixed (`open.yaml`). An entry that no longer occurs is an error, so both lists stay true.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::compare::Difference;

/// The files of the folder of the requests that list differences.
pub(super) const LISTS: [&str; 2] = ["allowed", "open"];

/// A rule for one kind of difference. In all patterns a `*` matches any text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Patterns of `TOPIC/ID`.
    requests: Vec<String>,
    /// A pattern for the place in the response, a JSON pointer.
    path: String,
    /// A pattern for berth's value, as JSON; a missing value is the empty text.
    #[serde(default)]
    ours: Option<String>,
    /// A pattern for kube-apiserver's value.
    #[serde(default)]
    theirs: Option<String>,
    reason: String,
}

/// The allowed differences.
#[derive(Debug)]
pub(super) struct Allowed {
    rules: Vec<Rule>,
}

impl Allowed {
    /// Reads the lists in a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let mut rules = Vec::new();
        for name in LISTS {
            let path = folder.join(name).with_extension("yaml");
            let text = std::fs::read_to_string(&path)?;
            rules.extend(Self::parse(&text).with_context(|| path.display().to_string())?.rules);
        }
        Ok(Self { rules })
    }

    fn parse(text: &str) -> Result<Self> {
        let rules: Vec<Rule> = serde_saphyr::from_str(text).map_err(|error| anyhow::anyhow!("{error}"))?;
        for rule in &rules {
            ensure!(!rule.requests.is_empty(), "{}: no requests", rule.path);
            ensure!(rule.reason.len() >= 20, "{:?} {}: no reason to speak of", rule.requests, rule.path);
        }
        Ok(Self { rules })
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether a difference is allowed; `used` counts the matches per rule.
    pub(super) fn covers(&self, found: &Difference, used: &mut [usize]) -> bool {
        let mut covered = false;
        for (rule, used) in self.rules.iter().zip(used) {
            if rule.covers(found) {
                *used += 1;
                covered = true;
            }
        }
        covered
    }

    /// Fails when a rule has matched nothing.
    pub(super) fn all_used(&self, used: &[usize]) -> Result<()> {
        let idle = self.rules.iter().zip(used).filter(|(_, used)| **used == 0);
        let idle: Vec<String> =
            idle.map(|(rule, _)| format!("{:?} {}: {}", rule.requests, rule.path, rule.reason)).collect();
        ensure!(idle.is_empty(), "these no longer occur; take them off the list:\n{}", idle.join("\n"));
        Ok(())
    }
}

impl Rule {
    fn covers(&self, found: &Difference) -> bool {
        let value = |pattern: &Option<String>, value: &Option<Value>| {
            let text = value.as_ref().map(Value::to_string).unwrap_or_default();
            pattern.as_ref().is_none_or(|pattern| fits(pattern, &text))
        };
        self.requests.iter().any(|pattern| fits(pattern, &found.request))
            && fits(&self.path, &found.path)
            && value(&self.ours, &found.ours)
            && value(&self.theirs, &found.theirs)
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(head) else { return false };
    let starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.into_iter().any(|at| fits(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::compare::differences;
    use super::*;

    #[test]
    fn a_difference_is_covered_by_request_place_and_values_and_an_idle_rule_is_told() {
        let list = "- {requests: ['t/*'], path: /body/*, theirs: '\"b*\"', reason: it is a test of the list}\n\
                    - {requests: [u/x], path: /code, reason: it never occurs in this test}\n";
        let allowed = Allowed::parse(list).expect("a list");
        let mut used = vec![0; allowed.len()];
        let found = differences(
            "t/x",
            "GET /",
            &json!({"body": {"m": "a"}, "code": 1}),
            &json!({"body": {"m": "bc"}, "code": 2}),
        );
        let covered: Vec<bool> = found.iter().map(|one| allowed.covers(one, &mut used)).collect();
        assert_eq!(covered, [true, false]);
        let error = allowed.all_used(&used).expect_err("the second rule covers nothing").to_string();
        assert!(error.contains("it never occurs") && !error.contains("test of the list"), "{error}");
        assert!(Allowed::parse("- {requests: [a/b], path: /code, reason: no}").is_err());
    }

    #[test]
    fn a_star_is_any_text() {
        assert!(fits("*", "") && fits("a*c", "abc") && fits("a*b*c", "a-b-b-c") && fits("x", "x"));
        assert!(!fits("a*c", "ab") && !fits("x", "xy"));
    }
}
