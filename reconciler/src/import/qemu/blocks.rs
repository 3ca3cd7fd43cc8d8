//! QEMU's block graph: the file that the data of a drive or of a node is in.

use std::collections::{BTreeMap, BTreeSet};

use super::options::short;
use super::{CommandLineError, Guest, Properties};
use crate::import::domain::DiskSource;

/// The longest chain of nodes. QEMU's are of three: throttle, qcow2, file.
const MAX_DEPTH: usize = 16;
/// The longest path of a file, in bytes: Linux's.
const MAX_PATH: usize = 4096;
/// Drivers of files and devices.
const FILES: [&str; 3] = ["file", "host_device", "host_cdrom"];
/// Drivers of formats, over a node "file".
const FORMATS: [&str; 15] = [
    "raw",
    "qcow2",
    "qcow",
    "qed",
    "vmdk",
    "vdi",
    "vhdx",
    "vpc",
    "parallels",
    "luks",
    "dmg",
    "bochs",
    "cloop",
    "vvfat",
    "replication",
];
/// Drivers that pass data on to a node "file".
const FILTERS: [&str; 8] = [
    "throttle",
    "copy-on-read",
    "preallocate",
    "compress",
    "blkdebug",
    "blklogwrites",
    "copy-before-write",
    "snapshot-access",
];
/// The properties of drivers for data elsewhere that name it.
const PLACES: [&str; 11] = [
    "server.host",
    "server.path",
    "host",
    "pool",
    "image",
    "portal",
    "target",
    "path",
    "export",
    "url",
    "filename",
];

/// The data of a drive.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    /// Where it is; paths may be relative. None of an empty drive.
    pub(super) source: Option<DiskSource>,
    /// Its format, if it is declared.
    pub(super) format: Option<String>,
    pub(super) is_read_only: bool,
    pub(super) is_limited: bool,
    pub(super) is_encrypted: bool,
    /// Whether it begins within its file.
    pub(super) is_part: bool,
}

/// The nodes of `-blockdev`, and the drives of `-drive`.
pub(super) struct Graph {
    blocks: Vec<Properties>,
    /// The option of each node, and the start of its properties' names there: `file.`
    nodes: BTreeMap<String, (usize, String)>,
    drives: BTreeMap<String, Properties>,
    /// The throttle groups with limits.
    limited: BTreeSet<String>,
}

impl Graph {
    pub(super) fn read(guest: &Guest<'_>) -> Result<Self, CommandLineError> {
        let blocks = guest.properties("blockdev", "driver")?;
        let mut nodes = BTreeMap::new();
        for (at, block) in blocks.iter().enumerate() {
            for (name, value) in block.all() {
                if let Some(start) = name.strip_suffix("node-name").filter(|start| is_start(start)) {
                    nodes.insert(value.to_owned(), (at, start.to_owned()));
                }
            }
        }
        let mut drives = BTreeMap::new();
        for drive in guest.properties("drive", "")? {
            for name in ["id", "node-name"].into_iter().filter_map(|name| drive.get(name)) {
                drives.insert(name.to_owned(), drive.clone());
            }
        }
        let objects = guest.properties("object", "qom-type")?;
        let is_limit = |(name, value): (&str, &str)| {
            (name.starts_with("limits.") || name.starts_with("x-")) && value != "0"
        };
        let groups = objects.iter().filter(|object| object.get("qom-type") == Some("throttle-group"));
        let limited = groups.filter(|group| group.all().any(is_limit)).filter_map(|group| group.get("id"));
        let limited = limited.map(str::to_owned).collect();
        Ok(Self { blocks, nodes, drives, limited })
    }

    /// The data of a device: its drive's or its node's. None if neither is declared.
    pub(super) fn named(&self, name: &str) -> Option<Data> {
        if let Some(drive) = self.drives.get(name) {
            return Some(self.of_drive(drive));
        }
        self.nodes.contains_key(name).then(|| {
            let mut data = Data::default();
            self.node(name, 0, &mut data);
            data
        })
    }

    /// The `-drive` with this id.
    pub(super) fn drive(&self, id: &str) -> Option<&Properties> {
        self.drives.get(id)
    }

    /// The data of a `-drive`.
    pub(super) fn of_drive(&self, drive: &Properties) -> Data {
        let mut data = Data::default();
        match drive.get("file").filter(|file| !file.is_empty()) {
            Some(file) => self.file_name(file, &mut data),
            None if drive.has_any("file.") => self.visit(drive, "file.", 1, &mut data),
            None => {}
        }
        let declared = ["format", "driver"].into_iter().find_map(|name| drive.get(name));
        if let Some(format) = declared.filter(|format| FORMATS.contains(format)) {
            data.format = Some(format.to_owned());
        }
        data.is_read_only |= drive.is_on("readonly") || drive.is_on("read-only");
        data.is_encrypted |= drive.has_any("encrypt.") || data.format.as_deref() == Some("luks");
        let is_limit = |(name, value): (&str, &str)| {
            let is_named = ["bps", "iops", "throttling."].iter().any(|start| name.starts_with(start));
            is_named && value != "0" && name != "iops_size" && name != "throttling.group"
        };
        data.is_limited |= drive.all().any(is_limit);
        data
    }

    /// The data of a file name as QEMU reads it: a path, or a protocol and its address.
    fn file_name(&self, name: &str, data: &mut Data) {
        let protocol = name.split_once(':').filter(|(protocol, _)| !protocol.contains('/'));
        match protocol {
            Some(("json", text)) => match Properties::parse(text, "") {
                Some(properties) => self.visit(&properties, "", 1, data),
                None => data.source = Some(DiskSource::Elsewhere(short(name))),
            },
            Some(("file", path)) => data.source = Some(path_of(path)),
            Some(_) => data.source = Some(DiskSource::Elsewhere(short(name))),
            None => data.source = Some(path_of(name)),
        }
    }

    fn node(&self, name: &str, depth: usize, data: &mut Data) {
        match self.nodes.get(name).and_then(|(at, start)| Some((self.blocks.get(*at)?, start))) {
            Some((block, start)) => self.visit(block, start, depth, data),
            None => data.source = Some(DiskSource::Elsewhere(format!("block node {}", short(name)))),
        }
    }

    fn visit(&self, block: &Properties, start: &str, depth: usize, data: &mut Data) {
        let get = |name: &str| block.get(&format!("{start}{name}"));
        let driver = get("driver").unwrap_or_default();
        if depth > MAX_DEPTH {
            data.source = Some(DiskSource::Elsewhere("a chain of block nodes without an end".to_owned()));
            return;
        }
        data.is_read_only |= depth == 0 && block.is_on(&format!("{start}read-only"));
        if FILES.contains(&driver) {
            data.source = get("filename").map(path_of);
            return;
        }
        let (is_format, is_filter) = (FORMATS.contains(&driver), FILTERS.contains(&driver));
        if !is_format && !is_filter {
            let places: Vec<&str> = PLACES.iter().filter_map(|name| get(name)).collect();
            data.source = Some(DiskSource::Elsewhere(short(&format!("{driver}:{}", places.join("/")))));
            return;
        }
        // A raw node over another format passes that on.
        if is_format && data.format.as_deref().is_none_or(|format| format == "raw") {
            data.format = Some(driver.to_owned());
        }
        data.is_encrypted |= driver == "luks" || block.has_any(&format!("{start}encrypt."));
        data.is_part |= get("offset").is_some_and(|offset| offset != "0");
        data.is_limited |= get("throttle-group").is_some_and(|group| self.limited.contains(group));
        let below = format!("{start}file.");
        match get("file") {
            Some(name) => self.node(name, depth + 1, data),
            None if block.has_any(&below) => self.visit(block, &below, depth + 1, data),
            None => {}
        }
    }
}

/// Whether this is the start of names of a node's properties: empty, or with a dot at its end.
fn is_start(text: &str) -> bool {
    text.is_empty() || text.ends_with('.')
}

fn path_of(path: &str) -> DiskSource {
    if path.starts_with("/dev/fdset/") {
        return DiskSource::Elsewhere(format!("{}, a file that another program has opened", short(path)));
    }
    if path.len() > MAX_PATH {
        return DiskSource::Elsewhere(short(path));
    }
    DiskSource::Path(path.to_owned())
}
