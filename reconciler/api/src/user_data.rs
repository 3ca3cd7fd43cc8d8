//! Checks user data as cloud-init reads it: an error that cloud-init would ignore, or meet inside a guest without access, is
//! reported before.
//!
//! Errors never quote the text: it may contain secrets.

mod encoding;

use std::collections::BTreeMap;

pub use encoding::{MAX_DECODED, decoded};
use granit_parser::{Event, Parser, ScalarStyle, ScanError, StrInput};

/// An error in user data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserDataError {
    /// It is no YAML.
    #[error("the cloud-config is not YAML: line {line}, column {column}: {reason}")]
    NotYaml {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// The parser's words.
        reason: String,
    },
    /// It is YAML, but not what this kind must be.
    #[error("the cloud-config is {found} at line {line}, and must be {wanted}")]
    Mismatch {
        /// From 1.
        line: usize,
        /// The text found.
        found: &'static str,
        /// The text required.
        wanted: &'static str,
    },
    /// A second YAML document.
    #[error("the cloud-config has a second document at line {line}, and must have one only")]
    SecondDocument {
        /// From 1.
        line: usize,
    },
    /// A first line that resembles `#cloud-config` and differs from it.
    #[error(
        "the first line is not exactly \"#cloud-config\", so that cloud-init would ignore all of it silently"
    )]
    Header,
    /// A cloud-config without its first line.
    #[error(
        "this reads as a cloud-config without its first line \"#cloud-config\", so that cloud-init would ignore all of it \
         silently"
    )]
    NoHeader,
    /// A key that a mapping has twice.
    #[error(
        "the cloud-config has a key at line {line} that line {first} has too: cloud-init would ignore the first silently"
    )]
    RepeatedKey {
        /// The line of the first one, from 1.
        first: usize,
        /// The line of the second one.
        line: usize,
    },
    /// Compressed data that cannot be decompressed.
    #[error("this is compressed with gzip, and damaged")]
    Damaged,
    /// Compressed data of many bytes.
    #[error("this is compressed with gzip, and has more than 1 MiB without")]
    TooLarge,
    /// Bytes that are no text.
    #[error("this is not text: user data is UTF-8, or compressed with gzip")]
    NoText,
    /// A Butane configuration.
    #[error(
        "this is a Butane configuration, which no guest reads: translate it to Ignition first (\"butane --strict\", or the \
         data source ct_config)"
    )]
    Butane,
    /// An Ignition configuration without a version.
    #[error("this Ignition configuration has no ignition.version, so that no guest would read it")]
    NoIgnitionVersion,
    /// No known header.
    #[error(
        "nothing in a guest reads this: begin it with \"#cloud-config\", with \"#!\" and a program for a script, with a MIME \
         header, or write an Ignition configuration (JSON)"
    )]
    Unknown,
}

/// The headers that cloud-init recognises at the beginning, in any case and after white space. A longer one goes first.
const HEADERS: &[(&str, Format)] = &[
    ("#cloud-config-archive", Format::Archive),
    ("#cloud-config-jsonp", Format::Other),
    ("#cloud-config", Format::CloudConfig),
    ("## template: jinja", Format::Other),
    ("#!", Format::Other),
    ("#include", Format::Other),
    ("#upstart-job", Format::Other),
    ("#part-handler", Format::Other),
    ("#cloud-boothook", Format::Other),
    ("mime-version:", Format::Other),
    ("content-type:", Format::Other),
];

/// Keys that no other format has at its top.
const ONLY_CLOUD_CONFIG: &[&str] = &[
    "bootcmd",
    "chpasswd",
    "cloud_config_modules",
    "cloud_init_modules",
    "package_update",
    "package_upgrade",
    "packages",
    "runcmd",
    "ssh_authorized_keys",
    "ssh_pwauth",
    "write_files",
];

/// The beginnings of scripts for cloudbase-init, in lower case.
const WINDOWS: &[&str] = &["#ps1", "rem cmd", "<powershell>", "<script>"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    CloudConfig,
    Archive,
    /// Not checked.
    Other,
}

/// Checks that cloud-init can read the text. Scripts, MIME archives, includes and templates are not checked, and documents
/// for other programs than cloud-init pass.
pub fn check(text: &str) -> Result<(), UserDataError> {
    let text = &*decoded(text.as_bytes())?;
    let lower = text.trim_start().to_lowercase();
    match HEADERS.iter().find(|(start, _)| lower.starts_with(start)).map(|(_, format)| *format) {
        Some(Format::Other) => Ok(()),
        Some(format) => yaml(text, format),
        None if is_meant_as_header(&lower) => Err(UserDataError::Header),
        None if has_top_key(text, ONLY_CLOUD_CONFIG) => Err(UserDataError::NoHeader),
        None => Ok(()),
    }
}

/// Checks user data that is declared now, and more strictly than [`check`]: a guest of some kind must read it, and every key
/// must count. User data that an earlier version accepted is still passed to its guest.
///
/// # Errors
/// Those of [`check`], and what a guest would ignore.
pub fn check_declared(text: &str) -> Result<(), UserDataError> {
    let text = &*decoded(text.as_bytes())?;
    check(text)?;
    let lower = text.trim_start().to_lowercase();
    match HEADERS.iter().find(|(start, _)| lower.starts_with(start)).map(|(_, format)| *format) {
        Some(Format::Other) => Ok(()),
        Some(_) => repeated_key(text),
        None if lower.is_empty() || WINDOWS.iter().any(|start| lower.starts_with(start)) => Ok(()),
        None if text.trim_start().starts_with('{') => match is_ignition(text) {
            true => Ok(()),
            false if lower.contains("\"ignition\"") => Err(UserDataError::NoIgnitionVersion),
            false => Err(UserDataError::Unknown),
        },
        None => {
            let has = |wanted: &[&str]| has_top_key(text, wanted);
            match (has(&["variant"]), has(&["machine", "apiVersion"])) {
                (true, _) => Err(UserDataError::Butane),
                // Talos reads NoCloud volumes.
                (_, true) => Ok(()),
                _ => Err(UserDataError::Unknown),
            }
        }
    }
}

/// Whether it begins as a known format does.
fn has_header(text: &str) -> bool {
    let lower = text.trim_start().to_lowercase();
    HEADERS.iter().any(|(start, _)| lower.starts_with(start))
}

/// Whether a guest of some kind reads a text that is not encoded.
fn is_read_by_a_guest(text: &str) -> bool {
    let lower = text.trim_start().to_lowercase();
    has_header(text) || is_ignition(text) || WINDOWS.iter().any(|start| lower.starts_with(start))
}

/// Checks a network configuration for cloud-init: a YAML mapping with a version.
///
/// # Errors
/// The problem, in words that quote nothing of the text.
pub fn check_network_config(text: &str) -> Result<(), String> {
    let name = "network configuration";
    check_mapping(text, name)?;
    if has_top_key(text, &["version", "network"]) {
        return Ok(());
    }
    Err(format!("the {name} has no version: begin it with \"version: 2\""))
}

/// Checks meta-data for cloud-init: a YAML mapping of a bounded depth and without aliases, which the host reads.
///
/// # Errors
/// The problem, in words that quote nothing of the text.
pub fn check_meta_data(text: &str) -> Result<(), String> {
    check_mapping(text, "meta-data")?;
    let mut depth = 0_usize;
    for event in events(text) {
        let Ok((event, span)) = event else { return Ok(()) };
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) => depth += 1,
            Event::MappingEnd | Event::SequenceEnd => depth = depth.saturating_sub(1),
            Event::Alias(_) => {
                let line = span.start.line();
                return Err(format!(
                    "the meta-data has an alias at line {line}: write the value again in its place"
                ));
            }
            _ => {}
        }
        if depth > DEEPEST {
            let line = span.start.line();
            return Err(format!("the meta-data is nested deeper than {DEEPEST} levels at line {line}"));
        }
    }
    Ok(())
}

fn check_mapping(text: &str, name: &str) -> Result<(), String> {
    let checked = yaml(text, Format::CloudConfig).and_then(|()| repeated_key(text));
    checked.map_err(|error| error.to_string().replace("the cloud-config", &format!("the {name}")))
}

/// The events of a YAML text, without comments: the parser keeps only so many of them.
pub fn events(text: &str) -> Parser<'_, StrInput<'_>> {
    Parser::new_from_str_with_options(text, granit_parser::options! { emit_comments: false })
}

/// Finds a key that a mapping has twice. A parser error ends the search: [`check`] reports it.
fn repeated_key(text: &str) -> Result<(), UserDataError> {
    // For each open collection: the lines of its keys, unless it is a list, and whether a key comes next.
    let mut open: Vec<(Option<BTreeMap<String, usize>>, bool)> = Vec::new();
    for event in events(text) {
        let Ok((event, span)) = event else { return Ok(()) };
        let line = span.start.line();
        if let Event::MappingEnd | Event::SequenceEnd = event {
            open.pop();
            continue;
        }
        if let Some((Some(keys), is_key)) = open.last_mut() {
            if *is_key && let Event::Scalar(key, style, ..) = &event {
                // `1` and `"1"` are two keys; a mapping may be merged several times.
                let is_number = *style == ScalarStyle::Plain && key.parse::<f64>().is_ok();
                let id = if is_number { format!("number {key}") } else { format!("text {key}") };
                if let Some(first) = keys.insert(id, line)
                    && key.as_ref() != "<<"
                {
                    return Err(UserDataError::RepeatedKey { first, line });
                }
            }
            if is_node(&event) {
                *is_key = !*is_key;
            }
        }
        match event {
            Event::MappingStart(..) => open.push((Some(BTreeMap::new()), true)),
            Event::SequenceStart(..) => open.push((None, false)),
            _ => {}
        }
    }
    Ok(())
}

fn is_node(event: &Event<'_>) -> bool {
    matches!(event, Event::Scalar(..) | Event::Alias(_) | Event::MappingStart(..) | Event::SequenceStart(..))
}

/// A YAML document, without what has no meaning: order of keys, style and comments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Scalar(String),
    List(Vec<Node>),
    Map(BTreeMap<Node, Node>),
}

/// Whether two cloud-configs have the same keys and values, in whatever order, style and with whatever comments. Of two with
/// anchors or tags this is not decided: they are different unless their texts are equal.
pub fn is_same_cloud_config(a: &str, b: &str) -> bool {
    let (Ok(a), Ok(b)) = (decoded(a.as_bytes()), decoded(b.as_bytes())) else { return a == b };
    let (a, b): (&str, &str) = (&a, &b);
    let node = |text: &str| if is_cloud_config(text) { node(text) } else { None };
    a == b || matches!((node(a), node(b)), (Some(a), Some(b)) if a == b)
}

/// The deepest document that is compared or read: a node is dropped by recursion.
const DEEPEST: usize = 64;

fn node(text: &str) -> Option<Node> {
    // For each open collection: whether it is a mapping, and the nodes in it so far.
    let mut open: Vec<(bool, Vec<Node>)> = Vec::new();
    for event in events(text) {
        let (event, _) = event.ok()?;
        if open.len() > DEEPEST {
            return None;
        }
        let done = match event {
            Event::Alias(_) => return None,
            Event::Scalar(_, _, anchor, ref tag) if anchor > 0 || tag.is_some() => return None,
            Event::MappingStart(.., anchor, ref tag) | Event::SequenceStart(.., anchor, ref tag)
                if anchor > 0 || tag.is_some() =>
            {
                return None;
            }
            Event::Scalar(text, style, ..) => scalar(&text, style),
            Event::MappingStart(..) => {
                open.push((true, Vec::new()));
                continue;
            }
            Event::SequenceStart(..) => {
                open.push((false, Vec::new()));
                continue;
            }
            Event::MappingEnd | Event::SequenceEnd => {
                let (is_mapping, nodes) = open.pop()?;
                let pairs =
                    || nodes.chunks_exact(2).map(|pair| Some((pair.first()?.clone(), pair.get(1)?.clone())));
                if is_mapping { Node::Map(pairs().collect::<Option<_>>()?) } else { Node::List(nodes) }
            }
            _ => continue,
        };
        match open.last_mut() {
            Some((_, nodes)) => nodes.push(done),
            None => return Some(done),
        }
    }
    None
}

/// A scalar. Quotes matter only where the text without them is something else than text, in any version of YAML.
fn scalar(text: &str, style: ScalarStyle) -> Node {
    let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let begins_as_text = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_text = begins_as_text && !words.contains(&text.to_lowercase().as_str());
    let is_plain = style == ScalarStyle::Plain && !is_text;
    Node::Scalar(format!("{}{text}", if is_plain { "plain " } else { "text " }))
}

/// Whether it is a plain cloud-config, which cloud-init reads as YAML.
pub fn is_cloud_config(text: &str) -> bool {
    let lower = text.trim_start().to_lowercase();
    let header = HEADERS.iter().find(|(start, _)| lower.starts_with(start));
    header.is_some_and(|(_, format)| *format == Format::CloudConfig)
}

/// Whether it is a configuration for Ignition, which reads no NoCloud volume. It must be decoded.
pub fn is_ignition(text: &str) -> bool {
    let parsed = serde_json::from_str::<serde_json::Value>(text);
    parsed.is_ok_and(|config| config["ignition"]["version"].is_string())
}

fn is_meant_as_header(lower: &str) -> bool {
    let first = lower.lines().next().unwrap_or_default();
    let letters: String =
        first.chars().filter(|c| !matches!(c, '#' | ' ' | '\t' | '-' | '_' | ':')).collect();
    first.starts_with('#') && letters == "cloudconfig"
}

/// Whether a mapping has one of these keys at its top.
pub fn has_top_key(text: &str, wanted: &[&str]) -> bool {
    let mut depth = 0_usize;
    let mut key_comes = false;
    for event in events(text) {
        let Ok((event, _)) = event else { return false };
        let at_top = depth == 1;
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) => {
                // The top one begins with a key, and after one that is a value comes a key.
                key_comes = true;
                depth += 1;
            }
            Event::MappingEnd | Event::SequenceEnd => {
                depth = depth.saturating_sub(1);
                if depth == 1 {
                    key_comes = true;
                }
            }
            Event::Scalar(value, ..) if at_top => {
                if key_comes && wanted.contains(&value.as_ref()) {
                    return true;
                }
                key_comes = !key_comes;
            }
            Event::Alias(_) if at_top => key_comes = !key_comes,
            _ => {}
        }
    }
    false
}

fn yaml(text: &str, format: Format) -> Result<(), UserDataError> {
    let mut documents = 0_usize;
    let mut top_comes = false;
    for event in events(text) {
        let (event, span) = event.map_err(|error| not_yaml(&error))?;
        let line = span.start.line();
        match &event {
            Event::DocumentStart(..) => {
                documents += 1;
                top_comes = true;
                if documents > 1 {
                    return Err(UserDataError::SecondDocument { line });
                }
            }
            _ if top_comes => {
                top_comes = false;
                top(&event, format, line)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn top(event: &Event<'_>, format: Format, line: usize) -> Result<(), UserDataError> {
    let wanted = if format == Format::Archive { "a list" } else { "a mapping of keys to values" };
    let found = match event {
        Event::MappingStart(..) => "a mapping",
        Event::SequenceStart(..) => "a list",
        // Nothing but comments.
        Event::Scalar(value, ..) if value.is_empty() || value.as_ref() == "~" => return Ok(()),
        _ => "plain text",
    };
    let fits = found == if format == Format::Archive { "a list" } else { "a mapping" };
    if fits { Ok(()) } else { Err(UserDataError::Mismatch { line, found, wanted }) }
}

fn not_yaml(error: &ScanError) -> UserDataError {
    let mark = error.marker();
    // Some of the parser's words quote the text.
    let reason = match error.info() {
        quoting if quoting.contains(['\'', '"', '`']) => "it cannot be read here".to_owned(),
        words => words,
    };
    UserDataError::NotYaml { line: mark.line(), column: mark.col() + 1, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        check(text).expect_err("it is refused").to_string()
    }

    #[test]
    fn network_configurations_and_meta_data_are_mappings() {
        let network = |text: &str| check_network_config(text).expect_err("it is refused");
        insta::assert_snapshot!(network("- canary\n"), @"the network configuration is a list at line 1, and must be a mapping of keys to values");
        insta::assert_snapshot!(network("ethernets: {}\n"), @r#"the network configuration has no version: begin it with "version: 2""#);
        assert!(
            network("version: 2\na: b: c\n").starts_with("the network configuration is not YAML: line 2")
        );
        for good in ["version: 2\nethernets: {}\n", "{\"version\": 1}", "network: {version: 2}\n"] {
            assert_eq!(check_network_config(good), Ok(()), "{good}");
        }
        assert_eq!(check_meta_data("role: db\n"), Ok(()));
        let error = check_meta_data("a: 1\na: 2\n").expect_err("a key is there twice");
        assert!(error.starts_with("the meta-data has a key at line 2"), "{error}");
        let meta = |text: &str| check_meta_data(text).expect_err("it is refused");
        insta::assert_snapshot!(meta("a: &x [canary]\nb: *x\n"), @"the meta-data has an alias at line 2: write the value again in its place");
        let nested = |levels: usize| format!("a: {}{}\n", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(check_meta_data(&nested(DEEPEST - 1)), Ok(()));
        assert_eq!(meta(&nested(DEEPEST)), "the meta-data is nested deeper than 64 levels at line 1");
    }

    #[test]
    fn an_error_in_yaml_has_a_line_and_a_column() {
        for (text, place) in [
            ("#cloud-config\nruncmd: [a, b\npackages: []\n", "line 3, column"),
            ("#cloud-config\nusers:\n  - name: a\n   shell: b\n", "line 4, column"),
            ("#cloud-config\na: b: c\n", "line 2, column"),
            ("#cloud-config\na: \"open\n", "line "),
            ("#cloud-config\na: *undefined\n", "line 2, column"),
        ] {
            let message = error(text);
            assert!(
                message.starts_with("the cloud-config is not YAML") && message.contains(place),
                "{text}: {message}"
            );
        }
    }

    #[test]
    fn errors_quote_nothing_of_the_text() {
        for text in [
            "#cloud-config\na: *canary\n",
            "#cloud-config\ncanary: [a\nb: c\n",
            "#cloud-config\n!canary!x a\n",
        ] {
            assert!(!format!("{:?} {}", check(text), error(text)).contains("canary"), "{text}");
        }
    }

    #[test]
    fn a_cloud_config_is_one_mapping() {
        insta::assert_snapshot!(error("#cloud-config\n- a\n"), @"the cloud-config is a list at line 2, and must be a mapping of keys to values");
        insta::assert_snapshot!(error("#cloud-config\nhello\n"), @"the cloud-config is plain text at line 2, and must be a mapping of keys to values");
        insta::assert_snapshot!(error("#cloud-config-archive\na: b\n"), @"the cloud-config is a mapping at line 2, and must be a list");
        insta::assert_snapshot!(error("#cloud-config\na: b\n---\nc: d\n"), @"the cloud-config has a second document at line 3, and must have one only");
    }

    #[test]
    fn a_first_line_that_is_almost_right_is_an_error() {
        for text in ["# cloud-config\na: b\n", "#cloud_config\na: b\n", "#Cloud Config\n", "##cloud-config\n"]
        {
            assert_eq!(check(text), Err(UserDataError::Header), "{text}");
        }
        for text in [
            "packages: [a]\n",
            "a: b\nusers: {packages: c}\nruncmd:\n  - b\n",
            "---\nx: [1, {y: 2}]\nwrite_files: []\n",
        ] {
            assert_eq!(check(text), Err(UserDataError::NoHeader), "{text}");
        }
    }

    #[test]
    fn documents_that_cloud_init_reads_pass() {
        for text in [
            "",
            "#cloud-config\n",
            "#cloud-config\n{}\n",
            "  #Cloud-Config\r\npackages:\r\n  - a\r\n",
            "#cloud-config # comment\n---\na: &x {b: c}\nd: *x\n...\n",
            "#cloud-config\nwrite_files:\n  - content: |\n      a: b: c\n        \"\n    path: /x\n",
            "#cloud-config\n{\"packages\": [\"a\"]}\n",
            "#cloud-config\na: 1\na: 2\n<<: {b: c}\ne: !!binary aGVsbG8=\n",
            "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    a: b\n",
            "#cloud-config-jsonp\n[{\"op\": \"add\"}]",
            "#!/bin/sh\necho : : :\n",
            "#include\nhttp://example.com/a\n",
            "#cloud-boothook\n#!/bin/sh\n",
            "#part-handler\ndef a(): pass\n",
            "## template: jinja\n#cloud-config\na: {{ b }}\n{% if c %}\n",
            "Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\n",
            "{\"ignition\": {\"version\": \"3.4.0\"}}",
            "version: v1alpha1\nmachine:\n  packages: []\nx: packages\n",
            "anything: [at: all",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_declared_now_is_read_by_a_guest_and_every_key_of_it_counts() {
        let twice = check_declared("#cloud-config\na: 1\nb: {c: 1, d: 2, c: 3}\n");
        assert_eq!(twice, Err(UserDataError::RepeatedKey { first: 3, line: 3 }));
        let twice = check_declared("#cloud-config\nruncmd: [a]\nx: {y: [1, {z: 2}]}\n\"runcmd\": [b]\n");
        assert_eq!(twice, Err(UserDataError::RepeatedKey { first: 2, line: 4 }));
        for (text, error) in [
            ("H4sIAAAAAAAA/0rOz0vLTAcEAAD//w==", UserDataError::Damaged),
            ("aGVsbG8=", UserDataError::Unknown),
            ("IyBjbG91ZC1jb25maWcKYTogYgo=", UserDataError::Unknown),
            ("variant: flatcar\nversion: 1.1.0\n", UserDataError::Butane),
            ("{\"ignition\": {}}", UserDataError::NoIgnitionVersion),
            ("{\"a\": 1}", UserDataError::Unknown),
            ("hello", UserDataError::Unknown),
            ("a: b\n", UserDataError::Unknown),
            ("# cloud-config\na: b\n", UserDataError::Header),
        ] {
            assert_eq!(check_declared(text), Err(error), "{text}");
        }
        for text in [
            "",
            "\n",
            "#cloud-config\na: {b: 1}\nc: {b: 1}\nd: [{b: 1}, {b: 2}]\n",
            "#cloud-config\n1: a\n\"1\": b\n<<: {x: 1}\nb: {<<: {}, <<: {}}\n",
            "#cloud-config\n? [a]\n: b\na: &x c\n*x : d\n",
            "#!/bin/sh\na: 1\na: 2\n",
            "## template: jinja\n#cloud-config\na: 1\na: 2\n",
            "#ps1_sysnative\nhello",
            "I2Nsb3VkLWNvbmZpZwpydW5jbWQ6IFtpZF0K",
            "Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\n",
            "{\"ignition\": {\"version\": \"3.4.0\"}}",
            "version: v1alpha1\nmachine:\n  type: worker\n",
        ] {
            assert_eq!(check_declared(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn an_ignition_configuration_is_recognised_by_its_version() {
        assert!(is_ignition("{\"ignition\": {\"version\": \"3.4.0\"}, \"passwd\": {}}\n"));
        for text in
            ["", "#cloud-config\n", "{}", "{\"ignition\": 3}", "ignition:\n  version: 3.4.0\n", "[]", "3"]
        {
            assert!(!is_ignition(text), "{text}");
        }
    }
}
