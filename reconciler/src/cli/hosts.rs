//! Hosts and their tokens.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{AgentOptions, ApiOptions, Connection, StateDir, TimeSpan, time};

/// `berth host`
#[derive(Args, Debug)]
pub struct HostOptions {
    /// The join string that `berth token create HOST` printed, or @FILE to read it from a file. Needed once: afterwards the
    /// host stores its own credential in the state directory and renews it.
    #[arg(long, env = "BERTH_JOIN", hide_env_values = true)]
    pub join: Option<String>,
    /// The action on a host. Without one, this machine's agent runs.
    #[command(subcommand)]
    pub action: Option<HostAction>,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub agent: AgentOptions,
    #[command(flatten)]
    pub api: ApiOptions,
    /// Simulates this many hosts (`sim-0001`, …) to measure a control plane, and does not run this machine's agent. Each has
    /// 8 CPUs, 32 GiB of memory and 1 TiB of disk. VMs bound to them never run.
    #[arg(long, value_name = "HOSTS", value_parser = clap::value_parser!(u16).range(1..=9999), conflicts_with_all = ["host_name", "join"])]
    pub simulate: Option<u16>,
    /// Appends a line of JSON to this file each time the rules of a simulated host are written: the time in microseconds since 1970,
    /// the last rule of each security group, and the number of members of each group that a rule names.
    #[arg(long, value_name = "FILE", requires = "simulate")]
    pub record_filters: Option<PathBuf>,
}

/// Actions of an administrator on hosts.
#[derive(Debug, Subcommand)]
pub enum HostAction {
    /// Lists the hosts.
    List,
    /// Marks the host as taking no new VMs; existing VMs keep running.
    Cordon {
        /// The host's name.
        host: String,
    },
    /// Lets the host take VMs again, and starts those that a drain stopped.
    Uncordon {
        /// The host's name.
        host: String,
    },
    /// Cordons the host, moves the running VMs with the move policy `Live` to other hosts, where that is possible, and shuts down all others,
    /// whatever power they declare. An uncordon starts them again.
    Drain {
        /// The host's name.
        host: String,
        /// How long to wait until all VMs have moved or are off. Moves of running VMs get half of it at most.
        #[arg(long, default_value = "15m", value_parser = time::time)]
        timeout: TimeSpan,
        /// Returns without waiting, and shuts down all VMs.
        #[arg(long)]
        no_wait: bool,
    },
    /// Opens a recovery after a restore of the control plane: guests and files on the hosts are bound again to the objects
    /// they were made for, and objects that a host may have are not placed. A recovery closes automatically. `berth restore`
    /// opens it.
    Recover {
        /// The hosts' names.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        hosts: Vec<String>,
        /// All hosts.
        #[arg(long)]
        all: bool,
        /// Closes the recovery instead: the controllers treat the host as having none of the restored objects.
        #[arg(long)]
        end: bool,
    },
    /// Removes a host permanently: its Host, its access and its Lease. Refused while objects are bound to it.
    Forget {
        /// The host's name.
        host: String,
        /// Declares the machine lost with everything on it: turn it off first, because berth does not check that nothing
        /// runs there. VMs whose disks are all plain ones in pools of type Shared start on another host with these disks.
        /// The others, and their disks, become Stalled with the reason HostFenced until they are deleted. The Host is
        /// deleted together with the last one, and once all those disks are on other hosts.
        #[arg(long)]
        lost: bool,
    },
    /// Binds orphans of a host to the objects of their names: a guest to its VM, a file to its Disk. A missing Disk is
    /// created; a VM must be declared first, with its former spec.
    Adopt {
        /// The host's name.
        host: String,
        /// Names in the Host's `status.orphans`.
        #[arg(required = true)]
        orphans: Vec<String>,
    },
    /// Removes orphans of a host: a guest is stopped and its state is deleted, a file is moved to the trash.
    Release {
        /// The host's name.
        host: String,
        /// Names in the Host's `status.orphans`.
        #[arg(required = true)]
        orphans: Vec<String>,
    },
}

/// `berth token`
#[derive(Args, Debug)]
pub struct TokenOptions {
    /// The action.
    #[command(subcommand)]
    pub action: TokenAction,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub state: StateDir,
}

/// Actions on the tokens of hosts.
#[derive(Debug, Subcommand)]
pub enum TokenAction {
    /// Prints a join string of one line for a host. Anyone with this line can act as the host: treat it as a password.
    Create(TokenCreate),
    /// Lists the hosts that have tokens.
    List,
    /// Revokes all tokens of a host immediately.
    Revoke {
        /// The host's name.
        host: String,
    },
}

/// `berth token create`
#[derive(Args, Debug)]
pub struct TokenCreate {
    /// The name of the host to join.
    pub host: String,
    /// How long the join string is valid. The host renews the token that it gets when it joins.
    #[arg(long, default_value = "24h", value_parser = time::token_life)]
    pub expires: TimeSpan,
    /// The address at which the host reaches the control plane: `https://ADDRESS:PORT`. Default: the server in the
    /// kubeconfig; if that is a loopback address, an address of this machine.
    #[arg(long)]
    pub server: Option<String>,
}
