//! An anchor: the same machines under libvirtd, the usual choice of users who manage QEMU on their own.
//!
//! It runs on a whole machine of its own, so that neither its state nor its sockets are this machine's, with Debian's
//! libvirtd.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::fleet::HALTED_MEMORY;
use crate::machine::Machine;
use crate::namespace::Namespace;
use crate::proc;
use crate::process::{self, Daemon};
use crate::{prerequisites, wait};

const NEEDED: &[(&str, &str)] = &[("libvirtd", "libvirt-daemon"), ("virsh", "libvirt-clients")];
/// The connection of virsh.
pub const URI: &str = "qemu:///system";
/// The number of concurrent requests: Terraform's default.
const CLIENTS: usize = 10;
const START: Duration = Duration::from_secs(30);
/// The time after which the start of a domain counts as failed.
const LIMIT: Duration = Duration::from_secs(300);

/// Replaces this machine's files: libvirtd's data, its configuration, and a user without which it does not start.
const SETTLE_IN: &str = r#"set -e
for folder in /etc/libvirt /run /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do
    mkdir -p "$folder"; mount -t tmpfs tmpfs "$folder"
done
cp /etc/passwd /etc/group "$1"
echo "libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin" >>"$1/passwd"
printf "libvirt-qemu:x:64055:\nkvm:x:64056:\n" >>"$1/group"
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/group" /etc/group
cat >/etc/libvirt/qemu.conf <<END
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
stdio_handler = "file"
END
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
"#;

/// A machine with libvirtd. Dropping it ends all of its processes.
#[derive(Debug)]
pub struct Libvirt {
    daemon: Daemon,
    machine: Arc<Machine>,
    folder: PathBuf,
}

impl Libvirt {
    /// Installs missing packages, starts libvirtd in `folder` and waits until it responds.
    pub fn start(folder: &Path, log: &Path) -> Result<Self> {
        prerequisites::install(NEEDED)?;
        fs::create_dir_all(folder)?;
        let machine = Machine::whole("libvirt", &Namespace::new()?, &folder.join("machine.log"))?;
        let mut settle = machine.command("sh");
        settle.args(["-c", SETTLE_IN, "sh"]).arg(folder);
        process::run(&mut settle, START)?.success()?;
        let daemon = machine.spawn("libvirtd", machine.command("libvirtd"), log)?;
        let libvirt = Self { daemon, machine, folder: folder.to_owned() };
        wait::until("libvirtd to answer", START, || libvirt.virsh(&["version"]).map(drop))?;
        Ok(libvirt)
    }

    /// Defines a domain, which does not run yet.
    pub fn define(&self, description: &str) -> Result<()> {
        let file = self.folder.join("domain.xml");
        fs::write(&file, description)?;
        let path = file.to_str().context("a path that is no text")?;
        self.virsh(&["define", path]).map(drop)
    }

    /// A command on the machine.
    pub fn command(&self, program: &Path) -> Command {
        self.machine.command(program)
    }

    /// The resident memory of libvirtd, in MiB.
    pub fn memory(&self) -> Result<f64> {
        Ok(proc::memory(i32::try_from(self.daemon.pid())?)?.rss)
    }

    /// Writes the definitions of `count` domains, each with an overlay of the image. Nothing runs yet.
    pub fn prepare(&self, prefix: &str, count: usize, image: &Path) -> Result<Vec<Domain>> {
        (0..count)
            .map(|number| {
                let name = format!("{prefix}-{number}");
                let disk = self.folder.join(format!("{name}.qcow2"));
                let mut create = Command::new("qemu-img");
                create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(image).arg(&disk);
                process::run(&mut create, START)?.success()?;
                let file = self.folder.join(format!("{name}.xml"));
                fs::write(&file, description(&name, &disk)?)?;
                Ok(Domain { name, file })
            })
            .collect()
    }

    /// Starts the domains, with as many clients as Terraform has, and waits until all run. Returns the times from the first
    /// request until each ran.
    pub fn burst(&self, domains: &[Domain]) -> Result<Vec<Duration>> {
        let mut clients = (0..CLIENTS).map(|_| self.client()).collect::<Result<Vec<_>>>()?;
        let began = Instant::now();
        let share = domains.len().div_ceil(CLIENTS);
        std::thread::scope(|scope| {
            let running: Vec<_> = clients
                .iter_mut()
                .zip(domains.chunks(share))
                .map(|(client, domains)| {
                    scope.spawn(move || domains.iter().map(|domain| client.create(domain, began)).collect())
                })
                .collect();
            let mut all = Vec::new();
            for thread in running {
                let times: Result<Vec<Duration>> =
                    thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
                all.extend(times?);
            }
            Ok(all)
        })
    }

    /// Starts the domains, one every `gap`. Returns the times from each one's request until it ran.
    pub fn one_by_one(&self, domains: &[Domain], gap: Duration) -> Result<Vec<Duration>> {
        let mut client = self.client()?;
        let began = Instant::now();
        let mut took = Vec::new();
        for (domain, number) in domains.iter().zip(0u32..) {
            std::thread::sleep((gap * number).saturating_sub(began.elapsed()));
            took.push(client.create(domain, Instant::now())?);
        }
        Ok(took)
    }

    /// Destroys the domains.
    pub fn destroy(&self, domains: &[Domain]) -> Result<()> {
        for domain in domains {
            self.virsh(&["destroy", &domain.name])?;
        }
        Ok(())
    }

    /// Runs virsh and returns its output.
    pub fn virsh(&self, arguments: &[&str]) -> Result<String> {
        let mut virsh = self.machine.command("virsh");
        virsh.args(["--connect", URI]).args(arguments);
        process::run(&mut virsh, LIMIT)?.success()
    }

    fn client(&self) -> Result<Client> {
        let mut virsh = self.machine.command("virsh");
        virsh.args(["--connect", URI]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = virsh.spawn().context("starting virsh")?;
        let output = BufReader::new(child.stdout.take().context("virsh's output")?);
        let mut client = Client { child, output };
        // The client is connected when it prompts.
        client.ask("version")?;
        client.until("Running hypervisor")?;
        Ok(client)
    }
}

/// A domain that can be started.
#[derive(Debug)]
pub struct Domain {
    name: String,
    file: PathBuf,
}

/// One connection to libvirtd.
#[derive(Debug)]
struct Client {
    child: std::process::Child,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn ask(&mut self, request: &str) -> Result<()> {
        let mut input = self.child.stdin.as_ref().context("virsh's input")?;
        Ok(writeln!(input, "{request}")?)
    }

    fn until(&mut self, answer: &str) -> Result<()> {
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.output.read_line(&mut line)? > 0, "virsh ended before it printed {answer:?}");
            if line.contains(answer) {
                return Ok(());
            }
        }
    }

    /// The time from `began` until the domain ran.
    fn create(&mut self, domain: &Domain, began: Instant) -> Result<Duration> {
        self.ask(&format!("create {}", domain.file.display()))?;
        self.until(&format!("Domain '{}' created", domain.name))?;
        Ok(began.elapsed())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It ends at the end of its input; it may have ended before.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The libvirt definition that corresponds to berth's class `halted`.
fn description(name: &str, disk: &Path) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "<domain type='qemu'><name>{name}</name>")?;
    writeln!(text, "<memory unit='MiB'>{}</memory><vcpu>1</vcpu>", HALTED_MEMORY >> 20)?;
    writeln!(text, "<os><type arch='x86_64' machine='q35'>hvm</type></os>")?;
    writeln!(text, "<features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features>")?;
    writeln!(text, "<devices><controller type='scsi' model='virtio-scsi'/>")?;
    writeln!(text, "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/>")?;
    writeln!(text, "<source file='{}'/><target dev='sda' bus='scsi'/></disk>", disk.display())?;
    writeln!(text, "<interface type='bridge'><source bridge='br0'/><model type='virtio'/></interface>")?;
    writeln!(text, "<serial type='file'><source path='{}.log'/></serial>", disk.display())?;
    writeln!(text, "<memballoon model='virtio'/>")?;
    writeln!(text, "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>")?;
    writeln!(text, "</devices></domain>")?;
    Ok(text)
}
