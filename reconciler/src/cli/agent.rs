//! Options of a host's agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use berth_api::ResourceName;
use berth_host::linux::UidRange;
use berth_host::{
    Architecture, BackupFolderMapping, BlockDeviceMapping, PciMapping, PoolFolderMapping, RbdPoolMapping,
    ShareMapping, UsbMapping, VgpuMapping,
};
use clap::Args;
use ipnet::IpNet;

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
    /// The architecture of VMs that this machine runs beside those of its own, with processors that QEMU emulates: `aarch64` on x86-64, or
    /// `x86_64` on ARM. They are many times slower. Default: none.
    #[arg(long, env = "BERTH_EMULATE", value_name = "ARCHITECTURE")]
    pub emulate: Option<Architecture>,
    /// Experimental: VMs with `movePolicy: Live` move to and from this machine while they run. Default: they move while they are off.
    #[arg(long, env = "BERTH_EXPERIMENTAL_LIVE_MIGRATION")]
    pub experimental_live_migration: bool,
    /// The address at which other hosts reach this one: networks that span hosts use it for tunnels (VXLAN, UDP port
    /// 4789; with encryption WireGuard, UDP port 51847). Default: the source address of the default route, or else of the connection to the control plane.
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
    /// A block device of this machine that a Disk of any tenant may be, under a name: `db=/dev/vg0/db` for an LVM volume, or
    /// `nvme=/dev/disk/by-id/nvme-…` for a whole disk. Its VM reads and writes all of it; berth itself writes nothing to it. Give a path that
    /// stays the same. While the machine uses the device itself, no VM gets it. Can be given several times. Default: none.
    #[arg(
        long = "block-device",
        env = "BERTH_BLOCK_DEVICES",
        value_name = "NAME=PATH",
        value_delimiter = ','
    )]
    pub block_devices: Vec<BlockDeviceMapping>,
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

/// Parses a label. One that the control plane refuses would keep the agent from making its Host, again and again.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not key=value"))?;
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_prefix = |prefix: &str| prefix.len() <= 253 && prefix.split('.').all(ResourceName::is_dns_label);
    if !is_label_word(name) || !prefix.is_none_or(is_prefix) {
        return Err(format!(
            "{key:?} is no key of a label, such as rack or example.org/rack: letters, digits, \"-\", \"_\" and \".\", at most 63"
        ));
    }
    if !value.is_empty() && !is_label_word(value) {
        return Err(format!(
            "{value:?} is no value of a label: letters, digits, \"-\", \"_\" and \".\" between letters or digits, at most 63"
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn is_label_word(text: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&text.len())
        && text.chars().all(is_known)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

#[test]
fn a_label_is_one_that_the_control_plane_accepts() {
    let pair = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
    assert_eq!(label("topology.kubernetes.io/zone=a"), pair("topology.kubernetes.io/zone", "a"));
    assert_eq!(label("rack=R_1.b"), pair("rack", "R_1.b"));
    assert_eq!(label("ssd="), pair("ssd", ""));
    for wrong in
        ["rack", "=a", "/a=b", "A.b/c=d", "a/b/c=d", "my rack=a", "a=b c", "a=-b", "a=b=c", "a=b,c=d"]
    {
        assert!(label(wrong).is_err(), "{wrong}");
    }
    assert!(label(&format!("a={}", "b".repeat(64))).is_err());
}

/// Numbers of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub BTreeSet<u32>);

fn cpu_list(text: &str) -> Result<CpuList, String> {
    let cpus = berth_host::parse_cpu_list(text).map(CpuList);
    cpus.ok_or_else(|| format!("{text:?} is no list of CPUs, such as 2-7,12"))
}
