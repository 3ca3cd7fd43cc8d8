//! The options of `berth start`, `stop`, `restart`, `pause`, `suspend` and `move`.

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

/// The VMs that move.
#[derive(Args, Debug)]
pub struct MoveOptions {
    /// The names of VMs of one namespace.
    #[arg(required = true, value_name = "VM")]
    pub vms: Vec<String>,
    /// The host that they move to. Default: the scheduler chooses one for each.
    #[arg(long, value_name = "HOST")]
    pub to: Option<String>,
    /// Restarts the VMs, so that they move now.
    #[arg(long)]
    pub restart: bool,
    /// Moves VMs that run without stopping them, where they can. Others move at their next stop.
    #[arg(long, conflicts_with = "restart")]
    pub live: bool,
    /// Withdraws earlier requests: the VMs stay where they are.
    #[arg(long, conflicts_with_all = ["to", "restart", "live"])]
    pub cancel: bool,
    /// How long to wait until all have moved. Without `--restart`, a VM that runs is not waited for.
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = time::time)]
    pub timeout: TimeSpan,
    /// Returns without waiting.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub site: Site,
}
