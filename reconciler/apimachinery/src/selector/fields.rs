//! Field selectors: `metadata.name=a,spec.host!=h1`; in values a backslash escapes `\`, `,` and `=`.

/// The maximum number of requirements of one selector.
const MAX_REQUIREMENTS: usize = 64;

/// A field, a value, and whether they must be equal.
pub(super) type Requirement = (String, String, bool);

/// Parses the requirements by field.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    let mut parts = split_unescaped(text);
    // As in Kubernetes, the error is about the first part in this order.
    parts.sort_unstable();
    let mut requirements = Vec::new();
    for part in parts {
        let Some((field, value, equal)) = split_term(part) else {
            return Err(format!("invalid selector: '{text}'; can't understand '{part}'"));
        };
        requirements.push((field.to_owned(), unescape(value)?, equal));
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(format!("a selector has at most {MAX_REQUIREMENTS} requirements"));
        }
    }
    Ok(requirements)
}

/// Splits a requirement at the first operator.
fn split_term(part: &str) -> Option<(&str, &str, bool)> {
    let at = part.find('=')?;
    let (left, right) = (&part[..at], &part[at + 1..]);
    Some(match left.strip_suffix('!') {
        Some(field) => (field, right, false),
        None => (left, right.strip_prefix('=').unwrap_or(right), true),
    })
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

    #[test]
    fn a_term_is_a_field_an_operator_and_a_value() {
        let one = |text: &str| parse(text).unwrap().remove(0);
        let is = |field: &str, value: &str, equal: bool| (field.to_owned(), value.to_owned(), equal);
        assert_eq!(one("metadata.name=a"), is("metadata.name", "a", true));
        assert_eq!(one("metadata.name==a"), is("metadata.name", "a", true));
        assert_eq!(one("x!=a"), is("x", "a", false));
        assert_eq!(one("x=a\\,b\\=c"), is("x", "a,b=c", true));
        assert_eq!(one(" x = a "), is(" x ", " a ", true));
        assert_eq!(one("x!y!=a"), is("x!y", "a", false));
        assert!(parse(",").unwrap().is_empty() && parse("").unwrap().is_empty());
        assert_eq!(parse("x=a,").unwrap().len(), 1);
    }

    #[test]
    fn nonsense_is_refused() {
        let table = [
            ("x", "invalid selector: 'x'; can't understand 'x'"),
            ("x=a=b", "invalid field selector: unescaped character in value: 61"),
            ("x=\\y", "invalid field selector: invalid escape sequence: \\y"),
            ("x=\\", "invalid field selector: invalid escape sequence: \\"),
        ];
        for (text, why) in table {
            assert_eq!(parse(text).unwrap_err(), why, "{text}");
        }
    }
}
