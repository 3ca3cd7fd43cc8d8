//! The options of `berth service`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{StateDir, TimeSpan, time};

/// `berth service`
#[derive(Args, Debug)]
pub struct ServiceOptions {
    /// The action.
    #[command(subcommand)]
    pub action: ServiceAction,
    #[command(flatten)]
    pub state: StateDir,
}

/// Actions on berth as a service of this machine.
#[derive(Debug, Subcommand)]
pub enum ServiceAction {
    /// Prints the units of systemd with which berth runs on this machine.
    Print(UnitOptions),
    /// Writes the units, and prints the commands that start them. Guests that run are not touched.
    Install {
        #[command(flatten)]
        units: UnitOptions,
        /// The folder for the units.
        #[arg(long, default_value = "/etc/systemd/system", value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Has the guests of this machine shut down before the machine is, in the reverse order of their starts, and waits until they are
    /// off. They start again when the machine has booted. systemd runs it.
    StopGuests {
        /// Saves the memory of the guests instead, where that is possible: they go on after the boot.
        #[arg(long)]
        suspend: bool,
        /// How long to wait. Guests that still run then are ended by the shutdown of the machine.
        #[arg(long, default_value = "10m", value_name = "TIME", value_parser = time::time)]
        timeout: TimeSpan,
    },
    /// Starts the guests that stop-guests has stopped, if the machine is not shut down after all.
    StartGuests,
}

/// The program and options that the units run.
#[derive(Args, Clone, Debug)]
pub struct UnitOptions {
    /// Which command runs.
    #[arg(value_enum)]
    pub role: Role,
    /// How long guests have to shut down before the machine does.
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = time::time)]
    pub timeout: TimeSpan,
    /// Has guests suspended before the machine is shut down, where that is possible: they go on after the boot.
    #[arg(long)]
    pub suspend: bool,
    /// A variable of the environment of the command: `--env HTTPS_PROXY=http://proxy:3128`. Can be given several times. Every user can read
    /// it in the unit: give no secret.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub environment: Vec<(String, String)>,
    /// Options of the command, after `--`: `berth service install up -- --listen 0.0.0.0:7443`.
    #[arg(last = true, value_name = "OPTION")]
    pub arguments: Vec<String>,
}

/// Reads a variable of the environment.
pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| format!("{text:?} is not NAME=VALUE"))
}

/// A command that runs all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// `berth up`
    Up,
    /// `berth host`
    Host,
}

impl Role {
    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Host => "host",
        }
    }
}
