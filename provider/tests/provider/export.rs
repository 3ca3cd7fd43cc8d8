//! `terraform-provider-berth export`: with what it writes, Terraform imports every object and changes none.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::json;
use terraform_provider_berth::export::export_from;
use tfplugin6::diagnostic;

use crate::{
    control_plane::ControlPlane,
    lifecycle::stories,
    stage::{Stage, provider},
    terraform::Terraform,
};

#[tokio::test]
async fn a_plan_with_the_exported_configuration_imports_every_object_and_changes_none() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    plane.host("h1.example.org", json!({"disk": "ssd"})).await;
    let ours = provider(&plane.client, "default");
    let mut objects = 1;
    for (type_name, _, config, _) in stories() {
        let mut config = config;
        config["labels"] = json!({"example.org/tier": "web"});
        let made = Stage::new(&ours, type_name).apply(&config).await;
        assert!(!diagnostic::has_errors(&made.diagnostics), "{type_name}: {}", made.text());
        objects += 1;
    }
    plane.part_of_vm_snapshot("before-0", "before").await;

    let export = export_from(&ours).await.expect("every kind is listed");
    assert!(export.warnings.is_empty(), "{:?}", export.warnings);
    assert_eq!(export.objects, objects);
    fs::remove_file(work.join("main.tf")).expect("it is there");
    export.write(&work).expect("the files are new");
    let configuration = fs::read_to_string(work.join("berth.tf")).expect("it was written");
    assert!(!configuration.contains("canary-secret"), "{configuration}");
    let secret = work.join("default.web-user_data");
    let mode = fs::metadata(&secret).expect("the user data is a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = export.write(&work).expect_err("files that exist are not overwritten").to_string();
    assert!(again.contains("berth.tf"), "{again}");

    let formatted = terraform.run(&["fmt", "-check", "-diff"]).await;
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stdout));
    let (code, text) = terraform.plan(&[]).await;
    let summary = format!("{objects} to import, 0 to add, 0 to change, 0 to destroy");
    assert!(code == Some(2) && text.contains(&summary), "{text}\n{configuration}");
    terraform.ok(&["apply", "-auto-approve"]).await;
    terraform.assert_nothing_to_do(&[], "after the import").await;
    plane.close().await;
}

#[tokio::test]
async fn a_write_only_value_is_left_out_with_a_warning() {
    let plane = ControlPlane::in_memory().await;
    let ours = provider(&plane.client, "default");
    let config = json!({"name": "web", "class": "small", "disks": [{"name": "web-root", "boot": true}],
        "bootstrap": {"user_data_wo": "#cloud-config\npassword: canary-secret\n", "user_data_wo_version": 3}});
    let made = Stage::new(&ours, "berth_vm").apply(&config).await;
    assert!(!diagnostic::has_errors(&made.diagnostics), "{}", made.text());
    let export = export_from(&ours).await.expect("every kind is listed");
    let [warning] = &export.warnings[..] else { panic!("{:?}", export.warnings) };
    assert_eq!(warning.summary, "VM default/web is exported without bootstrap.user_data_wo");
    let [(_, configuration)] = &export.files[..] else { panic!("{:?}", export.files) };
    assert!(configuration.contains("user_data_wo_version = 3"), "{configuration}");
    assert!(!configuration.contains("canary-secret"), "{configuration}");
    plane.close().await;
}
