//! The text that describes a volume group: sections with names, and values.
//!
//! ```text
//!  vg { seqno = 3  status = ["READ", "WRITE"]  logical_volumes { root { … } } }
//! ```
//!
//! *Guarantees*: the depth and the number of values are limited.

use super::damaged;
use crate::error::Result;

/// The deepest section: those of LVM have four levels.
const DEEPEST: usize = 8;
/// The limit of values and sections.
const MOST_VALUES: usize = 512 << 10;

/// A value, or a section.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Number(u64),
    /// A string, or a number that is not one of 64 bits.
    Text(String),
    List(Vec<Value>),
    Section(Section),
}

/// Values by their names, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Section(Vec<(String, Value)>);

impl Section {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(super) fn number(&self, name: &str) -> Result<u64> {
        match self.get(name) {
            Some(Value::Number(number)) => Ok(*number),
            _ => Err(damaged(format!("there is no number {name}"))),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(damaged(format!("there is no text {name}"))),
        }
    }

    /// Returns a list; without one, an empty one.
    pub(super) fn list(&self, name: &str) -> &[Value] {
        match self.get(name) {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }

    pub(super) fn section(&self, name: &str) -> Option<&Self> {
        match self.get(name) {
            Some(Value::Section(section)) => Some(section),
            _ => None,
        }
    }

    /// Returns the sections in it with their names.
    pub(super) fn sections(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.0.iter().filter_map(|(name, value)| match value {
            Value::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }

    /// Returns the sections in it with their names.
    pub(super) fn into_sections(self) -> impl Iterator<Item = (String, Self)> {
        self.0.into_iter().filter_map(|(name, value)| match value {
            Value::Section(section) => Some((name, section)),
            _ => None,
        })
    }
}

/// Reads a text, up to its end or a zero byte.
pub(super) fn parse(text: &[u8]) -> Result<Section> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Parser { rest: &text[..end], values: 0 }.section(0)
}

struct Parser<'a> {
    rest: &'a [u8],
    values: usize,
}

impl Parser<'_> {
    /// Returns the next byte that is neither space nor in a comment.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.rest.first()? {
                b'#' => {
                    let end = self.rest.iter().position(|byte| *byte == b'\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                byte if byte.is_ascii_whitespace() => self.rest = &self.rest[1..],
                byte => return Some(*byte),
            }
        }
    }

    /// Skips this byte, if it is the next one.
    fn skips(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    fn wrong<T>(&self) -> Result<T> {
        let next = String::from_utf8_lossy(&self.rest[..self.rest.len().min(20)]);
        Err(damaged(format!("the text of a volume group has {next:?} where it cannot be")))
    }

    /// Counts a value at this depth.
    fn count(&mut self, depth: usize) -> Result<()> {
        self.values += 1;
        if depth > DEEPEST || self.values > MOST_VALUES {
            return Err(damaged("the text of a volume group has too many values, or too many levels"));
        }
        Ok(())
    }

    /// Reads what is in a section, with its end. The outermost one ends with the text.
    fn section(&mut self, depth: usize) -> Result<Section> {
        let mut found = Vec::new();
        loop {
            match self.peek() {
                None if depth == 0 => return Ok(Section(found)),
                Some(b'}') if depth > 0 => {
                    self.skips(b'}');
                    return Ok(Section(found));
                }
                _ => {}
            }
            self.count(depth)?;
            let name = self.word()?;
            let value = if self.skips(b'{') {
                Value::Section(self.section(depth + 1)?)
            } else if self.skips(b'=') {
                self.value(depth + 1)?
            } else {
                return self.wrong();
            };
            found.push((name, value));
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        match self.peek() {
            Some(b'"') => self.string().map(Value::Text),
            Some(b'[') => self.list(depth).map(Value::List),
            _ => {
                let word = self.word()?;
                Ok(word.parse().map_or(Value::Text(word), Value::Number))
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Value>> {
        let mut list = Vec::new();
        self.skips(b'[');
        while !self.skips(b']') {
            self.count(depth)?;
            list.push(self.value(depth + 1)?);
            if !self.skips(b',') && self.peek() != Some(b']') {
                return self.wrong();
            }
        }
        Ok(list)
    }

    /// Reads a name or a number.
    fn word(&mut self) -> Result<String> {
        self.peek();
        let length = self.rest.iter().take_while(|byte| is_in_word(**byte)).count();
        if length == 0 {
            return self.wrong();
        }
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(String::from_utf8_lossy(word).into_owned())
    }

    /// Reads a string, in which a backslash is before quotes and backslashes.
    fn string(&mut self) -> Result<String> {
        let (mut found, mut is_escaped) = (Vec::new(), false);
        for (at, byte) in self.rest.iter().enumerate().skip(1) {
            match byte {
                b'\\' if !is_escaped => is_escaped = true,
                b'"' if !is_escaped => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(String::from_utf8_lossy(&found).into_owned());
                }
                byte => {
                    found.push(*byte);
                    is_escaped = false;
                }
            }
        }
        self.wrong()
    }
}

fn is_in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._+-".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_values_and_comments_are_read() {
        let text = b"vg {\n\tid = \"a\\\"b\"\t# with a quote }\n\tseqno = 3\n\tcost = -1\n\tstatus = [\"READ\", 7]\n\tnone = []\n\troot {\n\t\tsize=1\n\t}\n}\n# end\n\0more {";
        let root = parse(text).expect("a text");
        let (name, vg) = root.into_sections().next().expect("a section");
        assert_eq!((name.as_str(), vg.text("id").expect("text")), ("vg", "a\"b"));
        assert_eq!((vg.number("seqno").expect("a number"), vg.text("cost").expect("text")), (3, "-1"));
        assert_eq!(vg.list("status"), [Value::Text("READ".to_owned()), Value::Number(7)]);
        assert!(vg.list("none").is_empty() && vg.list("absent").is_empty());
        assert_eq!(vg.sections().map(|(name, _)| name).collect::<Vec<_>>(), ["root"]);
        assert_eq!(vg.section("root").and_then(|root| root.number("size").ok()), Some(1));
        assert!(vg.number("id").is_err() && vg.text("seqno").is_err());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["vg", "vg {", "vg = ", "vg = [1 2]", "vg = \"open", "}", "vg = {}", "= 1", "a = [1,", "vg ( }"]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse("a { ".repeat(10_000).as_bytes()).is_err(), "the depth is limited");
        assert!(parse(format!("a = {}", "[".repeat(10_000)).as_bytes()).is_err(), "the depth is limited");
        assert!(parse(b"a = [1] b = 2 c {}").is_ok());
    }
}
