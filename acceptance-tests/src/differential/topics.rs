//! The requests by topic, each file a sequence of requests in a namespace of its own.
//!
//! In texts, `${ns}` is the topic's namespace, `${NAME}` one of the topic's `names`, and `${ID/POINTER}` the value at that
//! JSON pointer in the response to the request `ID` of the topic: so a request names its dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::allowed::LISTS;

/// The topic that runs before all others: kinds and users that they share. Its requests named `token-USER` return the users'
/// tokens.
pub(super) const SETUP: &str = "setup";
const EACH: &str = "${each}";
/// The maximum nesting depth of names within names.
const DEPTH: usize = 4;

/// A file of requests.
#[derive(Debug)]
pub(super) struct Topic {
    /// The name of the file.
    pub(super) name: String,
    /// The subject of the topic.
    pub(super) about: String,
    names: BTreeMap<String, String>,
    pub(super) requests: Vec<Request>,
}

/// One request, and the way its response is read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// The id, unique in the topic.
    pub(super) id: String,
    /// Method and path; the method `WATCH` is a GET with a response that is read as a stream.
    #[serde(rename = "do")]
    pub(super) line: String,
    /// A user of the setup; the administrator if unset; `nobody` sends no token.
    #[serde(default, rename = "as")]
    pub(super) user: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    /// The media type of the body, or a short name of it.
    #[serde(default, rename = "type")]
    pub(super) content: Option<String>,
    #[serde(default)]
    pub(super) body: Option<Value>,
    /// A body that is sent verbatim.
    #[serde(default)]
    pub(super) raw: Option<String>,
    /// JSON pointers into the body, each with the length of the text to put there.
    #[serde(default)]
    pub(super) fill: BTreeMap<String, usize>,
    /// The request is repeated until the response has these values (`code`, or JSON pointers): controllers take time.
    #[serde(default)]
    pub(super) until: BTreeMap<String, Value>,
    /// The number of frames after which a watch is closed.
    #[serde(default)]
    pub(super) frames: Option<usize>,
    /// Whether the watch stays open during the following requests.
    #[serde(default)]
    pub(super) meanwhile: bool,
    /// If set, only these JSON pointers of the response are compared.
    #[serde(default)]
    pub(super) only: Vec<String>,
    /// For a list at this pointer, only the members with one of these names are compared.
    #[serde(default)]
    pub(super) members: BTreeMap<String, Vec<String>>,
}

/// Reads all topics in a folder, the setup first.
pub(super) fn read(folder: &Path) -> Result<Vec<Topic>> {
    let mut topics = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_none_or(|end| end != "yaml") || LISTS.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let topic = parse(&text).with_context(|| path.display().to_string())?;
        topics.push(Topic { name, ..topic });
    }
    topics.sort_by_key(|topic| (topic.name != SETUP, topic.name.clone()));
    ensure!(
        topics.first().is_some_and(|first| first.name == SETUP),
        "no {SETUP}.yaml in {}",
        folder.display()
    );
    Ok(topics)
}

fn parse(text: &str) -> Result<Topic> {
    // As in YAML 1.2: `y` is a string.
    let options = serde_saphyr::options! { strict_booleans: true };
    let read = serde_saphyr::from_str_with_options(text, options);
    let File { about, names, requests } = read.map_err(|error| anyhow!("{error}"))?;
    let requests = requests.into_iter().flat_map(multiplied).map(serde_json::from_value);
    let topic = Topic { name: String::new(), about, names, requests: requests.collect::<Result<_, _>>()? };
    topic.check()?;
    Ok(topic)
}

/// A topic as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    #[serde(default)]
    names: BTreeMap<String, String>,
    requests: Vec<Written>,
}

/// A request as it is written. The members of `each` are requests one after the other: they keep the order of the text.
struct Written {
    request: Map<String, Value>,
    each: Option<InOrder>,
}

struct InOrder(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a request")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Written, A::Error> {
                let mut written = Written { request: Map::new(), each: None };
                while let Some(name) = members.next_key::<String>()? {
                    match name.as_str() {
                        "each" => written.each = Some(members.next_value()?),
                        _ => {
                            written.request.insert(name, members.next_value()?);
                        }
                    }
                }
                Ok(written)
            }
        }

        from.deserialize_map(Members)
    }
}

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = InOrder;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of keys to values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<InOrder, A::Error> {
                let mut all = Vec::new();
                while let Some(member) = members.next_entry()? {
                    all.push(member);
                }
                Ok(InOrder(all))
            }
        }

        from.deserialize_map(Members)
    }
}

/// Expands a request with `each` into one request per member: `ID-KEY`, with the member's value for `${each}`.
fn multiplied(Written { request, each }: Written) -> Vec<Value> {
    let request = Value::Object(request);
    let Some(InOrder(each)) = each else { return vec![request] };
    let one = |(key, value): &(String, Value)| {
        let mut one = request.clone();
        one["id"] = format!("{}-{key}", plain(&request["id"])).into();
        with_each(&mut one, value);
        one
    };
    each.iter().map(one).collect()
}

fn with_each(place: &mut Value, each: &Value) {
    match place {
        Value::String(text) if text == EACH => *place = each.clone(),
        Value::String(text) => *text = text.replace(EACH, &plain(each)),
        Value::Array(items) => items.iter_mut().for_each(|item| with_each(item, each)),
        Value::Object(members) => members.values_mut().for_each(|value| with_each(value, each)),
        _ => {}
    }
}

impl Topic {
    fn check(&self) -> Result<()> {
        let mut seen = BTreeSet::new();
        for request in &self.requests {
            ensure!(seen.insert(&request.id), "two requests are called {}", request.id);
            ensure!(
                request.line.split_once(' ').is_some(),
                "{}: no method and path: {}",
                request.id,
                request.line
            );
            let watches = request.line.starts_with("WATCH ");
            ensure!(
                watches || (request.frames.is_none() && !request.meanwhile),
                "{}: is no watch",
                request.id
            );
            ensure!(request.body.is_none() || request.raw.is_none(), "{}: two bodies", request.id);
        }
        Ok(())
    }

    /// The namespace of the topic's objects.
    pub(super) fn namespace(&self) -> String {
        format!("d-{}", self.name)
    }

    /// Substitutes values in a text.
    pub(super) fn text(&self, text: &str, answers: &BTreeMap<String, Value>) -> Result<String> {
        let mut done = text.to_owned();
        for _ in 0..DEPTH {
            let Some(from) = done.find("${") else { return Ok(done) };
            let mut filled = done[..from].to_owned();
            let mut rest = &done[from..];
            while let Some(open) = rest.find("${") {
                filled += &rest[..open];
                let close = rest[open..].find('}').with_context(|| format!("no }} in {text}"))? + open;
                filled += &plain(&self.lookup(&rest[open + 2..close], answers)?);
                rest = &rest[close + 1..];
            }
            done = filled + rest;
        }
        ensure!(!done.contains("${"), "{text}: names stand in names too often");
        Ok(done)
    }

    /// Substitutes values in all texts of a value; a text that consists of a single `${…}` becomes the value itself.
    pub(super) fn fill(&self, value: &Value, answers: &BTreeMap<String, Value>) -> Result<Value> {
        Ok(match value {
            Value::String(text) => match text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
                Some(name) if name.contains('/') && !name.contains('$') => self.lookup(name, answers)?,
                _ => self.text(text, answers)?.into(),
            },
            Value::Array(items) => {
                items.iter().map(|item| self.fill(item, answers)).collect::<Result<_>>()?
            }
            Value::Object(members) => {
                let mut filled = Map::new();
                for (name, value) in members {
                    filled.insert(self.text(name, answers)?, self.fill(value, answers)?);
                }
                Value::Object(filled)
            }
            other => other.clone(),
        })
    }

    fn lookup(&self, name: &str, answers: &BTreeMap<String, Value>) -> Result<Value> {
        if name == "ns" {
            return Ok(self.namespace().into());
        }
        if let Some(text) = self.names.get(name) {
            return Ok(text.as_str().into());
        }
        let Some(at) = name.find('/') else { bail!("nothing is called {name}") };
        let answer = answers.get(&name[..at]).with_context(|| format!("no answer {} yet", &name[..at]))?;
        // A server that responds unexpectedly is a difference, not the end of the run.
        Ok(answer.pointer(&name[at..]).cloned().unwrap_or_else(|| format!("(no {name})").into()))
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_topics_of_this_repository_are_well_formed() {
        let topics = read(&super::super::folder()).expect("it is read");
        assert!(topics.iter().map(|topic| topic.requests.len()).sum::<usize>() > 300);
    }

    #[test]
    fn a_request_with_each_is_as_many_requests() {
        let topic = parse(
            "{about: x, requests: [{id: a, do: 'GET /${each}', body: {n: '${each}'}, each: {c: 1, b: [2]}}]}",
        );
        let requests = topic.expect("it is well formed").requests;
        let output: Vec<_> =
            requests.iter().map(|one| (one.id.as_str(), one.line.as_str(), one.body.clone())).collect();
        assert_eq!(
            output,
            [("a-c", "GET /1", Some(json!({"n": 1}))), ("a-b", "GET /[2]", Some(json!({"n": [2]})))]
        );
    }

    #[test]
    fn values_of_earlier_answers_stand_in_later_requests() {
        let names = BTreeMap::from([("boats".to_owned(), "/b/${ns}".to_owned())]);
        let topic = Topic { name: "t".into(), about: "x".into(), names, requests: Vec::new() };
        let answers =
            BTreeMap::from([("made".to_owned(), json!({"metadata": {"uid": "u", "generation": 2}}))]);
        assert_eq!(
            topic.text("${boats}/a?uid=${made/metadata/uid}", &answers).expect("filled"),
            "/b/d-t/a?uid=u"
        );
        let body = json!({"generation": "${made/metadata/generation}"});
        assert_eq!(topic.fill(&body, &answers).expect("filled"), json!({"generation": 2}));
        assert!(topic.text("${other/x}", &answers).is_err() && topic.text("${other", &answers).is_err());
    }
}
