//! The syntax of names, labels and annotations. Functions return the errors of a text in Kubernetes' words;
//! an empty list means that the text is valid.

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
    end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
    character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
    '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const DATA_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
    'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// The maximum length in bytes of a DNS label, and of the name part of a qualified name.
const MAX_LABEL: usize = 63;
/// The maximum length in bytes of a DNS subdomain.
const MAX_SUBDOMAIN: usize = 253;
/// The maximum length in bytes of a segment of a path. An object with a longer name could not be addressed: paths have a limit, and in
/// them a byte may take three.
const MAX_SEGMENT: usize = 1024;

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// Whether `text` starts and ends with a letter of `inner`, with those or `between` in the middle.
fn is_made_of(text: &str, inner: impl Fn(u8) -> bool, between: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| inner(*byte) || between.contains(byte))
        && bytes.first().is_some_and(|byte| inner(*byte))
        && bytes.last().is_some_and(|byte| inner(*byte))
}

fn has_form_of_label(text: &str) -> bool {
    is_made_of(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-")
}

/// Unlike in DNS, the parts may be longer than 63: Kubernetes limits only the whole.
fn has_form_of_subdomain(text: &str) -> bool {
    text.split('.').all(has_form_of_label)
}

fn has_form_of_name_part(text: &str) -> bool {
    is_made_of(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// Checks a DNS label that begins with a letter.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_LABEL {
        problems.push(too_long(MAX_LABEL));
    }
    if !has_form_of_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        problems.push(DNS_1035.to_owned());
    }
    problems
}

/// Checks a DNS label.
pub(crate) fn dns_label(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_LABEL {
        problems.push(too_long(MAX_LABEL));
    }
    if !has_form_of_label(text) {
        let only_dots = has_form_of_subdomain(text);
        problems.push(if only_dots { "must not contain dots" } else { LABEL }.to_owned());
    }
    problems
}

/// Checks a DNS subdomain.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_SUBDOMAIN {
        problems.push(too_long(MAX_SUBDOMAIN));
    }
    if !has_form_of_subdomain(text) {
        problems.push(SUBDOMAIN.to_owned());
    }
    problems
}

/// Checks the key of a label or annotation: an optional DNS prefix and a name.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        ["", name] => {
            problems.push("prefix part must be non-empty".to_owned());
            *name
        }
        [prefix, name] => {
            problems.extend(dns_subdomain(prefix).iter().map(|problem| format!("prefix part {problem}")));
            *name
        }
        _ => {
            return vec![format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL {
        problems.push(format!("name part {}", too_long(MAX_LABEL)));
    }
    if !has_form_of_name_part(name) {
        problems.push(format!("name part {QUALIFIED}"));
    }
    problems
}

/// Checks the value of a label.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_LABEL {
        problems.push(too_long(MAX_LABEL));
    }
    if !text.is_empty() && !has_form_of_name_part(text) {
        problems.push(LABEL_VALUE.to_owned());
    }
    problems
}

/// Checks a key in the data of a Secret or ConfigMap.
pub fn data_key(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_SUBDOMAIN {
        problems.push(too_long(MAX_SUBDOMAIN));
    }
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || !text.bytes().all(known) {
        problems.push(DATA_KEY.to_owned());
    }
    let path = match text {
        "." => Some("must not be '.'"),
        ".." => Some("must not be '..'"),
        _ if text.starts_with("..") => Some("must not start with '..'"),
        _ => None,
    };
    problems.extend(path.map(str::to_owned));
    problems
}

/// Checks one segment of a path; a prefix may be any text that a valid name can start with.
fn path_segment(text: &str, is_prefix: bool) -> Vec<String> {
    if !is_prefix && matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    let long = (text.len() > MAX_SEGMENT).then(|| too_long(MAX_SEGMENT));
    let refused = ['/', '%'].into_iter().filter(|letter| text.contains(*letter));
    long.into_iter().chain(refused.map(|letter| format!("may not contain '{letter}'"))).collect()
}

/// The syntax of the names of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    Subdomain,
    Label,
    /// RBAC names: anything that is one path segment.
    PathSegment,
}

impl NameRule {
    /// Returns the errors of a name.
    pub fn problems(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => dns_subdomain(name),
            Self::Label => dns_label(name),
            Self::PathSegment => path_segment(name, false),
        }
    }

    /// Returns the errors of the beginning of a name: it may end in a dash, because a suffix follows.
    pub(crate) fn problems_of_prefix(self, prefix: &str) -> Vec<String> {
        let ends = prefix.strip_suffix('-').filter(|rest| !rest.is_empty());
        // As in Kubernetes, the character before the dash is not checked.
        let masked =
            ends.and_then(|rest| rest.char_indices().last().map(|(at, _)| format!("{}a", &rest[..at])));
        match self {
            Self::PathSegment => path_segment(prefix, true),
            _ => self.problems(masked.as_deref().unwrap_or(prefix)),
        }
    }
}

#[cfg(test)]
mod tests;
