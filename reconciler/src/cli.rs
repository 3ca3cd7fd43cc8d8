//! The command line.

mod api;
mod backup;
mod console;
mod crds;
mod disk_backup;
mod download;
mod files;
mod guest;
mod image;
mod import;
mod net;
mod observe;
mod power;
mod service;
mod time;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use berth_controllers::{self as controllers, PlacementPolicy, TenantNetworks};
use berth_host::{
    BackupFolderMapping, PciMapping, PoolFolderMapping, RbdPoolMapping, ShareMapping, UsbMapping,
    VgpuMapping, linux::UidRange,
};
use clap::{Args, Parser, Subcommand};
use ipnet::{IpNet, Ipv4Net};

use crate::log::LogOptions;
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
};
pub(crate) use guest::Site;
pub use guest::{ButtonOptions, CpOptions, ExecOptions, Place, PortForwardOptions, Ports, SshOptions};
pub use image::{ImageAction, ImageOptions, ImagePushOptions, UnpackImageOptions};
pub use import::{ImportOptions, ImportSource, LibvirtOptions, OvaOptions, QemuOptions, WrittenOptions};
pub use net::{End, NetAction, NetOptions, TraceOptions, TraceProtocolName};
pub use observe::{DoctorOptions, OutputForm, TopOptions, WhyOptions};
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
    /// Saves the memory of VMs to a file of their host: `power` becomes `Suspended`. `berth start` lets them go on.
    Suspend(PowerOptions),
    /// Has VMs moved to another host at their next stop, with their disks in shared pools. Their UEFI variables stay behind.
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

/// Options of this machine's agent.
#[derive(Args, Clone, Debug)]
pub struct AgentOptions {
    /// The name of this machine's Host object. Default: the machine's host name.
    #[arg(long = "host-name", visible_alias = "name", env = "BERTH_HOST_NAME")]
    pub host_name: Option<String>,
    /// Labels of this machine's Host object, set when it is created: `--label topology.kubernetes.io/zone=a`.
    #[arg(long = "label", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Virtual CPUs offered for each real one.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpu_overcommit: u32,
    /// CPUs of this machine for VMs with dedicatedCpuPlacement, each for one VM alone: `2-7,12`. All other VMs run on the other CPUs.
    /// Default: none.
    #[arg(long, env = "BERTH_DEDICATED_CPUS", value_parser = cpu_list, default_value = "", value_name = "LIST")]
    pub dedicated_cpus: CpuList,
    /// The address at which other hosts reach this one: networks that span hosts use it for tunnels (VXLAN, UDP port
    /// 4789). Default: the source address of the default route, or else of the connection to the control plane.
    #[arg(long, env = "BERTH_ADDRESS")]
    pub address: Option<Ipv4Addr>,
    /// The interface that announces the addresses of `l2` pools. Default: the interface of the default route, or else the
    /// one with --address.
    #[arg(long, env = "BERTH_PUBLIC_INTERFACE")]
    pub public_interface: Option<String>,
    /// A folder of this machine from which Images of all tenants may be read (`file:///…`). Can be given several times.
    /// Default: none, which refuses `file://`.
    #[arg(long = "image-dir", env = "BERTH_IMAGE_DIR", value_name = "FOLDER", value_delimiter = ':')]
    pub image_dirs: Vec<PathBuf>,
    /// A folder of this machine whose files may become Disks, of every tenant (`source.file`): each is moved out of it. Can be given
    /// several times. Default: none.
    #[arg(long = "disk-dir", env = "BERTH_DISK_DIR", value_name = "FOLDER", value_delimiter = ':')]
    pub disk_dirs: Vec<PathBuf>,
    /// A range of addresses that this machine may fetch Images from, and reach BackupRepositories at, although it is private, loopback, link-local or
    /// the like. A wider range than one address does not allow the addresses of hosts, of their guests and of the
    /// control plane. Can be given several times.
    #[arg(long = "image-allow", env = "BERTH_IMAGE_ALLOW", value_name = "CIDR", value_delimiter = ',')]
    pub image_allow: Vec<IpNet>,
    /// A PCI device of this machine that VMs may have, under a name: `gpu-a100=0000:01:00.0`, `gpu-a100=0000:01:00` with all functions of
    /// the device, or `gpu-a100=10de:20b0` for each device with this vendor and device. A name can be given several times. While a VM has
    /// a device, the machine itself cannot use it. Default: none.
    #[arg(
        long = "pci-device",
        env = "BERTH_PCI_DEVICES",
        value_name = "NAME=ADDRESS",
        value_delimiter = ','
    )]
    pub pci_devices: Vec<PciMapping>,
    /// A USB device of this machine that VMs may have, under a name: `licence-key=1-2.3` for the one in this port (bus and port, as in
    /// /sys/bus/usb/devices), or `licence-key=0403:6001` for each device of this vendor and product (`lsusb`). A name can be given several
    /// times. While a VM has a device, the machine itself cannot use it. Default: none.
    #[arg(long = "usb-device", env = "BERTH_USB_DEVICES", value_name = "NAME=PORT", value_delimiter = ',')]
    pub usb_devices: Vec<UsbMapping>,
    /// vGPUs (mediated devices) of this machine that VMs may have, under a name: `t4-4q=0000:41:00.0/nvidia-232` for those of this type (a
    /// folder in mdev_supported_types of the device, or the text of its file name) of the device at this address, or
    /// `a40-8q=10de:2235/nvidia-558` for those of each device with this vendor and device, as for virtual functions: those of one GPU can
    /// lie in several slots. A name can be given several times. They are made when a VM starts, and removed after it has ended. Default:
    /// none.
    #[arg(long = "vgpu", env = "BERTH_VGPUS", value_name = "NAME=ADDRESS/TYPE", value_delimiter = ',')]
    pub vgpus: Vec<VgpuMapping>,
    /// A folder of this machine that VMs may mount, under a name: `media=/srv/media:ro` for VMs that only read it, or `data=/srv/data` for
    /// those that write to it, too. Root in such a VM reads and writes all files in the folder. Can be given several times. Default: none.
    #[arg(long = "share", env = "BERTH_SHARES", value_name = "NAME=FOLDER[:ro]", value_delimiter = ',')]
    pub shares: Vec<ShareMapping>,
    /// A folder of this machine in which BackupRepositories may be, under a name: `nas=/mnt/nas`. Of a folder that several hosts have, such
    /// as one of a file server, give it the same name on all of them. Can be given several times. Default: none.
    #[arg(
        long = "backup-folder",
        env = "BERTH_BACKUP_FOLDERS",
        value_name = "NAME=FOLDER",
        value_delimiter = ','
    )]
    pub backup_folders: Vec<BackupFolderMapping>,
    /// The folder of this machine for the disks of a StoragePool: `fast=/mnt/nvme/berth`. It exists already, and the users that QEMU
    /// runs as can pass through it; berth marks it with a file. While that file is not there, as when the file system is not mounted, the
    /// pool is away. Can be given several times, once for each pool. Default: each pool has a folder in the state directory.
    #[arg(
        long = "pool-folder",
        env = "BERTH_POOL_FOLDERS",
        value_name = "POOL=FOLDER",
        value_delimiter = ','
    )]
    pub pool_folders: Vec<PoolFolderMapping>,
    /// The pool of Ceph for the disks of a StoragePool of type RBD: `fast=vms`, or `fast=vms/site` with a namespace in it. Can be given
    /// several times, once for each pool. Needs the programs rbd and ceph, and QEMU's driver. Default: none.
    #[arg(
        long = "rbd-pool",
        env = "BERTH_RBD_POOLS",
        value_name = "POOL=CEPHPOOL[/NAMESPACE]",
        value_delimiter = ','
    )]
    pub rbd_pools: Vec<RbdPoolMapping>,
    /// The configuration file of Ceph with the addresses of its monitors (mon_host). Beside it is the keyring of the user,
    /// `ceph.client.USER.keyring`.
    #[arg(long, env = "BERTH_CEPH_CONF", value_name = "FILE", default_value = "/etc/ceph/ceph.conf")]
    pub ceph_conf: PathBuf,
    /// The user of Ceph, without `client.`.
    #[arg(long, env = "BERTH_CEPH_USER", value_name = "USER", default_value = "berth")]
    pub ceph_user: String,
    /// Allows guests to reach these ranges, which are blocked otherwise: addresses of this host (IPv4), of other hosts and of the
    /// control plane, and link-local addresses.
    #[arg(long, env = "BERTH_GUEST_ALLOW", value_name = "CIDR", value_delimiter = ',')]
    pub guest_allow: Vec<IpNet>,
    /// The range of user ids for QEMU: each VM has one of its own. No account, container or other service of this machine may
    /// use an id of the range; ids in /etc/passwd, in /etc/subuid and of running processes are skipped.
    #[arg(
        long,
        env = "BERTH_QEMU_UID_RANGE",
        value_name = "FIRST-LAST",
        default_value = "2100000000-2116777215"
    )]
    pub qemu_uid_range: UidRange,
    /// The address at which clients of `berth console`, `berth logs`, `berth vnc`, `berth screenshot`, `berth image push` and downloads reach this machine. Default: port 7444 of all
    /// addresses, with `berth up` of the address of --listen.
    #[arg(long, env = "BERTH_CONSOLE_LISTEN", value_name = "ADDRESS:PORT", conflicts_with = "no_console")]
    pub console_listen: Option<SocketAddr>,
    /// Serves metrics for Prometheus at this address (http://ADDRESS:PORT/metrics): the use of this machine by its VMs. Every
    /// client of the address may read them. Default: none; `berth top` on this machine works without it.
    #[arg(long, env = "BERTH_METRICS", value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Serves no consoles, logs and screens of this machine's VMs, no downloads, no copies of images to other hosts and no single files
    /// of backups and snapshots, and takes no uploads of images.
    #[arg(long, env = "BERTH_NO_CONSOLE")]
    pub no_console: bool,
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

/// Numbers of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub BTreeSet<u32>);

fn cpu_list(text: &str) -> Result<CpuList, String> {
    let cpus = berth_host::parse_cpu_list(text).map(CpuList);
    cpus.ok_or_else(|| format!("{text:?} is no list of CPUs, such as 2-7,12"))
}

/// Options of the scheduler.
#[derive(Args, Clone, Copy, Debug)]
pub struct PlacementOptions {
    /// Which host a VM is placed on when several can take it. Placement groups and preferred labels take precedence.
    #[arg(long, env = "BERTH_PLACEMENT", value_enum, default_value_t)]
    pub placement: Placement,
}

/// [`PlacementPolicy`] as an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Placement {
    /// The host with the largest share of free capacity, which balances the load.
    #[default]
    Balance,
    /// The host with the smallest share, so that hosts fill one after the other.
    Pack,
}

impl From<Placement> for PlacementPolicy {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Balance => Self::Balance,
            Placement::Pack => Self::Pack,
        }
    }
}

/// Limits of tenants' Networks: those outside of the administrator's namespace `berth-shared`.
#[derive(Args, Clone, Debug)]
pub struct TenantOptions {
    /// The range of the Networks `default`. Each namespace gets one with a part of this range when a VM first needs it. If
    /// `berth-shared` has a Network `default`, namespaces without their own use that one instead.
    #[arg(long, env = "BERTH_PRIVATE_CIDR", value_name = "CIDR", default_value = controllers::DEFAULT_RANGE)]
    pub private_cidr: Ipv4Net,
    /// The prefix length of these parts. 20 gives a namespace addresses for 4,093 VMs.
    #[arg(long, default_value_t = controllers::DEFAULT_PREFIX, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(8..=29))]
    pub private_prefix: u8,
    /// The ranges allowed for tenants' Networks. Default: any range that no other Network and no host uses.
    #[arg(long, env = "BERTH_TENANT_RANGES", value_name = "CIDR", value_delimiter = ',')]
    pub tenant_ranges: Vec<Ipv4Net>,
    /// The shortest prefix length of a tenant's Network: 16 allows 10.1.0.0/16 and nothing larger.
    #[arg(long, default_value_t = 16, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(8..=29))]
    pub tenant_prefix: u8,
    /// The maximum number of Networks in a namespace.
    #[arg(long, default_value_t = 32, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=4096))]
    pub tenant_networks: u16,
}

impl TenantOptions {
    /// The options for the controllers.
    ///
    /// *Errors:* the parts of `--private-cidr` would be larger than the whole.
    pub fn networks(&self) -> anyhow::Result<TenantNetworks> {
        let whole = self.private_cidr.trunc();
        anyhow::ensure!(
            whole.prefix_len() <= self.private_prefix,
            "--private-cidr {whole} has no part with --private-prefix {}: give a prefix of {} or longer",
            self.private_prefix,
            whole.prefix_len(),
        );
        Ok(TenantNetworks {
            ranges: self.tenant_ranges.clone(),
            shortest_prefix: self.tenant_prefix,
            per_namespace: self.tenant_networks.into(),
            default_range: whole,
            default_prefix: self.private_prefix,
        })
    }
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
}

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
    /// Cordons the host and shuts down all its VMs, whatever power they declare. An uncordon starts them again.
    Drain {
        /// The host's name.
        host: String,
        /// How long to wait until all VMs are off.
        #[arg(long, default_value = "15m", value_parser = time::time)]
        timeout: TimeSpan,
        /// Returns without waiting.
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
