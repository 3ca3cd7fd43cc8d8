//! Terraform and a real Debian 12: cloud-init, ssh, HTTP through the public address, power, and the guest agent's report.

pub mod power;
pub mod upgraded;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::console::administrator;
use super::kubectl::contains_all;
use super::{Kit, guest_access, guest_users, lifecycle};
use crate::guests::debian::AGENT;
use crate::package_source::PackageSource;
use crate::platform::{NEIGHBOUR, Platform};
use crate::process::Finished;
use crate::report::{Report, note};
use crate::terraform::Project;
use crate::{http, wait, workspace};

/// The time limit for Debian under emulation, on a busy machine, up to the end of cloud-init.
const BOOT: Duration = Duration::from_secs(420);
const SOON: Duration = Duration::from_secs(90);

/// The guest's network has IPv6 as well.
const DUAL_STACK: &str = r#"resource "berth_network" "dual" {
  name        = "dual"
  cidr        = "10.86.0.0/24"
  ipv6_cidr   = "fd00:60::/64"
  ipv6_egress = "Masquerade"
}
"#;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    on_debian(kit, report, "debian", |report, platform, project, public| {
        guest_cases(report, platform, project, public)
    })
}

/// The power of the guest, and an upgrade of berth while it writes, in a suite of its own.
pub fn powers(kit: &Kit, report: &mut Report) -> Result<()> {
    let next = report.step("berth is built of the next version too", || kit.next_version())?;
    on_debian(kit, report, "debian-power", |report, platform, project, public| {
        report.step("ssh with the declared key gets in", || {
            wait::until("ssh", BOOT, || {
                ssh(platform, project, public, "cloud-init status --wait")?.success().map(drop)
            })
        })?;
        upgraded::cases(report, platform, project, public, &next);
        report.step("the running guest gets memory", || power::memory_is_added(platform, project, public))?;
        report.case("plugged memory is given back by the running guest, and plugged in again", || {
            power::memory_is_given_back(platform, project, public)
        });
        power::cases(report, platform, project, public);
        // A disk in the trash would keep the file of the snapshot that was below it.
        let no_trash = r#"{"spec": {"trashRetentionSeconds": 0}}"#;
        platform.kubectl().ok(&["patch", "storagepool", "default", "--type=merge", "-p", no_trash]).map(drop)
    })
}

fn on_debian(
    kit: &Kit,
    report: &mut Report,
    name: &str,
    cases: impl FnOnce(&mut Report, &mut Platform, &Project, &str) -> Result<()>,
) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts(name))?;
    let guest = report.step("the Debian guest is built", || kit.debian_guests())?.without_agent;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    let packages = report.step("a source of packages has the guest agent", || {
        PackageSource::start(AGENT, platform.neighbour(), NEIGHBOUR)
    })?;
    let before = report.step("the empty host is looked at", || platform.footprint())?;
    let user_data = std::fs::read_to_string(workspace::root().join("examples/quickstart/cloud-init.yaml"))?;
    let project = report.step("init finds the provider in a mirror", || {
        let user_data = format!("{user_data}{}", with_source(&packages)?);
        let project = lifecycle::quickstart(&platform, &guest, &user_data)?;
        project.edit("main.tf", "  bootstrap = {\n", "  bootstrap = {\n    guest_agent = \"Install\"\n")?;
        let mut variables: serde_json::Value = serde_json::from_str(&project.read("terraform.tfvars.json")?)?;
        variables["guest_agent"] = true.into();
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.edit("main.tf", "cpus   = 1", "cpus   = 1\n  max_cpus = 2\n  max_memory = \"1Gi\"")?;
        project.edit(
            "main.tf",
            "[{ public_ip = berth_public_ip.web.name }]",
            "[{ network = berth_network.dual.name, public_ip = berth_public_ip.web.name }]",
        )?;
        project.write("network.tf", DUAL_STACK)?;
        project.init()?;
        Ok(project)
    })?;
    let public =
        report.step("apply of the quickstart starts the guest, which installs the guest agent", || {
            // It ends when the guest has an address.
            project.apply()?;
            platform
                .kubectl()
                .until("vm/web", "the guest agent", BOOT, |vm| vm["status"]["guest"]["agent"] == true)?;
            ensure!(packages.downloads() == 1, "{} downloads of the package", packages.downloads());
            project.output("public_address")
        });
    let outcome = public.and_then(|public| cases(report, &mut platform, &project, &public));
    if report.count().failed > 0 {
        note(&platform.keep_evidence());
    }
    report.case("destroy leaves nothing behind", || {
        project.destroy()?;
        platform.nothing_beyond(&before, Duration::from_secs(60))
    });
    outcome
}

/// The part of the user data that makes this the only source of packages of the guest.
fn with_source(packages: &PackageSource) -> Result<String> {
    Ok(format!(
        "bootcmd:\n  - rm -f /etc/apt/sources.list.d/*\n  - echo '{}' >/etc/apt/sources.list\n",
        packages.line()?
    ))
}

fn guest_cases(report: &mut Report, platform: &Platform, project: &Project, public: &str) -> Result<()> {
    report.step(
        "what cloud-init started answers over HTTP on the public address, from a neighbour",
        || {
            let text = http::get_within(platform.neighbour(), public, "/", BOOT)?;
            contains_all(&text, &["hello from berth"])
        },
    )?;
    report.case("the second plan is empty", || project.plan_is_empty());
    report.case("ssh with the declared key gets in through the public address", || {
        let text = wait::until("ssh", SOON, || {
            ssh(platform, project, public, "hostname; cloud-init status --wait")?.success()
        })?;
        contains_all(&text, &["web", "status: done"])
    });
    report.case("the guest has its IPv6 address by DHCPv6, and a default route", || {
        let script = "ip -6 -o addr show scope global; ip -6 route; timeout 5 bash -c '</dev/tcp/fd00:60::1/53' && echo names";
        let text = wait::until("DHCPv6", SOON, || {
            let text = ssh(platform, project, public, script)?.stdout;
            contains_all(&text, &["inet6 fd00:60::2/128", "default", "names"])?;
            Ok(text)
        })?;
        ensure!(text.contains("default via fe80:"), "{text}");
        let attributes = project.attributes("berth_vm.web")?;
        ensure!(attributes["network_interfaces"][0]["ipv6_address"] == "fd00:60::2", "{attributes:#}");
        Ok(())
    });
    report.case("the guest agent reports host name, system and addresses", || {
        let private = project.output("private_address")?;
        let vm = platform.kubectl().until("vm/web", "the guest's facts", SOON, |vm| {
            vm["status"]["guest"]["agent"] == true && vm["status"]["guest"]["os"].is_string()
        })?;
        let guest = &vm["status"]["guest"];
        ensure!(guest["osId"] == "debian" && guest["osVersion"] == "12", "{guest:#}");
        let root = guest["filesystems"].as_array().into_iter().flatten().find(|one| one["mountpoint"] == "/");
        let used =
            root.and_then(|root| root["usedPercent"].as_i64()).context("no use of the root file system")?;
        ensure!((1..=99).contains(&used), "{guest:#}");
        let listed = guest["interfaces"].as_array().into_iter().flatten();
        let has_link_local = |one: &serde_json::Value| one["addresses"].to_string().contains("fe80::");
        ensure!(listed.filter(|one| has_link_local(one)).count() == 1, "IPv6 is missing: {guest:#}");
        contains_all(&vm["status"]["guest"].to_string(), &["web", "Debian GNU/Linux 12", &private])
    });
    report.case("berth exec runs programs in the guest", || guest_access::programs(platform, "web"));
    report.case("the default user has the declared password and the keys of the Secret", || {
        guest_access::user_has_password_and_keys(platform, "web")
    });
    report.case("berth cp copies a file into the guest and back", || guest_access::files(platform, "web"));
    report.case("berth ssh and berth port-forward need no public address", || {
        guest_access::ssh_and_ports(platform, project, "web")
    });
    report.case("the root disk was grown to its declared size by the guest", || {
        let text = ssh(platform, project, public, "df -BM --output=size / | tail -n 1")?.success()?;
        let size: u64 = text.trim().trim_end_matches('M').parse()?;
        ensure!(size > 3_500, "the root file system has {size} MiB");
        Ok(())
    });
    report.case(
        "the guest agent sets CPUs and memory online that are plugged into the running guest",
        || {
            // The number of CPUs and the memory in KiB.
            let has = || -> Result<(u64, u64)> {
                let text =
                    ssh(platform, project, public, "nproc; awk '/^MemTotal/ { print $2 }' /proc/meminfo")?;
                let text = text.success()?;
                let (cpus, memory) = text.trim().split_once('\n').context("two lines")?;
                Ok((cpus.trim().parse()?, memory.trim().parse()?))
            };
            let before = has()?;
            project.edit("main.tf", "cpus   = 1", "cpus   = 2")?;
            project.edit("main.tf", r#"memory = "512Mi""#, r#"memory = "768Mi""#)?;
            project.apply()?;
            wait::until("two CPUs and 256 MiB more", SOON, || {
                let now = has()?;
                ensure!(now == (2, before.1 + (256 << 10)), "{now:?}, before {before:?}");
                Ok(())
            })?;
            project.plan_is_empty()
        },
    );
    guest_users::cases(report, platform, project, public);
    report.case("a readiness probe runs a program by the guest agent", || {
        guest_users::exec_probe(platform, project, public)
    });
    let serial = lifecycle::serial_of(platform, "web-data")?;
    let device = format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}");
    report.case("the hot-plugged disk takes a file system", || {
        let script = format!("sudo mkfs.ext4 -q {device} && sudo mkdir -p /data && sudo mount {device} /data && echo kept | sudo tee /data/file && sync");
        let text = ssh(platform, project, public, &script)?.success()?;
        contains_all(&text, &["kept"])
    });
    report.case("a mounted disk is not unplugged: the attachment reports it and stays", || {
        let kubectl = platform.kubectl();
        let name = kubectl.ok(&["get", "hda", "-o", "name"])?;
        let name = name.trim().rsplit('/').next().unwrap_or_default().to_owned();
        kubectl.ok(&["delete", "hda", &name, "--wait=false"])?;
        kubectl.condition(&format!("hda/{name}"), "Ready=False", Some("GuestBusy"), SOON)?;
        ssh(platform, project, public, "cat /data/file")?.success()?;
        ssh(platform, project, public, "sudo umount /data")?.success()?;
        kubectl.ok(&["wait", &format!("hda/{name}"), "--for=delete", "--timeout=90s"])?;
        project.apply()?;
        let script = format!("sudo mount {device} /data && cat /data/file && sudo umount /data");
        let text =
            wait::until("the disk to be back", SOON, || ssh(platform, project, public, &script)?.success())?;
        contains_all(&text, &["kept"])
    });
    report.case("no secret of the bootstrap data is in the VM object, an event or the log", || {
        let objects = platform.kubectl().ok(&["get", "vms,events", "-o", "yaml"])?;
        let log = std::fs::read_to_string(platform.host().log())?;
        ensure!(!objects.contains("hello from berth"), "user data in an object");
        ensure!(!log.contains("hello from berth"), "user data in the log");
        Ok(())
    });
    report.case("guest_customization sets host name, time zone and a static address, also twice", || {
        customization(platform, project, public)
    });
    report.case("the guest agent is upgraded and then removed in the running guest", || {
        guest_users::agent_package(platform, project)
    });
    Ok(())
}

/// Runs the command of the function in the guest, as the hook of a VM does, and looks at the guest.
fn customization(platform: &Platform, project: &Project, public: &str) -> Result<()> {
    let address = project.output("private_address")?;
    let attributes = project.attributes("berth_vm.web")?;
    let mac = attributes["network_interfaces"][0]["mac_address"].as_str().context("no MAC address")?;
    let output = format!(
        r#"output "customization" {{
  value = jsonencode(provider::berth::guest_customization({{
    hostname = "plain-1"
    timezone = "Europe/Vienna"
    interfaces = [{{
      mac_address    = "{mac}"
      addresses      = ["{address}/24"]
      gateway        = "10.86.0.1"
      nameservers    = ["10.86.0.1"]
      search_domains = ["plain.example"]
    }}]
  }}))
}}
"#
    );
    project.write("customization.tf", &output)?;
    project.apply()?;
    let command: Vec<String> = serde_json::from_str(&project.output("customization")?)?;
    let exec = ["exec", "--timeout", "60s", "web", "--"].into_iter();
    let arguments: Vec<&str> = exec.chain(command.iter().map(String::as_str)).collect();
    for _ in 0..2 {
        administrator(platform).run(&arguments)?.success()?;
    }
    let script = "hostname; cat /etc/hostname /etc/hosts /etc/resolv.conf; readlink /etc/localtime; ip -4 -o addr show scope global";
    wait::until("the settings in the guest", SOON, || {
        let text = ssh(platform, project, public, script)?.success()?;
        let inet = format!("inet {address}/24");
        let search = "search plain.example";
        let wanted = ["127.0.1.1 plain-1", "zoneinfo/Europe/Vienna", &inet, "nameserver 10.86.0.1", search];
        contains_all(&text, &wanted)?;
        ensure!(text.starts_with("plain-1\nplain-1\n"), "{text}");
        ensure!(!text.contains("dynamic"), "the address is still one of DHCP: {text}");
        Ok(())
    })
}

/// Runs a script in the guest over ssh, from the neighbouring machine.
fn ssh(platform: &Platform, project: &Project, address: &str, script: &str) -> Result<Finished> {
    platform.ssh(&project.folder().join("id"), address, script)
}
