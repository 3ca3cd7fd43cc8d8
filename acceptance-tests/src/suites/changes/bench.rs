//! The VM that is changed, as the table describes it, and everything that the changes name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::table::Change;
use super::{Power, shown};
use crate::api::{self, Access, Api, Request};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::{berth, manifests, process, wait};

pub(super) const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM.
pub(super) const BOOT: Duration = Duration::from_secs(240);
/// The time for a page of the guest.
const ANSWER: Duration = Duration::from_secs(15);
/// The least sizes of the media `iso-c` and `iso-d`, in bytes.
pub(super) const SMALL: u64 = 1 << 20;
pub(super) const LARGE: u64 = 4 << 20;
/// The line that the guest prints at each boot.
const STARTED: &str = "berth-guest-started";

/// The things that a change leaves alone unless it restarts the VM. They can be seen whatever the guest's network is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) pid: Option<i32>,
    /// The number of the guest's boots in the log of its serial console.
    boots: usize,
}

/// The guest, as it describes itself.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    pub(super) boot: String,
    pub(super) uptime: f64,
    /// The checksum of the beginning of its boot disk.
    pub(super) root: String,
}

/// The VM `web` of the class `small`.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub(super) platform: &'a Platform,
    api: Api,
    /// The guest's private address.
    address: String,
    serial_log: PathBuf,
    root_serial: String,
    /// Whether the VM is stopped without a request to the guest.
    pub(super) cut_the_power: bool,
}

impl<'a> Bench<'a> {
    /// Starts the VM, and waits for its guest.
    pub(super) fn start(platform: &'a Platform, guest: &GuestImage) -> Result<Self> {
        platform.kubectl().apply(&manifests::all(&stock(platform, guest)?))?;
        let api = Access::read(platform.kubeconfig(), platform.namespace())?.connect()?;
        let mut bench = Self {
            platform,
            api,
            address: String::new(),
            serial_log: PathBuf::new(),
            root_serial: String::new(),
            cut_the_power: false,
        };
        bench.declare(Power::Running)?;
        let status = bench.vm()?["status"].clone();
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        bench.address = text(&status["interfaces"][0]["address"])?;
        let instance = text(&status["instanceID"])?;
        bench.serial_log = platform.host().state().join("instances").join(instance).join("serial.log");
        bench.root_serial = text(&platform.kubectl().object("disk", "web-root")?["status"]["serial"])?;
        bench.guest()?;
        Ok(bench)
    }

    /// The object.
    pub(super) fn vm(&mut self) -> Result<Value> {
        self.api.read(&format!("{}/web", api::VM.path()))
    }

    /// Waits until the object satisfies `probe`.
    pub(super) fn until(
        &mut self,
        what: &str,
        limit: Duration,
        probe: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        wait::until(what, limit, || {
            let vm = self.vm()?;
            ensure!(probe(&vm), "its status is {:#}", vm["status"]);
            Ok(())
        })
    }

    /// Declares the VM with this power and without a change, and waits until it is as declared.
    pub(super) fn declare(&mut self, power: Power) -> Result<()> {
        let spec = self.spec(power);
        self.apply("VMClass", "small", class())?;
        self.apply("VM", "web", spec)?;
        self.until(&format!("the VM to be {}", power.name()), BOOT, |vm| {
            is_settled(vm) && vm["status"]["state"] == power.name() && api::is_true(vm, "Ready")
        })
    }

    /// Takes back what the change before this one declared of another object.
    pub(super) fn without_changes(&mut self, change: &Change, power: Power) -> Result<()> {
        self.apply("VMClass", "small", class())?;
        if change.kind == "VM" {
            return Ok(());
        }
        let spec = self.spec(power);
        self.apply("VM", "web", spec)?;
        // A new generation of the class is none of the VM: what waits then is of this change.
        let is_on = matches!(power, Power::Running | Power::Paused);
        self.until("nothing to wait for a start", SOON, |vm| is_settled(vm) && !(is_on && waits(vm)))
    }

    /// Declares the object with the change, and everything else as it was. Returns the answer if it is refused.
    pub(super) fn make(&mut self, change: &Change, power: Power) -> Result<Option<String>> {
        let (name, spec) = match change.kind {
            "VM" => ("web", self.spec(power)),
            _ => ("small", class()),
        };
        self.try_apply(change.kind, name, &changed(spec, change))
    }

    fn apply(&mut self, kind: &str, name: &str, spec: Value) -> Result<()> {
        match self.try_apply(kind, name, &spec)? {
            None => Ok(()),
            Some(refusal) => bail!("{kind} {name}: {refusal}"),
        }
    }

    fn try_apply(&mut self, kind: &str, name: &str, spec: &Value) -> Result<Option<String>> {
        let of_kind = if kind == "VM" { api::VM } else { api::VM_CLASS };
        let path = format!("{}/{name}?fieldManager=changes&force=true", of_kind.path());
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        let object = object.to_string();
        let request =
            Request { content_type: "application/apply-patch+yaml", ..Request::new("PATCH", &path, &object) };
        match self.api.answer(&request)? {
            (200..=299, _) => Ok(None),
            (400..=499, answer) => Ok(Some(answer)),
            (status, answer) => bail!("{kind} {name}: {status}: {answer}"),
        }
    }

    /// The spec of the VM without a change.
    pub(super) fn spec(&self, power: Power) -> Value {
        let stop = match self.cut_the_power {
            true => json!({"mode": "Hard"}),
            false => json!({"mode": "Graceful", "gracePeriodSeconds": 5}),
        };
        json!({
            "class": "small", "power": power.name(), "stop": stop,
            "disks": [{"name": "web-root", "boot": true}, {"name": "web-data"}],
            // A VM with a medium in a drive is not suspended.
            "cdroms": [{"name": "a", "image": "iso-c", "connected": power != Power::Suspended}],
            "networkInterfaces": [{"name": "nic0", "publicIP": "web"}],
        })
    }

    /// The current witness.
    pub(super) fn witness(&self) -> Result<Witness> {
        let pids = berth::qemu_processes(self.platform.namespace())?;
        ensure!(pids.len() < 2, "{} QEMU processes", pids.len());
        let log =
            fs::read(&self.serial_log).with_context(|| format!("reading {}", self.serial_log.display()))?;
        let boots = String::from_utf8_lossy(&log).matches(STARTED).count();
        Ok(Witness { pid: pids.first().copied(), boots })
    }

    /// A page of the guest.
    pub(super) fn page(&self, name: &str) -> Result<String> {
        http::get(self.platform.namespace(), &self.address, &format!("/cgi-bin/{name}"), ANSWER)
    }

    /// The guest, once it answers.
    pub(super) fn guest(&self) -> Result<Guest> {
        wait::until("the guest", BOOT, || {
            let (uptime, disks) = (self.page("uptime")?, self.page("disks")?);
            let of_root = |line: &&str| field(line, "serial").is_ok_and(|serial| serial == self.root_serial);
            let root = disks.lines().find(of_root).with_context(|| format!("no boot disk: {disks}"))?;
            let sum = self.page(&format!("sum?dev={}", field(root, "name")?))?;
            Ok(Guest {
                boot: field(&uptime, "boot_id")?.to_owned(),
                uptime: field(&uptime, "uptime")?.parse()?,
                root: field(&sum, "sha256")?.to_owned(),
            })
        })
    }

    /// Starts the VM, which is off, with a change, and switches it off again. Returns the options of its QEMU.
    pub(super) fn command_line_of_a_start(&mut self, change: Option<&Change>) -> Result<Vec<String>> {
        let line = self.started(change);
        self.declare(Power::Stopped)?;
        line
    }

    fn started(&mut self, change: Option<&Change>) -> Result<Vec<String>> {
        if let Some(change) = change {
            self.without_changes(change, Power::Stopped)?;
            let refused = self.make(change, Power::Running)?;
            ensure!(refused.is_none(), "{refused:?}");
        }
        if change.is_none_or(|change| change.kind != "VM") {
            let spec = self.spec(Power::Running);
            self.apply("VM", "web", spec)?;
        }
        self.until("the VM to run", BOOT, |vm| is_settled(vm) && vm["status"]["state"] == "Running")?;
        let line = fs::read_to_string(format!("/proc/{}/cmdline", self.platform.qemu()?))?;
        Ok(shown::options(&line))
    }
}

/// A spec with the change.
pub(super) fn changed(mut spec: Value, change: &Change) -> Value {
    for (key, value) in change.spec.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

/// Whether the status is that of the newest spec.
pub(super) fn is_settled(vm: &Value) -> bool {
    let generation = &vm["metadata"]["generation"];
    generation.is_number() && vm["status"]["observedGeneration"] == *generation
}

/// Whether anything waits for the next start of the VM.
pub(super) fn waits(vm: &Value) -> bool {
    vm["status"]["pendingPowerCycle"].as_array().is_some_and(|names| !names.is_empty())
}

fn class() -> Value {
    json!({"cpus": 2, "memory": "512Mi", "firmware": "BIOS"})
}

/// The objects that the VM and the changes name.
fn stock(platform: &Platform, guest: &GuestImage) -> Result<Vec<Value>> {
    let url = platform.images().put("changes.qcow2", Content::File(guest.path.clone()));
    let mut objects = vec![
        manifests::image("small", &url, &guest.sha256),
        manifests::disk("web-root", "small", "64Mi"),
        manifests::blank_disk("web-data", "64Mi"),
        manifests::public_ip("web", "default"),
        manifests::bios_class("other", "768Mi"),
        object("SecurityGroup", "web", &json!({"ingress": [], "egress": []})),
        secret("team", "text", "ssh-ed25519 BBBB b\n"),
        secret("login", "password", "$6$salt$first"),
    ];
    for (name, bytes) in [("iso-c", SMALL), ("iso-d", LARGE)] {
        let medium = medium(platform.folder(), name, bytes)?;
        let url = platform.images().put(&format!("{name}.iso"), Content::File(medium.path));
        let image = manifests::image(name, &url, &medium.sha256);
        objects.push(manifests::with(image, "format", json!("iso")));
    }
    Ok(objects)
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn secret(name: &str, key: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: text}})
}

/// An ISO image with a file of this size.
fn medium(folder: &Path, name: &str, bytes: u64) -> Result<GuestImage> {
    let (tree, file) = (folder.join(name), folder.join(format!("{name}.iso")));
    fs::create_dir_all(&tree)?;
    File::create(tree.join("data"))?.set_len(bytes)?;
    let mut make = Command::new("xorriso");
    make.args(["-as", "mkisofs", "-quiet", "-V", "MEDIUM", "-r", "-o"]).arg(&file).arg(&tree);
    process::run(&mut make, SOON)?.success()?;
    GuestImage::at(file)
}
