//! Label selectors: `app=web,tier in (front,back),!old,size>4`, parsed with the grammar of Kubernetes.
//!
//! ```text
//! selector    = [ requirement { "," requirement } ]
//! requirement = [ "!" ] KEY | KEY operator VALUE | KEY ( "in" | "notin" ) "(" VALUE { "," VALUE } ")"
//! operator    = "=" | "==" | "!=" | ">" | "<"
//! ```

use crate::meta::names::{label_value, qualified_name};
use crate::schema::quote;

/// The maximum number of requirements of one selector.
const MAX_REQUIREMENTS: usize = 64;

/// The requirement on the value of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl Test {
    /// Whether a label with this value, or `None` for a missing label, is selected.
    pub(super) fn holds(&self, value: Option<&str>) -> bool {
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

fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\r' | '\n')
}

fn is_sign(letter: char) -> bool {
    matches!(letter, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

/// Returns the next token, a word or one of `! = == != < > ( ) ,`, and the rest of the text; the token is empty at
/// the end.
fn lex(text: &str) -> (&str, &str) {
    let text = text.trim_start_matches(is_space);
    let length = match text.as_bytes() {
        [b'=' | b'!', b'=', ..] => 2,
        [first, ..] if is_sign(char::from(*first)) => 1,
        _ => text.find(|letter| is_space(letter) || is_sign(letter)).unwrap_or(text.len()),
    };
    text.split_at(length)
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        lex(self.rest).0
    }

    fn next(&mut self) -> &'a str {
        let (token, rest) = lex(self.rest);
        self.rest = rest;
        token
    }

    /// Returns the next token if it is a word; otherwise the empty word, which a missing value stands for.
    fn word(&mut self) -> &'a str {
        if self.peek().starts_with(is_sign) { "" } else { self.next() }
    }

    fn requirement(&mut self) -> Result<(String, Test), String> {
        let absent = self.peek() == "!";
        if absent {
            self.next();
        }
        let key = self.word();
        check(key, &qualified_name(key))?;
        let test = match self.peek() {
            _ if absent => Test::Absent,
            "" | "," => Test::Exists,
            _ => self.comparison()?,
        };
        Ok((key.to_owned(), test))
    }

    fn comparison(&mut self) -> Result<Test, String> {
        match self.next() {
            "in" => Ok(Test::In(self.values()?)),
            "notin" => Ok(Test::NotIn(self.values()?)),
            "=" | "==" => Ok(Test::In(vec![self.value()?])),
            "!=" => Ok(Test::NotIn(vec![self.value()?])),
            sign @ (">" | "<") => {
                let value = self.value()?;
                let number = value.parse().map_err(|_| format!("{} is not a whole number", quote(&value)))?;
                Ok(if sign == ">" { Test::Greater(number) } else { Test::Less(number) })
            }
            other => Err(unexpected(other)),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        let value = self.word();
        check(value, &label_value(value))?;
        Ok(value.to_owned())
    }

    /// Parses the values in parentheses.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let mut values = Vec::new();
        let mut before = self.next();
        if before != "(" {
            return Err(unexpected(before));
        }
        while before != ")" {
            values.push(self.value()?);
            before = self.next();
            if !matches!(before, "," | ")") {
                return Err(unexpected(before));
            }
        }
        Ok(values)
    }
}

fn check(text: &str, problems: &[String]) -> Result<(), String> {
    if problems.is_empty() { Ok(()) } else { Err(format!("{}: {}", quote(text), problems.join("; "))) }
}

fn unexpected(token: &str) -> String {
    if token.is_empty() { "it ends too early".to_owned() } else { format!("{} is unexpected", quote(token)) }
}

/// Parses the requirements by label.
pub(super) fn parse(text: &str) -> Result<Vec<(String, Test)>, String> {
    let mut parser = Parser { rest: text };
    let mut requirements = Vec::new();
    let mut more = !parser.peek().is_empty();
    while more {
        let requirement = parser.requirement();
        requirements
            .push(requirement.map_err(|why| format!("invalid label selector {}: {why}", quote(text)))?);
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(format!("a selector has at most {MAX_REQUIREMENTS} requirements"));
        }
        more = match parser.next() {
            "" => false,
            "," => true,
            other => return Err(format!("invalid label selector {}: {}", quote(text), unexpected(other))),
        };
    }
    Ok(requirements)
}

#[cfg(test)]
mod tests;
