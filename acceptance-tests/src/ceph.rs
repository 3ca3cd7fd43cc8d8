//! A Ceph cluster on a machine of its own: one monitor, one manager without modules, and one OSD that keeps its data in memory.
//!
//! The servers are unpacked from Debian's packages into the cache: an installed package would bring services, LVM and others along.
//! The clients and QEMU's driver, which a host needs for such a pool, are installed.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::control_plane::Location;
use crate::namespace::Namespace;
use crate::process::{self, Daemon};
use crate::{prerequisites, report, wait};

/// The pool in Ceph.
pub const POOL: &str = "vms";
/// The user of the hosts, without `client.`.
pub const USER: &str = "berth";
/// A file or a command that shows whether a package of a host is installed, and the package.
const CLIENTS: &[(&str, &str)] = &[
    ("ceph", "ceph-common"),
    ("rbd", "ceph-common"),
    ("/usr/lib/x86_64-linux-gnu/qemu/block-rbd.so", "qemu-block-extra"),
];
/// The packages of the servers, and of those of their libraries that the packages of a host do not bring.
const SERVERS: &[&str] = &[
    "ceph-base",
    "ceph-mgr",
    "ceph-mon",
    "ceph-osd",
    "libboost-python1.74.0",
    "libfuse2",
    "libleveldb1d",
    "libpython3.11",
    "librados2",
    "libsnappy1v5",
];
/// The programs and the folders of libraries that are taken from these packages.
const PROGRAMS: &[&str] = &["ceph-mgr", "ceph-mon", "ceph-osd", "monmaptool"];
const LIBRARIES: &[&str] = &[
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/ceph",
    "usr/lib/x86_64-linux-gnu/rados-classes",
];
/// The time limit of a command; of one that asks for an answer of the cluster, 5 seconds are for the connection.
const COMMAND: Duration = Duration::from_secs(30);
/// The time limit until a server has started on busy processors. It takes a few seconds.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(20);
/// The size of the pool, in bytes: of memory, as far as it is written.
const SIZE: u64 = 1 << 30;

/// The folder with the servers' programs and their libraries. Installs what a host needs, too.
pub fn servers(cache: &Cache) -> Result<PathBuf> {
    install_clients(cache)?;
    let versions: Vec<String> =
        SERVERS.iter().map(|package| prerequisites::candidate(package)).collect::<Result<_>>()?;
    let ingredients: Vec<&str> = SERVERS.iter().copied().chain(versions.iter().map(String::as_str)).collect();
    cache.entry("ceph", &ingredients, |folder| {
        report::note("unpacking Ceph's servers from Debian's packages");
        let unpacked = folder.join("unpacked");
        for package in SERVERS {
            prerequisites::unpack(package, &unpacked)?;
        }
        for program in PROGRAMS {
            let from = unpacked.join("usr/bin").join(program);
            fs::copy(&from, folder.join(program)).with_context(|| format!("copying {}", from.display()))?;
        }
        for library in LIBRARIES {
            // Not every version of Debian has each of these folders.
            for entry in fs::read_dir(unpacked.join(library)).into_iter().flatten().flatten() {
                if entry.path().is_file() && entry.file_name().to_string_lossy().contains(".so") {
                    fs::copy(entry.path(), folder.join(entry.file_name()))?;
                }
            }
        }
        Ok(fs::remove_dir_all(unpacked)?)
    })
}

/// Installs what a host needs. The tools may be built ahead by another process at the same time.
fn install_clients(cache: &Cache) -> Result<()> {
    let lock = fs::File::create(cache.root().join("ceph-clients.lock"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    prerequisites::install(CLIENTS)
}

/// Where the servers run, and their files.
#[derive(Debug)]
struct Site {
    servers: PathBuf,
    namespace: Arc<Namespace>,
    address: String,
    folder: PathBuf,
    logs: PathBuf,
    id: String,
}

/// The cluster.
#[derive(Debug)]
pub struct Ceph {
    osd: Daemon,
    manager: Daemon,
    monitor: Daemon,
    site: Site,
}

impl Ceph {
    /// Starts the servers and makes the pool and the user of the hosts. A host can reach the cluster from then on.
    pub fn start(servers: &Path, place: Location<'_>) -> Result<Self> {
        let site = Site {
            servers: servers.to_owned(),
            namespace: Arc::clone(place.namespace),
            address: place.address.to_owned(),
            folder: place.folder.to_owned(),
            logs: place.logs.to_owned(),
            id: random_id()?,
        };
        let osd_key = site.write_files()?;
        site.initialize_monitor()?;
        let mut monitor = site.spawn("ceph-mon", "a")?;
        let osd_id = random_id()?;
        let secret = json!({"cephx_secret": osd_key}).to_string();
        wait::until("Ceph's monitor to answer", START, || {
            monitor.must_run()?;
            site.ceph(&["osd", "new", &osd_id, "-i", "-"], secret.as_bytes()).map(drop)
        })?;
        let mut initialize = site.command("ceph-osd", "0");
        initialize.args(["--mkfs", "--osd-uuid", &osd_id]);
        process::run(&mut initialize, START)?.success()?;
        site.ceph(&["osd", "crush", "add", "osd.0", "1", "root=default"], b"")?;
        let (mut osd, mut manager) = (site.spawn("ceph-osd", "0")?, site.spawn("ceph-mgr", "a")?);
        wait::until("Ceph's OSD to be up", START, || {
            osd.must_run()?;
            let state = site.json(&["osd", "stat"])?;
            ensure!(state["num_up_osds"] == 1, "{state}");
            Ok(())
        })?;
        site.ceph(&["osd", "pool", "create", POOL, "8", "8"], b"")?;
        site.rbd(&["pool", "init", POOL])?;
        // The space of a pool is a report of the OSD to the manager.
        wait::until("Ceph's manager to know the space", START, || {
            manager.must_run()?;
            let space = site.json(&["df"])?;
            let known = space["pools"].as_array().is_some_and(|pools| !pools.is_empty());
            ensure!(known && space["stats"]["total_bytes"] != 0, "{space}");
            Ok(())
        })?;
        Ok(Self { osd, manager, monitor, site })
    }

    /// The `ceph.conf` of a host, which names the keyring of its user.
    pub fn configuration(&self) -> PathBuf {
        self.site.configuration()
    }

    /// The images in the pool.
    pub fn images(&self) -> Result<Vec<String>> {
        let text = self.site.rbd(&["ls", "--format", "json", POOL])?;
        serde_json::from_str(&text).with_context(|| format!("rbd ls: {text}"))
    }

    /// An image, as `rbd info` describes it.
    pub fn image(&self, image: &str) -> Result<Value> {
        let text = self.site.rbd(&["info", "--format", "json", &format!("{POOL}/{image}")])?;
        serde_json::from_str(&text).with_context(|| format!("rbd info: {text}"))
    }

    /// The data of an image, or of a snapshot of one.
    pub fn data(&self, image: &str) -> Result<Vec<u8>> {
        let file = self.site.folder.join("exported");
        let path = file.to_str().context("the folder of Ceph is not in UTF-8")?;
        self.site.rbd(&["export", "--no-progress", &format!("{POOL}/{image}"), path])?;
        let data = fs::read(&file)?;
        fs::remove_file(&file)?;
        Ok(data)
    }

    /// The snapshots of an image, by name.
    pub fn snapshots(&self, image: &str) -> Result<Vec<String>> {
        let text = self.site.rbd(&["snap", "ls", "--format", "json", &format!("{POOL}/{image}")])?;
        let found: Value = serde_json::from_str(&text).with_context(|| format!("rbd snap ls: {text}"))?;
        let found = found.as_array().cloned().unwrap_or_default();
        Ok(found.iter().filter_map(|snapshot| snapshot["name"].as_str().map(str::to_owned)).collect())
    }

    /// The clients that have an image open, by address.
    pub fn clients(&self, image: &str) -> Result<Vec<String>> {
        let text = self.site.rbd(&["status", "--format", "json", &format!("{POOL}/{image}")])?;
        let status: Value = serde_json::from_str(&text).with_context(|| format!("rbd status: {text}"))?;
        let watchers = status["watchers"].as_array().cloned().unwrap_or_default();
        Ok(watchers.iter().filter_map(|watcher| watcher["address"].as_str().map(str::to_owned)).collect())
    }

    /// The clients that Ceph answers no more, by address, and until when.
    pub fn blocked(&self) -> Result<BTreeMap<String, String>> {
        let map = self.site.json(&["osd", "dump"])?;
        let until = |(client, until): (&String, &Value)| {
            Ok((client.clone(), until.as_str().context("no date")?.to_owned()))
        };
        map["blocklist"].as_object().into_iter().flatten().map(until).collect()
    }

    /// Has the monitor stand still, as if its machine hung, or continue.
    pub fn freeze_monitor(&mut self, stands: bool) {
        self.monitor.signal(if stands { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    /// Has the OSD stand still, or continue.
    pub fn freeze_osd(&mut self, stands: bool) {
        self.osd.signal(if stands { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    /// Ends the servers. No client must have anything left to write.
    pub fn stop(mut self) -> Result<()> {
        self.freeze_monitor(false);
        self.freeze_osd(false);
        // An OSD that ends waits for an answer of the monitor.
        for server in [self.manager, self.osd, self.monitor] {
            server.terminate(END)?;
        }
        Ok(())
    }
}

impl Site {
    fn configuration(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    fn servers_configuration(&self) -> PathBuf {
        self.folder.join("servers.conf")
    }

    /// As `ceph config generate-minimal-conf` writes it.
    fn monitor(&self) -> String {
        format!("[v2:{0}:3300/0,v1:{0}:6789/0]", self.address)
    }

    /// Writes configurations and keyrings. Returns the OSD's key.
    fn write_files(&self) -> Result<String> {
        for folder in ["mon", "mgr", "osd", "modules"] {
            fs::create_dir_all(self.folder.join(folder))?;
        }
        let [monitor, administrator, manager, osd, user] =
            [generate_key()?, generate_key()?, generate_key()?, generate_key()?, generate_key()?];
        let administrator = with_rights("client.admin", &administrator, &["mon", "osd", "mgr"], "allow *");
        let manager_rights = format!(
            "{}\tcaps osd = \"allow *\"\n",
            with_rights("mgr.a", &manager, &["mon"], "allow profile mgr")
        );
        // The least rights: with them, a host adds clients to the blocklist and removes none.
        let user_rights = format!(
            "{}\tcaps osd = \"profile rbd pool={POOL}\"\n",
            with_rights(&format!("client.{USER}"), &user, &["mon"], "profile rbd")
        );
        let monitor = with_rights("mon.", &monitor, &["mon"], "allow *");
        let first = format!("{monitor}{administrator}{manager_rights}{user_rights}");
        let keyring = format!("ceph.client.{USER}.keyring");
        for (name, content) in [
            ("first.keyring", &first),
            ("admin.keyring", &administrator),
            ("mgr/keyring", &manager_rights),
            ("osd/keyring", &with_rights("osd.0", &osd, &[], "")),
            (keyring.as_str(), &with_rights(&format!("client.{USER}"), &user, &[], "")),
        ] {
            write_secret(&self.folder.join(name), content)?;
        }
        let keyring = self.folder.join(keyring);
        let host = format!(
            "[global]\nfsid = {}\nmon_host = {}\n[client.{USER}]\nkeyring = {}\n",
            self.id,
            self.monitor(),
            keyring.display()
        );
        fs::write(self.configuration(), host)?;
        fs::write(self.servers_configuration(), self.servers_settings())?;
        Ok(osd)
    }

    fn servers_settings(&self) -> String {
        let (servers, folder) = (self.servers.display(), self.folder.display());
        let (id, monitor, address) = (&self.id, self.monitor(), &self.address);
        format!(
            "[global]
fsid = {id}
mon_host = {monitor}
public addr = {address}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
log file =
log to stderr = true
admin socket =
pid file =
run dir = {folder}
plugin dir = {servers}
osd class dir = {servers}
erasure code dir = {servers}
osd erasure code plugins =
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd crush update on start = false
osd objectstore = memstore
osd memory target = 939524096
memstore device bytes = {SIZE}
mon allow pool size one = true
mon data = {folder}/mon
mon data avail crit = 1
mon data avail warn = 1
mon cluster log file = {folder}/cluster.log
mgr data = {folder}/mgr
mgr module path = {folder}/modules
osd data = {folder}/osd
[client.admin]
keyring = {folder}/admin.keyring
log to stderr = false
[mon]
keyring = {folder}/mon/keyring
[mgr]
keyring = {folder}/mgr/keyring
[osd]
keyring = {folder}/osd/keyring
"
        )
    }

    fn initialize_monitor(&self) -> Result<()> {
        let map = self.folder.join("monmap");
        let mut make = Command::new(self.servers.join("monmaptool"));
        make.env("LD_LIBRARY_PATH", &self.servers);
        make.args(["--create", "--fsid", &self.id, "--addv", "a", &self.monitor()]).arg(&map);
        process::run(&mut make, COMMAND)?.success()?;
        let mut initialize = self.command("ceph-mon", "a");
        initialize
            .args(["--mkfs", "--monmap"])
            .arg(map)
            .arg("--keyring")
            .arg(self.folder.join("first.keyring"));
        process::run(&mut initialize, START)?.success().map(drop)
    }

    fn command(&self, program: &str, id: &str) -> Command {
        let mut command = self.namespace.command(self.servers.join(program));
        command.env("LD_LIBRARY_PATH", &self.servers);
        command.arg("--conf").arg(self.servers_configuration()).args(["-i", id]);
        command
    }

    fn spawn(&self, program: &str, id: &str) -> Result<Daemon> {
        let mut command = self.command(program, id);
        command.arg("-f");
        Daemon::spawn(program, &mut command, &self.logs.join(format!("{program}.log")))
    }

    /// Runs `ceph` as its administrator.
    fn ceph(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        let mut command = self.namespace.command("ceph");
        command.arg("--conf").arg(self.servers_configuration());
        command.args(["--connect-timeout", "5"]).args(arguments);
        process::run_with_input(&mut command, input, COMMAND)?.success()
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = arguments.to_vec();
        all.extend(["--format", "json"]);
        let text = self.ceph(&all, b"")?;
        serde_json::from_str(&text).with_context(|| format!("ceph {}: {text}", all.join(" ")))
    }

    /// Runs `rbd` as its administrator.
    fn rbd(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.namespace.command("rbd");
        command.arg("--conf").arg(self.servers_configuration());
        command.args(["--client_mount_timeout", "5", "--rados_osd_op_timeout", "10"]).args(arguments);
        process::run(&mut command, COMMAND)?.success()
    }
}

/// An entry of a keyring, with the same right at each of these kinds of server.
fn with_rights(entity: &str, key: &str, kinds: &[&str], right: &str) -> String {
    let rights: String = kinds.iter().map(|kind| format!("\tcaps {kind} = \"{right}\"\n")).collect();
    format!("[{entity}]\n\tkey = {key}\n{rights}")
}

fn write_secret(path: &Path, content: &str) -> Result<()> {
    let mut file = fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    Ok(file.write_all(content.as_bytes())?)
}

fn random_id() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

fn generate_key() -> Result<String> {
    let mut generate = Command::new("ceph-authtool");
    let key = process::run(generate.arg("--gen-print-key"), COMMAND)?.success()?;
    Ok(key.trim().to_owned())
}
