//! The architecture of a VM or a class, and the attributes that exclude it.

use berth_api::{Architecture, hardware::CPU_LEVELS};
use tfplugin6::{AttributePath, Diagnostic, Value};

/// The attributes that machines of the declared architecture do not have.
pub(crate) fn check(config: &Value) -> Vec<Diagnostic> {
    let Some(architecture) = config.get("architecture").as_str().and_then(Architecture::of_text) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut exclude = |path: AttributePath, why: &str| {
        let (summary, detail) =
            (format!("{path} with architecture {}", architecture.as_str()), format!("{path}: {why}"));
        found.push(Diagnostic::error(summary, detail).at(path));
    };
    let machine_type = config.get("machine_type");
    if machine_type.as_str().is_some_and(|name| !architecture.has_machine_type(name)) {
        let why = "it is of another architecture: virt-… is of aarch64, pc-q35-… of x86_64.";
        exclude(AttributePath::root("machine_type"), why);
    }
    if architecture == Architecture::X86_64 {
        return found;
    }
    if config.get("firmware").as_str().is_some_and(|firmware| firmware != "UEFI") {
        let why = "machines of aarch64 have firmware UEFI only: leave firmware out.";
        exclude(AttributePath::root("firmware"), why);
    }
    if config.get("guest_os").as_str() == Some("Windows") {
        exclude(AttributePath::root("guest_os"), "Windows guests have architecture x86_64 only.");
    }
    if config.get("cpu_model").as_str().is_some_and(|model| CPU_LEVELS.contains(&model)) {
        let why = "it is a level of x86_64: set a model of aarch64, or leave cpu_model out.";
        exclude(AttributePath::root("cpu_model"), why);
    }
    let (most, cpus) = (config.get("max_cpus").as_i64(), config.get("cpus").as_i64());
    if most.zip(cpus).is_some_and(|(most, cpus)| most > cpus) {
        let why = "machines of aarch64 have no places for more CPUs: set cpus alone.";
        exclude(AttributePath::root("max_cpus"), why);
    }
    if config.get("serial_ports").as_i64().is_some_and(|ports| ports > 1) {
        exclude(AttributePath::root("serial_ports"), "machines of aarch64 have one serial port.");
    }
    if config.get("suspend_mode").as_str() == Some("Memory") {
        let why = "machines of aarch64 have no suspension to memory: set Disk, or leave suspend_mode out.";
        exclude(AttributePath::root("suspend_mode"), why);
    }
    for (i, disk) in config.get("disks").elements().iter().enumerate() {
        if disk.get("bus").as_str() == Some("sata") {
            let why = "machines of aarch64 have no SATA controller: use virtio-scsi.";
            exclude(AttributePath::root("disks").index(i).attribute("bus"), why);
        }
    }
    found
}
