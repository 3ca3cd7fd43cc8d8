//! Where in its source an expression is wrong, shown as cel-go shows it.

/// What is wrong with an expression.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) why: String,
    at: At,
}

/// What stands at the place.
#[derive(Debug, PartialEq, Eq)]
enum At {
    Nowhere,
    Name(String),
    /// The bracket that opens its arguments.
    Call(String),
    /// The dot before it.
    Field(String),
    Operator(String),
}

impl Problem {
    pub(super) fn anywhere(why: impl Into<String>) -> Self {
        Self { why: why.into(), at: At::Nowhere }
    }

    pub(super) fn of_name(name: &str, why: impl Into<String>) -> Self {
        Self { why: why.into(), at: At::Name(name.to_owned()) }
    }

    pub(super) fn of_call(name: &str, why: impl Into<String>) -> Self {
        let operator: String = name.chars().filter(|c| !matches!(c, '_' | '@')).collect();
        let at = match name {
            "@in" => At::Name("in".to_owned()),
            "_?_:_" => At::Operator("?".to_owned()),
            "_[_]" => At::Operator("[".to_owned()),
            _ if operator.chars().all(|c| c.is_ascii_punctuation()) => At::Operator(operator),
            _ => At::Call(name.to_owned()),
        };
        Self { why: why.into(), at }
    }

    pub(super) fn of_field(name: &str, why: impl Into<String>) -> Self {
        Self { why: why.into(), at: At::Field(name.to_owned()) }
    }

    /// The sentence with its line and a mark below the place: the first in the source that can be meant.
    pub(super) fn shown(&self, source: &str) -> String {
        let found = match &self.at {
            At::Nowhere => None,
            At::Name(name) => word(source, name),
            At::Call(name) => {
                word(source, name).and_then(|at| source[at..].find('(').map(|bracket| at + bracket))
            }
            At::Field(name) => words(source, name).find_map(|at| {
                let before = source[..at].trim_end();
                before.ends_with('.').then(|| before.len() - 1)
            }),
            At::Operator(symbol) => code(source).find(|at| source[*at..].starts_with(symbol.as_str())),
        };
        let Some(offset) = found else { return self.why.clone() };
        let start = source[..offset].rfind('\n').map_or(0, |at| at + 1);
        let line = source[start..].lines().next().unwrap_or_default();
        let column = source[start..offset].chars().count();
        let number = source[..start].matches('\n').count() + 1;
        let dots = ".".repeat(column);
        format!("ERROR: <input>:{number}:{}: {}\n | {line}\n | {dots}^", column + 1, self.why)
    }
}

/// Offsets that are in no text.
fn code(source: &str) -> impl Iterator<Item = usize> {
    let mut quote = None;
    let mut escaped = false;
    source.char_indices().filter_map(move |(at, letter)| {
        let inside = quote.is_some();
        match (quote, letter) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), letter) if open == letter => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            _ => {}
        }
        (!inside && quote.is_none()).then_some(at)
    })
}

fn words<'a>(source: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    code(source).filter(move |at| {
        source[*at..].strip_prefix(name).is_some_and(|after| !after.starts_with(part))
            && !source[..*at].ends_with(part)
    })
}

/// A name that is not a field of something.
fn word(source: &str, name: &str) -> Option<usize> {
    let mut all = words(source, name);
    all.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_first_that_can_be_meant() {
        for (problem, source, wanted) in [
            (
                Problem::of_name("thing", "w"),
                "'thing' == thing",
                "ERROR: <input>:1:12: w\n | 'thing' == thing\n | ...........^",
            ),
            (
                Problem::of_field("a", "w"),
                "a + self.ab.a",
                "ERROR: <input>:1:12: w\n | a + self.ab.a\n | ...........^",
            ),
            (Problem::of_call("f", "w"), "x.f(1)", "ERROR: <input>:1:4: w\n | x.f(1)\n | ...^"),
            (Problem::of_call("_+_", "w"), "a\n  + b", "ERROR: <input>:2:3: w\n |   + b\n | ..^"),
            (Problem::of_name("gone", "w"), "x", "w"),
            (Problem::anywhere("w"), "x", "w"),
        ] {
            assert_eq!(problem.shown(source), wanted);
        }
    }
}
