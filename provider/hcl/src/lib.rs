//! Expressions, arguments and blocks of HCL, in the form that `terraform fmt` leaves as it is.
//!
//! Must not know any resource.

use std::fmt::Write as _;

/// The longest list or object on one line, in characters.
const LINE: usize = 80;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Written as it is.
    Raw(String),
    /// A list.
    List(Vec<Self>),
    /// An object: its keys are written as they are.
    Object(Vec<(String, Self)>),
}

impl Expression {
    /// A string literal.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Raw(quoted(text))
    }
}

/// A string literal.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            // Doubled, they begin no template.
            '$' | '%' if rest.peek() == Some(&'{') => quoted.extend([c, c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

/// An identifier that resembles a text.
#[must_use]
pub fn identifier(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let text: String = text.chars().map(allowed).collect();
    if is_identifier(&text) { text } else { format!("_{text}") }
}

/// The key of an object: an identifier, or a string literal.
#[must_use]
pub fn key(name: &str) -> String {
    if is_identifier(name) { name.to_owned() } else { quoted(name) }
}

/// One argument a line, with the signs of neighbouring lines aligned. An argument of several lines has no neighbours.
#[must_use]
pub fn arguments(arguments: &[(String, Expression)], depth: usize) -> String {
    let rendered: Vec<(&str, String)> =
        arguments.iter().map(|(name, value)| (name.as_str(), render(value, depth))).collect();
    let mut text = String::new();
    let runs = rendered.chunk_by(|(_, one), (_, other)| !one.contains('\n') && !other.contains('\n'));
    for run in runs {
        let width = run.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        for (name, value) in run {
            let _ = writeln!(text, "{}{name:width$} = {value}", "  ".repeat(depth));
        }
    }
    text
}

/// A block: its type, its labels and its arguments.
#[must_use]
pub fn block(kind: &str, labels: &[&str], body: &[(String, Expression)]) -> String {
    let labels: String = labels.iter().map(|label| format!(" {}", quoted(label))).collect();
    format!("{kind}{labels} {{\n{}}}\n", arguments(body, 1))
}

/// Lines of comment. Characters that end a line, or that a terminal interprets, become spaces.
#[must_use]
pub fn comment(lines: &[String]) -> String {
    let clean =
        |line: &String| line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    lines.iter().map(|line| format!("# {}", clean(line)).trim_end().to_owned() + "\n").collect()
}

fn render(expression: &Expression, depth: usize) -> String {
    let line = on_one_line(expression);
    if line.chars().count() <= LINE {
        return line;
    }
    let indent = "  ".repeat(depth);
    match expression {
        Expression::Raw(text) => text.clone(),
        Expression::List(elements) => {
            let mut text = String::from("[\n");
            for element in elements {
                let _ = writeln!(text, "{indent}  {},", render(element, depth + 1));
            }
            text + &indent + "]"
        }
        Expression::Object(entries) => format!("{{\n{}{indent}}}", arguments(entries, depth + 1)),
    }
}

fn on_one_line(expression: &Expression) -> String {
    match expression {
        Expression::Raw(text) => text.clone(),
        Expression::List(elements) => {
            format!("[{}]", elements.iter().map(on_one_line).collect::<Vec<_>>().join(", "))
        }
        Expression::Object(entries) if entries.is_empty() => "{}".to_owned(),
        Expression::Object(entries) => {
            let entry = |(name, value): &(String, Expression)| format!("{name} = {}", on_one_line(value));
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_begins_no_template_and_ends_no_literal() {
        assert_eq!(quoted("a \"b\" \\ ${c} %{d} $5 100%\n"), r#""a \"b\" \\ $${c} %%{d} $5 100%\n""#);
        assert_eq!(quoted("$${a} \u{1}"), "\"$$${a} \\u0001\"");
    }

    #[test]
    fn identifiers_are_made_of_names() {
        let made = ["web-0", "h1.example.org", "7"].map(identifier);
        assert_eq!(made, ["web-0", "h1_example_org", "_7"]);
        assert_eq!([key("tier"), key("kubernetes.io/os")], ["tier", "\"kubernetes.io/os\""]);
    }

    #[test]
    fn a_comment_stays_one_whatever_it_holds() {
        assert_eq!(comment(&["a\nresource \u{1b}[0m".to_owned(), String::new()]), "# a resource  [0m\n#\n");
        let body = [("a".to_owned(), Expression::text("b"))];
        assert_eq!(block("resource", &["x", "y\""], &body), "resource \"x\" \"y\\\"\" {\n  a = \"b\"\n}\n");
    }

    #[test]
    fn long_values_take_several_lines() {
        let raw = |text: &str| Expression::Raw(text.to_owned());
        let long = quoted(&"x".repeat(50));
        let list = Expression::List(vec![raw(&long), raw(&long)]);
        let entries = Expression::Object(vec![("a".to_owned(), raw("1")), ("list".to_owned(), list)]);
        let named =
            [("name".to_owned(), raw("1")), ("b".to_owned(), raw("2")), ("object".to_owned(), entries)];
        let expected = format!(
            "  name = 1\n  b    = 2\n  object = {{\n    a = 1\n    list = [\n      {long},\n      {long},\n    ]\n  }}\n"
        );
        assert_eq!(arguments(&named, 1), expected);
    }
}
