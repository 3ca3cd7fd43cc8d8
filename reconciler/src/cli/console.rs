//! Options of the commands about a VM's consoles.

use std::path::PathBuf;

use clap::Args;

use super::{Connection, StateDir};

/// `berth console`
#[derive(Args, Debug)]
pub struct ConsoleOptions {
    /// The number of the serial port.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub port: u8,
    #[command(flatten)]
    pub target: ConsoleTarget,
}

/// `berth logs`
#[derive(Args, Debug)]
pub struct LogsOptions {
    /// Prints what the guest writes from then on, until it stops running.
    #[arg(short, long)]
    pub follow: bool,
    /// The number of the serial port.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub port: u8,
    #[command(flatten)]
    pub target: ConsoleTarget,
}

/// `berth vnc`
#[derive(Args, Debug)]
pub struct VncOptions {
    /// The port of 127.0.0.1 for the viewer. Default: a free one.
    #[arg(short, long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    #[command(flatten)]
    pub target: ConsoleTarget,
}

/// `berth screenshot`
#[derive(Args, Debug)]
pub struct ScreenshotOptions {
    /// The file to write; `-` for the standard output. Default: the VM's name with `.png`.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub target: ConsoleTarget,
}

/// The VM whose console is meant.
#[derive(Args, Clone, Debug)]
pub struct ConsoleTarget {
    /// The VM's name.
    pub vm: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}
