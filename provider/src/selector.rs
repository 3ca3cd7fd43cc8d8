//! The syntax of Kubernetes' label and field selectors.
//!
//! Pure. The control plane evaluates selectors; here their syntax is checked, so that a mistake shows before anything is read. The
//! provider compares fields that the control plane does not select by.

use serde_json::Value as Json;

/// The form of the key of a label, as the end of a sentence.
pub const LABEL_KEY: &str = "write at most 63 letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends, \
                             after a DNS domain and \"/\" if you like.";
/// The form of the value of a label, as the end of a sentence.
pub const LABEL_VALUE: &str =
    "write at most 63 letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends.";

/// The problem with a label selector, and its remedy. An empty one selects everything.
#[must_use]
pub fn label_problem(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return None;
    }
    let wrong = requirements(text).into_iter().find(|requirement| !is_label_requirement(requirement))?;
    Some(format!(
        "{:?} is no requirement of a label selector: write for example \"tier=web\", \"tier!=web\", \
         \"tier in (web, db)\", \"tier notin (web)\", \"tier\" or \"!tier\", joined by commas.",
        wrong.trim()
    ))
}

/// The problem with a field selector on these fields, and its remedy.
#[must_use]
pub fn field_problem(text: &str, fields: &[String]) -> Option<String> {
    let is_requirement = |requirement: &&str| {
        let Some((field, _)) = requirement.split_once('=') else { return false };
        let field = field.trim_end_matches('!').trim();
        fields.iter().any(|known| known == field)
    };
    if text.trim().is_empty() {
        return None;
    }
    let wrong = text.split(',').find(|requirement| !is_requirement(requirement))?;
    let known: Vec<String> = fields.iter().map(|field| format!("{field:?}")).collect();
    Some(format!(
        "{:?} is no requirement of a field selector here: write FIELD=VALUE or FIELD!=VALUE, joined by commas, with a \
         FIELD among {}.",
        wrong.trim(),
        known.join(", ")
    ))
}

/// A requirement of a field selector that the control plane does not evaluate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    pointer: String,
    value: String,
    is_equal: bool,
}

impl FieldRequirement {
    fn of(text: &str, fields: &[&str]) -> Option<Self> {
        let (left, right) = text.split_once('=')?;
        let (field, is_equal) = match left.strip_suffix('!') {
            Some(field) => (field.trim(), false),
            None => (left.trim(), true),
        };
        let value = right.strip_prefix('=').unwrap_or(right).trim().to_owned();
        let pointer = format!("/{}", field.replace('.', "/"));
        fields.contains(&field).then_some(Self { pointer, value, is_equal })
    }

    /// Whether an object has it. A field that is not there is empty, as for the control plane.
    #[must_use]
    pub fn is_met_by(&self, object: &Json) -> bool {
        let found = object.pointer(&self.pointer).and_then(Json::as_str).unwrap_or_default();
        (found == self.value) == self.is_equal
    }
}

/// Divides a field selector into the one for the control plane and the requirements on these other fields.
#[must_use]
pub fn divide_fields(text: &str, compared: &[&str]) -> (String, Vec<FieldRequirement>) {
    let (mut rest, mut own) = (Vec::new(), Vec::new());
    for requirement in text.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        match FieldRequirement::of(requirement, compared) {
            Some(found) => own.push(found),
            None => rest.push(requirement),
        }
    }
    (rest.join(","), own)
}

/// The requirements, which commas outside of parentheses separate.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let separates = |letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    };
    text.split(separates).collect()
}

fn is_label_requirement(text: &str) -> bool {
    let text = text.trim();
    if let Some(key) = text.strip_prefix('!') {
        return is_label_key(key.trim());
    }
    if let Some((left, values)) = text.split_once('(') {
        let Some(values) = values.strip_suffix(')') else { return false };
        let mut words = left.split_whitespace();
        let (key, operator) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        return words.next().is_none()
            && is_label_key(key)
            && matches!(operator, "in" | "notin")
            && values.split(',').all(|value| is_label_value(value.trim()));
    }
    let Some((key, value)) = text.split_once('=') else { return is_label_key(text) };
    let (key, value) = (key.strip_suffix('!').unwrap_or(key), value.strip_prefix('=').unwrap_or(value));
    is_label_key(key.trim()) && is_label_value(value.trim())
}

/// Whether a text is the key of a label: a name of at most 63 characters, or one after a DNS domain and `/`.
#[must_use]
pub fn is_label_key(text: &str) -> bool {
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    !name.is_empty() && is_label_value(name) && domain.is_none_or(is_domain)
}

/// Whether a text is a DNS subdomain as Kubernetes has them: the parts between its dots may be longer than DNS labels, such as the default
/// name of an attachment, which is made of two names.
#[must_use]
pub fn is_domain(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

/// Whether a text is the value of a label: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_end = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().copied().all(inner) && is_end(bytes.first()) && is_end(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_selectors_of_kubernetes_are_accepted_and_others_are_not() {
        let good = [
            "",
            "a",
            "!a",
            "! a",
            "a=b",
            "a==b",
            "a = b",
            "a!=b",
            "a=",
            "a in (b)",
            "a in (b, c),d",
            "a notin (b,c)",
            "example.org/tier=web,a!=b,!c",
            "topology.kubernetes.io/zone in (a)",
        ];
        for text in good {
            assert_eq!(label_problem(text), None, "{text}");
        }
        let bad = [
            "a b",
            "=b",
            "a=b,,c=d",
            "a=b,",
            "a in b",
            "a in (b",
            "a of (b)",
            "-a",
            "a=-b",
            "/a",
            "A.Org/a=b",
            "a=b=c",
            "a=ä",
            "a in (b c)",
            "a<b",
            &format!("a={}", "x".repeat(64)),
        ];
        for text in bad {
            assert!(label_problem(text).is_some(), "{text}");
        }
    }

    #[test]
    fn requirements_on_other_fields_are_compared_here() {
        let compared = ["spec.os.family"];
        let (rest, own) =
            divide_fields("spec.os.family=Linux, spec.format!=iso,spec.os.family!=BSD", &compared);
        assert_eq!((rest.as_str(), own.len()), ("spec.format!=iso", 2));
        let meets = |text: &str, family: Json| {
            let object = serde_json::json!({"spec": {"os": {"family": family}}});
            divide_fields(text, &compared).1.iter().all(|requirement| requirement.is_met_by(&object))
        };
        assert!(
            meets("spec.os.family=Linux", "Linux".into()) && !meets("spec.os.family==Linux", "BSD".into())
        );
        assert!(meets("spec.os.family!=Linux", Json::Null) && meets("spec.os.family=", Json::Null));
        assert_eq!(divide_fields("", &compared), (String::new(), Vec::new()));
    }

    #[test]
    fn field_selectors_name_fields_that_can_be_selected() {
        let fields = ["metadata.name".to_owned(), "spec.class".to_owned()];
        for text in
            ["spec.class=small", "spec.class==small", "metadata.name!=a,spec.class=small", "spec.class="]
        {
            assert_eq!(field_problem(text, &fields), None, "{text}");
        }
        for text in ["spec.class", "spec.size=1", "spec.class=small,", "=a"] {
            let problem = field_problem(text, &fields).expect(text);
            assert!(problem.contains("\"spec.class\""), "{problem}");
        }
    }
}
