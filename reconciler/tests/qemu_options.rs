//! Every setting of QEMU that a class can have exists in the installed QEMU. Without QEMU this prints that and ends.

use std::os::unix::fs::PermissionsExt;

use berth_api::qemu_options::QEMU_OPTIONS;
use berth_qemu::hypervisor::{Hypervisor, LaunchError, Limits};
use berth_qemu::installation::Installation;
use berth_qemu::machine::{
    Accelerator, Extras, Firmware, Graphics, LaunchSpec, MAX_OPTIONS, MachineFiles, MachinePaths,
    MachineSpec, Topology,
};
use berth_qemu::process::LocalHypervisor;

/// A value that QEMU accepts.
fn value_of(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "tx" => "bh",
        "lost_tick_policy" => "discard",
        "x-speed" => "8",
        "x-width" => "4",
        "vgamem_mb" => "32",
        "rx_queue_size" | "tx_queue_size" | "virtqueue_size" | "queue-size" => "256",
        "num_queues" | "num-queues" => "2",
        "cmd_per_lun" => "64",
        "max_sectors" | "max_io_size" | "max_unmap_size" | "discard_granularity" | "speed" | "period" => {
            "4096"
        }
        "max-bytes" | "x-txtimer" => "4096",
        "rotation_rate" | "x-txburst" => "1",
        "rombar" => "1",
        _ => "off",
    }
}

async fn launch(
    folder: &std::path::Path,
    number: usize,
    options: &[(&str, &str)],
) -> Option<Result<(), LaunchError>> {
    let installation = match Installation::discover().await {
        Ok(installation) => installation,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let host = LocalHypervisor::at(&installation.binary);
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let machine = MachineSpec {
        instance: format!("options-{number}-{}", std::process::id()),
        name: "options".to_owned(),
        uuid: "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c".to_owned(),
        cpus: 1,
        topology: Topology::of_cores(1),
        numa_nodes: 1,
        memory_bytes: 64 << 20,
        max_memory_bytes: None,
        huge_page_bytes: None,
        accelerator: Accelerator::Tcg { tb_size_mib: 16 },
        firmware: Firmware::Bios,
        machine_type: installation.newest_machine_type.clone().expect("every x86 QEMU has q35"),
        cpu_model: "max".to_owned(),
        disks: Vec::new(),
        cdroms: Vec::new(),
        nics: Vec::new(),
        nic_ports: 1,
        pci_devices: Vec::new(),
        usb_devices: Vec::new(),
        vgpus: Vec::new(),
        shares: Vec::new(),
        graphics: Graphics::Vga,
        extras: Extras { options, ..Extras::default() },
        tpm: false,
    };
    let files = MachineFiles::new(MachinePaths::in_directory(folder.join(number.to_string())));
    match host.launch(&LaunchSpec { machine, files, affinity: Default::default() }, Limits::default()).await {
        Ok(process) => {
            host.kill(&process, std::time::Duration::from_secs(5)).await.expect("ended");
            Some(Ok(()))
        }
        Err(error) => Some(Err(error)),
    }
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).expect("ours");
    folder
}

#[tokio::test]
async fn a_machine_starts_with_each_setting() {
    let folder = folder();
    for (number, names) in QEMU_OPTIONS.chunks(MAX_OPTIONS).enumerate() {
        let options: Vec<(&str, &str)> = names.iter().map(|name| (*name, value_of(name))).collect();
        let Some(launched) = launch(folder.path(), number, &options).await else { return };
        launched.expect("it starts");
    }
}

#[tokio::test]
async fn a_value_that_qemu_refuses_is_in_the_message() {
    let folder = folder();
    let wrong = [("global.virtio-scsi-pci.virtqueue_size", "lots")];
    let Some(launched) = launch(folder.path(), 99, &wrong).await else { return };
    let error = launched.expect_err("it is no number").to_string();
    assert!(error.contains("virtio-scsi-pci.virtqueue_size") || error.contains("virtqueue_size"), "{error}");
}
