//! The modules that a source file declares and the paths that it uses, without code that is compiled only for tests.

use crate::tokens::{Token, tokens};

/// One module, as far as it is written in one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Modules in files of their own: `mod a;`.
    pub(crate) declared: Vec<String>,
    /// Modules in this file: `mod a { … }`.
    pub(crate) inline: Vec<(String, Scope)>,
    /// The names that `use` imports, with their paths.
    pub(crate) imports: Vec<Import>,
    /// All other paths of two segments or more.
    pub(crate) paths: Vec<Vec<String>>,
}

/// One leaf of a `use` tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The imported name; `*` for a glob import.
    pub(crate) name: String,
    pub(crate) path: Vec<String>,
}

/// The keywords that an item begins with: commas within it do not end it.
const ITEMS: [&str; 16] = [
    "pub",
    "fn",
    "mod",
    "use",
    "struct",
    "enum",
    "union",
    "impl",
    "trait",
    "type",
    "const",
    "static",
    "unsafe",
    "async",
    "extern",
    "macro_rules",
];

pub(crate) fn parse(source: &str) -> Scope {
    scope(&tokens(source))
}

fn scope(tokens: &[Token]) -> Scope {
    let mut found = Scope::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let rest = &tokens[at..];
        at += if let Some(length) = attribute(rest)
            && is_left_out(&rest[..length])
        {
            length + item(&rest[length..])
        } else if token.is("mod")
            && let Some(name) = rest.get(1).and_then(Token::word)
        {
            module(&mut found, name, rest)
        } else if token.is("use") {
            let length = rest.iter().position(|token| token.is(";")).unwrap_or(rest.len());
            tree(&mut found.imports, &[], &rest[1..length]);
            length
        } else if token.word().is_some() && rest.get(1).is_some_and(|next| next.is("::")) {
            let (path, length) = path(rest);
            // A path that begins with `::` names another crate.
            if path.len() > 1 && !at.checked_sub(1).is_some_and(|before| tokens[before].is("::")) {
                found.paths.push(path);
            }
            length
        } else {
            1
        };
    }
    found
}

/// Parses `mod name;` or `mod name { … }` and returns its length.
fn module(found: &mut Scope, name: &str, rest: &[Token]) -> usize {
    match rest.get(2) {
        Some(next) if next.is("{") => {
            let length = group(&rest[2..]);
            let end = (1 + length).max(3);
            found.inline.push((name.to_owned(), scope(&rest[3..end])));
            2 + length
        }
        Some(next) if next.is(";") => {
            found.declared.push(name.to_owned());
            3
        }
        _ => 1,
    }
}

/// The segments of the path at the start of the tokens, and its length in tokens.
fn path(tokens: &[Token]) -> (Vec<String>, usize) {
    let mut segments = Vec::new();
    let mut at = 0;
    while let Some(word) = tokens.get(at).and_then(Token::word) {
        segments.push(word.to_owned());
        at += 1;
        if !tokens.get(at).is_some_and(|token| token.is("::")) {
            break;
        }
        at += 1;
    }
    (segments, at)
}

/// Adds the leaves of a `use` tree.
fn tree(imports: &mut Vec<Import>, prefix: &[String], tokens: &[Token]) {
    // A path from the outermost namespace names another crate, not a module of ours.
    if prefix.is_empty() && tokens.first().is_some_and(|token| token.is("::")) {
        return;
    }
    let (segments, length) = path(tokens);
    let mut whole = prefix.to_vec();
    whole.extend(segments);
    match tokens.get(length) {
        Some(token) if token.is("{") => {
            let inner = tokens.get(length + 1..length + group(&tokens[length..]) - 1).unwrap_or_default();
            for branch in branches(inner) {
                tree(imports, &whole, branch);
            }
        }
        Some(token) if token.is("*") => imports.push(Import { name: "*".to_owned(), path: whole }),
        rest => {
            // `a::{self}` is `a`.
            if whole.len() > 1 && whole.last().is_some_and(|last| last == "self") {
                whole.pop();
            }
            let renamed = rest.filter(|token| token.is("as")).and_then(|_| tokens.get(length + 1)?.word());
            let name = renamed.or(whole.last().map(String::as_str)).map(str::to_owned);
            imports.extend(name.map(|name| Import { name, path: whole }));
        }
    }
}

/// The parts between the commas outside of groups.
fn branches(tokens: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0;
    let split = tokens.split(|token| {
        depth += i32::from(token.is("{")) - i32::from(token.is("}"));
        depth == 0 && token.is(",")
    });
    split.filter(|branch| !branch.is_empty()).collect()
}

/// The length of the attribute at the start of the tokens, if there is one.
fn attribute(tokens: &[Token]) -> Option<usize> {
    let [hash, bracket, ..] = tokens else { return None };
    (hash.is("#") && bracket.is("[")).then(|| 1 + group(&tokens[1..]))
}

/// `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, …))]`, and `#[path = …]`: a file that is shared with the tests of other crates.
fn is_left_out(attribute: &[Token]) -> bool {
    let starts = |words: &[&str]| {
        attribute.len() >= words.len() && attribute.iter().zip(words).all(|(token, word)| token.is(word))
    };
    starts(&["#", "[", "test", "]"])
        || starts(&["#", "[", "cfg", "(", "test", ")"])
        || starts(&["#", "[", "cfg", "(", "all", "(", "test"])
        || starts(&["#", "[", "path", "="])
}

/// The length of the item, field or arm at the start of the tokens, including further attributes.
fn item(tokens: &[Token]) -> usize {
    let mut at = 0;
    while let Some(length) = attribute(&tokens[at..]) {
        at += length;
    }
    let is_item = tokens.get(at).and_then(Token::word).is_some_and(|word| ITEMS.contains(&word));
    // The braces of a `use` tree do not end it.
    let is_use = tokens[at..].iter().take(5).any(|token| token.is("use"));
    while let Some(token) = tokens.get(at) {
        match token {
            token if token.is(";") || token.is(",") && !is_item => return at + 1,
            // The closing brace of the enclosing block.
            token if token.is("}") => return at,
            token if token.is("{") && !is_use => return at + group(&tokens[at..]),
            token if ["(", "[", "{"].iter().any(|open| token.is(open)) => at += group(&tokens[at..]),
            _ => at += 1,
        }
    }
    at
}

/// The length of the bracketed group at the start of the tokens.
fn group(tokens: &[Token]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(source: &str) -> Vec<(String, String)> {
        parse(source).imports.into_iter().map(|import| (import.name, import.path.join("::"))).collect()
    }

    fn paths(source: &str) -> Vec<String> {
        parse(source).paths.iter().map(|path| path.join("::")).collect()
    }

    fn pair(name: &str, path: &str) -> (String, String) {
        (name.to_owned(), path.to_owned())
    }

    #[test]
    fn a_use_tree_is_all_of_its_leaves() {
        let source =
            "pub(crate) use crate::{a::{self, B, c::{D as E, F as _}}, super::g::*}; use h; use ::i::J;";
        assert_eq!(
            imports(source),
            [
                pair("a", "crate::a"),
                pair("B", "crate::a::B"),
                pair("E", "crate::a::c::D"),
                pair("_", "crate::a::c::F"),
                pair("*", "crate::super::g"),
                pair("h", "h"),
            ]
        );
    }

    #[test]
    fn paths_are_taken_from_code_of_any_kind() {
        let source = "fn f(a: super::super::A) -> crate::b::C<D> { e::<F>(); g::h::<crate::I>(&::std::mem::take); }
                      /// [crate::j] \n #[serde(with = \"crate::k\")] const L: &str = \"crate::m\"; // crate::n";
        assert_eq!(paths(source), ["super::super::A", "crate::b::C", "g::h", "crate::I"]);
    }

    #[test]
    fn modules_are_in_their_own_file_or_in_this_one() {
        let scope =
            parse("mod a; pub mod b { mod c; use super::a::D; mod e { use super::super::F; } } mod g;");
        assert_eq!(scope.declared, ["a", "g"]);
        let (name, b) = &scope.inline[0];
        assert_eq!((name.as_str(), b.declared.as_slice()), ("b", ["c".to_owned()].as_slice()));
        assert_eq!(b.imports[0].path, ["super", "a", "D"]);
        assert_eq!(b.inline[0].1.imports[0].path, ["super", "super", "F"]);
        assert!(scope.imports.is_empty());
    }

    #[test]
    fn what_is_compiled_for_tests_only_and_files_of_other_crates_are_left_out() {
        let source =
            "#[path = \"../../../y.rs\"] mod shared; #[cfg(test)] mod tests; #[cfg(test)] #[path = \"x.rs\"] pub(crate) mod other { use crate::a; }
                      #[cfg(all(test, unix))] use crate::{b, c}; #[test] fn d() -> crate::E { crate::f() }
                      struct G { #[cfg(test)] h: crate::I, j: crate::K } #[cfg(unix)] mod l;";
        let scope = parse(source);
        assert_eq!(scope.declared, ["l"]);
        assert!(scope.inline.is_empty() && scope.imports.is_empty());
        assert_eq!(paths(source), ["crate::K"]);
    }
}
