//! The command line.

mod agent;
mod api;
mod backup;
mod console;
mod crds;
mod disk_backup;
mod download;
mod files;
mod guest;
mod hosts;
mod image;
mod import;
mod net;
mod observe;
mod placement;
mod power;
mod service;
mod time;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ipnet::Ipv4Net;

use crate::log::LogOptions;
pub use agent::{AgentOptions, CpuList};
pub use api::ApiOptions;
pub use backup::{BackupOptions, BackupSchedule, RestoreOptions};
pub use console::{ConsoleOptions, ConsoleTarget, LogsOptions, ScreenshotOptions, VncOptions};
pub use crds::{CrdsOptions, Toleration};
pub use disk_backup::{BackupSite, ListBackupsOptions, RestoreVmOptions, VerifyBackupOptions};
pub use download::{
    DiskAction, DiskFileFormat, DiskOptions, DownloadOptions, OriginDownloadOptions, SnapshotAction,
    SnapshotOptions,
};
pub use files::{
    CopyFilesOptions, DiskBackupAction, DiskBackupOptions, FileSource, ListFilesOptions, PathInDisk,
    VolumeName,
};
pub(crate) use guest::Site;
pub use guest::{ButtonOptions, CpOptions, ExecOptions, Place, PortForwardOptions, Ports, SshOptions};
pub use hosts::{HostAction, HostOptions, TokenAction, TokenCreate, TokenOptions};
pub use image::{ImageAction, ImageOptions, ImagePushOptions, UnpackImageOptions};
pub use import::{ImportOptions, ImportSource, LibvirtOptions, OvaOptions, QemuOptions, WrittenOptions};
pub use net::{End, NetAction, NetOptions, TraceOptions, TraceProtocolName};
pub use observe::{DoctorOptions, OutputForm, TopOptions, WhyOptions};
pub use placement::{Placement, PlacementOptions, TenantOptions};
pub use power::{MoveOptions, PowerOptions};
pub use service::{Role, ServiceAction, ServiceOptions, UnitOptions};
pub use time::TimeSpan;
pub(crate) use time::time;

/// Runs virtual machines on KVM hosts, declared in Terraform or as Kubernetes objects.
#[derive(Debug, Parser)]
#[command(name = "berth", version, about, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub log: LogOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `berth`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs everything on one machine: control plane, controllers and host agent in one process.
    Up(UpOptions),
    /// Runs the controllers on a Kubernetes control plane.
    Controllers(ControllersOptions),
    /// Runs the host agent of this machine; its subcommands administer hosts.
    Host(HostOptions),
    /// Runs berth as a service of this machine, with systemd.
    Service(ServiceOptions),
    /// Creates, lists and revokes the tokens of hosts.
    Token(TokenOptions),
    /// Prints the definitions, admission policies and roles to apply to a Kubernetes control plane, as YAML.
    Crds(CrdsOptions),
    /// Prints a kubeconfig for this machine's `berth up`.
    Kubeconfig(KubeconfigOptions),
    /// Starts VMs, or resumes them, and waits until they run: `power` becomes `Running`. A guest that has ended by itself is started, too.
    Start(PowerOptions),
    /// Stops VMs as their `stop` declares, and waits until they are off: `power` becomes `Stopped`.
    Stop(PowerOptions),
    /// Restarts VMs once, as their `restartMode` declares, and waits until they run again.
    Restart(PowerOptions),
    /// Stops the CPUs of VMs: `power` becomes `Paused`. `berth start` lets them go on.
    Pause(PowerOptions),
    /// Suspends VMs, to a file of their host or to its memory (`suspendMode`): `power` becomes `Suspended`. `berth start` lets them go on.
    Suspend(PowerOptions),
    /// Has VMs moved to another host at their next stop, with their disks, firmware variables and TPMs.
    Move(MoveOptions),
    /// Presses the reset button of a VM that runs: its guest boots again in the same QEMU, without having been asked.
    Reset(ButtonOptions),
    /// Sends the guest of a VM that runs a non-maskable interrupt, on which a kernel can be set up to write a dump.
    Nmi(ButtonOptions),
    /// Attaches to the serial console of a VM. Ctrl-] detaches.
    Console(ConsoleOptions),
    /// Prints the log of a VM's serial console, also of a stopped VM.
    Logs(LogsOptions),
    /// Serves the screen of a VM on a port of this machine, for a VNC viewer. Ctrl-C ends it.
    Vnc(VncOptions),
    /// Saves what the screen of a VM shows as a PNG file.
    Screenshot(ScreenshotOptions),
    /// Uploads and downloads images.
    Image(ImageOptions),
    /// Downloads the data of disks.
    Disk(DiskOptions),
    /// Downloads the data of snapshots, and reads single files in them.
    Snapshot(SnapshotOptions),
    /// Lists and verifies backups of disks, reads single files in them, and makes VMs again from them.
    DiskBackup(DiskBackupOptions),
    /// Unpacks an image; the agent runs it in a process of its own.
    #[command(hide = true)]
    UnpackImage(UnpackImageOptions),
    /// Explains in sentences what an object waits for, or what is wrong with it: `berth why vm/web`.
    Why(WhyOptions),
    /// Shows the use of processors, memory, disks and networks by hosts and VMs.
    Top(TopOptions),
    /// Answers questions about the networks of VMs.
    Net(NetOptions),
    /// Checks whether this machine can run VMs, and how to fix each finding. Exit code 1: a check failed.
    Doctor(DoctorOptions),
    /// Runs a program in the guest of a VM, by its guest agent: its output and its exit code are those of this command.
    Exec(ExecOptions),
    /// Copies a file to or from the guest of a VM, by its guest agent: `berth cp FILE VM:PATH`.
    Cp(CpOptions),
    /// Serves TCP ports of a VM on this machine, whatever networks are in between. Ctrl-C ends it.
    PortForward(PortForwardOptions),
    /// Connects to a VM with ssh, whatever networks are in between.
    Ssh(SshOptions),
    /// Lists the files of deleted disks on all hosts: those in the trash, with how long they stay, and those that are retained.
    Trash(TrashOptions),
    /// Brings a deleted disk back, from the trash or retained, or the data that a disk had before a restore.
    Undelete(UndeleteOptions),
    /// Backs up this machine's control plane. `berth up` may be running.
    Backup(BackupOptions),
    /// Replaces this machine's control plane with a backup. `berth up` must not be running.
    Restore(RestoreOptions),
    /// Moves this site to a Kubernetes cluster, or back, while its guests run.
    Graduate(GraduateOptions),
    /// Writes HCL for the machines of another hypervisor.
    Import(ImportOptions),
    /// Manages the encryption of Secrets in this machine's control plane.
    Secrets(SecretsOptions),
    /// Shows the revisions of an object: time, user, client and changed fields.
    History(HistoryOptions),
    /// Shows the changes since a time or a revision.
    Diff(DiffOptions),
}

/// Where berth stores its data on this machine.
#[derive(Args, Clone, Debug)]
pub struct StateDir {
    /// The directory for all data that berth stores on this machine.
    #[arg(long, global = true, env = "BERTH_STATE_DIR", default_value = "/var/lib/berth")]
    pub state_dir: PathBuf,
}

/// `berth up`
#[derive(Args, Debug)]
pub struct UpOptions {
    #[command(flatten)]
    pub state: StateDir,
    /// The address on which the API is served, with TLS.
    #[arg(long, env = "BERTH_LISTEN", default_value = "127.0.0.1:7443")]
    pub listen: SocketAddr,
    /// Additional names and addresses for the API's certificate.
    #[arg(long = "tls-san")]
    pub tls_san: Vec<String>,
    /// The range of the IPPool `default` when it is created.
    #[arg(long, default_value = "198.18.100.0/24")]
    pub public_cidr: Ipv4Net,
    /// Runs control plane and controllers only, and no VMs on this machine.
    #[arg(long)]
    pub no_agent: bool,
    /// The owner of the kubeconfig file, so that terraform need not run as root.
    #[arg(long)]
    pub kubeconfig_owner: Option<String>,
    /// Writes a line to this file for each request that would change something: user, verb, object, address, code. At most
    /// six files of 64 MiB (FILE, FILE.1, …) are kept.
    #[arg(long, env = "BERTH_AUDIT_LOG", value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// How long superseded revisions are kept for `berth history`, `berth diff` and watches that resume.
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = time::time)]
    pub history_for: TimeSpan,
    /// The maximum number of revisions kept.
    #[arg(long, default_value_t = 200_000, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub history_revisions: u64,
    /// The maximum size of superseded revisions kept, at least 1Mi.
    #[arg(long, default_value = "128Mi", value_name = "SIZE")]
    pub history_size: berth_api::Quantity,
    #[command(flatten)]
    pub backups: BackupSchedule,
    #[command(flatten)]
    pub placement: PlacementOptions,
    #[command(flatten)]
    pub tenants: TenantOptions,
    #[command(flatten)]
    pub agent: AgentOptions,
}

/// `berth graduate`
#[derive(Args, Debug)]
pub struct GraduateOptions {
    /// An administrator's kubeconfig of the cluster to move to (with --back: from).
    #[arg(long, value_name = "KUBECONFIG")]
    pub to: Option<PathBuf>,
    /// That kubeconfig's context. Default: its current one.
    #[arg(long, value_name = "CONTEXT", requires = "to")]
    pub to_context: Option<String>,
    /// The address at which hosts reach the control plane that the site moves to: `https://ADDRESS:PORT`. Default: the
    /// server in its kubeconfig; if that is a loopback address, an address of this machine.
    #[arg(long)]
    pub server: Option<String>,
    /// Prints the planned steps and changes nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Cancels a move that has not handed over yet, and restores the previous state.
    #[arg(long, conflicts_with = "dry_run")]
    pub abort: bool,
    /// Moves the site back from the cluster to this machine's `berth up`, whose database may come from a backup.
    #[arg(long)]
    pub back: bool,
    /// How long to wait for the hosts to move.
    #[arg(long, default_value = "5m", value_parser = time::time)]
    pub wait: TimeSpan,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// `berth secrets`
#[derive(Args, Debug)]
pub struct SecretsOptions {
    /// The action.
    #[command(subcommand)]
    pub action: SecretsAction,
    #[command(flatten)]
    pub state: StateDir,
}

/// Actions on the encryption of Secrets.
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
    /// The maximum number of revisions shown, newest first.
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
    /// The start: a revision, a time (2026-01-02T03:04:05Z), or an age (90m, 24h).
    #[arg(long, value_name = "TIME|REVISION")]
    pub at: String,
    /// The kind or object: `vm`, `vm/web`. Default: all kinds of berth.
    #[arg(value_name = "KIND[/NAME]")]
    pub object: Option<String>,
    /// Shows this namespace only. Default: all; for a single object, `default`.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Includes changes of the status.
    #[arg(long)]
    pub status: bool,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// The control plane and the user.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// The kubeconfig. Default: for most commands that of a `berth up` of this machine, if it can be read; else `KUBECONFIG`,
    /// `~/.kube/config`, or the service account inside a cluster.
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
    #[command(flatten)]
    pub api: ApiOptions,
    /// Creates the IPPool `default` with this range, and the StoragePool `default`, if they are missing.
    #[arg(long)]
    pub public_cidr: Option<Ipv4Net>,
    #[command(flatten)]
    pub placement: PlacementOptions,
    #[command(flatten)]
    pub tenants: TenantOptions,
    /// Serves /livez and /readyz at this address over HTTP, for probes. Every client of the address may read them. Default: none.
    #[arg(long, env = "BERTH_HEALTH", value_name = "ADDRESS:PORT")]
    pub health: Option<SocketAddr>,
    /// Serves metrics for Prometheus at this address (http://ADDRESS:PORT/metrics): reconciles, queue, leader. Every client of the address
    /// may read them; they name no object. Default: none.
    #[arg(long, env = "BERTH_METRICS", value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
}

/// `berth kubeconfig`
#[derive(Args, Debug)]
pub struct KubeconfigOptions {
    #[command(flatten)]
    pub state: StateDir,
}

/// `berth trash`
#[derive(Args, Debug)]
pub struct TrashOptions {
    /// Lists the disks of this namespace only.
    #[arg(short, long)]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// `berth undelete`
#[derive(Args, Debug)]
pub struct UndeleteOptions {
    /// The disk: `name` or `namespace/name`.
    pub disk: String,
    /// The volume id, if several deleted disks had this name. Default: the newest.
    #[arg(long)]
    pub volume: Option<String>,
    /// The name of the Disk that gets the file, in the same namespace: for the data from before a restore, whose Disk exists. Default:
    /// its own.
    #[arg(long = "as", value_name = "NAME")]
    pub rename: Option<String>,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}
