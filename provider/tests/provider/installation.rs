//! A release is installed from a filesystem mirror, with a lock file.

use std::{fs, path::Path, process::Command};

use sha2::{Digest as _, Sha256};

#[path = "../../examples/release-assets.rs"]
#[expect(dead_code, reason = "`main` belongs to the program")]
mod release_assets;

const CONFIGURATION: &str = r#"
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}
resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"
}
"#;

fn terraform(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("terraform")
        .args(arguments)
        .current_dir(directory)
        .env("TF_CLI_CONFIG_FILE", directory.join("cli.tfrc"))
        .env("BERTH_KUBECONFIG", directory.join("kubeconfig"))
        .env("CHECKPOINT_DISABLE", "1")
        .env_remove("BERTH_HOST")
        .output()
        .expect("terraform runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_release_is_installed_from_a_mirror_and_another_binary_is_refused_by_the_lock_file() {
    if Command::new("terraform").arg("version").output().is_err() {
        eprintln!("skipped: no terraform in PATH");
        return;
    }
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path();
    let mirror = work.join("mirror");
    let binary = Path::new(env!("CARGO_BIN_EXE_terraform-provider-berth"));
    let assets = |binary: &Path| {
        let packed = mirror.join(terraform_provider_berth::ADDRESS);
        release_assets::write(&packed, binary, flate2::Compression::none()).expect("a release")
    };
    let release = assets(binary);
    let sums = fs::read_to_string(&release.sums).expect("checksums");
    let archive = release.archive.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(
        archive.starts_with("terraform-provider-berth_") && archive.ends_with("_linux_amd64.zip"),
        "{archive}"
    );
    let sum = sums.lines().find_map(|line| line.strip_suffix(&format!("  {archive}"))).expect("its checksum");
    let digest = Sha256::digest(fs::read(&release.archive).expect("the archive"));
    assert_eq!(sum, digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let manifest =
        fs::read(release.archive.with_file_name(archive.replace("linux_amd64.zip", "manifest.json")));
    let manifest: serde_json::Value = serde_json::from_slice(&manifest.expect("a manifest")).expect("JSON");
    assert_eq!(manifest["metadata"]["protocol_versions"], serde_json::json!(["6.0"]));
    assert!(sums.contains("_manifest.json"), "{sums}");

    let cli = format!("provider_installation {{\n  filesystem_mirror {{\n    path = {mirror:?}\n  }}\n}}\n");
    fs::write(work.join("cli.tfrc"), cli).expect("a new file");
    fs::write(work.join("main.tf"), CONFIGURATION).expect("a new file");
    let locks = ["providers", "lock", &format!("-fs-mirror={}", mirror.display()), "-platform=linux_amd64"];
    let (locked, text) = terraform(work, &locks);
    assert!(locked, "{text}");
    let lock = fs::read_to_string(work.join(".terraform.lock.hcl")).expect("a lock file");
    assert!(lock.contains("\"h1:"), "{lock}");
    let (installed, text) = terraform(work, &["init", "-input=false", "-lockfile=readonly"]);
    assert!(installed, "{text}");
    let (planned, text) = terraform(work, &["plan", "-input=false", "-no-color"]);
    assert!(planned && text.contains("1 to add"), "{text}");

    let other = work.join("other");
    fs::write(&other, [fs::read(binary).expect("the binary"), b"other".to_vec()].concat())
        .expect("a new file");
    assets(&other);
    fs::remove_dir_all(work.join(".terraform")).expect("it was installed");
    let (installed, text) = terraform(work, &["init", "-input=false", "-lockfile=readonly", "-no-color"]);
    assert!(!installed && text.contains("checksum"), "{text}");
}
