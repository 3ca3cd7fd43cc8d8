//! What Go's regular expressions have against a pattern.

use regex_syntax::ast::{self, ErrorKind};

/// `error parsing regexp: missing closing ): `(``; `None` if nothing is wrong with the syntax, or Go has no words for it.
pub(super) fn complaint(pattern: &str) -> Option<String> {
    let error = ast::parse::Parser::new().parse(pattern).err()?;
    let span = error.span();
    let part = |from: usize, to: usize| pattern.get(from..to).unwrap_or(pattern);
    let (start, end) = (span.start.offset, span.end.offset);
    let (why, what) = match error.kind() {
        ErrorKind::GroupUnclosed => ("missing closing )", pattern),
        ErrorKind::GroupUnopened => ("unexpected )", pattern),
        ErrorKind::ClassUnclosed => ("missing closing ]", part(start, pattern.len())),
        ErrorKind::ClassRangeInvalid => ("invalid character class range", part(start, end)),
        ErrorKind::RepetitionMissing => ("missing argument to repetition operator", part(start, start + 1)),
        ErrorKind::RepetitionCountInvalid => ("invalid repeat count", part(start, end)),
        ErrorKind::EscapeUnexpectedEof => ("trailing backslash at end of expression", ""),
        ErrorKind::EscapeUnrecognized | ErrorKind::UnsupportedBackreference => {
            ("invalid escape sequence", part(start, end))
        }
        ErrorKind::GroupNameDuplicate { .. } => ("duplicate capture group name", part(start, end)),
        ErrorKind::UnsupportedLookAround => ("invalid or unsupported Perl syntax", part(start, end)),
        _ => return None,
    };
    Some(format!("error parsing regexp: {why}: `{what}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_as_go_does() {
        for (pattern, wanted) in [
            ("(", "error parsing regexp: missing closing ): `(`"),
            ("a)", "error parsing regexp: unexpected ): `a)`"),
            ("x[a", "error parsing regexp: missing closing ]: `[a`"),
            ("[b-a]", "error parsing regexp: invalid character class range: `b-a`"),
            ("*", "error parsing regexp: missing argument to repetition operator: `*`"),
            ("\\", "error parsing regexp: trailing backslash at end of expression: ``"),
        ] {
            assert_eq!(complaint(pattern).as_deref(), Some(wanted), "{pattern}");
        }
        assert_eq!(complaint("^[a-z]+$"), None);
    }
}
