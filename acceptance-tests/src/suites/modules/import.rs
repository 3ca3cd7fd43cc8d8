//! `berth import`: from descriptions in files, from a libvirtd, and from a QEMU that a script started.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::bench::measure::libvirt::{Libvirt, URI};
use crate::guests::GuestImage;
use crate::platform::{Parts, Platform};
use crate::process::{self, Daemon, Finished};
use crate::report::Report;
use crate::scratch::Scratch;
use crate::suites::kubectl::contains_all;
use crate::terraform::Project;
use crate::{manifests, wait, workspace};

const LIMIT: Duration = Duration::from_secs(120);
const BOOT: Duration = Duration::from_secs(180);
const MAC: &str = "52:54:00:5e:00:07";
/// The MAC address of the QEMU without libvirt.
const SCRIPTS_MAC: &str = "52:54:00:5e:00:08";
const FILE: &str = "main.tf";

pub(super) fn run(report: &mut Report, platform: &mut Platform, parts: &Parts, guest: &GuestImage) {
    report.case(
        "HCL for domains of virt-install, virt-manager and Terraform is valid, formatted and planned",
        || from_files(platform, &parts.binaries.berth),
    );
    report.case("a domain of libvirtd is imported, and runs with its disk and its MAC address", || {
        from_libvirtd(platform, parts, guest)
    });
    report.case(
        "the disk of a running domain is taken over in place as soon as the domain is shut down",
        || in_place(platform, parts, guest),
    );
    report.case(
        "the disk of a QEMU that a script started is taken over in place as soon as that has ended",
        || of_a_script(platform, parts, guest),
    );
    report.case(
        "examples/take-over: a file of the host is the disk of a VM, with an empty second plan, and a raw one is copied",
        || example(platform, guest),
    );
}

fn import(berth: Command, project: &Project, images: &Path, arguments: &[&str]) -> Result<Finished> {
    import_from("libvirt", berth, project, images, arguments)
}

fn import_from(
    hypervisor: &str,
    mut berth: Command,
    project: &Project,
    images: &Path,
    arguments: &[&str],
) -> Result<Finished> {
    berth.args(["import", hypervisor, "--out"]).arg(project.folder()).arg("--image-dir").arg(images);
    process::run(berth.args(arguments), LIMIT)
}

/// Sets every checksum that is a variable, and returns the number of VMs that a plan creates.
fn planned_vms(project: &Project) -> Result<usize> {
    let text = project.read(FILE)?;
    let variables = text.lines().filter_map(|line| line.strip_prefix("variable \"")?.split('"').next());
    let values: Map<String, Value> = variables.map(|name| (name.to_owned(), "0".repeat(64).into())).collect();
    project.write("terraform.tfvars.json", &Value::Object(values).to_string())?;
    project.init()?;
    project.run(&["fmt", "-check", "-diff", "-no-color"])?.success().context("terraform fmt changes it")?;
    project.run(&["validate", "-no-color"])?.success()?;
    let changes = project.plan()?.changes();
    Ok(changes
        .iter()
        .filter(|change| change.starts_with("berth_vm.") && change.ends_with(": create"))
        .count())
}

fn from_files(platform: &Platform, berth: &Path) -> Result<()> {
    let folder = workspace::root().join("reconciler/src/import/tests");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let files: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
    let project = platform.project()?;
    let images = Path::new("/srv/images");
    let imported = import(Command::new(berth), &project, images, &files)?;
    contains_all(
        &imported.stderr,
        &[
            "win2022: it has a device of its host (pci): offer it there",
            "Fedora_41: its Secure Boot has Microsoft's keys",
        ],
    )?;
    contains_all(&imported.success()?, &["4 VMs"])?;
    let vms = planned_vms(&project)?;
    ensure!(vms == 4, "{vms} VMs are planned");
    let again = import(Command::new(berth), &project, images, &files)?;
    ensure!(!again.status.success() && again.stderr.contains("main.tf exists"), "{}", again.stderr);
    let bad = platform.project()?;
    bad.write("bad.xml", "<!DOCTYPE d [<!ENTITY a \"aa\">]><domain type='kvm'><name>&a;</name></domain>")?;
    let file = bad.folder().join("bad.xml");
    let refused = import(Command::new(berth), &bad, images, &[file.to_str().context("a plain path")?])?;
    ensure!(
        !refused.status.success() && refused.stderr.contains("bad.xml cannot be imported"),
        "{}",
        refused.stderr
    );
    ensure!(!bad.folder().join(FILE).exists(), "a refused import has written a file");
    Ok(())
}

fn domain(name: &str, disk: &Path) -> String {
    format!(
        "<domain type='qemu'><name>{name}</name><memory unit='MiB'>128</memory><vcpu>1</vcpu>
         <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
         <devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='{}'/>
         <target dev='vda' bus='virtio'/></disk><interface type='bridge'><mac address='{MAC}'/><source bridge='br0'/>
         <model type='virtio'/></interface></devices></domain>",
        disk.display()
    )
}

fn in_place(platform: &mut Platform, parts: &Parts, guest: &GuestImage) -> Result<()> {
    let folder = Scratch::new()?;
    let libvirt = Libvirt::start(folder.path(), &parts.logs.join("libvirtd-in-place.log"))?;
    let disks = platform.folder().join("domains");
    fs::create_dir_all(&disks)?;
    let disk = disks.join("app.qcow2");
    fs::copy(&guest.path, &disk)?;
    libvirt.define(&domain("app", &disk))?;
    libvirt.virsh(&["start", "app"])?;
    left_out(platform, libvirt.command(&parts.binaries.berth), "libvirt runs it")?;
    let project = platform.project()?;
    let arguments = ["--connect", URI, "--in-place"];
    let imported =
        import(libvirt.command(&parts.binaries.berth), &project, Path::new("/srv/images"), &arguments)?;
    contains_all(&imported.success()?, &["1 VMs", "1 disks that are taken over"])?;
    let option = format!("#   berth up --disk-dir {} ", disks.display());
    contains_all(&project.read(FILE)?, &[&option, "#   virsh shutdown app", MAC])?;
    platform.stop()?;
    platform.host_mut().allow_disks_in(&disks);
    platform.start()?;
    project.init()?;
    let log = platform.folder().join("in-place.log");
    let apply = ["apply", "-auto-approve", "-input=false", "-no-color"];
    let apply = Daemon::spawn("terraform apply", &mut project.command(&apply), &log)?;
    platform.kubectl().condition("disk/app-vda", "Ready=False", Some("WaitingForFile"), LIMIT)?;
    ensure!(disk.exists(), "the file of a running domain was moved");
    // Each request is for a system that has started.
    wait::until("the domain to be shut down", LIMIT, || {
        let state = libvirt.virsh(&["domstate", "app"])?;
        if state.trim() != "shut off" {
            libvirt.virsh(&["shutdown", "app"])?;
            bail!("it is {state}");
        }
        Ok(())
    })?;
    apply.ended(BOOT)?;
    let vm = platform.kubectl().condition("vm/app", "GuestReady=True", None, BOOT)?;
    let mac = &vm["status"]["interfaces"][0]["macAddress"];
    ensure!(mac == MAC, "{mac}");
    ensure!(!disk.exists(), "the file was copied");
    project.plan_is_empty()?;
    project.destroy().map(drop)
}

/// Another process of this machine is named with the reason for which it is not imported.
fn left_out(platform: &Platform, berth: Command, reason: &str) -> Result<()> {
    let all = import_from("qemu", berth, &platform.project()?, Path::new("/srv/images"), &[])?;
    contains_all(&all.stderr, &[&format!("is left out: {reason}")])
}

/// The guest of the script is paused: it writes nothing.
fn of_a_script(platform: &mut Platform, parts: &Parts, guest: &GuestImage) -> Result<()> {
    let disks = platform.folder().join("domains");
    fs::create_dir_all(&disks)?;
    let disk = disks.join("script.qcow2");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "qcow2", "-O", "qcow2"]).arg(&guest.path).arg(&disk);
    process::run(&mut convert, LIMIT)?.success()?;
    let mut qemu = Command::new("qemu-system-x86_64");
    // The path of the disk is relative to the folder of the process.
    qemu.current_dir(&disks).args([
        "-S",
        "-accel",
        "tcg",
        "-nodefaults",
        "-display",
        "none",
        "-name",
        "script",
    ]);
    qemu.args(["-m", "128", "-smp", "1", "-drive", "file=script.qcow2,if=virtio,format=qcow2"]);
    qemu.args(["-netdev", "user,id=n0", "-device", &format!("virtio-net-pci,netdev=n0,mac={SCRIPTS_MAC}")]);
    let log = parts.logs.join("qemu-of-a-script.log");
    let mut qemu = Daemon::spawn("the QEMU of a script", &mut qemu, &log)?;
    let project = platform.project()?;
    let pid = qemu.pid().to_string();
    let imported = wait::until("the process to be QEMU", LIMIT, || {
        qemu.must_run()?;
        let images = Path::new("/srv/images");
        let berth = Command::new(&parts.binaries.berth);
        import_from("qemu", berth, &project, images, &[&pid, "--in-place"])?.success()
    })?;
    contains_all(&imported, &["1 VMs", "1 disks that are taken over"])?;
    let option = format!("#   berth up --disk-dir {} ", disks.display());
    let file = format!("= {{ file = \"{}\" }}", disk.display());
    contains_all(&project.read(FILE)?, &[&option, &file, &format!("process {pid}"), SCRIPTS_MAC])?;
    platform.stop()?;
    platform.host_mut().allow_disks_in(&disks);
    platform.start()?;
    project.init()?;
    let log = platform.folder().join("of-a-script.log");
    let apply = ["apply", "-auto-approve", "-input=false", "-no-color"];
    let apply = Daemon::spawn("terraform apply", &mut project.command(&apply), &log)?;
    platform.kubectl().condition("disk/script-vda", "Ready=False", Some("WaitingForFile"), LIMIT)?;
    qemu.must_run()?;
    ensure!(disk.exists(), "the file of a running QEMU was moved");
    qemu.terminate(LIMIT)?;
    apply.ended(BOOT)?;
    let vm = platform.kubectl().condition("vm/script", "GuestReady=True", None, BOOT)?;
    let mac = &vm["status"]["interfaces"][0]["macAddress"];
    ensure!(mac == SCRIPTS_MAC, "{mac}");
    ensure!(!disk.exists(), "the file was copied");
    left_out(platform, Command::new(&parts.binaries.berth), "berth runs it")?;
    project.plan_is_empty()?;
    project.destroy().map(drop)
}

/// The folder of its file is allowed already.
fn example(platform: &Platform, guest: &GuestImage) -> Result<()> {
    let disk = platform.folder().join("domains/example.qcow2");
    fs::copy(&guest.path, &disk)?;
    let project = platform.project()?;
    project.copy_from(&workspace::root().join("examples/take-over"))?;
    let host = platform.kubectl().ok(&["get", "hosts", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let variables = json!({"file": disk, "host": host.trim(), "mac_address": MAC});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    project.apply()?;
    ensure!(!disk.exists(), "the file was copied");
    platform.kubectl().condition("vm/web", "GuestReady=True", None, BOOT)?;
    project.plan_is_empty()?;
    copied_from_raw(platform)?;
    project.destroy().map(drop)
}

/// The data of a raw file is that of a larger disk, which the running VM gets, and the file stays.
fn copied_from_raw(platform: &Platform) -> Result<()> {
    const DISK: &str = "from-raw";
    let (kubectl, file) = (platform.kubectl(), platform.folder().join("domains/data.img"));
    let mut data = vec![0; 16 << 20];
    data[4 << 20..5 << 20].fill(7);
    fs::write(&file, &data)?;
    let source = json!({"file": file, "format": "raw"});
    let disk = manifests::with(manifests::blank_disk(DISK, "32Mi"), "source", source);
    // The guest has no agent that knows its mounts.
    let attachment = manifests::with(manifests::attachment(DISK, "web", DISK), "force", json!(true));
    kubectl.apply(&manifests::all(&[disk, attachment]))?;
    kubectl.condition(&format!("hotswapdiskattachment/{DISK}"), "Ready=True", None, LIMIT)?;
    let made = kubectl.object("disk", DISK)?;
    let id = made["status"]["volumeID"].as_str().context("it has no volume")?;
    let volume = platform.host().state().join(format!("pools/default/volumes/{id}.qcow2"));
    let mut compare = Command::new("qemu-img");
    compare.args(["compare", "-U", "-f", "raw", "-F", "qcow2"]).args([&file, &volume]);
    process::run(&mut compare, LIMIT)?.success().context("the disk has other data than the file")?;
    ensure!(fs::read(&file)? == data && fs::metadata(&file)?.nlink() == 1, "the file has changed");
    kubectl.delete(&format!("hotswapdiskattachment/{DISK}"))?;
    kubectl.delete(&format!("disk/{DISK}"))?;
    Ok(fs::remove_file(&file)?)
}

fn from_libvirtd(platform: &mut Platform, parts: &Parts, guest: &GuestImage) -> Result<()> {
    let folder = Scratch::new()?;
    let libvirt = Libvirt::start(folder.path(), &parts.logs.join("libvirtd.log"))?;
    let disk = folder.path().join("web.qcow2");
    fs::copy(&guest.path, &disk)?;
    libvirt.define(&domain("web", &disk))?;
    let project = platform.project()?;
    let images = platform.folder().join("imported");
    let imported = import(libvirt.command(&parts.binaries.berth), &project, &images, &["--connect", URI])?;
    contains_all(&imported.success()?, &["1 VMs"])?;
    contains_all(&project.read(FILE)?, &[&guest.sha256, MAC, "bridge br0"])?;
    let text = project.read(FILE)?;
    let urls = format!("\"file://{}/web-vda.qcow2\"", images.display());
    ensure!(text.contains(&urls), "no {urls} in\n{text}");
    // The comments have the commands for the administrator of the host.
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    let (copies, options): (Vec<&str>, Vec<&str>) =
        commands.iter().partition(|line| line.starts_with("mkdir ") || line.starts_with("cp "));
    let option = format!("berth up --image-dir {} ", images.display());
    ensure!(copies.len() == 2 && options.iter().any(|line| line.starts_with(&option)), "{commands:?}");
    process::run(Command::new("sh").args(["-e", "-c", &copies.join("\n")]), LIMIT)?.success()?;
    platform.stop()?;
    platform.host_mut().allow_images_in(&images);
    platform.start()?;
    // The domain is shut off.
    project.edit(FILE, "\"Stopped\"", "\"Running\"")?;
    project.init()?;
    project.apply()?;
    let vm = platform.kubectl().condition("vm/web", "GuestReady=True", None, BOOT)?;
    let mac = &vm["status"]["interfaces"][0]["macAddress"];
    ensure!(mac == MAC, "{mac}");
    project.plan_is_empty()?;
    project.destroy().map(drop)
}
