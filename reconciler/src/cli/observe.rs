//! The options of `berth why`, `berth top` and `berth doctor`.

use clap::Args;

use super::{Connection, StateDir, TimeSpan, time};

/// `berth why`
#[derive(Args, Debug)]
pub struct WhyOptions {
    /// The object: `vm/web`, `disk/root`, `host/h1`.
    #[arg(value_name = "KIND/NAME")]
    pub object: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// `berth top`
#[derive(Args, Debug)]
pub struct TopOptions {
    /// The address at which the agent of a host serves metrics (its option --metrics). Can be given several times. Default:
    /// this machine's agent, for root.
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',')]
    pub from: Vec<String>,
    /// Shows the VMs of this namespace only.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// The time over which rates are measured.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = interval)]
    pub interval: TimeSpan,
    /// Repeats it until Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
    /// Shows the last hour, of which the agent keeps a reading each minute since its start, instead of the rates of the moment.
    #[arg(long, conflicts_with_all = ["watch", "interval"])]
    pub history: bool,
    /// The form of the output: a table of rates, or as JSON the counters of all hosts and VMs as they were read last.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputForm,
    #[command(flatten)]
    pub state: StateDir,
}

/// Parses an interval: without a pause, `--watch` would read the agent all the time.
fn interval(text: &str) -> Result<TimeSpan, String> {
    let time = time(text)?;
    if time.0.is_zero() { Err("must be at least 1s".to_owned()) } else { Ok(time) }
}

#[test]
fn an_interval_is_a_second_at_least() {
    assert!(interval("1s").is_ok() && interval("0s").is_err() && interval("x").is_err());
}

/// `berth doctor`
#[derive(Args, Debug)]
pub struct DoctorOptions {
    /// The form of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputForm,
    #[command(flatten)]
    pub state: StateDir,
}

/// The form of a command's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputForm {
    #[default]
    Text,
    Json,
}
