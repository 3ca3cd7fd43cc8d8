//! The syntax of QEMU's command line: options, and the properties in their values.

use serde_json::Value;

use super::CommandLineError;

/// The most options. A guest with hundreds of devices has fewer.
const MAX_ARGUMENTS: usize = 2_000;
/// The most properties of an option.
const MAX_PROPERTIES: usize = 500;
/// The longest name of a property, with those of all nodes above it: `file.file.filename`.
const MAX_KEY: usize = 200;

/// Options without a value, between spaces.
const FLAGS: &str = "\
    alt-grab async-teardown ctrl-grab curses daemonize enable-kvm enable-sync-profile full-screen h help localtime \
    mem-prealloc no-acpi no-bootp no-fd-bootchk no-frame no-hpet no-kqemu no-kvm no-kvm-irqchip no-kvm-pit \
    no-kvm-pit-reinjection no-quit no-reboot no-shutdown no-user-config nodefaults nodefconfig nographic old-param \
    one-insn-per-tb only-migratable portrait preconfig rtc-td-hack s S sdl semihosting show-cursor singlestep \
    snapshot tdf usb version win2k-hack xen-domid-restrict";

/// An option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Argument {
    /// Without its dashes. A word alone is a disk: `hda`.
    pub(super) name: String,
    /// Empty for an option without one.
    pub(super) value: String,
}

/// The options among the words after the program.
pub(super) fn arguments(words: &[String]) -> Result<Vec<Argument>, CommandLineError> {
    let mut arguments = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        let argument = match name {
            None => Argument { name: "hda".to_owned(), value: word.clone() },
            Some(name) if FLAGS.split(' ').any(|flag| flag == name) => {
                Argument { name: name.to_owned(), value: String::new() }
            }
            Some(name) => {
                let value = rest.next().ok_or_else(|| CommandLineError::NoValue(short(name)))?;
                Argument { name: name.to_owned(), value: value.clone() }
            }
        };
        if arguments.len() == MAX_ARGUMENTS {
            return Err(CommandLineError::TooLarge);
        }
        arguments.push(argument);
    }
    Ok(arguments)
}

impl Argument {
    /// The properties in the value. The first one may have no name: it is the one with this name.
    pub(super) fn properties(&self, implied: &str) -> Result<Properties, CommandLineError> {
        Properties::parse(&self.value, implied).ok_or_else(|| self.unreadable())
    }

    /// The error for a value that QEMU would refuse.
    pub(super) fn unreadable(&self) -> CommandLineError {
        CommandLineError::Value { option: short(&self.name), value: short(&self.value) }
    }
}

/// The properties of an option by their names. Those within a JSON object, or of a node within another, have names with
/// dots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Properties(Vec<(String, String)>);

impl Properties {
    /// None if it is no JSON object, or if there are too many.
    pub(super) fn parse(text: &str, implied: &str) -> Option<Self> {
        let mut properties = Self::default();
        if text.starts_with('{') {
            // serde_json limits the depth.
            properties.flatten("", &serde_json::from_str(text).ok()?)?;
            return Some(properties);
        }
        for (at, part) in split(text).into_iter().enumerate() {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name, value),
                None if at == 0 && !implied.is_empty() => (implied, part.as_str()),
                None => match part.strip_prefix("no") {
                    // The former way to turn a property off: "nowait".
                    Some(name) if !name.is_empty() => (name, "off"),
                    _ => (part.as_str(), "on"),
                },
            };
            properties.add(name, value)?;
        }
        Some(properties)
    }

    fn flatten(&mut self, name: &str, value: &Value) -> Option<()> {
        let within = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        match value {
            Value::Object(entries) => entries.iter().try_for_each(|(key, value)| {
                let key = Some(within(key)).filter(|key| key.len() <= MAX_KEY)?;
                self.flatten(&key, value)
            }),
            Value::Array(elements) => elements
                .iter()
                .enumerate()
                .try_for_each(|(at, value)| self.flatten(&within(&at.to_string()), value)),
            Value::Null => Some(()),
            Value::Bool(is_on) => self.add(name, if *is_on { "on" } else { "off" }),
            Value::Number(number) => self.add(name, &number.to_string()),
            Value::String(text) => self.add(name, text),
        }
    }

    fn add(&mut self, name: &str, value: &str) -> Option<()> {
        if self.0.len() >= MAX_PROPERTIES || name.len() > MAX_KEY {
            return None;
        }
        self.0.push((name.to_owned(), value.to_owned()));
        Some(())
    }

    /// The last value of this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), Some("on" | "yes" | "true" | "y"))
    }

    /// All properties, in their order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether a property's name starts so.
    pub(super) fn has_any(&self, start: &str) -> bool {
        self.0.iter().any(|(name, _)| name.starts_with(start))
    }
}

/// The parts between commas. A doubled comma is one of the text.
fn split(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(c);
        }
    }
    parts.push(part);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The start of a foreign text, for a message.
pub(super) fn short(text: &str) -> String {
    let mut start: String = text.chars().take(60).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(text: &str) -> Vec<(String, String)> {
        Properties::parse(text, "first").expect("it is readable").0
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn options_have_one_or_two_dashes_and_a_word_alone_is_a_disk() {
        let words = ["-nographic", "--name", "-web", "disk.img", "-m", "1G"].map(str::to_owned);
        let found: Vec<(String, String)> = arguments(&words)
            .expect("each has its value")
            .into_iter()
            .map(|Argument { name, value }| (name, value))
            .collect();
        let expected = [("nographic", ""), ("name", "-web"), ("hda", "disk.img"), ("m", "1G")];
        assert_eq!(found, pairs(&expected));
        let error = arguments(&["-m".to_owned()]).expect_err("there is no value").to_string();
        assert!(error.contains("\"-m\""), "{error}");
    }

    #[test]
    fn properties_have_an_implied_name_and_doubled_commas() {
        assert_eq!(
            properties("a,,b,c=d,,,e,server,nowait,node-name=n=1"),
            pairs(&[
                ("first", "a,b"),
                ("c", "d,"),
                ("e", "on"),
                ("server", "on"),
                ("wait", "off"),
                ("node-name", "n=1")
            ])
        );
        assert_eq!(properties("c=d,c=e").len(), 2);
        assert_eq!(Properties::parse("c=d,c=e", "first").expect("readable").get("c"), Some("e"));
    }

    #[test]
    fn json_has_names_with_dots() {
        let text =
            r#"{"driver":"qcow2","file":{"driver":"file","filename":"/a,b"},"read-only":true,"n":[1,null]}"#;
        let expected = [
            ("driver", "qcow2"),
            ("file.driver", "file"),
            ("file.filename", "/a,b"),
            ("read-only", "on"),
            ("n.0", "1"),
        ];
        let (mut found, mut expected) = (properties(text), pairs(&expected));
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn hostile_json_is_refused_at_once() {
        let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        let wide = format!("{{{}\"z\":1}}", (0..600).map(|i| format!("\"a{i}\":1,")).collect::<String>());
        let long = format!("{{\"{0}\":{{\"{0}\":1}}}}", "k".repeat(120));
        for text in [deep.as_str(), &wide, &long, "{", "{}}", "{\"a\" 1}"] {
            assert_eq!(Properties::parse(text, "first"), None, "{}", short(text));
        }
    }
}
