//! The differences between two JSON values, each at a single place.

use std::fmt;

use serde_json::Value;

/// The number of characters of a value that are shown.
const SHOWN: usize = 1500;

/// One place in a response at which the servers differ.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    /// `TOPIC/ID`.
    pub(super) request: String,
    line: String,
    /// A JSON pointer into code, headers and body.
    pub(super) path: String,
    /// `None`: the value is missing.
    pub(super) ours: Option<Value>,
    pub(super) theirs: Option<Value>,
}

/// All places at which the two responses to a request differ.
pub(super) fn differences(request: &str, line: &str, ours: &Value, theirs: &Value) -> Vec<Difference> {
    let mut places = Vec::new();
    visit(String::new(), Some(ours), Some(theirs), &mut places);
    let place = |(path, ours, theirs)| Difference {
        request: request.to_owned(),
        line: line.to_owned(),
        path,
        ours,
        theirs,
    };
    places.into_iter().map(place).collect()
}

type Place = (String, Option<Value>, Option<Value>);

fn visit(path: String, ours: Option<&Value>, theirs: Option<&Value>, found: &mut Vec<Place>) {
    match (ours, theirs) {
        (ours, theirs) if ours == theirs => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                visit(format!("{path}/{escaped}"), a.get(name), b.get(name), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                visit(format!("{path}/{at}"), a.get(at), b.get(at), found);
            }
        }
        (ours, theirs) => found.push((path, ours.cloned(), theirs.cloned())),
    }
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "(nothing)".into() };
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.request, self.line)?;
        writeln!(f, "    at {}", self.path)?;
        writeln!(f, "      berth:          {}", shown(self.ours.as_ref()))?;
        writeln!(f, "      kube-apiserver: {}", shown(self.theirs.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_places_that_differ_are_told() {
        let ours = json!({"code": 200, "body": {"a": [1, 2], "b/c": {}}});
        let theirs = json!({"code": 200, "body": {"a": [1, 3, 4], "b/c": {"d": null}}});
        let found = differences("t/x", "GET /", &ours, &theirs);
        let paths: Vec<&str> = found.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["/body/a/1", "/body/a/2", "/body/b~1c/d"]);
        assert_eq!((&found[1].ours, &found[1].theirs), (&None, &Some(json!(4))));
    }
}
