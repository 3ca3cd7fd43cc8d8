//! Domains and networks as HCL, with the steps that bring their disks in.

mod disks;
mod networks;

use std::{collections::BTreeMap, net::Ipv4Addr};

use berth_api::{
    DEFAULT_NAME, Quantity,
    hardware::LEAST_MEMORY,
    vm::{DiskBus, NicModel},
};
use berth_hcl::{self as hcl, Expression};

use super::{
    domain::{Cdrom, Disk, DiskSource, Domain, Interface, place},
    names::Names,
    network::Network,
    shell::quoted,
};

/// The most CPUs, disks, CD-ROM drives and interfaces of a VM.
const CPUS: u64 = 128;
pub(super) const DISKS: usize = 16;
const CDROMS: usize = 4;
/// The longest name of a CD-ROM drive.
const CDROM_NAME: usize = 36;
const INTERFACES: usize = 10;

/// The configuration, and what it lacks.
#[derive(Debug)]
pub struct Configuration {
    /// HCL.
    pub text: String,
    /// The parts that berth cannot express, each with the name of its VM or network.
    pub notes: Vec<String>,
    /// The number of VMs.
    pub vms: usize,
    /// The number of images to bring in.
    pub images: usize,
    /// The number of files that become disks where they are.
    pub taken: usize,
}

/// How the files of disks come to berth.
#[derive(Clone, Copy, Debug)]
pub struct DiskFiles<'a> {
    /// The folder that those are copied into which become images.
    pub image_dir: &'a str,
    /// Whether qcow2 files of one disk each become disks, without a copy.
    pub in_place: bool,
}

/// A disk's file that can be an image as it is.
#[derive(Clone, Debug)]
pub struct ImageFile {
    /// Its checksum.
    pub sha256: String,
}

/// Why a disk's file was not read as an image.
#[derive(Clone, Debug)]
pub enum Unread {
    /// It has to be converted first.
    Unfit(String),
    /// It cannot be read here.
    Unreadable(String),
    /// The caller does not read files.
    Unasked,
}

/// Reads the file of a disk: its path and its format.
pub type DiskReader<'a> = dyn FnMut(&str, &str) -> Result<ImageFile, Unread> + 'a;

type Arguments = Vec<(String, Expression)>;

/// The configuration of domains and their networks.
pub fn configuration(
    domains: &[Domain],
    networks: &[Network],
    files: DiskFiles<'_>,
    read_disk: &mut DiskReader<'_>,
) -> Configuration {
    let mut uses = BTreeMap::new();
    for disk in domains.iter().flat_map(|domain| &domain.disks) {
        *uses.entry(place(&disk.source)).or_default() += 1;
    }
    let mut writer = Writer {
        files,
        uses,
        taken: 0,
        read_disk,
        network_blocks: String::new(),
        class_blocks: String::new(),
        vm_blocks: String::new(),
        notes: Vec::new(),
        vms: 0,
        names: Names::default(),
        disk_names: Names::default(),
        class_names: Names::default(),
        network_names: Names::default(),
        classes: BTreeMap::new(),
        images: BTreeMap::new(),
        networks: BTreeMap::new(),
    };
    for network in networks {
        writer.add_network(network);
    }
    for domain in domains {
        writer.add_domain(domain);
    }
    let importer = domains.first().map_or("libvirt", |domain| domain.origin.importer());
    let head = format!("# Written by berth import {importer}.\n\n");
    let provider = include_str!("../../../examples/provider/provider.tf");
    let text =
        format!("{head}{provider}{}{}{}", writer.network_blocks, writer.class_blocks, writer.vm_blocks);
    let (vms, images, taken) = (writer.vms, writer.images.len(), writer.taken);
    Configuration { text, notes: writer.notes, vms, images, taken }
}

struct Writer<'a, 'r> {
    files: DiskFiles<'a>,
    /// The number of disks that have each source.
    uses: BTreeMap<String, usize>,
    /// The number of files that become disks.
    taken: usize,
    read_disk: &'a mut DiskReader<'r>,
    network_blocks: String,
    class_blocks: String,
    vm_blocks: String,
    notes: Vec<String>,
    vms: usize,
    names: Names,
    disk_names: Names,
    class_names: Names,
    network_names: Names,
    /// CPUs, memory, firmware.
    classes: BTreeMap<(u64, u64, &'static str), String>,
    /// The image of each source, and the VM that needed it first.
    images: BTreeMap<String, (String, String)>,
    /// The networks that are declared, by their names in libvirt.
    networks: BTreeMap<String, (String, &'a Network)>,
}

impl Writer<'_, '_> {
    fn add_domain(&mut self, domain: &Domain) {
        let name = self.names.free(&domain.name);
        let mut notes = domain.notes.clone();
        if name != domain.name {
            notes.insert(0, "its name is no DNS label, or used twice".to_owned());
        }
        let mut blocks = String::new();
        let mut disks = Vec::new();
        let boot =
            domain.disks.iter().enumerate().min_by_key(|(i, disk)| (disk.boot_order.unwrap_or(u32::MAX), *i));
        let boot = boot.map(|(i, _)| i).unwrap_or_default();
        for (i, disk) in domain.disks.iter().enumerate() {
            // The disk to boot from has a place, wherever it is among them.
            if disks.len() + usize::from(boot > i) >= DISKS && boot != i {
                notes.push(format!(
                    "{}: a VM of berth has at most {DISKS} disks; it is left out",
                    disk.target
                ));
                continue;
            }
            let bus = disk.bus;
            let disk = self.add_disk(domain, &name, disk, &mut blocks, &mut notes);
            let mut entry = vec![(
                "name".to_owned(),
                Expression::Raw(format!("berth_disk.{}.name", hcl::identifier(&disk))),
            )];
            if boot == i {
                entry.push(("boot".to_owned(), Expression::Raw("true".to_owned())));
            }
            match bus {
                DiskBus::VirtioScsi => {}
                DiskBus::VirtioBlk => entry.push(text("bus", "virtio-blk")),
                DiskBus::Sata => entry.push(text("bus", "sata")),
            }
            disks.push(Expression::Object(entry));
        }
        let cdroms =
            if disks.is_empty() { Vec::new() } else { self.cdroms(domain, &name, &mut blocks, &mut notes) };
        let head = if name == domain.name {
            format!("VM {name}.")
        } else {
            format!("VM {name}: {}.", domain.origin.described(&domain.name))
        };
        if disks.is_empty() {
            notes.push("it has no disk to boot from, which every VM of berth has: it is left out".to_owned());
        }
        let body =
            if disks.is_empty() { None } else { Some(self.vm(domain, &name, (disks, cdroms), &mut notes)) };
        self.notes.extend(notes.iter().map(|note| format!("{}: {note}", domain.name)));
        let lines: Vec<String> =
            std::iter::once(head).chain(notes.iter().map(|note| format!("- {note}"))).collect();
        self.vm_blocks.push_str(&blocks);
        self.vm_blocks.push_str(&format!("\n{}", hcl::comment(&lines)));
        if let Some(body) = body {
            self.vms += 1;
            self.vm_blocks.push_str(&hcl::block("resource", &["berth_vm", &hcl::identifier(&name)], &body));
        }
    }

    fn vm(
        &mut self,
        domain: &Domain,
        name: &str,
        (disks, cdroms): (Vec<Expression>, Vec<Expression>),
        notes: &mut Vec<String>,
    ) -> Arguments {
        let class = self.class(domain, notes);
        let mut interfaces = Vec::new();
        for interface in &domain.interfaces {
            if interfaces.len() == INTERFACES {
                notes.push(format!(
                    "a VM of berth has at most {INTERFACES} interfaces; the others are left out"
                ));
                break;
            }
            interfaces.push(Expression::Object(self.interface(interface, notes)));
        }
        let mut body = vec![
            text("name", name),
            ("class".to_owned(), Expression::Raw(format!("berth_vm_class.{}.name", hcl::identifier(&class)))),
            ("disks".to_owned(), Expression::List(disks)),
        ];
        if !cdroms.is_empty() {
            body.push(("cdroms".to_owned(), Expression::List(cdroms)));
        }
        body.push(("network_interfaces".to_owned(), Expression::List(interfaces)));
        body.extend(domain.uuid.as_deref().map(|uuid| text("uuid", uuid)));
        if domain.has_screen {
            body.push(text("graphics", "VGA"));
        }
        if domain.is_running == Some(false) {
            body.push(text("power", "Stopped"));
        }
        body
    }

    /// The name of the class of this size, which is written when it is first needed.
    fn class(&mut self, domain: &Domain, notes: &mut Vec<String>) -> String {
        let cpus = domain.cpus.clamp(1, CPUS);
        if cpus != domain.cpus {
            notes.push(format!("it has {} CPUs, and a VM of berth 1 to {CPUS}", domain.cpus));
        }
        let memory = domain.memory.max(LEAST_MEMORY);
        if memory != domain.memory {
            notes.push(format!(
                "its memory is less than {}, the least of berth",
                Quantity::from_bytes(LEAST_MEMORY).0
            ));
        }
        let size = (cpus, memory, domain.firmware.as_str());
        if let Some(name) = self.classes.get(&size) {
            return name.clone();
        }
        let memory = Quantity::from_bytes(memory).0;
        let firmware = domain.firmware.as_str();
        let name = self.class_names.free(&format!("cpu{cpus}-{memory}-{firmware}"));
        let body = [
            text("name", &name),
            ("cpus".to_owned(), Expression::Raw(cpus.to_string())),
            text("memory", &memory),
            text("firmware", firmware),
        ];
        let block = hcl::block("resource", &["berth_vm_class", &hcl::identifier(&name)], &body);
        self.class_blocks.push_str(&format!("\n{block}"));
        self.classes.insert(size, name.clone());
        name
    }

    fn interface(&self, interface: &Interface, notes: &mut Vec<String>) -> Arguments {
        let mut arguments = Vec::new();
        let network = interface.network.as_deref().filter(|network| *network != DEFAULT_NAME);
        let declared = network.and_then(|network| self.networks.get(network));
        match (network, declared) {
            (_, Some((name, _))) => {
                let name = Expression::Raw(format!("berth_network.{}.name", hcl::identifier(name)));
                arguments.push(("network".to_owned(), name));
            }
            (Some(network), None) => notes.push(format!(
                "its network {network} is not declared here (virsh net-dumpxml); it is on the Network default instead"
            )),
            (None, None) => {}
        }
        if interface.model != NicModel::default() {
            arguments.push(text("model", interface.model.as_str()));
        }
        let Some(mac) = &interface.mac else { return arguments };
        if !is_unicast_mac(mac) {
            notes.push(format!("{mac:?} is no MAC address of an interface; in berth it has another"));
            return arguments;
        }
        arguments.push(text("mac_address", mac));
        let address = declared.and_then(|(_, network)| reserved(network, mac));
        arguments.extend(address.map(|address| text("address", &address.to_string())));
        arguments
    }

    /// Writes a disk, and its image unless another disk has the same. Returns its name.
    fn add_disk(
        &mut self,
        domain: &Domain,
        vm: &str,
        disk: &Disk,
        blocks: &mut String,
        notes: &mut Vec<String>,
    ) -> String {
        let name = self.disk_names.free(&format!("{vm}-{}", disk.target));
        let source = place(&disk.source);
        if let DiskSource::Path(path) = &disk.source
            && self.files.in_place
            && disk.format == "qcow2"
            && self.uses.get(&source) == Some(&1)
        {
            self.taken += 1;
            blocks.push_str(&disks::taken_over(domain, &name, disk, path));
            return name;
        }
        if let DiskSource::Blank(bytes) = disk.source {
            let body = [text("name", &name), disks::size(bytes), disks::imported_from(domain, disk)];
            let block = hcl::block("resource", &["berth_disk", &hcl::identifier(&name)], &body);
            blocks.push_str(&format!("\n{block}"));
            return name;
        }
        let image = match self.images.get(&source) {
            Some((image, first)) => {
                let other = if *first == domain.name {
                    "another disk of it".to_owned()
                } else {
                    format!("VM {first}")
                };
                notes.push(format!(
                    "{}: {source} is also that of {other}; in berth each has a copy",
                    disk.target
                ));
                image.clone()
            }
            None => {
                self.images.insert(source, (name.clone(), domain.name.clone()));
                if let DiskSource::Upload { file, compression, .. } = &disk.source {
                    let read = (self.read_disk)(file, &disk.format);
                    let sha256 = read.ok().map(|file| file.sha256);
                    blocks.push_str(&disks::uploaded(domain, &name, disk, (file, *compression), sha256));
                } else {
                    self.add_image(domain, &name, &Data::of(disk), blocks, notes);
                }
                name.clone()
            }
        };
        let mut body = vec![text("name", &name), ("image".to_owned(), image_name(&image))];
        if let DiskSource::Upload { capacity, .. } = disk.source {
            body.push(disks::size(capacity));
        }
        body.push(disks::imported_from(domain, disk));
        let block = hcl::block("resource", &["berth_disk", &hcl::identifier(&name)], &body);
        blocks.push_str(&format!("\n{block}"));
        name
    }

    /// Writes the images of the media in a domain's CD-ROM drives; returns the drives.
    fn cdroms(
        &mut self,
        domain: &Domain,
        vm: &str,
        blocks: &mut String,
        notes: &mut Vec<String>,
    ) -> Vec<Expression> {
        let mut names = Names::default();
        let mut inserted = Vec::new();
        let mut drives = Vec::new();
        for drive in &domain.cdroms {
            if drives.len() == CDROMS {
                notes.push(format!(
                    "{}: a VM of berth has at most {CDROMS} CD-ROM drives; it is left out",
                    drive.target
                ));
                continue;
            }
            let short: String = drive.target.chars().take(CDROM_NAME - 4).collect();
            let mut entry = vec![text("name", &names.free(&short))];
            if let Some(image) = self.medium(domain, vm, drive, blocks, notes) {
                if inserted.contains(&image) {
                    notes.push(format!(
                        "{}: its medium is in another drive too; in berth this one is empty",
                        drive.target
                    ));
                } else {
                    entry.push(("image".to_owned(), image_name(&image)));
                    inserted.push(image);
                }
            }
            if drive.boot_first {
                entry.push(("boot_first".to_owned(), Expression::Raw("true".to_owned())));
            }
            drives.push(Expression::Object(entry));
        }
        drives
    }

    /// Returns the image of the medium in a drive, which is written when it is first needed.
    fn medium(
        &mut self,
        domain: &Domain,
        vm: &str,
        drive: &Cdrom,
        blocks: &mut String,
        notes: &mut Vec<String>,
    ) -> Option<String> {
        let data = Data::of_medium(drive)?;
        let key = format!("iso {}", place(data.source));
        if let Some((image, _)) = self.images.get(&key) {
            return Some(image.clone());
        }
        let name = self.disk_names.free(&format!("{vm}-{}", drive.target));
        self.images.insert(key, (name.clone(), domain.name.clone()));
        self.add_image(domain, &name, &data, blocks, notes);
        Some(name)
    }

    fn add_image(
        &mut self,
        domain: &Domain,
        name: &str,
        disk: &Data<'_>,
        blocks: &mut String,
        notes: &mut Vec<String>,
    ) {
        let from = match disk.source {
            DiskSource::Path(path) => quoted(path),
            DiskSource::Volume { pool, volume } => {
                format!("\"$(virsh vol-path --pool {} {})\"", quoted(pool), quoted(volume))
            }
            DiskSource::Elsewhere(place) => {
                notes.push(format!(
                    "{}: its data is on {place}, and a {} of berth is a file on its host",
                    disk.target,
                    if disk.is_iso { "medium" } else { "disk" },
                ));
                quoted(place)
            }
            // Their blocks are those of `disks`.
            DiskSource::Upload { .. } | DiskSource::Blank(_) => return,
        };
        // A guest that runs changes its disk: a checksum of now is none of the file that is brought in later.
        let is_still = disk.is_iso || domain.is_running != Some(true);
        let file = match disk.source {
            DiskSource::Path(path) if is_still => (self.read_disk)(path, disk.format),
            _ => Err(Unread::Unasked),
        };
        let image_dir = self.files.image_dir;
        let format = match (disk.is_iso, &file) {
            (true, _) => "iso",
            (false, Ok(_)) => disk.format,
            (false, Err(_)) => "qcow2",
        };
        let to = format!("{image_dir}/{name}.{format}");
        let kind = if disk.is_iso { "Medium in" } else { "Disk" };
        let mut lines = vec![format!("{kind} {} of {}: {}", disk.target, domain.name, place(disk.source))];
        if domain.is_running != Some(false) && !disk.is_iso {
            lines.push(format!("  {}", domain.origin.shutdown(&domain.name)));
        }
        lines.push(format!("  mkdir -p {image_dir}"));
        match &file {
            Ok(_) => lines.push(format!("  cp --sparse=always {from} {to}")),
            Err(why) => {
                let (read, written) = (quoted(disk.format), if disk.is_iso { "raw" } else { "qcow2" });
                lines.push(format!("  qemu-img convert -f {read} -O {written} {from} {to}"));
                lines.push(format!("  sha256sum {to}"));
                match why {
                    Unread::Unfit(why) => {
                        notes.push(format!("{}: its file has to be converted: {why}", disk.target))
                    }
                    Unread::Unreadable(why) => {
                        notes.push(format!("{}: its file was not read: {why}", disk.target))
                    }
                    Unread::Unasked => {}
                }
            }
        }
        lines.push(format!(
            "  berth up --image-dir {image_dir} (or berth host), on the host that the VM runs on"
        ));
        let label = hcl::identifier(name);
        let (variable, sha256) = match &file {
            Ok(file) => (String::new(), Expression::text(&file.sha256)),
            Err(_) => {
                let variable = format!("{label}_sha256");
                let description =
                    text("description", &format!("The checksum of {to}, as sha256sum prints it."));
                let body = [description, ("type".to_owned(), Expression::Raw("string".to_owned()))];
                let block = hcl::block("variable", &[&variable], &body);
                (format!("\n{block}"), Expression::Raw(format!("var.{variable}")))
            }
        };
        let source = vec![text("url", &format!("file://{to}")), ("sha256".to_owned(), sha256)];
        let mut body = vec![text("name", name)];
        if !disk.is_iso {
            body.extend(domain.guest.attributes());
        }
        body.push(("source".to_owned(), Expression::Object(source)));
        if matches!(format, "raw" | "iso") {
            body.push(text("format", format));
        }
        let block = hcl::block("resource", &["berth_image", &label], &body);
        blocks.push_str(&format!("{variable}\n{}{block}", hcl::comment(&lines)));
    }
}

/// The data of an image.
struct Data<'a> {
    target: &'a str,
    source: &'a DiskSource,
    format: &'a str,
    /// Whether it is a medium for a CD-ROM drive, which no guest changes.
    is_iso: bool,
}

impl<'a> Data<'a> {
    fn of(disk: &'a Disk) -> Self {
        Self { target: &disk.target, source: &disk.source, format: &disk.format, is_iso: false }
    }

    fn of_medium(drive: &'a Cdrom) -> Option<Self> {
        Some(Self { target: &drive.target, source: drive.source.as_ref()?, format: "raw", is_iso: true })
    }
}

fn image_name(name: &str) -> Expression {
    Expression::Raw(format!("berth_image.{}.name", hcl::identifier(name)))
}

fn text(name: &str, value: &str) -> (String, Expression) {
    (name.to_owned(), Expression::text(value))
}

/// The address that a network reserves for a MAC address, if berth can give it out too: it has the first one itself.
fn reserved(network: &Network, mac: &str) -> Option<Ipv4Addr> {
    let range = network.range?;
    let (_, address) = network.reserved.iter().find(|(reserved, _)| reserved == mac)?;
    let taken = [Some(range.network()), range.hosts().next(), Some(range.broadcast())];
    (range.contains(address) && !taken.contains(&Some(*address))).then_some(*address)
}

fn is_unicast_mac(text: &str) -> bool {
    let bytes: Vec<Option<u8>> =
        text.split(':').map(|pair| u8::from_str_radix(pair, 16).ok().filter(|_| pair.len() == 2)).collect();
    bytes.len() == 6
        && bytes.iter().all(Option::is_some)
        && bytes.first().copied().flatten().is_some_and(|first| first & 1 == 0)
        && bytes.iter().any(|byte| *byte != Some(0))
}
