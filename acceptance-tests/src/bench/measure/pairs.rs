//! N14: the network between two guests, on one host and on two, beside the same guests in bare QEMUs.
//!
//! ```text
//!  h1: server, client ── a bridge each ── VXLAN over the segment ── h2: client       in berth, with its filters
//!  h1: server, client ── a plain bridge ─ VXLAN over a segment ──── h2: client       by hand, without any filter
//! ```
//!
//! The servers run all the time. The clients are started in turn, one at a time, and report on their consoles.

mod by_hand;
mod by_libvirt;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::Bench;
use super::figure::Reading;
use super::figures::guest::{Anchor, LIBVIRT, LOCAL, TUNNEL};
use super::guest::by_hand::Flags;
use super::guest::load::{self, Course, Load};
use super::guest::{MEMORY, of_loads, remove};
use super::samples::Samples;
use crate::api::{self, Access, Api};
use crate::fleet::Fleet;
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Parts;
use crate::{report, tools, undo, wait};
use by_hand::{BareHosts, Place};
use by_libvirt::InLibvirt;

/// The number of runs of each, in turn.
const ROUNDS: usize = 7;
const NETWORK: &str = "load";
const RANGE: &str = "10.88.0.0/24";
const SERVER: &str = "10.88.0.10";
const CLIENT: &str = "10.88.0.11";
const IMAGE: &str = "small";
const PROGRAM: &str = "load";
const CLASS: &str = "linux";
const START: Duration = Duration::from_secs(60);

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let image = bench.small_guest()?;
    let logs = bench.log("N14-guests").with_extension("");
    let parts = Parts {
        binaries: bench.binaries.clone(),
        kubectl: tools::kubectl(&bench.cache)?,
        terraform: bench.terraform()?,
        logs: logs.clone(),
    };
    let mut fleet = Fleet::embedded(&parts)?;
    fleet.join(2, &[])?;
    let folder = fleet.folder().join("load");
    fs::create_dir_all(&folder)?;
    let load = Load::build(&folder)?;
    let access = fleet.access()?;
    let mut berth = Guests { api: access.connect()?, access, fleet: &fleet };
    berth.prepare(&image, &load)?;
    let server = berth.start("server", "h1", SERVER, &load::server_script())?;
    load::course(&server.console)?;
    // A client in berth, of which the anchors take the volume of cloud-init and the processor, and which is not measured.
    let first = berth.start("client", "h1", CLIENT, &load::client_script(SERVER))?;
    load::started(&first.console, Instant::now())?;
    let pid = *fleet.member("h1")?.qemu()?.first().context("no QEMU runs")?;
    let anchors = Anchors::start(&image, &load, [server.seed(), first.seed()], pid, &logs)?;
    berth.end("client")?;
    let (mut ours, mut bare, mut libvirt) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()], Vec::new());
    for round in 0..ROUNDS {
        let places = [("h1", Place::SameHost), ("h2", Place::OtherHost)];
        for (path, (host, place)) in places.into_iter().enumerate() {
            undo::halt_if_interrupted();
            let client = berth.start("client", host, CLIENT, &load::client_script(SERVER))?;
            ours[path].push(load::course(&client.console)?);
            berth.end("client")?;
            bare[path].push(anchors.bare.run(place, &folder.join(format!("bare-{round}-{path}")))?);
        }
        libvirt.extend(anchors.in_libvirt(&folder.join(format!("libvirt-{round}"))));
        report::note(&format!("        round {} of {ROUNDS}", round + 1));
    }
    berth.end("server")?;
    let mut readings = of_loads(LOCAL.iter(), &ours[0], &bare[0])?;
    readings.extend(of_loads(TUNNEL.iter(), &ours[1], &bare[1])?);
    for Anchor { name, divisor, figure } in LIBVIRT {
        let mut values = Vec::new();
        for course in &libvirt {
            values.extend(course.values(name)?.iter().map(|value| value / divisor));
        }
        readings.extend(Samples::new(values).map(|samples| Reading::median(*figure, &samples)));
    }
    Ok(readings)
}

/// The hosts without berth.
struct Anchors {
    bare: BareHosts,
    libvirt: Option<InLibvirt>,
}

impl Anchors {
    /// `seeds`: the volumes of cloud-init of the server and the client in berth; `pid`: the QEMU of one of them.
    fn start(image: &GuestImage, load: &Load, seeds: [PathBuf; 2], pid: i32, logs: &Path) -> Result<Self> {
        let flags = Flags::of(pid)?;
        let bare = BareHosts::new(image, load, seeds, flags.clone(), &logs.join("by-hand"))?;
        let folder = bare.files().join("libvirt");
        let libvirt = InLibvirt::start(flags, bare.files(), &folder, &logs.join("libvirt"));
        // Not every machine can have it.
        let libvirt =
            libvirt.inspect_err(|error| report::note(&format!("        without libvirt: {error:#}")));
        Ok(Self { bare, libvirt: libvirt.ok() })
    }

    /// Runs the client in libvirt, where there is one.
    fn in_libvirt(&self, folder: &Path) -> Option<Course> {
        let course = self.libvirt.as_ref()?.run(folder);
        course.inspect_err(|error| report::note(&format!("        libvirt: {error:#}"))).ok()
    }
}

/// A guest in berth.
struct Guest {
    console: PathBuf,
}

impl Guest {
    /// The volume of cloud-init.
    fn seed(&self) -> PathBuf {
        self.console.with_file_name("seed.img")
    }
}

/// The guests in berth.
struct Guests<'a> {
    api: Api,
    access: Access,
    fleet: &'a Fleet,
}

impl Guests<'_> {
    /// The network, the class and the images.
    fn prepare(&mut self, image: &GuestImage, load: &Load) -> Result<()> {
        let images = self.fleet.images();
        let url = images.put("small.qcow2", Content::File(image.path.clone()));
        let source = json!({"url": url, "sha256": image.sha256});
        super::fleet::make_image(&mut self.api, &self.access, IMAGE, &json!({"source": source}))?;
        let url = images.put("load.raw", Content::File(load.disk.clone()));
        let source = json!({"url": url, "sha256": load.sha256});
        let spec = json!({"source": source, "format": "raw"});
        super::fleet::make_image(&mut self.api, &self.access, PROGRAM, &spec)?;
        self.api.create(api::VM_CLASS, CLASS, &super::fleet::class(MEMORY))?;
        self.api.create(api::NETWORK, NETWORK, &json!({"cidr": RANGE})).map(drop)
    }

    /// Starts a guest.
    fn start(&mut self, name: &str, host: &str, address: &str, script: &str) -> Result<Guest> {
        let [boot, program] = disks_of(name);
        self.api.create(api::DISK, &boot, &json!({"image": IMAGE}))?;
        self.api.create(api::DISK, &program, &json!({"image": PROGRAM}))?;
        let mut vm = super::fleet::vm(CLASS, &boot, Some(host));
        vm["disks"] = json!([{"name": boot, "boot": true}, {"name": program}]);
        vm["networkInterfaces"] = json!([{"name": "nic0", "network": NETWORK, "address": address}]);
        vm["bootstrap"] = json!({"userData": script});
        self.api.create(api::VM, name, &vm)?;
        let berth = &self.fleet.member(host)?.berth;
        let instances = berth.machine().seen(berth.state()).join("instances");
        let path = format!("{}/{name}", api::VM.path());
        let id = wait::until("the VM to have a machine", START, || {
            let object = self.api.read(&path)?;
            let id = object["status"]["instanceID"].as_str().context("the VM has no machine yet")?;
            Ok(id.to_owned())
        })?;
        Ok(Guest { console: instances.join(id).join("serial.log") })
    }

    /// Removes a guest and its disks.
    fn end(&mut self, name: &str) -> Result<()> {
        remove(&mut self.api, &self.access, api::VM, name)?;
        disks_of(name).iter().try_for_each(|disk| remove(&mut self.api, &self.access, api::DISK, disk))
    }
}

fn disks_of(name: &str) -> [String; 2] {
    [format!("{name}-boot"), format!("{name}-program")]
}
