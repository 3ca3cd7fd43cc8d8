//! The options of `berth start`, `stop`, `restart`, `pause` and `suspend`.

use clap::Args;

use super::{Site, TimeSpan, time};

/// The VMs whose power is changed.
#[derive(Args, Debug)]
pub struct PowerOptions {
    /// The names of VMs of one namespace; `vmgroup/NAME` is a VMGroup, which can be started and stopped.
    #[arg(required = true, value_name = "VM")]
    pub vms: Vec<String>,
    /// How long to wait until all are as wanted.
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = time::time)]
    pub timeout: TimeSpan,
    /// Returns without waiting.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub site: Site,
}
