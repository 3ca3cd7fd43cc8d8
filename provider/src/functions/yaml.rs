//! YAML documents as trees that keep the spelling of plain scalars.
//!
//! cloud-init reads YAML 1.1, in which `yes` is a boolean and `0644` an octal number, and other parsers read something else. So
//! a plain scalar is written again as it was, and a text is quoted wherever any parser could read more than a text in it.

use std::collections::BTreeMap;

use berth_api::user_data;
use granit_parser::{Event, Parser, ScalarStyle, StrInput};

/// The deepest nesting of a document.
const DEPTH: usize = 64;
/// The largest number of nodes, with those that aliases repeat.
const NODES: usize = 100_000;
/// The namespace of the tags that YAML defines, `!!binary` for example.
const YAML_TAGS: &str = "tag:yaml.org,2002:";
/// Words that YAML 1.1 or 1.2 reads as a boolean or as null.
const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// A node of a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// A scalar without quotes, as it is spelled.
    Plain(String),
    /// A text.
    Text(String),
    /// A scalar with a tag such as `!!binary`.
    Tagged(String, String),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in order.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// Whether it is null, or nothing at all.
    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Plain(text) if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Whether two keys of a mapping are the same.
    pub(super) fn is_same_key(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain(a) | Self::Text(a), Self::Plain(b) | Self::Text(b)) => a == b,
            (a, b) => a == b,
        }
    }

    /// The text of a scalar.
    pub(super) fn scalar(&self) -> Option<&str> {
        match self {
            Self::Plain(text) | Self::Text(text) | Self::Tagged(_, text) => Some(text),
            Self::List(_) | Self::Map(_) => None,
        }
    }
}

/// Reads a document. None: it is no YAML, or too large.
pub(super) fn read(text: &str) -> Option<Node> {
    let mut reader = Reader { events: user_data::events(text), anchors: BTreeMap::new(), nodes: 0 };
    loop {
        match reader.next()? {
            Event::StreamEnd => return Some(Node::Plain(String::new())),
            Event::DocumentStart(..) => {
                let first = reader.next()?;
                return if first == Event::DocumentEnd {
                    Some(Node::Plain(String::new()))
                } else {
                    reader.node(first, 0)
                };
            }
            _ => {}
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, (Node, usize)>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<Event<'a>> {
        self.events.next()?.ok().map(|(event, _)| event)
    }

    fn node(&mut self, event: Event<'a>, depth: usize) -> Option<Node> {
        let before = self.nodes;
        self.nodes += 1;
        if depth > DEPTH || self.nodes > NODES {
            return None;
        }
        let (node, anchor) = match event {
            Event::Alias(anchor) => {
                let (node, size) = self.anchors.get(&anchor)?.clone();
                self.nodes += size;
                return (self.nodes <= NODES).then_some(node);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let text = text.into_owned();
                let node = match tag.as_ref().map(|tag| tag.suffix_in_namespace(YAML_TAGS)) {
                    Some(Some(name)) if name == "str" => Node::Text(text),
                    Some(Some(name)) => Node::Tagged(format!("!!{name}"), text),
                    Some(None) => Node::Text(text),
                    // A plain scalar of several lines is a text.
                    None if style == ScalarStyle::Plain && !text.contains('\n') => Node::Plain(text),
                    None => Node::Text(text),
                };
                (node, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut elements = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        event => elements.push(self.node(event, depth + 1)?),
                    }
                }
                (Node::List(elements), anchor)
            }
            Event::MappingStart(_, anchor, _) => (self.mapping(depth)?, anchor),
            _ => return None,
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before));
        }
        Some(node)
    }

    fn mapping(&mut self, depth: usize) -> Option<Node> {
        let (mut entries, mut merged) = (Vec::new(), Vec::new());
        loop {
            let event = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, depth + 1)?;
            let event = self.next()?;
            let value = self.node(event, depth + 1)?;
            match (key, value) {
                (Node::Plain(key), Node::Map(others)) if key == "<<" => merged.extend(others),
                (Node::Plain(key), Node::List(maps)) if key == "<<" => {
                    for map in maps {
                        let Node::Map(others) = map else { return None };
                        merged.extend(others);
                    }
                }
                (key, value) => put(&mut entries, key, value),
            }
        }
        for (key, value) in merged {
            if !entries.iter().any(|(known, _)| known.is_same_key(&key)) {
                entries.push((key, value));
            }
        }
        Some(Node::Map(entries))
    }
}

/// Sets a key of a mapping. As in cloud-init, the last value of a key counts.
fn put(entries: &mut Vec<(Node, Node)>, key: Node, value: Node) {
    match entries.iter_mut().find(|(known, _)| known.is_same_key(&key)) {
        Some((_, current)) => *current = value,
        None => entries.push((key, value)),
    }
}

/// Writes a document.
pub(super) fn write(node: &Node) -> String {
    let mut out = String::new();
    match node {
        Node::List(elements) if !elements.is_empty() => write_list(elements, 0, &mut out),
        Node::Map(entries) if !entries.is_empty() => write_map(entries, 0, &mut out),
        other => write_value(other, 0, &mut out),
    }
    out
}

fn write_map(entries: &[(Node, Node)], indent: usize, out: &mut String) {
    for (key, value) in entries {
        out.push_str(&" ".repeat(indent));
        match key {
            Node::Plain(_) | Node::Text(_) | Node::Tagged(..) => out.push_str(&one_line(key)),
            // A list or a mapping as a key: its flow form is JSON's.
            key => out.push_str(&format!("? {}\n{}", flow(key), " ".repeat(indent))),
        }
        out.push(':');
        match value {
            Node::List(elements) if !elements.is_empty() => {
                out.push('\n');
                write_list(elements, indent + 2, out);
            }
            Node::Map(entries) if !entries.is_empty() => {
                out.push('\n');
                write_map(entries, indent + 2, out);
            }
            value => {
                out.push(' ');
                write_value(value, indent + 2, out);
            }
        }
    }
}

fn write_list(elements: &[Node], indent: usize, out: &mut String) {
    for element in elements {
        let mut inner = String::new();
        match element {
            Node::List(elements) if !elements.is_empty() => write_list(elements, indent + 2, &mut inner),
            Node::Map(entries) if !entries.is_empty() => write_map(entries, indent + 2, &mut inner),
            value => {
                inner.push_str(&" ".repeat(indent + 2));
                write_value(value, indent + 2, &mut inner);
            }
        }
        out.push_str(&" ".repeat(indent));
        out.push_str("- ");
        // The first line follows the dash.
        out.push_str(inner.get(indent + 2..).unwrap_or_default());
    }
}

/// Writes a scalar, or an empty collection, and the end of its line.
fn write_value(node: &Node, indent: usize, out: &mut String) {
    match node {
        Node::Text(text) if is_block(text) => {
            let kept = text.len() - text.trim_end_matches('\n').len();
            out.push_str(match kept {
                0 => "|-\n",
                1 => "|\n",
                _ => "|+\n",
            });
            for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
                if !line.is_empty() {
                    out.push_str(&" ".repeat(indent));
                    out.push_str(line);
                }
                out.push('\n');
            }
        }
        node => {
            out.push_str(&one_line(node));
            out.push('\n');
        }
    }
}

fn one_line(node: &Node) -> String {
    match node {
        Node::Plain(text) if text.is_empty() => "null".to_owned(),
        Node::Plain(text) => text.clone(),
        Node::Text(text) if is_plain(text) => text.clone(),
        Node::Text(text) => quoted(text),
        Node::Tagged(tag, text) => format!("{tag} {}", quoted(text)),
        other => flow(other),
    }
}

fn flow(node: &Node) -> String {
    match node {
        Node::List(elements) => {
            let elements: Vec<String> = elements.iter().map(flow).collect();
            format!("[{}]", elements.join(", "))
        }
        Node::Map(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{}: {}", flow(key), flow(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Node::Text(text) => quoted(text),
        scalar => one_line(scalar),
    }
}

/// Whether a text without quotes is this text in every version of YAML, and as the key of a mapping too.
fn is_plain(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '_'));
    let inner = |c: char| c.is_ascii_alphanumeric() || " _./@%+=,~-()".contains(c);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_colon_within =
            letter == ':' && letters.peek().is_some_and(|next| next.is_ascii_alphanumeric() || *next == '/');
        if !inner(letter) && !is_colon_within {
            return false;
        }
    }
    begins && !text.ends_with(' ') && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// Whether a text of several lines can be written as a block.
fn is_block(text: &str) -> bool {
    let first = text.chars().next().unwrap_or('\n');
    let fits = |c: char| matches!(c, '\n' | '\t') || is_printable(c);
    text.contains('\n') && !matches!(first, ' ' | '\t' | '\n') && text.chars().all(fits)
}

fn is_printable(c: char) -> bool {
    // The others end a line, mark an order of bytes, or are no characters.
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            letter if is_printable(letter) => out.push(letter),
            letter => out.push_str(&format!("\\u{:04X}", u32::from(letter))),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_keep_their_spelling() {
        let text = "a: yes\nb: 0644\nc: 12:30:45\nd: 1_000\ne: \"0644\"\nf: ~\n";
        assert_eq!(write(&read(text).expect("it is YAML")), text);
    }

    #[test]
    fn texts_are_quoted_where_a_parser_could_read_something_else() {
        for text in [
            "yes",
            "No",
            "0644",
            "1.5",
            "",
            " a",
            "a ",
            "a: b",
            "a #b",
            "- a",
            "~",
            "{a",
            "2026-01-01",
            "=",
            "é",
            "a:",
        ] {
            assert_eq!(write(&Node::Text(text.into())), format!("\"{text}\"\n"));
        }
        for text in ["/etc/motd", "echo hello", "http://example.org/a", "ssh-ed25519 AAAA me@host", "root:x"]
        {
            assert_eq!(write(&Node::Text(text.into())), format!("{text}\n"));
        }
    }

    #[test]
    fn aliases_are_replaced_and_cannot_explode() {
        let node = read("a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: 2\n").expect("it is YAML");
        assert_eq!(write(&node), "a:\n  b: 1\nc:\n  b: 1\nd:\n  e: 2\n  b: 1\n");
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..9 {
            let inner = vec![format!("*a{}", i - 1); 10].join(", ");
            bomb += &format!("a{i}: &a{i} [{inner}]\n");
        }
        assert_eq!(read(&bomb), None);
        assert_eq!(read(&"[".repeat(100)), None);
    }

    fn nodes() -> impl proptest::strategy::Strategy<Value = Node> {
        use proptest::prelude::*;
        let text = prop_oneof!["[ -~\n\t]{0,20}", "\\PC{0,8}", "(yes|no|1|0x1f|null|a: b|- c)"];
        let leaf = text.prop_map(Node::Text);
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Node::List),
                proptest::collection::btree_map("[ -~]{1,8}", inner, 0..4).prop_map(|entries| {
                    Node::Map(entries.into_iter().map(|(key, value)| (Node::Text(key), value)).collect())
                }),
            ]
        })
    }

    /// The node with texts only, as [`read`] cannot know whether a plain scalar was a text.
    fn as_text(node: Node) -> Node {
        match node {
            Node::Plain(text) => Node::Text(text),
            Node::List(elements) => Node::List(elements.into_iter().map(as_text).collect()),
            Node::Map(entries) => {
                Node::Map(entries.into_iter().map(|(key, value)| (as_text(key), as_text(value))).collect())
            }
            other => other,
        }
    }

    proptest::proptest! {
        #[test]
        fn a_document_survives_the_round_trip(node in nodes()) {
            let text = write(&node);
            proptest::prop_assert_eq!(read(&text).map(as_text), Some(node), "{}", text);
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = read(&text);
        }
    }
}
