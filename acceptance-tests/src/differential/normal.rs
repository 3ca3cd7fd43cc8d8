//! Normalises responses: removes the differences between any two servers, such as uids, times, revisions, generated names,
//! tokens, and the order of items for which the API guarantees no order.
//!
//! A uid becomes a word that names its object, and a revision its ordinal among those of its object: so two responses that
//! refer to the same object still do, and one that refers to another does not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::play::{Body, Reply};

/// The headers that are compared.
const HEADERS: &[&str] = &["content-type", "warning", "retry-after", "www-authenticate"];
const UUID: usize = 36;

/// The responses of one topic in a comparable form.
pub(super) fn replies(replies: &[Reply]) -> Vec<Value> {
    let mut seen = Seen::default();
    for reply in replies {
        match &reply.body {
            Body::Json(value) => seen.learn(value),
            Body::Frames(frames) => frames.iter().for_each(|frame| seen.learn(frame)),
            Body::Text(_) => {}
        }
    }
    replies.iter().map(|reply| seen.reply(reply)).collect()
}

/// The values collected from all responses of a topic.
#[derive(Debug, Default)]
struct Seen {
    /// By uid: the object's name, and its ordinal among objects of that name.
    uids: BTreeMap<String, String>,
    names: BTreeMap<String, usize>,
    /// By uid.
    revisions: BTreeMap<String, BTreeSet<u64>>,
    /// Generated names and their prefixes.
    generated: BTreeMap<String, String>,
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

impl Seen {
    fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(metadata) = members.get("metadata") {
                    self.learn_object(metadata);
                }
                members.values().for_each(|value| self.learn(value));
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            _ => {}
        }
    }

    fn learn_object(&mut self, metadata: &Value) {
        let (uid, name, prefix) =
            (text(metadata, "uid"), text(metadata, "name"), text(metadata, "generateName"));
        if !prefix.is_empty() && name.len() > prefix.len() && name.starts_with(prefix) {
            self.generated.insert(name.to_owned(), format!("{prefix}(generated)"));
        }
        if uid.is_empty() {
            return;
        }
        if !self.uids.contains_key(uid) {
            let known = self.generated.get(name).map_or(name, String::as_str).to_owned();
            let count = self.names.entry(known.clone()).or_default();
            *count += 1;
            self.uids.insert(uid.to_owned(), format!("(uid {count} of {known})"));
        }
        if let Ok(revision) = text(metadata, "resourceVersion").parse() {
            self.revisions.entry(uid.to_owned()).or_default().insert(revision);
        }
    }

    fn reply(&self, reply: &Reply) -> Value {
        let mut headers = Map::new();
        for name in HEADERS {
            let all = reply.headers.iter().filter(|(found, _)| found == name);
            let mut values: Vec<String> = all.map(|(_, value)| self.string(value)).collect();
            // Warnings have no guaranteed order.
            values.sort();
            if !values.is_empty() {
                headers.insert((*name).to_owned(), json!(values));
            }
        }
        let body = match &reply.body {
            Body::Json(value) => self.value(value),
            Body::Frames(frames) => {
                json!({"frames": frames.iter().map(|frame| self.value(frame)).collect::<Vec<_>>()})
            }
            Body::Text(text) => self.string(text).into(),
        };
        json!({"code": reply.code, "headers": headers, "body": body})
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.string(text).into(),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => self.object(members),
            other => other.clone(),
        }
    }

    fn object(&self, members: &Map<String, Value>) -> Value {
        let mut object = Map::new();
        for (name, value) in members {
            let value = match name.as_str() {
                "metadata" if value.is_object() => self.metadata(value, members),
                "cells" => value.as_array().into_iter().flatten().map(|cell| age(self.value(cell))).collect(),
                "message" => self.message(value, members),
                _ => self.value(value),
            };
            // The key of an owner reference in managedFields contains its uid.
            object.insert(self.without_uids(name), value);
        }
        if let Some(causes) = object.get_mut("causes").and_then(Value::as_array_mut) {
            causes.sort_by_key(|cause| (text(cause, "field").to_owned(), text(cause, "message").to_owned()));
        }
        Value::Object(object)
    }

    fn metadata(&self, metadata: &Value, of: &Map<String, Value>) -> Value {
        let mut normal = self.value(metadata);
        let uid = text(metadata, "uid");
        let sent = text(metadata, "resourceVersion");
        if let Ok(revision) = sent.parse::<u64>() {
            let items = of.get("items").or(of.get("rows")).and_then(Value::as_array);
            normal["resourceVersion"] = match (self.revisions.get(uid), items) {
                (Some(known), _) => {
                    let place = known.iter().position(|one| *one == revision).unwrap_or_default() + 1;
                    format!("(revision {place} of its object)").into()
                }
                (None, Some(items)) => of_list(revision, items).into(),
                (None, None) => "(a revision)".into(),
            };
        }
        if !text(metadata, "continue").is_empty() {
            normal["continue"] = "(a token)".into();
        }
        if let Some(managers) = normal.get_mut("managedFields").and_then(Value::as_array_mut) {
            // Their order depends on the second of each write.
            let key = |one: &Value| {
                ["operation", "manager", "apiVersion", "subresource"]
                    .map(|member| text(one, member).to_owned())
            };
            managers.sort_by_key(key);
        }
        normal
    }

    /// A message lists the causes beside it, in the order in which they were found.
    fn message(&self, message: &Value, beside: &Map<String, Value>) -> Value {
        let Some(text) = message.as_str() else { return self.value(message) };
        let causes =
            beside.get("details").and_then(|details| details["causes"].as_array()).map_or(0, Vec::len);
        if causes > 1
            && let Some((head, _)) = text.split_once(" is invalid: [")
        {
            return format!("{} is invalid: [(the causes)]", self.string(head)).into();
        }
        self.string(text).into()
    }

    fn string(&self, text: &str) -> String {
        if is_time(text) {
            return if text.contains('.') { "(a time with microseconds)" } else { "(a time)" }.to_owned();
        }
        if text.starts_with("ey") && text.matches('.').count() == 2 && !text.contains(' ') {
            return "(a token)".to_owned();
        }
        let mut done = self.without_uids(text);
        for (name, stands) in &self.generated {
            done = done.replace(name.as_str(), stands);
        }
        if done.to_lowercase().contains("resourceversion") || done.to_lowercase().contains("resource version")
        {
            done = without_numbers(&done);
        }
        done
    }

    fn without_uids(&self, text: &str) -> String {
        let mut done = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let found = rest.get(..UUID).filter(|part| is_uuid(part));
            let length = match found {
                Some(uid) => {
                    done += self.uids.get(uid).map_or("(a uid)", String::as_str);
                    UUID
                }
                None => {
                    done.push(letter);
                    letter.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        done
    }
}

/// The relation of a list's revision to those of its items.
fn of_list(revision: u64, items: &[Value]) -> &'static str {
    let of = |item: &Value| {
        let metadata =
            if item["object"].is_object() { &item["object"]["metadata"] } else { &item["metadata"] };
        text(metadata, "resourceVersion").parse::<u64>().ok()
    };
    if items.iter().filter_map(of).all(|one| one <= revision) {
        "(a revision, none of the items newer)"
    } else {
        "(a revision that an item is newer than)"
    }
}

fn is_uuid(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    })
}

fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shape = b"dddd-dd-ddTdd:dd:dd";
    let fits =
        |(byte, wanted): (&u8, &u8)| if *wanted == b'd' { byte.is_ascii_digit() } else { byte == wanted };
    bytes.len() > shape.len()
        && bytes.iter().zip(shape).all(fits)
        && bytes.ends_with(b"Z")
        && bytes[shape.len()..bytes.len() - 1].iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

/// A table cell with an age.
fn age(cell: Value) -> Value {
    let Some(text) = cell.as_str() else { return cell };
    let units = text.bytes().all(|byte| byte.is_ascii_digit() || b"smhd".contains(&byte));
    let counts = text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    let ends = text.ends_with(['s', 'm', 'h', 'd']);
    if units && counts && ends { "(an age)".into() } else { cell }
}

/// Removes the revisions from a message about them.
fn without_numbers(text: &str) -> String {
    let mut done = String::new();
    let mut number = false;
    for letter in text.chars() {
        let digit = letter.is_ascii_digit();
        if digit && !number {
            done += "(n)";
        }
        if !digit {
            done.push(letter);
        }
        number = digit;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(value: Value) -> Reply {
        Reply { code: 200, headers: vec![("date".into(), "now".into())], body: Body::Json(value) }
    }

    fn object(uid: char, revision: &str, time: &str) -> Value {
        let uid = format!("{}-0000-4000-8000-000000000000", uid.to_string().repeat(8));
        json!({"metadata": {"name": "ada", "uid": uid, "resourceVersion": revision, "creationTimestamp": time}})
    }

    #[test]
    fn two_servers_that_did_the_same_are_equal() {
        let one = [
            reply(object('a', "7", "2026-01-01T00:00:00Z")),
            reply(object('a', "9", "2026-01-01T00:00:00Z")),
        ];
        let two = [
            reply(object('b', "70", "2027-01-01T00:00:01Z")),
            reply(object('b', "71", "2027-01-01T00:00:01Z")),
        ];
        assert_eq!(replies(&one), replies(&two));
    }

    #[test]
    fn another_object_of_the_name_and_a_write_too_few_are_seen() {
        let twice = [reply(object('a', "7", "")), reply(object('a', "7", ""))];
        let anew = [reply(object('a', "7", "")), reply(object('b', "7", ""))];
        let written = [reply(object('a', "7", "")), reply(object('a', "8", ""))];
        assert_ne!(replies(&twice), replies(&anew));
        assert_ne!(replies(&twice), replies(&written));
    }

    #[test]
    fn generated_names_tokens_ages_and_the_order_of_causes_do_not_count() {
        let made = |name: &str| {
            json!({"metadata": {"generateName": "ada-", "name": name, "continue": name}, "cells": ["5s", "5x"],
                "token": format!("ey{name}.b.c")})
        };
        assert_eq!(replies(&[reply(made("ada-x1"))]), replies(&[reply(made("ada-y2"))]));
        let failed = |order: [&str; 2]| {
            let causes: Vec<Value> =
                order.iter().map(|field| json!({"field": field, "message": "m"})).collect();
            json!({"message": format!("A \"b\" is invalid: [{}: m, {}: m]", order[0], order[1]), "details": {"causes": causes}})
        };
        assert_eq!(replies(&[reply(failed(["a", "b"]))]), replies(&[reply(failed(["b", "a"]))]));
        let once = &replies(&[reply(json!({"cells": ["12m", "5x"]}))])[0];
        assert_eq!(once["body"]["cells"], json!(["(an age)", "5x"]));
    }
}
