//! berth as a service of systemd: the text of its units. Pure.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::bail;

/// The names of the units with their texts, in which `@NAME@` stands for a value.
const UNITS: [(&str, &str); 3] = [
    ("berth-machines.service", include_str!("service/berth-machines.service")),
    ("berth.service", include_str!("service/berth.service")),
    ("berth-guests.service", include_str!("service/berth-guests.service")),
];
/// The time beside that for guests after which systemd ends the command that stops them.
const BESIDE_GUESTS: Duration = Duration::from_secs(60);
/// systemd gives a shutdown half an hour in all.
const LONGEST: Duration = Duration::from_secs(25 * 60);

/// The greatest number of variables of the environment, and the length in bytes of the longest value.
const MOST_VARIABLES: usize = 64;
const LONGEST_VALUE: usize = 4096;

/// The program and options that the units run.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// This program.
    pub(crate) program: PathBuf,
    /// `up` or `host`.
    pub(crate) role: &'static str,
    /// The options of the role.
    pub(crate) arguments: Vec<String>,
    /// Variables of its environment: names and values.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) state_dir: PathBuf,
    /// How long guests have before the machine is shut down.
    pub(crate) timeout: Duration,
    /// Whether guests are suspended then.
    pub(crate) suspend: bool,
}

/// A unit of systemd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

/// Returns the units.
///
/// *Errors:* a value that has no place in a unit: a path that is not absolute, a control character, a secret; a variable that is given
/// twice; a time that is too long.
pub(crate) fn units(service: &Service) -> anyhow::Result<Vec<Unit>> {
    if service.timeout > LONGEST {
        bail!(
            "--timeout: systemd ends a shutdown after 30 minutes: give guests at most {} minutes",
            LONGEST.as_secs() / 60
        );
    }
    if service.arguments.iter().any(|argument| argument == "--join" || argument.starts_with("--join=")) {
        bail!(
            "--join: units are readable by every user, and a join string is needed once. Run `berth host --join …` until the host has \
             joined, end it with Ctrl-C, and install the service without it"
        );
    }
    let state_dir = path(&service.state_dir)?;
    let mut arguments = vec![service.role.to_owned(), "--state-dir".to_owned(), state_dir.clone()];
    for argument in &service.arguments {
        arguments.push(quoted(argument)?);
    }
    let values = [
        ("@BERTH@", path(&service.program)?),
        ("@ROLE@", service.role.to_owned()),
        ("@ENVIRONMENT@", environment(&service.environment)?),
        ("@ARGUMENTS@", arguments.join(" ")),
        ("@STATE_DIR_OPTION@", format!("--state-dir {state_dir}")),
        ("@STATE_DIR@", state_dir),
        ("@TIMEOUT@", service.timeout.as_secs().to_string()),
        ("@TIMEOUT_STOP@", (service.timeout + BESIDE_GUESTS).as_secs().to_string()),
        ("@SUSPEND@", if service.suspend { " --suspend" } else { "" }.to_owned()),
    ];
    let unit = |&(name, template): &(&'static str, &str)| Unit { name, text: filled(template, &values) };
    Ok(UNITS.iter().map(unit).collect())
}

/// Replaces each name by its value. Values are not searched for names.
fn filled(template: &str, values: &[(&str, String)]) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('@') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        match values.iter().find(|(name, _)| rest.starts_with(*name)) {
            Some((name, value)) => {
                text.push_str(value);
                rest = &rest[name.len()..];
            }
            None => {
                text.push('@');
                rest = &rest[1..];
            }
        }
    }
    text + rest
}

/// Checks the variables of an environment.
///
/// *Errors:* too many of them, one that is given twice, a name or a value that a variable cannot have.
pub(crate) fn check_variables(variables: &[(String, String)]) -> anyhow::Result<()> {
    if variables.len() > MOST_VARIABLES {
        bail!("--env: at most {MOST_VARIABLES} variables, and not {}", variables.len());
    }
    let mut names = BTreeSet::new();
    for (name, value) in variables {
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_name =
            begins && name.len() <= 128 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            bail!(
                "--env: {name:?} is not the name of a variable: use letters, digits and _, at most 128, and no digit at the beginning"
            );
        }
        if value.len() > LONGEST_VALUE || value.chars().any(char::is_control) {
            bail!("--env {name}: a value has at most {LONGEST_VALUE} bytes and no control characters");
        }
        if !names.insert(name) {
            bail!("--env {name}: given twice");
        }
    }
    Ok(())
}

/// Returns the lines with the variables of the environment.
fn environment(variables: &[(String, String)]) -> anyhow::Result<String> {
    check_variables(variables)?;
    let mut lines = String::new();
    for (name, value) in variables {
        if name == "BERTH_JOIN" {
            bail!(
                "--env {name}: units are readable by every user. Join once with `berth host --join …`, and install the service without it"
            );
        }
        // Within quotes systemd replaces % and reads \ as the begin of a character; $ stands for itself, other than in a command.
        let value = value.replace('%', "%%").replace('\\', "\\\\").replace('"', "\\\"");
        // Writing into a String cannot fail.
        let _ = writeln!(lines, "Environment=\"{name}={value}\"");
    }
    Ok(lines)
}

fn path(path: &Path) -> anyhow::Result<String> {
    let Some(text) = path.to_str().filter(|_| path.is_absolute()) else {
        bail!("{}: a unit of systemd needs an absolute path in UTF-8", path.display());
    };
    quoted(text)
}

/// Returns an argument as a command line in a unit has it.
fn quoted(argument: &str) -> anyhow::Result<String> {
    if argument.chars().any(char::is_control) {
        bail!("{argument:?}: a unit of systemd has no control characters");
    }
    // % and $ are replaced by systemd also in quotes.
    let escaped = argument.replace('%', "%%").replace('$', "$$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%$[]".contains(c);
    if !argument.is_empty() && escaped.chars().all(is_plain) {
        return Ok(escaped);
    }
    Ok(format!("\"{}\"", escaped.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests;
