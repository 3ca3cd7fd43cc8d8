//! Features of newer versions of Terraform and OpenTofu: user data that is in no plan and no state, import by identity; with
//! Terraform from source also queries and actions.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::kubectl::contains_all;
use super::lifecycle::{self, RESOURCES};
use super::{Kit, modules, moves, rules, verbs};
use crate::guests::GuestImage;
use crate::http;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::Project;
use crate::tools;

const ANSWER: Duration = Duration::from_secs(120);
/// The text that must be in the guest and in none of Terraform's files.
const CANARY: &str = "canary-7d1f3b";

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built, Terraform from source", || {
        kit.parts_with("terraform-new", tools::newer_terraform)
    })?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    run_cases(report, &platform, &guest);
    rules::run(report, &platform, &guest);
    verbs::run(report, &platform);
    moves::run(report, &platform);
    modules::run_newest(report, &platform);
    verbs::run_newest(report, &platform, &guest);
    Ok(())
}

/// Runs the cases; it cleans up after itself.
pub fn run_cases(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let failed = report.count().failed;
    // A failed step has been counted, and the steps after it cannot run.
    let _ = chapters(report, platform, guest);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

fn chapters(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    let before = report.step("the host before it is looked at", || platform.footprint())?;
    let project = report.step("user data is declared write-only, from an ephemeral variable", || {
        let project = write_only(platform, guest)?;
        project.init()?;
        project.plan()?;
        Ok(project)
    })?;
    report.step("apply makes the guest and the second plan is empty", || {
        project.apply()?;
        project.plan_is_empty()
    })?;
    report.case("the guest ran the user data that is in no plan, state, object or event", || {
        let address = project.output("public_address")?;
        let printed = http::get_within(platform.neighbour(), &address, "/user-data.out", ANSWER)?;
        contains_all(&printed, &[CANARY])?;
        let objects = platform.kubectl().ok(&["get", "berth,events", "-o", "yaml"])?;
        let planned = project.run(&["show", "-json", "plan"])?.success()?;
        for (place, text) in
            [("the state", project.read("terraform.tfstate")?), ("the plan", planned), ("an object", objects)]
        {
            ensure!(!text.contains(CANARY), "{CANARY} is in {place}");
        }
        Ok(())
    });
    report.case("a raised version of it is a change of bootstrap data, and refused by default", || {
        project.edit("main.tf", "user_data_wo_version = 1", "user_data_wo_version = 2")?;
        let output = project.apply_refused().map(|output| crate::terraform::unwrapped(&output));
        project.edit("main.tf", "user_data_wo_version = 2", "user_data_wo_version = 1")?;
        contains_all(&output?, &["user_data_policy", "replace"])
    });
    let imported = report.step("every resource is imported by identity, with nothing to change", || {
        by_identity(platform, &project)
    });
    report.case("destroy leaves nothing behind", || {
        imported.as_ref().unwrap_or(&project).destroy()?;
        platform.nothing_beyond(&before, Duration::from_secs(60))
    });
    Ok(())
}

fn write_only(platform: &Platform, guest: &GuestImage) -> Result<Project> {
    let project = lifecycle::quickstart(platform, guest, "")?;
    project.edit(
        "main.tf",
        r#"user_data           = file("cloud-init.yaml")"#,
        "user_data_wo         = var.user_data\n    user_data_wo_version = 1",
    )?;
    let variables = project.read("variables.tf")?;
    let ephemeral = "\nvariable \"user_data\" {\n  type      = string\n  ephemeral = true\n}\n";
    project.write("variables.tf", &(variables + ephemeral))?;
    let mut values: serde_json::Value = serde_json::from_str(&project.read("terraform.tfvars.json")?)?;
    values["user_data"] = format!("#!/bin/sh\necho {CANARY}\n").into();
    project.write("terraform.tfvars.json", &values.to_string())?;
    Ok(project)
}

fn by_identity(platform: &Platform, project: &Project) -> Result<Project> {
    let other = platform.project()?;
    other.copy_from(project.folder())?;
    for file in ["terraform.tfstate", "terraform.tfstate.backup", "plan"] {
        // A backup exists only after a second apply.
        let _ = std::fs::remove_file(other.folder().join(file));
    }
    let mut blocks = String::new();
    for (address, id) in RESOURCES {
        let (namespace, name) = id.split_once('/').unwrap_or(("default", id));
        blocks += &format!(
            "import {{\n  to       = {address}\n  identity = {{ namespace = \"{namespace}\", name = \"{name}\" }}\n}}\n"
        );
    }
    other.write("imports.tf", &blocks)?;
    other.init()?;
    let plan = other.plan()?;
    let wanted = format!("{} to import, 0 to add, 0 to change, 0 to destroy", RESOURCES.len());
    ensure!(plan.text.contains(&wanted), "{}", plan.text);
    other.apply()?;
    other.plan_is_empty()?;
    Ok(other)
}
