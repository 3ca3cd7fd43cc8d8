//! The lifecycle that runs on every control plane: `examples/quickstart` with the small guest, from the first plan to a destroy
//! that leaves nothing behind.

mod power_cycle;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::kubectl::contains_all;
use super::{console, guest_access, second_interface};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::Project;
use crate::{berth, process, wait, workspace};

/// The time limit for a guest's response: a running guest responds at once, one that boots takes longer, with the machine
/// busy.
const ANSWER: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(45);
/// The script that the guest runs at its first boot.
const USER_DATA: &str = "#!/bin/sh\necho \"user data ran on $(hostname)\"\n";
/// Every resource of the quickstart, and its ID for `terraform import`.
pub const RESOURCES: &[(&str, &str)] = &[
    ("berth_vm_class.small", "default/small"),
    ("berth_image.debian", "default/debian-12"),
    ("berth_disk.root", "default/web-root"),
    ("berth_disk.data", "default/web-data"),
    ("berth_placement_group.web", "default/web"),
    ("berth_public_ip.web", "default/web"),
    ("berth_vm.web", "default/web"),
    ("berth_hotswap_disk_attachment.data", "default/web-web-data"),
];
const ATTACHMENT: &str = r#"
resource "berth_hotswap_disk_attachment" "data" {
  vm   = berth_vm.web.name
  disk = berth_disk.data.name
  # Without qemu-guest-agent it is unknown whether the guest has the disk mounted: it is detached all the same.
  force = !var.guest_agent
}
"#;

const MORE_BOOTSTRAP: &str = "    domain = \"example.org\"\n    meta_data = yamlencode({ role = \"web\" })\n";

const CARD: &str = "[{ public_ip = berth_public_ip.web.name }]";

/// A project with the quickstart and more bootstrap data, its image served by the platform.
pub fn quickstart(platform: &Platform, guest: &GuestImage, user_data: &str) -> Result<Project> {
    let project = platform.project()?;
    project.copy_from(&workspace::root().join("examples/quickstart"))?;
    project.write("cloud-init.yaml", user_data)?;
    let main = project.read("main.tf")?;
    let place = "  bootstrap = {\n";
    ensure!(main.contains(place), "the quickstart has no bootstrap data");
    let more = guest_access::more_bootstrap(platform)?;
    project.write("main.tf", &main.replace(place, &format!("{place}{MORE_BOOTSTRAP}{more}")))?;
    let key = project.folder().join("id");
    let mut generate = Command::new("ssh-keygen");
    generate.args(["-q", "-t", "ed25519", "-N", "", "-C", "acceptance", "-f"]).arg(&key);
    process::run(&mut generate, Duration::from_secs(30))?.success()?;
    let url = platform.images().put("guest.qcow2", Content::File(guest.path.clone()));
    let variables = serde_json::json!({"image_url": url, "image_sha256": guest.sha256});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    Ok(project)
}

/// The state of the cases between its cases.
struct Lifecycle<'a> {
    report: &'a mut Report,
    platform: &'a mut Platform,
    project: Project,
    public: String,
    boot: String,
    pattern: String,
}

/// Runs the cases. Stops early only when there is no guest.
pub fn run_cases(report: &mut Report, platform: &mut Platform, guest: &GuestImage) -> Result<()> {
    let before = report.step("the empty host is looked at", || platform.footprint())?;
    let project = report.step("init finds the provider in a mirror", || {
        let project = quickstart(platform, guest, USER_DATA)?;
        project.init()?;
        Ok(project)
    })?;
    let applied = report.step("the first plan creates eight resources, and apply does", || {
        let plan = project.plan()?;
        ensure!(plan.changes().len() == RESOURCES.len(), "{:?}", plan.changes());
        project.apply()?;
        project.output("public_address")
    });
    let public = match applied {
        Ok(public) => public,
        Err(error) => {
            note(&platform.keep_evidence());
            return Err(error);
        }
    };
    let mut lifecycle =
        Lifecycle { report, platform, project, public, boot: String::new(), pattern: String::new() };
    lifecycle.first_boot()?;
    lifecycle.live_changes();
    lifecycle.drift();
    lifecycle.crash();
    lifecycle.power_cycle();
    lifecycle.replacement();
    lifecycle.import();
    lifecycle.destruction(&before)
}

impl Lifecycle<'_> {
    fn case(&mut self, fact: &str, body: impl FnOnce(&mut Platform, &Project) -> Result<()>) -> bool {
        let (platform, project) = (&mut *self.platform, &self.project);
        let held = self.report.case(fact, || body(platform, project));
        if !held {
            note(&self.platform.keep_evidence());
        }
        held
    }

    fn page(&self, path: &str) -> Result<String> {
        page(self.platform, &self.public, path)
    }

    fn first_boot(&mut self) -> Result<()> {
        let public = self.public.clone();
        if !self.case(
            "the guest answers on its public address, asked from its host and from a neighbour",
            |platform, _| {
                for from in [platform.namespace(), platform.neighbour()] {
                    let text = http::get_within(from, &public, "/", ANSWER)?;
                    ensure!(field(&text, "hostname")? == "web", "{text}");
                }
                Ok(())
            },
        ) {
            bail!("there is no guest");
        }
        self.case("the second plan is empty", |_, project| project.plan_is_empty());
        let page = self.page("/cgi-bin/network");
        self.case(
            "the guest has the address and the MAC that the control plane decided",
            |platform, project| {
                let page = page?;
                let private = project.output("private_address")?;
                ensure!(
                    field(&page, "address")?.split('/').next() == Some(private.as_str()),
                    "{page} {private}"
                );
                let vm = platform.kubectl().object("vm", "web")?;
                let mac = vm["status"]["interfaces"][0]["macAddress"].as_str().unwrap_or_default();
                ensure!(field(&page, "mac")? == mac, "{page} {mac}");
                Ok(())
            },
        );
        let keys = self.page("/authorized_keys");
        let text = self.page("/user-data.out");
        let meta_data = self.page("/meta-data");
        let vendor_data = self.page("/vendor-data");
        self.case(
            "the bootstrap volume brought host name, meta-data, ssh keys, user, password and user data",
            |_, project| {
                contains_all(&meta_data?, &["\"local-hostname\": \"web.example.org\"", "\"role\": \"web\""])?;
                let key = project.read("id.pub")?;
                let keys = keys?;
                contains_all(&keys, &[key.split_whitespace().nth(1).unwrap_or(&key)])?;
                guest_access::bootstrap_arrived(&vendor_data?, &keys)?;
                contains_all(&text?, &["user data ran on web"])
            },
        );
        let public = self.public.clone();
        self.case("the hot-plugged disk is in the guest, with its serial and size", |platform, project| {
            let serial = serial_of(platform, "web-data")?;
            let disk = wait::until("the disk", SOON, || guest_disk(platform, &public, &serial))?;
            ensure!(disk.size == 1 << 30, "{disk:?}");
            let state = project.attributes("berth_hotswap_disk_attachment.data")?;
            contains_all(&state.to_string(), &[&serial])
        });
        self.case("berth console shows the guest's output and sends what is typed", |platform, _| {
            console::answers(platform, "web")?;
            contains_all(
                &console::log(platform, "web")?,
                &["berth-guest-ready web", "berth-guest-read hello 42"],
            )
        });
        self.case("a ticket opens one console of one VM, once", |platform, _| {
            console::tickets(platform, "web")
        });
        self.case("a ticket of Terraform's run opens a log, once, and is in no state", |platform, _| {
            console::of_terraform(platform)
        });
        self.case("berth port-forward reaches a port of the guest, and no other address", |platform, _| {
            guest_access::port_of_the_guest(platform, "web")
        });
        self.case("berth exec tells that the guest has no agent", |platform, _| {
            guest_access::no_agent(platform, "web")
        });
        let pattern = self.write_pattern();
        let kept = self.report.step("what is written to the disk can be read back", || pattern);
        self.pattern = kept.unwrap_or_default();
        let boot = self.page("/cgi-bin/uptime").and_then(|text| Ok(field(&text, "boot_id")?.to_owned()));
        self.boot = self.report.step("the guest reports its boot id", || boot)?;
        Ok(())
    }

    fn write_pattern(&self) -> Result<String> {
        let disk = guest_disk(self.platform, &self.public, &serial_of(self.platform, "web-data")?)?;
        let wrote = self.page(&format!("/cgi-bin/write?dev={}&seed=7", disk.name))?;
        let sum = field(&wrote, "sha256").with_context(|| wrote.clone())?.to_owned();
        let read = self.page(&format!("/cgi-bin/sum?dev={}", disk.name))?;
        ensure!(field(&read, "sha256")? == sum, "{read} {wrote}");
        Ok(sum)
    }

    fn live_changes(&mut self) {
        let (public, boot, pattern) = (self.public.clone(), self.boot.clone(), self.pattern.clone());
        self.case("a disk grows on the running guest: an update in place, no reboot", |platform, project| {
            project.edit("main.tf", r#"size = "1Gi""#, r#"size = "2Gi""#)?;
            let plan = project.plan()?;
            ensure!(plan.changes() == ["berth_disk.data: update"], "{:?}", plan.changes());
            project.apply()?;
            let serial = serial_of(platform, "web-data")?;
            wait::until("the new size", SOON, || {
                let disk = guest_disk(platform, &public, &serial)?;
                ensure!(disk.size == 2 << 30, "{disk:?}");
                Ok(())
            })?;
            same_boot(platform, &public, &boot)?;
            project.plan_is_empty()
        });
        self.case("an equal size written another way is no change", |_, project| {
            project.edit("main.tf", r#"size = "2Gi""#, r#"size = "2048Mi""#)?;
            project.plan_is_empty()
        });
        let public = self.public.clone();
        self.case("a disk is detached from the running guest", |platform, project| {
            let serial = serial_of(platform, "web-data")?;
            project.edit("main.tf", ATTACHMENT, "")?;
            project.apply()?;
            wait::until("the disk to be gone", SOON, || match guest_disk(platform, &public, &serial) {
                Ok(disk) => bail!("{disk:?} is still there"),
                Err(_) => http::get(platform.namespace(), &public, "/", SOON).map(drop),
            })?;
            project.plan_is_empty()
        });
        let (public, boot) = (self.public.clone(), self.boot.clone());
        self.case("attached again it holds what was flushed to it", |platform, project| {
            let text = project.read("main.tf")?;
            project.write("main.tf", &format!("{text}{ATTACHMENT}"))?;
            project.apply()?;
            holds(platform, &public, &pattern)?;
            same_boot(platform, &public, &boot)?;
            project.plan_is_empty()
        });
        let (public, boot) = (self.public.clone(), self.boot.clone());
        self.case(
            "a network interface is added to the running guest, loses its link, and is removed",
            |platform, project| second_interface::comes_and_goes(platform, project, (&public, &boot), CARD),
        );
    }

    fn drift(&mut self) {
        self.case("drift is shown by the plan and put right by apply", |platform, project| {
            let kubectl = platform.kubectl();
            kubectl.ok(&["patch", "vmclass", "small", "--type=merge", "-p", r#"{"spec":{"cpus":2}}"#])?;
            let plan = project.plan()?;
            ensure!(plan.changes() == ["berth_vm_class.small: update"], "{:?}", plan.changes());
            project.apply()?;
            ensure!(kubectl.object("vmclass", "small")?["spec"]["cpus"] == 1);
            project.plan_is_empty()
        });
        self.case("what another manager owns is an error that names it and the field", |platform, project| {
            let class = super::manifests::class("small", 4, "512Mi").to_string();
            let arguments =
                ["apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-"];
            platform.kubectl().with_input(&arguments, &class)?.success()?;
            let output = project.apply_refused();
            // Releases the fields in any case: the one that is required to kubectl, then the others.
            platform.kubectl().ok(&["patch", "vmclass", "small", "--type=merge", "-p", r#"{"spec":{"cpus":1}}"#])?;
            let nothing = serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VMClass", "metadata": {"name": "small"}});
            platform.kubectl().with_input(&arguments, &nothing.to_string())?.success()?;
            let output = crate::terraform::unwrapped(&output?);
            contains_all(&output, &["gitops", "cpus"])?;
            project.apply()?;
            project.plan_is_empty()
        });
    }

    fn crash(&mut self) {
        let (public, boot) = (self.public.clone(), self.boot.clone());
        self.case(
            "kill -9 of berth leaves the VM running; a restart adopts it with the same pid",
            |platform, project| {
                let pid = platform.qemu()?;
                platform.crash()?;
                ensure!(platform.qemu()? == pid, "QEMU went with its agent");
                same_boot(platform, &public, &boot)?;
                platform.start()?;
                platform.kubectl().condition("vm/web", "Running=True", None, SOON)?;
                platform.kubectl().condition("vm/web", "Ready=True", None, SOON)?;
                ensure!(platform.qemu()? == pid, "another QEMU");
                let output = platform.kubectl().object("vm", "web")?["status"]["process"]["pid"].as_i64();
                ensure!(output == Some(i64::from(pid)), "the status has {output:?}, the process is {pid}");
                same_boot(platform, &public, &boot)?;
                project.plan_is_empty()
            },
        );
        self.case("SIGTERM stops berth and leaves the VM running", |platform, _| {
            let pid = platform.qemu()?;
            platform.stop()?;
            ensure!(platform.qemu()? == pid, "QEMU went with its agent");
            platform.start()?;
            platform.kubectl().condition("vm/web", "Ready=True", None, SOON).map(drop)
        });
        self.case("a foreign QEMU is reported and not touched", |platform, _| {
            let mut foreign = platform.namespace().command("qemu-system-x86_64");
            foreign.args([
                "-nodefaults",
                "-display",
                "none",
                "-machine",
                "none",
                "-S",
                "-name",
                "somebody-elses",
            ]);
            let log = platform.folder().join("foreign.log");
            let mut daemon = process::Daemon::spawn("a foreign QEMU", &mut foreign, &log)?;
            let pid = daemon.pid().to_string();
            platform.stop()?;
            platform.start()?;
            wait::until("the host to report it", Duration::from_secs(60), || {
                let hosts =
                    platform.kubectl().ok(&["get", "hosts", "-o", "jsonpath={.items[*].status.orphans}"])?;
                contains_all(&hosts, &[&pid])
            })?;
            daemon.must_run()
        });
    }

    fn replacement(&mut self) {
        let pattern = self.pattern.clone();
        self.case("a VM is replaced on request and its data disk is not", |platform, project| {
            let uid = |platform: &Platform| -> Result<serde_json::Value> {
                Ok(platform.kubectl().object("vm", "web")?["metadata"]["uid"].clone())
            };
            let before = uid(platform)?;
            project.apply_with(&["-replace=berth_vm.web"])?.success()?;
            ensure!(uid(platform)? != before, "the same VM");
            let address = project.output("public_address")?;
            http::get_within(platform.neighbour(), &address, "/", ANSWER)?;
            holds(platform, &address, &pattern)?;
            project.plan_is_empty()
        });
        self.case("what cannot change in place is planned as a replacement", |_, project| {
            project.edit("main.tf", "name     = \"web\"\n  strategy", "name     = \"web-2\"\n  strategy")?;
            let plan = project.plan()?;
            ensure!(plan.actions("berth_placement_group.web").contains("create"), "{}", plan.text);
            ensure!(plan.actions("berth_vm.web").contains("delete"), "{}", plan.text);
            project.edit("main.tf", "name     = \"web-2\"\n  strategy", "name     = \"web\"\n  strategy")?;
            project.plan_is_empty()
        });
    }

    fn import(&mut self) {
        self.case(
            "every resource is imported by namespace/name, then the plan is empty",
            |platform, project| {
                let other = platform.project()?;
                other.copy_from(project.folder())?;
                for state in ["terraform.tfstate", "terraform.tfstate.backup", "plan"] {
                    let _ = std::fs::remove_file(other.folder().join(state));
                }
                other.init()?;
                for (address, id) in RESOURCES {
                    other.run(&["import", "-input=false", "-no-color", address, id])?.success()?;
                }
                other.plan_is_empty()
            },
        );
    }

    fn destruction(&mut self, before: &crate::footprint::Footprint) -> Result<()> {
        self.case(
            "destroy leaves no object, process, link, address, firewall rule or file",
            |platform, project| {
                project.destroy()?;
                ensure!(project.resources()?.is_empty(), "{:?}", project.resources());
                let kinds = "vms,disks,images,hotswapdiskattachments,publicips,placementgroups,vmclasses";
                let left = platform.kubectl().ok(&["get", kinds, "-o", "name"])?;
                ensure!(left.trim().is_empty(), "left: {left}");
                platform.nothing_beyond(before, Duration::from_secs(60))
            },
        );
        ensure!(berth::qemu_processes(self.platform.namespace())?.is_empty(), "a QEMU is left");
        Ok(())
    }
}

/// A disk as the guest sees it.
#[derive(Debug)]
pub struct GuestDisk {
    /// The kernel name.
    pub name: String,
    /// The size in bytes.
    pub size: u64,
}

/// Gets a page of the guest from the host.
pub fn page(platform: &Platform, address: &str, path: &str) -> Result<String> {
    http::get(platform.namespace(), address, path, SOON)
}

/// The disk with a serial, as the guest lists it.
pub fn guest_disk(platform: &Platform, address: &str, serial: &str) -> Result<GuestDisk> {
    let text = page(platform, address, "/cgi-bin/disks")?;
    let line = text
        .lines()
        .find(|line| field(line, "serial").is_ok_and(|found| found == serial))
        .with_context(|| format!("no disk with serial {serial} in\n{text}"))?;
    Ok(GuestDisk { name: field(line, "name")?.to_owned(), size: field(line, "size")?.parse()? })
}

/// The serial number that the control plane assigned to a disk.
pub fn serial_of(platform: &Platform, disk: &str) -> Result<String> {
    let object = platform.kubectl().object("disk", disk)?;
    Ok(object["status"]["serial"].as_str().with_context(|| format!("disk {disk} has no serial"))?.to_owned())
}

fn same_boot(platform: &Platform, address: &str, boot: &str) -> Result<()> {
    let text = page(platform, address, "/cgi-bin/uptime")?;
    ensure!(field(&text, "boot_id")? == boot, "the guest rebooted: {text}");
    Ok(())
}

/// Waits until the guest has the data disk and the disk holds the pattern.
fn holds(platform: &Platform, address: &str, pattern: &str) -> Result<()> {
    let serial = serial_of(platform, "web-data")?;
    let disk = wait::until("the data disk", SOON, || guest_disk(platform, address, &serial))?;
    let text = page(platform, address, &format!("/cgi-bin/sum?dev={}", disk.name))?;
    ensure!(field(&text, "sha256")? == pattern, "the disk holds something else: {text}");
    Ok(())
}
