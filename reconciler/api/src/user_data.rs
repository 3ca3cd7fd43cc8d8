//! Checks user data as cloud-init reads it: an error that cloud-init would ignore, or meet inside a guest without access, is
//! reported before.
//!
//! Errors never quote the text: it may contain secrets.

use saphyr_parser::{Event, Parser, ScanError};

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
    let lower = text.trim_start().to_lowercase();
    match HEADERS.iter().find(|(start, _)| lower.starts_with(start)).map(|(_, format)| *format) {
        Some(Format::Other) => Ok(()),
        Some(format) => yaml(text, format),
        None if is_meant_as_header(&lower) => Err(UserDataError::Header),
        None if has_cloud_config_key(text) => Err(UserDataError::NoHeader),
        None => Ok(()),
    }
}

/// Whether it is a configuration for Ignition, which reads no NoCloud volume.
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

fn has_cloud_config_key(text: &str) -> bool {
    let mut depth = 0_usize;
    let mut key_comes = false;
    for event in Parser::new_from_str(text) {
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
                if key_comes && ONLY_CLOUD_CONFIG.contains(&value.as_ref()) {
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
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| not_yaml(&error))?;
        let line = span.start.line();
        match &event {
            Event::DocumentStart(_) => {
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
        words => words.to_owned(),
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
    fn an_ignition_configuration_is_recognised_by_its_version() {
        assert!(is_ignition("{\"ignition\": {\"version\": \"3.4.0\"}, \"passwd\": {}}\n"));
        for text in
            ["", "#cloud-config\n", "{}", "{\"ignition\": 3}", "ignition:\n  version: 3.4.0\n", "[]", "3"]
        {
            assert!(!is_ignition(text), "{text}");
        }
    }
}
