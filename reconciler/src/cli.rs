//! The command line.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, Parser, Subcommand};
use ipnet::Ipv4Net;

use crate::{controllers::Filling, log::LogOptions};

/// Runs virtual machines on KVM hosts, declared in Terraform or as Kubernetes objects.
#[derive(Debug, Parser)]
#[command(name = "berth", version, about, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub log: LogOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// What berth is to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Everything on one machine: control plane, controllers and host agent in one process.
    Up(UpOptions),
    /// The controllers, on a Kubernetes control plane.
    Controllers(ControllersOptions),
    /// The host agent of this machine; or, with a subcommand, what an administrator does with hosts.
    Host(HostOptions),
    /// Lets hosts join, and ends their access.
    Token(TokenOptions),
    /// Prints the definitions, admission policies and roles to apply to a Kubernetes control plane, as YAML.
    Crds(CrdsOptions),
    /// Prints a kubeconfig for this machine's `berth up`.
    Kubeconfig(KubeconfigOptions),
    /// Brings a deleted disk back from the trash.
    Undelete(UndeleteOptions),
    /// Backs up this machine's control plane, while `berth up` runs or not.
    Backup(BackupOptions),
    /// Puts a backup in place of this machine's control plane. `berth up` must not be running.
    Restore(RestoreOptions),
    /// Moves this site to another control plane, a Kubernetes cluster, while its guests run; or back.
    Graduate(GraduateOptions),
    /// The encryption of Secrets in this machine's control plane.
    Secrets(SecretsOptions),
    /// Shows what became of an object: when, who, how, and which fields.
    History(HistoryOptions),
    /// Shows what has changed since a time or a revision.
    Diff(DiffOptions),
}

/// Where berth keeps what is its own on this machine.
#[derive(Args, Clone, Debug)]
pub struct StateDir {
    /// The directory of everything berth keeps on this machine.
    #[arg(long, global = true, env = "BERTH_STATE_DIR", default_value = "/var/lib/berth")]
    pub state_dir: PathBuf,
}

/// What the agent of this machine is told.
#[derive(Args, Clone, Debug)]
pub struct AgentOptions {
    /// The name of this machine's Host object. Default: the machine's host name.
    #[arg(long = "host-name", visible_alias = "name", env = "BERTH_HOST_NAME")]
    pub host_name: Option<String>,
    /// Labels of this machine's Host object, set when it is made: `--label topology.kubernetes.io/zone=a`.
    #[arg(long = "label", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Virtual CPUs offered for each real one.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpu_overcommit: u32,
    /// The address other hosts reach this one at: networks that are on several hosts go between such addresses (VXLAN,
    /// UDP port 4789). Default: the one the default route leaves from, or else the connection to the control plane.
    #[arg(long, env = "BERTH_ADDRESS")]
    pub address: Option<Ipv4Addr>,
    /// The interface the addresses of `l2` pools are announced on. Default: that of the default route, or else the one
    /// with --address.
    #[arg(long, env = "BERTH_PUBLIC_INTERFACE")]
    pub public_interface: Option<String>,
}

impl AgentOptions {
    /// The labels as a map.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.labels.iter().cloned().collect()
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| format!("{text:?} is not key=value"))
}

/// What the controllers are told.
#[derive(Args, Clone, Copy, Debug)]
pub struct PlacementOptions {
    /// Which of several hosts that can take a VM it goes to, after the wishes of its group and its preferred labels.
    #[arg(long, env = "BERTH_PLACEMENT", value_enum, default_value_t)]
    pub placement: Filling,
}

/// `berth up`
#[derive(Args, Debug)]
pub struct UpOptions {
    #[command(flatten)]
    pub state: StateDir,
    /// The address the API is served on, with TLS.
    #[arg(long, env = "BERTH_LISTEN", default_value = "127.0.0.1:7443")]
    pub listen: SocketAddr,
    /// More names and addresses the API's certificate is valid for.
    #[arg(long = "tls-san")]
    pub tls_san: Vec<String>,
    /// The range of the Network `default`, when it is made.
    #[arg(long, default_value = "10.77.0.0/16")]
    pub private_cidr: Ipv4Net,
    /// The range of the IPPool `default`, when it is made.
    #[arg(long, default_value = "198.18.100.0/24")]
    pub public_cidr: Ipv4Net,
    /// No VMs on this machine: control plane and controllers only.
    #[arg(long)]
    pub no_agent: bool,
    /// The user who may read the kubeconfig, so that terraform need not run as root.
    #[arg(long)]
    pub kubeconfig_owner: Option<String>,
    /// A line for every request that would change something goes into this file: who, what, from where, which code.
    /// At most six files of 64 MiB (FILE, FILE.1, …) are kept.
    #[arg(long, env = "BERTH_AUDIT_LOG", value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// How long revisions that were superseded are kept, for `berth history`, `berth diff` and watches that resume.
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = crate::commands::time)]
    pub history_for: Life,
    /// How many revisions are kept at most.
    #[arg(long, default_value_t = 200_000, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub history_revisions: u64,
    #[command(flatten)]
    pub backups: BackupSchedule,
    #[command(flatten)]
    pub placement: PlacementOptions,
    #[command(flatten)]
    pub agent: AgentOptions,
}

/// Backups that `berth up` makes of its control plane.
#[derive(Args, Clone, Debug)]
pub struct BackupSchedule {
    /// Backs the control plane up into this folder, which should be another machine's: any that is mounted here. It is
    /// for this machine's backups alone. A folder that fails is told in the log and in /metrics; nothing else stops.
    #[arg(long, env = "BERTH_BACKUP_TO", value_name = "FOLDER")]
    pub backup_to: Option<PathBuf>,
    /// How often.
    #[arg(long, default_value = "6h", value_name = "TIME", value_parser = crate::commands::time, requires = "backup_to")]
    pub backup_every: Life,
    /// How many backups stay; older ones are removed.
    #[arg(long, default_value_t = 14, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000), requires = "backup_to")]
    pub backup_keep: u16,
    /// The key of Secrets, the CA and the tokens go into the backups too: whoever can read one is administrator.
    #[arg(long, requires = "backup_to")]
    pub backup_with_keys: bool,
}

/// `berth backup`
#[derive(Args, Debug)]
pub struct BackupOptions {
    /// The file to make; or a folder, in which each backup gets a name of its own.
    #[arg(value_name = "FILE|FOLDER")]
    pub target: PathBuf,
    /// The key of Secrets, the CA and the tokens go into it too: whoever can read it is administrator. Without them,
    /// keep a copy of control-plane/secrets.key elsewhere; hosts have to join again when the CA is lost.
    #[arg(long)]
    pub with_keys: bool,
    #[command(flatten)]
    pub state: StateDir,
}

/// `berth restore`
#[derive(Args, Debug)]
pub struct RestoreOptions {
    /// The backup.
    pub file: PathBuf,
    /// Replaces the control plane there is; its database is kept aside.
    #[arg(long)]
    pub replace: bool,
    /// A copy of the secrets.key the backup was made under, if that is neither in it nor on this machine.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub state: StateDir,
}

/// `berth graduate`
#[derive(Args, Debug)]
pub struct GraduateOptions {
    /// The kubeconfig of the cluster the site moves to (with --back: from), as its administrator.
    #[arg(long, value_name = "KUBECONFIG")]
    pub to: Option<PathBuf>,
    /// That kubeconfig's context. Default: its current one.
    #[arg(long, value_name = "CONTEXT", requires = "to")]
    pub to_context: Option<String>,
    /// The control plane that the site moves to, as its hosts reach it: `https://ADDRESS:PORT`. Default: the server of
    /// its kubeconfig; if that is a loopback address, this machine's own.
    #[arg(long)]
    pub server: Option<String>,
    /// Says what would be done, and does nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Gives up a move that was begun and has not ended: everything is as before.
    #[arg(long, conflicts_with = "dry_run")]
    pub abort: bool,
    /// Moves the site back from the cluster to this machine's `berth up`, whose database may come from a backup.
    #[arg(long)]
    pub back: bool,
    /// How long is waited for the hosts to follow.
    #[arg(long, default_value = "5m", value_parser = crate::commands::time)]
    pub wait: Life,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// `berth secrets`
#[derive(Args, Debug)]
pub struct SecretsOptions {
    /// What is to be done.
    #[command(subcommand)]
    pub action: SecretsAction,
    #[command(flatten)]
    pub state: StateDir,
}

/// What is to be done with the encryption of Secrets.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum SecretsAction {
    /// Encrypts all Secrets under a new key. `berth up` must not be running.
    RotateKey,
}

/// `berth history`
#[derive(Args, Debug)]
pub struct HistoryOptions {
    /// The object: `vm/web`, `secret/token`.
    #[arg(value_name = "KIND/NAME")]
    pub object: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// How many revisions, the newest first.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub limit: u16,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// `berth diff`
#[derive(Args, Debug)]
pub struct DiffOptions {
    /// Since when: a revision, a time (2026-01-02T03:04:05Z), or how long ago (90m, 24h).
    #[arg(long, value_name = "TIME|REVISION")]
    pub at: String,
    /// Of what: `vm`, `vm/web`. Default: every kind of berth's.
    #[arg(value_name = "KIND[/NAME]")]
    pub object: Option<String>,
    /// In this namespace only. Default: all; for one object `default`.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Shows what changed in the status too.
    #[arg(long)]
    pub status: bool,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// Which control plane, and as whom.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// The kubeconfig. Default: `KUBECONFIG`, `~/.kube/config`, or the service account inside a cluster.
    #[arg(long, global = true, env = "BERTH_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context. Default: its current one.
    #[arg(long, global = true, env = "BERTH_CONTEXT")]
    pub context: Option<String>,
}

/// `berth controllers`
#[derive(Args, Debug)]
pub struct ControllersOptions {
    #[command(flatten)]
    pub connection: Connection,
    /// Makes the Network `default` with this range, and with --public-cidr the IPPool `default`, if they are missing.
    #[arg(long)]
    pub private_cidr: Option<Ipv4Net>,
    /// See --private-cidr.
    #[arg(long)]
    pub public_cidr: Option<Ipv4Net>,
    #[command(flatten)]
    pub placement: PlacementOptions,
}

/// `berth host`
#[derive(Args, Debug)]
pub struct HostOptions {
    /// The join string that `berth token create HOST` printed, or @FILE that holds it. Needed once: the host's own
    /// credential is kept in the state directory and renewed from then on.
    #[arg(long, env = "BERTH_JOIN", hide_env_values = true)]
    pub join: Option<String>,
    /// What an administrator does with hosts. Without one, this machine's agent runs.
    #[command(subcommand)]
    pub action: Option<HostAction>,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub agent: AgentOptions,
    /// For measuring a control plane: instead of this machine's agent, the agents of this many hosts that do not
    /// exist (`sim-0001`, …), each with 8 CPUs, 32 GiB of memory and 1 TiB of disk. VMs bound to them never run.
    #[arg(long, value_name = "HOSTS", value_parser = clap::value_parser!(u16).range(1..=9999), conflicts_with_all = ["host_name", "join"])]
    pub simulate: Option<u16>,
}

/// What an administrator does with hosts.
#[derive(Debug, Subcommand)]
pub enum HostAction {
    /// Lists the hosts.
    List,
    /// The host takes no new VMs; those it has go on.
    Cordon {
        /// The host's name.
        host: String,
    },
    /// The host takes VMs again, and starts those that a drain had stopped.
    Uncordon {
        /// The host's name.
        host: String,
    },
    /// Cordons the host and shuts down every VM there, whatever power is declared: an uncordon starts them again.
    Drain {
        /// The host's name.
        host: String,
        /// How long to wait until all are off.
        #[arg(long, default_value = "15m", value_parser = crate::commands::time)]
        timeout: Life,
        /// Do not wait.
        #[arg(long)]
        no_wait: bool,
    },
    /// Takes a host out for good: its Host, its access and its Lease. Refused while anything is bound to it.
    Forget {
        /// The host's name.
        host: String,
        /// The machine is gone with everything on it: its VMs and disks are given up. They stay as objects that say
        /// so until somebody deletes them, and the Host goes with the last one.
        #[arg(long)]
        lost: bool,
    },
}

/// `berth token`
#[derive(Args, Debug)]
pub struct TokenOptions {
    /// What is to be done.
    #[command(subcommand)]
    pub action: TokenAction,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub state: StateDir,
}

/// What is to be done with hosts' tokens.
#[derive(Debug, Subcommand)]
pub enum TokenAction {
    /// Prints one line with which the host of that name may join. Whoever has the line is that host.
    Create(TokenCreate),
    /// Lists the hosts that have tokens.
    List,
    /// Ends all tokens of a host at once.
    Revoke {
        /// The host's name.
        host: String,
    },
}

/// `berth token create`
#[derive(Args, Debug)]
pub struct TokenCreate {
    /// The name of the host that is to join.
    pub host: String,
    /// How long the host may take to join. Its own token, which it gets when it joins, is renewed by itself.
    #[arg(long, default_value = "24h", value_parser = crate::commands::token_life)]
    pub expires: Life,
    /// The control plane as the host reaches it: `https://ADDRESS:PORT`. Default: the server of the kubeconfig; if
    /// that is a loopback address, this machine's own.
    #[arg(long)]
    pub server: Option<String>,
}

/// A length of time.
#[derive(Clone, Copy, Debug)]
pub struct Life(pub std::time::Duration);

/// `berth crds`
#[derive(Args, Debug)]
pub struct CrdsOptions {
    /// Adds the Network, IPPool and StoragePool `default` with these ranges.
    #[arg(long, num_args = 2, value_names = ["PRIVATE_CIDR", "PUBLIC_CIDR"])]
    pub defaults: Option<Vec<Ipv4Net>>,
}

/// `berth kubeconfig`
#[derive(Args, Debug)]
pub struct KubeconfigOptions {
    #[command(flatten)]
    pub state: StateDir,
}

/// `berth undelete`
#[derive(Args, Debug)]
pub struct UndeleteOptions {
    /// The disk: `name` or `namespace/name`.
    pub disk: String,
    /// The volume, when several deleted disks had that name.
    #[arg(long)]
    pub volume: Option<String>,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}
