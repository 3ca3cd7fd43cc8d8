//! `examples/modules`: the tests of each module without a control plane, then all modules on one site; the folders of `examples/` that no
//! suite applies. On the empty site, what `berth import` writes.

mod appliance;
mod examples;
mod import;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Kit;
use super::kubectl::contains_all;
use super::lifecycle::{guest_disk, page, serial_of};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::{Project, unwrapped};
use crate::workspace;

/// With the other modules' VMs they take all eight CPUs that a host of two processors gives to VMs.
const STUDENTS: &[&str] = &["ada", "alan", "grace"];
const ANSWER: Duration = Duration::from_secs(180);
/// Stands for cloud-init's web server, which the small guest has no Python for.
const WEB: &str = "#!/bin/sh\necho served by $(hostname)\n";

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("modules"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    let failed = report.count().failed;
    // A failed step has been counted, and the steps after it cannot run.
    let _ = chapters(report, &platform, &guest);
    import::run(report, &mut platform, &parts, &guest);
    appliance::run(report, &platform, &parts, &guest);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    Ok(())
}

/// The cases that need a newer Terraform than the suite has.
pub fn run_newest(report: &mut Report, platform: &Platform) {
    examples::newest(report, platform);
}

fn chapters(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    let before = report.step("the empty host is looked at", || platform.footprint())?;
    let site = report.step("a project with all modules is made", || site(platform, guest))?;
    report.case("each module passes its tests without a control plane", || {
        let offline = site.with_kubeconfig(Path::new("no-such.kubeconfig"));
        for name in examples::modules()? {
            let module = offline.subfolder(&name);
            module.init().with_context(|| name.clone())?;
            let tested = module.run(&["test", "-no-color", "-filter=tests/plan.tftest.hcl"])?;
            contains_all(&tested.success().with_context(|| name.clone())?, &["0 failed"])?;
        }
        Ok(())
    });
    examples::run(report, platform);
    report.case("examples/size-catalogue: sizes for all namespaces, listed as their users see them", || {
        let project = platform.project()?;
        project.copy_from(&workspace::root().join("examples/size-catalogue"))?;
        project.init()?;
        project.apply()?;
        project.plan_is_empty()?;
        let general = outputs(&project)?["general"]["value"].clone();
        let expected = json!({"general-1": "1 CPUs, 4Gi", "general-2": "2 CPUs, 8Gi", "general-4": "4 CPUs, 16Gi", "general-8": "8 CPUs, 32Gi"});
        ensure!(general == expected, "{general}");
        project.destroy().map(drop)
    });
    report.step("one apply makes eight guests, and the second plan is empty", || {
        site.init()?;
        site.apply()?;
        site.plan_is_empty()
    })?;
    report.case("each guest answers at the address that its module names", || {
        let outputs = outputs(&site)?;
        let text = |name: &str| outputs[name]["value"].as_str().map(str::to_owned).context(name.to_owned());
        guest_is(platform, &text("app")?, "app")?;
        for (name, address) in addresses(&outputs["api"])? {
            guest_is(platform, &address, &name)?;
        }
        let url = text("www")?;
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let served = http::get_within(platform.neighbour(), address, "/user-data.out", ANSWER)?;
        contains_all(&served, &["served by www"])?;
        let course = addresses(&outputs["course"])?;
        ensure!(course.len() == STUDENTS.len(), "{course:?}");
        for (name, address) in course {
            guest_is(platform, &address, &format!("linux-{name}"))?;
            let keys = http::get_within(platform.neighbour(), &address, "/authorized_keys", ANSWER)?;
            contains_all(&keys, &[&key_data(&name)])?;
        }
        Ok(())
    });
    report.case("the database has its data disk, which a destroy does not take", || {
        let address = outputs(&site)?["orders"]["value"].as_str().context("no address")?.to_owned();
        ensure!(field(&page(platform, &address, "/")?, "hostname")? == "orders");
        guest_disk(platform, &address, &serial_of(platform, "orders-data")?)?;
        let refused = unwrapped(&site.destroy_refused()?);
        contains_all(&refused, &["module.orders.berth_disk.data", "deletion_protection"])?;
        site.plan_is_empty()
    });
    report.case("a student who leaves takes only their own machine with them", || {
        let text = site.read("terraform.tfvars.json")?;
        let mut variables: Value = serde_json::from_str(&text)?;
        variables["students"].as_object_mut().context("no students")?.remove("alan");
        site.write("terraform.tfvars.json", &variables.to_string())?;
        let mut changes = site.plan()?.changes();
        changes.sort();
        let gone = |kind: &str| format!("module.course.{kind}[\"linux-alan\"]: delete");
        let expected = [gone("berth_disk.root"), gone("berth_public_ip.this"), gone("berth_vm.this")];
        ensure!(changes == expected, "{changes:?}");
        site.apply()?;
        site.plan_is_empty()
    });
    report.case("a module's own test makes a VM, grows its disk, and leaves nothing", || {
        let module = site.subfolder("single-vm");
        let arguments = [
            "test",
            "-no-color",
            "-filter=tests/apply.tftest.hcl",
            "-var=class=small",
            "-var=image=debian-12",
        ];
        contains_all(&module.run(&arguments)?.success()?, &["2 passed, 0 failed"])?;
        let left = platform.kubectl().ok(&["get", "vms,disks", "-o", "name"])?;
        ensure!(!left.contains("module-test"), "left: {left}");
        Ok(())
    });
    report.case("without its protection the site is destroyed, and nothing is left", || {
        site.apply_with(&["-var=protected=false"])?.success()?;
        site.destroy()?;
        ensure!(site.resources()?.is_empty(), "{:?}", site.resources());
        platform.nothing_beyond(&before, Duration::from_secs(60))
    });
    Ok(())
}

fn site(platform: &Platform, guest: &GuestImage) -> Result<Project> {
    let project = platform.project()?;
    project.copy_tree_from(&workspace::root().join("examples/modules"))?;
    let url = platform.images().put("guest.qcow2", Content::File(guest.path.clone()));
    let students: serde_json::Map<String, Value> = STUDENTS
        .iter()
        .map(|name| ((*name).to_owned(), json!(format!("ssh-ed25519 {} {name}", key_data(name)))))
        .collect();
    let variables = json!({
        "image_url": url,
        "image_sha256": guest.sha256,
        "memory": "128Mi",
        "firmware": "BIOS",
        "disk_size": "64Mi",
        "students": students,
        "web_user_data": WEB,
    });
    project.write("terraform.tfvars.json", &variables.to_string())?;
    Ok(project)
}

/// A public key in OpenSSH's form: the type, and 32 bytes made from the name.
fn key_data(name: &str) -> String {
    let mut wire = Vec::new();
    for part in [b"ssh-ed25519".as_slice(), &name.bytes().cycle().take(32).collect::<Vec<_>>()] {
        wire.extend(u32::try_from(part.len()).unwrap_or_default().to_be_bytes());
        wire.extend(part);
    }
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, wire)
}

fn outputs(site: &Project) -> Result<Value> {
    serde_json::from_str(&site.run(&["output", "-json"])?.success()?).context("the outputs are no JSON")
}

/// An output that maps names to addresses.
fn addresses(output: &Value) -> Result<Vec<(String, String)>> {
    let map = output["value"].as_object().context("no map")?;
    let address = |(name, address): (&String, &Value)| Some((name.clone(), address.as_str()?.to_owned()));
    map.iter().map(|pair| address(pair).with_context(|| format!("{pair:?}"))).collect()
}

fn guest_is(platform: &Platform, address: &str, name: &str) -> Result<()> {
    let text = http::get_within(platform.neighbour(), address, "/", ANSWER)?;
    ensure!(field(&text, "hostname")? == name, "{address} is not {name}: {text}");
    Ok(())
}
