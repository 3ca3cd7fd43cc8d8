//! Ways into a guest, against a real control plane and a real QEMU: programs and files by the guest agent, ports, ssh; and
//! the bootstrap data that the lifecycle adds to the quickstart.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::console::administrator;
use super::kubectl::contains_all;
use crate::berth::KUBECONFIG_VARIABLE;
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::process::{self, Finished};
use crate::report::Report;
use crate::terraform::Project;
use crate::{wait, workspace};

const PASSWORD: &str = "canary-of-the-example";
const SOON: Duration = Duration::from_secs(90);
/// A key that no guest's user has, in a Secret.
const TEAM_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICY+31BWFfnchKygBnDmT/4uYEJno0TMyvDU6tAix5s2";
/// The hash of the default user's password.
const HASH: &str =
    "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1";

/// Creates the Secret with keys; returns more bootstrap data for the VM of the quickstart.
pub fn more_bootstrap(platform: &Platform) -> Result<String> {
    let secret = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "team-keys"},
        "stringData": {"alice": format!("# hers\n{TEAM_KEY} alice\n")}});
    platform.kubectl().apply(&secret.to_string())?;
    Ok(format!(
        "    user = \"debian\"\n    password_hash = \"{HASH}\"\n    password_expires = false\n    \
         ssh_authorized_keys_secret = \"team-keys\"\n"
    ))
}

/// The vendor data and the keys that the small guest has read from its volume.
pub fn bootstrap_arrived(vendor_data: &str, keys: &str) -> Result<()> {
    contains_all(vendor_data, &["#cloud-config\n", "\"name\": \"debian\"", HASH, "\"expire\": false"])?;
    contains_all(keys, &[TEAM_KEY])
}

/// The default user that cloud-init has made of the bootstrap data.
pub fn user_has_password_and_keys(platform: &Platform, vm: &str) -> Result<()> {
    let shadow = run(platform, &["exec", vm, "--", "getent", "shadow", "debian"])?.success()?;
    let fields: Vec<&str> = shadow.trim().split(':').collect();
    ensure!(fields.get(1) == Some(&HASH), "{shadow}");
    ensure!(fields.get(2).is_some_and(|day| *day != "0"), "the password has expired: {shadow}");
    let keys = run(platform, &["exec", vm, "--", "cat", "/home/debian/.ssh/authorized_keys"])?.success()?;
    contains_all(&keys, &[TEAM_KEY])
}

/// `examples/bootstrap` with the small guest: encoded user data arrives decoded, beside user, password and keys; names, the hash of
/// a password and settings for cloud-init; an Ignition configuration.
pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case("examples/bootstrap: encoded user data, user, password and keys reach the guest", || {
        let project = platform.project()?;
        project.copy_from(&workspace::root().join("examples/bootstrap"))?;
        let url = platform.images().put("bootstrap.qcow2", Content::File(guest.path.clone()));
        let mut variables = serde_json::json!({"image_url": url, "image_sha256": guest.sha256,
            "password": PASSWORD, "password_hash": HASH, "keys_secret": "team-keys"});
        project.write("terraform.tfvars.json", &variables.to_string())?;
        // The Secret is there already, with the same content.
        more_bootstrap(platform)?;
        project.init()?;
        project.apply()?;
        let arrived = wait::until("the guest's pages", SOON, || {
            contains_all(
                &page(platform, "bootstrap", "/user-data")?,
                &["#cloud-config\n", "Managed by Terraform."],
            )
        })
        .and_then(|()| {
            let vendor_data = page(platform, "bootstrap", "/vendor-data")?;
            contains_all(
                &vendor_data,
                &["\"name\": \"admin\"", "\"password\": \"$6$rounds=", "\"expire\": false"],
            )?;
            ensure!(!vendor_data.contains(PASSWORD), "the password itself is on the volume");
            contains_all(&page(platform, "bootstrap", "/authorized_keys")?, &[TEAM_KEY])?;
            ensure!(!project.read("terraform.tfstate")?.contains(PASSWORD), "the password is in the state");
            project.plan_is_empty()
        })
        .and_then(|()| ignition(platform))
        .and_then(|()| settings(platform, "Managed by Terraform."))
        .and_then(|()| {
            variables["motd"] = "Another day.".into();
            project.write("terraform.tfvars.json", &variables.to_string())?;
            let changes = project.plan()?.changes();
            ensure!(changes == ["berth_vm.settings: update"], "{changes:?}");
            project.apply()?;
            settings(platform, "Another day.")?;
            project.plan_is_empty()
        });
        project.destroy()?;
        arrived
    });
}

/// The second VM of the example has what `settings.tf` declares, and this text of the day.
fn settings(platform: &Platform, motd: &str) -> Result<()> {
    const VM: &str = "bootstrap-settings";
    wait::until("the page of the guest", SOON, || {
        contains_all(&page(platform, VM, "/user-data")?, &["#cloud-config\n", motd])
    })?;
    contains_all(&page(platform, VM, "/")?, &["hostname=web\n"])?;
    contains_all(&page(platform, VM, "/meta-data")?, &["web.example.org", "site", "vienna"])?;
    contains_all(&page(platform, VM, "/network-config")?, &["cards", "e*"])?;
    contains_all(&page(platform, VM, "/vendor-data")?, &["\"name\": \"admin\"", HASH])
}

/// The third VM gets its Ignition configuration from the firmware configuration device.
fn ignition(platform: &Platform) -> Result<()> {
    let object = platform.kubectl().object("vm", "bootstrap-ignition")?;
    ensure!(object["status"]["state"] == "Running", "{}", object["status"]);
    let lines: Vec<String> = platform.namespace().processes()?.into_iter().map(|(_, line)| line).collect();
    ensure!(lines.iter().any(|line| line.contains("name=opt/com.coreos/config")), "{lines:#?}");
    Ok(())
}

/// A page of the small guest, by `berth port-forward`.
fn page(platform: &Platform, vm: &str, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    with_input(platform, &["port-forward", vm, "80", "--stdio"], request.as_bytes())?.success()
}

fn run(platform: &Platform, arguments: &[&str]) -> Result<Finished> {
    administrator(platform).run(arguments)
}

fn with_input(platform: &Platform, arguments: &[&str], input: &[u8]) -> Result<Finished> {
    let mut command = platform.namespace().command(platform.host().program());
    command.args(arguments).env(KUBECONFIG_VARIABLE, platform.kubeconfig());
    process::run_with_input(&mut command, input, SOON)
}

/// A guest without an agent runs nothing, and says why.
pub fn no_agent(platform: &Platform, vm: &str) -> Result<()> {
    let finished = run(platform, &["exec", vm, "--", "true"])?;
    ensure!(finished.code() == 255, "{}", finished.output());
    contains_all(&finished.stderr, &["no guest agent runs in the VM"])
}

/// Reads a page of the small guest through the standard input and output of `berth port-forward`.
pub fn port_of_the_guest(platform: &Platform, vm: &str) -> Result<()> {
    let to_port =
        |port: &str| with_input(platform, &["port-forward", vm, port, "--stdio"], b"GET / HTTP/1.0\r\n\r\n");
    contains_all(&to_port("80")?.success()?, &["200 OK", "berth small guest"])?;
    contains_all(&to_port("81")?.failure()?, &["port 81 of 10.", "Connection refused"])?;
    let others = ["port-forward", vm, "80", "--stdio", "--address", "127.0.0.1"];
    contains_all(&with_input(platform, &others, b"")?.failure()?, &["the address is not the VM's"])
}

/// Programs in a guest with an agent: output, errors, exit code, input, and what the agent refuses.
pub fn programs(platform: &Platform, vm: &str) -> Result<()> {
    let script = "echo out; echo err >&2; exit 7";
    let finished = run(platform, &["exec", vm, "--", "sh", "-c", script])?;
    ensure!(finished.code() == 7, "{}", finished.output());
    ensure!(
        (finished.stdout.as_str(), finished.stderr.as_str()) == ("out\n", "err\n"),
        "{}",
        finished.output()
    );
    let killed = run(platform, &["exec", vm, "--", "sh", "-c", "kill -TERM $$"])?;
    ensure!(killed.code() == 143, "{}", killed.output());
    let typed = with_input(platform, &["exec", "-i", vm, "--", "tr", "a-z", "A-Z"], b"typed")?.success()?;
    ensure!(typed == "TYPED", "{typed:?}");
    let missing = run(platform, &["exec", vm, "--", "no-such-program"])?;
    ensure!(missing.code() == 255, "{}", missing.output());
    contains_all(&missing.stderr, &["the guest agent refused guest-exec"])?;
    let endless = run(platform, &["exec", "--timeout", "2s", vm, "--", "sleep", "60"])?;
    contains_all(&endless.stderr, &["did not end within 2 seconds"])?;
    let large = run(platform, &["exec", vm, "--", "head", "-c", "3000000", "/dev/zero"])?.success()?;
    ensure!(large.len() == 3_000_000, "{} bytes", large.len());
    let too_large = run(platform, &["exec", vm, "--", "head", "-c", "9000000", "/dev/zero"])?;
    contains_all(&too_large.stderr, &["larger than 4 MiB"])?;
    run(platform, &["exec", vm, "--", "true"])?.success().map(drop)
}

/// A file is copied into a guest, with its permissions, and back.
pub fn files(platform: &Platform, vm: &str) -> Result<()> {
    let folder = platform.folder().join("copies");
    fs::create_dir_all(&folder)?;
    let (there, back) = (folder.join("tool"), folder.join("back"));
    let content: Vec<u8> = (0..700_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&there, &content)?;
    fs::set_permissions(&there, fs::Permissions::from_mode(0o750))?;
    let there = there.to_str().context("a path of UTF-8")?;
    run(platform, &["cp", there, &format!("{vm}:/opt/")])?.success()?;
    let facts = run(platform, &["exec", vm, "--", "stat", "-c", "%a %U %s", "/opt/tool"])?.success()?;
    ensure!(facts.trim() == "750 root 700000", "{facts}");
    run(platform, &["cp", &format!("{vm}:/opt/tool"), back.to_str().context("a path of UTF-8")?])?
        .success()?;
    ensure!(fs::read(&back)? == content, "the copy of the copy differs");
    fs::set_permissions(&back, fs::Permissions::from_mode(0o600))?;
    run(platform, &["cp", &format!("{vm}:/etc/hostname"), back.to_str().context("a path of UTF-8")?])?
        .success()?;
    let (mode, files) = (fs::metadata(&back)?.permissions().mode() & 0o777, fs::read_dir(&folder)?.count());
    ensure!(fs::read(&back)? != content, "the file is not replaced");
    ensure!((mode, files) == (0o600, 2), "permissions {mode:o}, {files} files");
    let missing = run(platform, &["cp", &format!("{vm}:/no/such"), "/dev/null"])?.failure()?;
    contains_all(&missing, &["No such file or directory"])?;
    let into = run(platform, &["cp", there, &format!("{vm}:/no/such/")])?.failure()?;
    contains_all(&into, &["the guest cannot write the file"])
}

/// ssh without a public address, and a local port for a port of the guest.
pub fn ssh_and_ports(platform: &Platform, project: &Project, vm: &str) -> Result<()> {
    let (key, hosts) = (project.folder().join("id"), platform.folder().join("known_hosts"));
    let (key, hosts) = (key.display().to_string(), format!("UserKnownHostsFile={}", hosts.display()));
    let destination = format!("debian@{vm}");
    let ssh = ["ssh", &destination, "--", "-i", &key, "-o", &hosts, "-o", "BatchMode=yes", "id -un; exit 5"];
    let finished = run(platform, &ssh)?;
    ensure!(finished.code() == 5 && finished.stdout.trim() == "debian", "{}", finished.output());

    let mut command = platform.namespace().command(platform.host().program());
    command.args(["port-forward", vm, ":22"]).env(KUBECONFIG_VARIABLE, platform.kubeconfig());
    let printed = platform.folder().join("port-forward.out");
    command.stdin(Stdio::null()).stdout(fs::File::create(&printed)?).stderr(Stdio::inherit());
    let mut forward = command.spawn().context("starting berth port-forward")?;
    let greeted = wait::until("the greeting of sshd", SOON, || {
        let text = fs::read_to_string(&printed)?;
        let local = text.split(" -> ").next().context("no address yet")?.to_owned();
        let mut stream = platform.namespace().inside(move || Ok(TcpStream::connect(&local)?))?;
        stream.set_read_timeout(Some(SOON))?;
        let mut greeting = [0; 8];
        stream.read_exact(&mut greeting)?;
        ensure!(&greeting == b"SSH-2.0-", "{greeting:?}");
        Ok(())
    });
    forward.kill()?;
    forward.wait()?;
    greeted
}
