//! The size, the firmware and the identity of a guest.

use std::collections::BTreeMap;

use berth_api::{Firmware, hardware::is_uuid};

use super::options::short;
use super::{Argument, CommandLineError, Guest, MAX_NAME, Properties};
use crate::import::domain::Domain;
use crate::import::guest::{GuestSystem, architecture_note};

/// The memory of a guest that declares none.
const DEFAULT_MEMORY: u64 = 128 << 20;
/// Parts of the names of UEFI firmware.
const UEFI: [&str; 4] = ["OVMF", "AAVMF", "edk2", "QEMU_EFI"];
/// Cards that a guest shows its screen with.
const SCREENS: [&str; 10] = [
    "VGA",
    "secondary-vga",
    "bochs-display",
    "cirrus-vga",
    "qxl",
    "vmware-svga",
    "virtio-vga",
    "virtio-gpu",
    "ramfb",
    "ati-vga",
];

/// The domain without its devices.
pub(super) fn read(guest: &Guest<'_>) -> Result<Domain, CommandLineError> {
    let mut notes = Vec::new();
    let domain = Domain {
        name: name(guest)?,
        origin: guest.origin()?,
        cpus: cpus(guest, &mut notes)?,
        memory: memory(guest, &mut notes)?,
        firmware: firmware(guest, &mut notes)?,
        uuid: uuid(guest)?,
        guest: GuestSystem::default(),
        has_screen: has_screen(guest, &mut notes)?,
        disks: Vec::new(),
        cdroms: Vec::new(),
        interfaces: Vec::new(),
        is_running: guest.line.pid.map(|_| true),
        notes: Vec::new(),
    };
    identity(guest, &mut notes)?;
    Ok(Domain { notes, ..domain })
}

fn name(guest: &Guest<'_>) -> Result<String, CommandLineError> {
    let names = guest.properties("name", "guest")?;
    let name = names.iter().rev().find_map(|name| name.get("guest")).filter(|name| !name.trim().is_empty());
    Ok(name.unwrap_or(&guest.line.name).chars().take(MAX_NAME).collect())
}

fn cpus(guest: &Guest<'_>, notes: &mut Vec<String>) -> Result<u64, CommandLineError> {
    let Some(argument) = guest.last("smp") else { return Ok(1) };
    let smp = argument.properties("cpus")?;
    let number = |name: &str| match smp.get(name) {
        Some(text) => text.parse::<u64>().ok().filter(|number| *number > 0).map(Some),
        None => Some(None),
    };
    let number = |name: &str| number(name).ok_or_else(|| argument.unreadable());
    let mut product: u64 = 1;
    for part in ["drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"] {
        let count = number(part)?.unwrap_or(1);
        product = product.saturating_mul(count);
        if count > 1 && part != "cores" {
            notes.push(format!("it has a CPU topology ({count} {part}), which is not taken over"));
        }
    }
    let most = number("maxcpus")?;
    let cpus = number("cpus")?.or(most).unwrap_or(product);
    if let Some(most) = most.filter(|most| *most > cpus) {
        notes.push(format!(
            "it can have {most} CPUs while it runs (maxcpus); in berth it has those that it starts with"
        ));
    }
    Ok(cpus)
}

fn memory(guest: &Guest<'_>, notes: &mut Vec<String>) -> Result<u64, CommandLineError> {
    let mut size = DEFAULT_MEMORY;
    for argument in guest.all("m") {
        let memory = argument.properties("size")?;
        if let Some(text) = memory.get("size") {
            size = bytes(text).ok_or_else(|| argument.unreadable())?;
        }
        if memory.get("maxmem").is_some() {
            notes.push(
                "memory can be added while it runs (maxmem); in berth it has all of it from the start"
                    .to_owned(),
            );
        }
    }
    // Memory in slots, as Proxmox VE has it with hot-plugged memory.
    let mut backends = BTreeMap::new();
    for argument in guest.all("object") {
        let object = argument.properties("qom-type")?;
        let is_memory = object.get("qom-type").is_some_and(|kind| kind.starts_with("memory-backend"));
        if let (true, Some(id), Some(size)) = (is_memory, object.get("id"), object.get("size")) {
            backends.insert(id.to_owned(), bytes(size).ok_or_else(|| argument.unreadable())?);
        }
    }
    for (driver, device) in guest.devices()? {
        let backend = device.get("memdev").filter(|_| driver == "pc-dimm");
        let slot = backend.and_then(|id| backends.get(id)).copied().unwrap_or_default();
        size = size.saturating_add(slot);
    }
    Ok(size)
}

/// An amount of memory, in MiB without a suffix.
fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.char_indices().next_back()? {
        (at, 'b' | 'B') => (text.get(..at)?, 0),
        (at, 'k' | 'K') => (text.get(..at)?, 10),
        (at, 'm' | 'M') => (text.get(..at)?, 20),
        (at, 'g' | 'G') => (text.get(..at)?, 30),
        (at, 't' | 'T') => (text.get(..at)?, 40),
        _ => (text, 20),
    };
    let unit = 1_u64 << shift;
    let Some((whole, fraction)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(unit);
    };
    let is_short = fraction.len() <= 9 && fraction.bytes().all(|digit| digit.is_ascii_digit());
    let digits = u32::try_from(fraction.len()).ok().filter(|_| is_short)?;
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let part = u128::from(fraction) * u128::from(unit) / 10_u128.pow(digits);
    whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
}

fn firmware(guest: &Guest<'_>, notes: &mut Vec<String>) -> Result<Firmware, CommandLineError> {
    let is_flash = |drive: &Properties| drive.get("if") == Some("pflash");
    let drives: Vec<Properties> = guest.properties("drive", "")?.into_iter().filter(is_flash).collect();
    let machines = guest.properties("machine", "type")?;
    let flash_nodes: Vec<&str> = machines
        .iter()
        .flat_map(|machine| ["pflash0", "pflash1"].into_iter().filter_map(move |name| machine.get(name)))
        .collect();
    let blocks = guest.properties("blockdev", "driver")?;
    let of_flash = |block: &&Properties| block.all().any(|(_, value)| flash_nodes.contains(&value));
    let mut files: Vec<&str> = drives.iter().filter_map(|drive| drive.get("file")).collect();
    let of_nodes = blocks.iter().filter(of_flash).flat_map(Properties::all);
    files.extend(of_nodes.filter(|(name, _)| name.ends_with("filename")).map(|(_, value)| value));
    files.extend(guest.all("pflash").chain(guest.all("bios")).map(|argument| argument.value.as_str()));
    let has_flash = !drives.is_empty() || !flash_nodes.is_empty() || guest.has("pflash");
    let is_uefi = has_flash || files.iter().any(|file| UEFI.iter().any(|name| file.contains(name)));
    if !is_uefi {
        return Ok(Firmware::BIOS);
    }
    let text =
        "its UEFI variables are not taken over: the firmware boots the disk's default loader, \\EFI\\BOOT";
    notes.push(text.to_owned());
    let is_named = |part: &str| files.iter().any(|file| file.contains(part));
    // Files with Microsoft's keys are named so by Debian and Ubuntu.
    if is_named(".ms.fd") {
        notes.push("its Secure Boot has Microsoft's keys in berth: a guest that is not signed with them needs firmware UEFI".to_owned());
        return Ok(Firmware::UEFISecureBoot);
    }
    let mut settings = guest.properties("global", "driver")?.into_iter();
    let is_secure = settings.any(|setting| {
        setting.is_on("cfi.pflash01.secure")
            || (setting.get("property") == Some("secure") && setting.is_on("value"))
    });
    if is_secure || is_named("secboot") || is_named("secure") {
        notes.push(
            "its firmware can have Secure Boot, and in berth it has none: with keys of Microsoft set firmware UEFISecureBoot"
                .to_owned(),
        );
    }
    Ok(Firmware::UEFI)
}

fn uuid(guest: &Guest<'_>) -> Result<Option<String>, CommandLineError> {
    let declared = guest.last("uuid").map(|argument| argument.value.clone());
    let mut tables = guest.properties("smbios", "file")?.into_iter();
    let in_table = tables
        .find_map(|table| (table.get("type") == Some("1")).then(|| table.get("uuid").map(str::to_owned))?);
    Ok(in_table.or(declared).filter(|uuid| is_uuid(uuid)))
}

fn has_screen(guest: &Guest<'_>, notes: &mut Vec<String>) -> Result<bool, CommandLineError> {
    let mut devices = guest.devices()?.into_iter();
    let has_device = devices.any(|(driver, _)| is_screen(&driver));
    let has_card = match guest.last("vga") {
        Some(card) => card.value != "none" || has_device,
        None => has_device || !guest.has("nodefaults"),
    };
    let displays = guest.properties("display", "type")?;
    let display = displays.iter().rev().find_map(|display| display.get("type"));
    let shown = match display {
        _ if guest.has("spice") => Some("spice"),
        _ if guest.has("vnc") => guest.last("vnc").filter(|vnc| vnc.value != "none").map(|_| "vnc"),
        Some("none") => None,
        Some(kind) => Some(kind),
        None if guest.has("nographic") => None,
        None => Some("a window"),
    };
    let Some(kind) = shown.filter(|_| has_card) else { return Ok(false) };
    if !matches!(kind, "vnc" | "a window") {
        notes.push(format!("its display is {}; in berth it is VNC (berth vnc)", short(kind)));
    }
    Ok(true)
}

pub(super) fn is_screen(driver: &str) -> bool {
    SCREENS.iter().any(|screen| driver.starts_with(screen)) || driver.ends_with("-vga")
}

/// Notes on the architecture, the processor, the clock and the SMBIOS tables.
fn identity(guest: &Guest<'_>, notes: &mut Vec<String>) -> Result<(), CommandLineError> {
    notes.extend(architecture_note(&short(guest.arch())));
    let model = guest.last("cpu").and_then(|cpu| cpu.value.split(',').next());
    if let Some(model) = model.filter(|model| !matches!(*model, "host" | "max" | "")) {
        notes.push(format!(
            "its CPU model is {}; in berth the host chooses one unless cpu_model is set",
            short(model)
        ));
    }
    let clocks = guest.properties("rtc", "base")?;
    let base = clocks.iter().rev().find_map(|clock| clock.get("base"));
    let base = base.or(guest.has("localtime").then_some("localtime"));
    if let Some(base) = base.filter(|base| *base != "utc") {
        notes.push(format!("its clock is {}; in berth it is UTC unless guest_os is Windows", short(base)));
    }
    for argument in guest.all("smbios") {
        smbios(argument, notes)?;
    }
    Ok(())
}

fn smbios(argument: &Argument, notes: &mut Vec<String>) -> Result<(), CommandLineError> {
    let table = argument.properties("file")?;
    if table.get("type") != Some("1") {
        notes.push("it has SMBIOS tables that berth does not have".to_owned());
        return Ok(());
    }
    if let Some(serial) =
        table.get("serial").filter(|_| !table.is_on("base64") && table.get("base64") != Some("1"))
    {
        notes.push(format!("its serial number is {}: set serial_number to keep it", short(serial)));
    }
    let others = ["manufacturer", "product", "version", "sku", "family"];
    let set: Vec<&str> = others.into_iter().filter(|name| table.get(name).is_some()).collect();
    if !set.is_empty() {
        notes.push(format!("its SMBIOS table has its own {}, which berth does not have", set.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn memory_is_in_mebibytes_unless_it_has_a_unit() {
        for (text, expected) in [
            ("2048", Some(2 << 30)),
            ("2G", Some(2 << 30)),
            ("1.5g", Some(3 << 29)),
            ("65536k", Some(64 << 20)),
            ("1048576B", Some(1 << 20)),
            ("1T", Some(1 << 40)),
            ("", None),
            ("G", None),
            ("-1", None),
            ("1.x", None),
            ("99999999999999999999", None),
            ("9999999999T", None),
            ("1é", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
