//! The guests of QEMU processes that neither berth nor libvirt started: a command line becomes a [`Domain`].
//!
//! ```text
//!  text ─▶ words ─▶ options ─▶ hardware, drives (blocks), nics ─▶ Domain
//! ```
//!
//! The command line is foreign: its size and its depth are limited, and nothing in it is run or expanded.

mod blocks;
mod devices;
mod drives;
mod hardware;
mod nics;
mod options;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::domain::Domain;
use super::origin::Origin;
use super::shell::{self, MAX_WORDS, ShellError};
use options::{Argument, Properties, arguments, short};

/// The most bytes of a command line, and of a file with several.
pub const MAX_COMMAND_LINE: usize = 1 << 20;
/// The most notes on a guest.
const MAX_NOTES: usize = 60;
/// The longest name of a guest, in characters.
const MAX_NAME: usize = 200;

/// A command line of QEMU.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The folder that paths are relative to, if it is known.
    pub folder: Option<PathBuf>,
    /// The name of a guest that has none.
    pub name: String,
    /// The process, if it runs.
    pub pid: Option<i32>,
}

/// A regular file of this machine.
#[derive(Clone, Debug)]
pub struct FoundFile {
    /// Its path without links.
    pub path: String,
    /// The format that its data has.
    pub format: &'static str,
    /// Its size, in bytes.
    pub size: u64,
}

/// Looks for a file by its absolute path.
pub type FileFinder<'a> = dyn Fn(&str) -> Option<FoundFile> + 'a;

/// Why a command line is not imported.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// Larger than any command line.
    #[error(
        "it has more than {MAX_COMMAND_LINE} bytes or {MAX_WORDS} words, or too many options, as no command line of a guest has"
    )]
    TooLarge,
    /// No words of a shell.
    #[error(transparent)]
    Shell(#[from] ShellError),
    /// Other programs.
    #[error("it has no command line of QEMU (qemu-system-…, qemu-kvm or kvm)")]
    NotQemu,
    /// An option at the end.
    #[error("its last option \"-{0}\" has no value")]
    NoValue(String),
    /// A value that QEMU would refuse.
    #[error("its option -{option} {value:?} cannot be read")]
    Value {
        /// The option.
        option: String,
        /// The value.
        value: String,
    },
    /// The process receives its guest, or has received it.
    #[error(
        "it has the option -incoming: the guest comes from another process. If it has arrived, write the command line into a file \
         without this option, and import that"
    )]
    Incoming,
    /// A relative path, and no folder.
    #[error(
        "its path {0:?} is relative to the folder of the process, which only root and its own user can read"
    )]
    RelativePath(String),
}

/// The command lines of QEMU in a text: one with NUL after each word, as in `/proc/PID/cmdline`, or lines of a shell.
///
/// # Errors
/// When there is none, or the text cannot be read as such.
pub fn split(text: &str) -> Result<Vec<Vec<String>>, CommandLineError> {
    if text.len() > MAX_COMMAND_LINE {
        return Err(CommandLineError::TooLarge);
    }
    let commands = if text.contains('\0') {
        vec![text.split_terminator('\0').map(str::to_owned).collect()]
    } else {
        shell::commands(text)?
    };
    // Before it may be others: sudo, exec, taskset.
    let of_qemu = |command: Vec<String>| {
        let program = command.iter().position(|word| is_qemu(word))?;
        Some(command.into_iter().skip(program).collect())
    };
    let lines: Vec<Vec<String>> = commands.into_iter().filter_map(of_qemu).collect();
    if lines.is_empty() { Err(CommandLineError::NotQemu) } else { Ok(lines) }
}

/// Reads a command line.
///
/// # Errors
/// When it is none of QEMU's, or of a guest that cannot be imported.
pub fn read(line: &CommandLine, find: &FileFinder<'_>) -> Result<Domain, CommandLineError> {
    let size: usize = line.argv.iter().map(String::len).sum();
    if line.argv.len() > MAX_WORDS || size > MAX_COMMAND_LINE {
        return Err(CommandLineError::TooLarge);
    }
    let (program, words) = line.argv.split_first().ok_or(CommandLineError::NotQemu)?;
    if !is_qemu(program) {
        return Err(CommandLineError::NotQemu);
    }
    let arguments = arguments(words)?;
    let machine = machine(&arguments)?;
    let guest = Guest { program: file_name(program), arguments, machine, line, find };
    if guest.has("incoming") {
        return Err(CommandLineError::Incoming);
    }
    let mut domain = hardware::read(&guest)?;
    drives::add(&guest, &mut domain)?;
    nics::add(&guest, &mut domain)?;
    devices::note(&guest, &mut domain.notes)?;
    let count = domain.notes.len();
    if count > MAX_NOTES {
        domain.notes.truncate(MAX_NOTES);
        domain.notes.push(format!("{} further parts are not taken over", count - MAX_NOTES));
    }
    Ok(domain)
}

/// Removes the MAC addresses that several guests have, as those that QEMU chooses, from all of them but the first.
pub fn make_macs_unique(domains: &mut [Domain]) {
    let mut holders: BTreeMap<String, String> = BTreeMap::new();
    for domain in domains {
        for interface in &mut domain.interfaces {
            let Some(mac) = interface.mac.clone() else { continue };
            if let Some(holder) = holders.get(&mac) {
                let other = if *holder == domain.name { "another card" } else { holder.as_str() };
                domain
                    .notes
                    .push(format!("{mac}: {other} has this MAC address too; in berth it has another"));
                interface.mac = None;
            } else {
                holders.insert(mac, domain.name.clone());
            }
        }
    }
}

/// A command line while it is read.
struct Guest<'a> {
    program: &'a str,
    arguments: Vec<Argument>,
    /// The machine type: `q35`, `pc-i440fx-9.2`. Empty if it is QEMU's default.
    machine: String,
    line: &'a CommandLine,
    find: &'a FileFinder<'a>,
}

impl Guest<'_> {
    fn has(&self, option: &str) -> bool {
        self.arguments.iter().any(|argument| argument.name == option)
    }

    /// The values of an option, in their order.
    fn all<'g>(&'g self, option: &'g str) -> impl Iterator<Item = &'g Argument> {
        self.arguments.iter().filter(move |argument| argument.name == option)
    }

    fn last(&self, option: &str) -> Option<&Argument> {
        self.arguments.iter().rev().find(|argument| argument.name == option)
    }

    /// The properties of all occurrences of an option, which QEMU merges for options without an id.
    fn properties(&self, option: &str, implied: &str) -> Result<Vec<Properties>, CommandLineError> {
        self.all(option).map(|argument| argument.properties(implied)).collect()
    }

    /// The drivers of all devices, with their properties.
    fn devices(&self) -> Result<Vec<(String, Properties)>, CommandLineError> {
        let devices = self.properties("device", "driver")?.into_iter();
        Ok(devices.map(|device| (device.get("driver").unwrap_or_default().to_owned(), device)).collect())
    }

    fn arch(&self) -> &str {
        self.program.strip_prefix("qemu-system-").unwrap_or(std::env::consts::ARCH)
    }

    /// The number of the VM in Proxmox VE, whose QEMU has this option for it.
    fn proxmox_id(&self) -> Option<u32> {
        self.last("id")?.value.parse().ok()
    }

    fn origin(&self) -> Result<Origin, CommandLineError> {
        if let Some(id) = self.proxmox_id() {
            return Ok(Origin::Proxmox(id));
        }
        let mut monitor = None;
        for argument in self.all("monitor") {
            let socket = argument.value.strip_prefix("unix:").and_then(|rest| rest.split(',').next());
            monitor = socket.map(|path| self.absolute(path)).transpose()?.or(monitor);
        }
        Ok(Origin::Process { pid: self.line.pid, monitor })
    }

    /// A path of the process as an absolute one, without `.` and doubled slashes. `..` stays: the folder before it may be a link.
    fn absolute(&self, path: &str) -> Result<String, CommandLineError> {
        let joined = match &self.line.folder {
            _ if path.starts_with('/') => PathBuf::from(path),
            Some(folder) => folder.join(path),
            None => return Err(CommandLineError::RelativePath(short(path))),
        };
        let kept = joined.components().filter(|component| !matches!(component, Component::CurDir));
        Ok(kept.collect::<PathBuf>().to_string_lossy().into_owned())
    }
}

fn machine(arguments: &[Argument]) -> Result<String, CommandLineError> {
    let mut found = String::new();
    for argument in arguments.iter().filter(|argument| matches!(argument.name.as_str(), "machine" | "M")) {
        if let Some(kind) = argument.properties("type")?.get("type") {
            kind.clone_into(&mut found);
        }
    }
    Ok(found)
}

fn file_name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn is_qemu(program: &str) -> bool {
    let name = file_name(program);
    name.starts_with("qemu-system-") || matches!(name, "qemu-kvm" | "kvm")
}
