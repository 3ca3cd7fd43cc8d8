//! Label and field selectors: parsing, and matching against what the store knows of an object.

use crate::error::{ApiError, Result};
use crate::store::{Entry, Interest};

/// Requirements one selector may have.
const MAX_REQUIREMENTS: usize = 64;
/// Text one selector may have.
const MAX_LENGTH: usize = 8192;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

/// A label and a field selector together, and nothing else: both must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<(String, String, bool)>,
}

impl Selector {
    /// Parses both. `selectable` says which fields the resource can be selected by besides name and namespace.
    pub(crate) fn parse(labels: &str, fields: &str, selectable: impl Fn(&str) -> bool) -> Result<Self> {
        if labels.len() > MAX_LENGTH || fields.len() > MAX_LENGTH {
            return Err(ApiError::bad_request("selector is too long"));
        }
        let selector = Self { labels: parse_labels(labels)?, fields: parse_fields(fields)? };
        for (field, _, _) in &selector.fields {
            if !matches!(field.as_str(), "metadata.name" | "metadata.namespace") && !selectable(field) {
                return Err(ApiError::bad_request(format!("field label not supported: {field}")));
            }
        }
        Ok(selector)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, entry: &Entry) -> bool {
        let labels = self.labels.iter().all(|(label, test)| test.holds(entry.facts.label(label)));
        labels && self.fields.iter().all(|(field, wanted, equal)| (read(entry, field) == wanted) == *equal)
    }

    /// The narrowest way to be woken: by an exact field value if one is asked for, the name before others.
    pub(crate) fn interest(&self) -> Interest {
        let exact = |field: &&(String, String, bool)| field.2;
        let by_name = self.fields.iter().filter(exact).find(|f| f.0 == "metadata.name");
        match by_name.or_else(|| self.fields.iter().find(exact)) {
            Some((name, value, _)) => {
                Interest::Field { name: name.as_str().into(), value: value.as_str().into() }
            }
            None => Interest::Resource,
        }
    }

    /// Only the object with this name, as a watch of a single object asks.
    pub(crate) fn and_name(mut self, name: &str) -> Self {
        self.fields.push(("metadata.name".into(), name.into(), true));
        self
    }
}

fn read<'a>(entry: &'a Entry, field: &str) -> &'a str {
    match field {
        "metadata.name" => &entry.key.name,
        "metadata.namespace" => &entry.key.namespace,
        _ => entry.facts.field(field).unwrap_or_default(),
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
            Self::NotIn(values) => value.is_none_or(|v| values.iter().all(|w| w != v)),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::Greater(than) => number().is_some_and(|n| n > *than),
            Self::Less(than) => number().is_some_and(|n| n < *than),
        }
    }
}

fn parse_labels(text: &str) -> Result<Vec<(String, Test)>> {
    let mut requirements = Vec::new();
    for part in split_outside_parentheses(text) {
        requirements.push(parse_requirement(part.trim())?);
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(ApiError::bad_request("selector has too many requirements"));
        }
    }
    Ok(requirements)
}

/// Commas separate requirements, except those between `in (a,b)`'s values.
fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() || start > 0 {
        parts.push(&text[start..]);
    }
    parts
}

fn parse_requirement(text: &str) -> Result<(String, Test)> {
    let bad = || ApiError::bad_request(format!("unable to parse requirement: {text:?}"));
    let key = |key: &str| -> Result<String> {
        let key = key.trim();
        if crate::meta::is_qualified_name(key) { Ok(key.to_owned()) } else { Err(bad()) }
    };
    let one = |value: &str| -> Result<Vec<String>> {
        let value = value.trim();
        if crate::meta::is_label_value(value) { Ok(vec![value.to_owned()]) } else { Err(bad()) }
    };
    let number = |value: &str| value.trim().parse::<i64>().map_err(|_| bad());
    if let Some((name, values)) = text.split_once('(') {
        let values = values.trim_end().strip_suffix(')').ok_or_else(bad)?;
        let values = values.split(',').map(one).collect::<Result<Vec<_>>>()?.concat();
        let mut words = name.split_whitespace();
        let (label, operator) = (words.next().ok_or_else(bad)?, words.next().ok_or_else(bad)?);
        return match (operator, words.next()) {
            ("in", None) => Ok((key(label)?, Test::In(values))),
            ("notin", None) => Ok((key(label)?, Test::NotIn(values))),
            _ => Err(bad()),
        };
    }
    if let Some((label, value)) = text.split_once("!=") {
        return Ok((key(label)?, Test::NotIn(one(value)?)));
    }
    if let Some((label, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok((key(label)?, Test::In(one(value)?)));
    }
    if let Some((label, value)) = text.split_once('>') {
        return Ok((key(label)?, Test::Greater(number(value)?)));
    }
    if let Some((label, value)) = text.split_once('<') {
        return Ok((key(label)?, Test::Less(number(value)?)));
    }
    if let Some(label) = text.strip_prefix('!') {
        return Ok((key(label)?, Test::Absent));
    }
    Ok((key(text)?, Test::Exists))
}

fn parse_fields(text: &str) -> Result<Vec<(String, String, bool)>> {
    let mut requirements = Vec::new();
    for part in split_unescaped(text) {
        let bad = || ApiError::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"));
        let (field, value, equal) = if let Some((field, value)) = part.split_once("!=") {
            (field, value, false)
        } else if let Some((field, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (field, value, true)
        } else {
            return Err(bad());
        };
        requirements.push((field.trim().to_owned(), unescape(value).map_err(ApiError::bad_request)?, equal));
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(ApiError::bad_request("selector has too many requirements"));
        }
    }
    Ok(requirements)
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                other => {
                    let sequence = other.map_or(String::from("\\"), |next| format!("\\{next}"));
                    return Err(format!("invalid field selector: invalid escape sequence: {sequence}"));
                }
            },
            '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from('=')
                ));
            }
            _ => out.push(letter),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str, labels: &[(&str, &str)]) -> bool {
        let find = |name: &str| labels.iter().find(|(k, _)| *k == name).map(|(_, v)| *v);
        let parsed = Selector::parse(text, "", |_| false).unwrap();
        parsed.labels.iter().all(|(label, test)| test.holds(find(label)))
    }

    #[test]
    fn label_requirements_mean_what_kubernetes_says() {
        let labels = [("app", "web"), ("size", "5")];
        for yes in [
            "",
            "app=web",
            "app==web",
            "app!=db",
            "app in (db, web)",
            "app notin (db)",
            "app",
            "!gone",
            "size>4",
        ] {
            assert!(holds(yes, &labels), "{yes}");
        }
        for no in [
            "app=db",
            "app!=web",
            "app in (db)",
            "app notin (web,db)",
            "gone",
            "!app",
            "size<5",
            "app=web,gone",
        ] {
            assert!(!holds(no, &labels), "{no}");
        }
        assert!(holds("gone!=x,other notin (y)", &labels), "an absent label is not equal to anything");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["=", "a=b=c", "a in b", "a in (b", "a b", ",", "a=,,b", "size>many", "-a"] {
            assert!(Selector::parse(bad, "", |_| false).is_err(), "{bad}");
        }
        for bad in ["metadata.name", "spec.x=1", "metadata.name=a=b", "metadata.name=\\x"] {
            assert!(Selector::parse("", bad, |_| false).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_watch_by_name_is_woken_by_that_name_only() {
        let selector = Selector::parse("", "spec.host=h1,metadata.name=a", |_| true).unwrap();
        assert_eq!(selector.interest(), Interest::Field { name: "metadata.name".into(), value: "a".into() });
        let unequal = Selector::parse("", "spec.host!=h1", |_| true).unwrap();
        assert_eq!(unequal.interest(), Interest::Resource);
    }
}
