//! The JSONPath subset of CRDs: `.spec.size`, `.metadata.labels['a.b/c']`, `.list[0]`,
//! `.status.conditions[?(@.type=="Ready")].status`.

use serde_json::Value;

const MAX_LENGTH: usize = 4 * 1024;
const MAX_STEPS: usize = 64;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Member(String),
    Index(i64),
    All,
    /// The items in which a path has this value, or another one.
    Filter(Vec<Step>, Value, bool),
}

impl JsonPath {
    /// # Errors
    /// The path is outside the subset.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err("path is too long".to_owned());
        }
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let mut parser = Parser { rest: text.strip_prefix('$').unwrap_or(text), nested: false };
        let steps = parser.steps()?;
        if !parser.rest.is_empty() {
            return Err(format!("unexpected {:?} in path {text:?}", parser.rest));
        }
        Ok(Self { steps })
    }

    /// Returns the first value at the path.
    pub(crate) fn first<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        find(&self.steps, object)
    }
}

fn find<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    match step {
        Step::Member(name) => find(rest, value.get(name)?),
        Step::Index(at) => {
            let items = value.as_array()?;
            let at = if *at < 0 { i64::try_from(items.len()).ok()? + at } else { *at };
            find(rest, items.get(usize::try_from(at).ok()?)?)
        }
        Step::All => match value {
            Value::Array(items) => items.iter().find_map(|v| find(rest, v)),
            Value::Object(map) => map.values().find_map(|v| find(rest, v)),
            _ => None,
        },
        Step::Filter(of, wanted, equal) => {
            let holds = |item: &&Value| find(of, item).is_some_and(|found| (found == wanted) == *equal);
            value.as_array()?.iter().filter(holds).find_map(|v| find(rest, v))
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    nested: bool,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn steps(&mut self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            if steps.len() > MAX_STEPS {
                return Err("path has too many steps".to_owned());
            }
            if self.rest.starts_with("..") {
                return Err("recursive descent is not supported".to_owned());
            }
            if self.eat(".") {
                // `.[0]` and a lone `.` have no effect.
                if self.rest.is_empty() || self.rest.starts_with('[') {
                    continue;
                }
                steps.push(self.member()?);
            } else if self.eat("[") {
                steps.push(self.bracket()?);
            } else if steps.is_empty() && self.rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                steps.push(self.member()?);
            } else {
                return Ok(steps);
            }
        }
    }

    /// Parses a name; a backslash escapes the next character.
    fn member(&mut self) -> Result<Step, String> {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                '.' | '[' => {
                    end = at;
                    break;
                }
                c if self.nested && (c.is_whitespace() || "=!<>)".contains(c)) => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        match name.as_str() {
            "" => Err("empty name in path".to_owned()),
            "*" => Ok(Step::All),
            _ => Ok(Step::Member(name)),
        }
    }

    fn bracket(&mut self) -> Result<Step, String> {
        if self.eat("?(") {
            if self.nested {
                return Err("filters do not nest".to_owned());
            }
            return self.filter();
        }
        if self.rest.starts_with(['\'', '"']) {
            let name = self.quoted()?;
            return if self.eat("]") { Ok(Step::Member(name)) } else { Err("expected ]".to_owned()) };
        }
        let (inside, rest) = self.rest.split_once(']').ok_or("unterminated [")?;
        self.rest = rest;
        match inside.trim() {
            "*" => Ok(Step::All),
            number => number.parse().map(Step::Index).map_err(|_| format!("invalid array index {number}")),
        }
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut chars = self.rest.char_indices();
        let quote = chars.next().map(|(_, c)| c);
        let mut out = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => out.extend(chars.next().map(|(_, c)| c)),
                c if Some(c) == quote => {
                    self.rest = &self.rest[at + c.len_utf8()..];
                    return Ok(out);
                }
                c => out.push(c),
            }
        }
        Err("unterminated string".to_owned())
    }

    fn filter(&mut self) -> Result<Step, String> {
        self.rest = self.rest.trim_start();
        if !self.eat("@") {
            return Err("a filter must begin with @".to_owned());
        }
        self.nested = true;
        let of = self.steps()?;
        self.nested = false;
        self.rest = self.rest.trim_start();
        let equal = self.eat("==");
        if !equal && !self.eat("!=") {
            return Err("a filter must compare with == or !=".to_owned());
        }
        let wanted = self.literal()?;
        self.rest = self.rest.trim_start();
        if self.eat(")]") { Ok(Step::Filter(of, wanted, equal)) } else { Err("expected )]".to_owned()) }
    }

    fn literal(&mut self) -> Result<Value, String> {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(['\'', '"']) {
            return self.quoted().map(Value::String);
        }
        let end = self.rest.find(')').ok_or("unterminated filter")?;
        let text = self.rest[..end].trim();
        self.rest = &self.rest[end..];
        serde_json::from_str(text).map_err(|_| format!("invalid literal {text}"))
    }
}
