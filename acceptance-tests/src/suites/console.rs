//! The serial console of a running guest: what is typed, what is logged, and tickets, against a real control plane and a
//! real QEMU.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::kubectl::contains_all;
use crate::berth::Administrator;
use crate::platform::Platform;
use crate::{wait, workspace};

const SOON: Duration = Duration::from_secs(30);

pub fn administrator(platform: &Platform) -> Administrator {
    Administrator::new(platform.host().program(), platform.namespace(), platform.kubeconfig())
}

/// The log of a VM's serial console, as `berth logs` prints it.
pub fn log(platform: &Platform, vm: &str) -> Result<String> {
    administrator(platform).run(&["logs", vm])?.success()
}

/// The log of a serial port, as `berth logs` prints it.
pub fn log_of_port(platform: &Platform, vm: &str, port: &str) -> Result<String> {
    administrator(platform).run(&["logs", vm, "--port", port])?.success()
}

/// The refusal of `berth console`.
pub fn attach(platform: &Platform, vm: &str) -> Result<String> {
    administrator(platform).run(&["console", vm])?.failure()
}

/// Types into the console, and waits for the guest's answer, which comes after the earlier output.
pub fn answers(platform: &Platform, vm: &str) -> Result<()> {
    let shown = platform.folder().join("console.out");
    let mut command = platform.namespace().command(platform.host().program());
    command.args(["console", vm, "--kubeconfig"]).arg(platform.kubeconfig());
    command.stdin(Stdio::piped()).stdout(File::create(&shown)?).stderr(Stdio::inherit());
    let mut client = command.spawn().context("starting berth console")?;
    let mut typed = client.stdin.take().context("its standard input")?;
    let read = || Ok::<_, anyhow::Error>(String::from_utf8_lossy(&fs::read(&shown)?).into_owned());
    let talked = wait::until("the earlier output", SOON, || contains_all(&read()?, &["berth-guest-ready"]))
        .and_then(|()| Ok(typed.write_all(b"hello 42\n")?))
        .and_then(|()| {
            wait::until("the guest's answer", SOON, || contains_all(&read()?, &["berth-guest-read hello 42"]))
        });
    // The end of its input ends the client.
    drop(typed);
    let ended = wait::until("berth console to end", SOON, || {
        client.try_wait()?.context("it still runs").map(|status| status.success())
    });
    if ended.is_err() {
        client.kill()?;
        client.wait()?;
    }
    talked?;
    ensure!(ended?, "berth console failed");
    Ok(())
}

/// Opens a log with a ticket of kubectl; the ticket is refused the second time, and so is one for another VM.
pub fn tickets(platform: &Platform, vm: &str) -> Result<()> {
    let object = platform.kubectl().object("vm", vm)?;
    let address = object["status"]["console"]["address"].as_str().context("no console")?;
    let uid = object["metadata"]["uid"].as_str().context("no uid")?;
    let ticket =
        |audience: &str| platform.kubectl().ok(&["create", "token", "berth-console", "--audience", audience]);
    let path = format!("/v1/namespaces/default/vms/{vm}/log");
    let good = ticket(&format!("log.berth.dev/default/{vm}/{uid}"))?;
    let answer = exchange(platform, address, &path, good.trim())?;
    contains_all(&answer, &["HTTP/1.1 101 ", "berth-guest-ready"])?;
    let again = exchange(platform, address, &path, good.trim())?;
    contains_all(&again, &["HTTP/1.1 403 ", "used before"])?;
    let other = exchange(platform, address, &path, ticket("log.berth.dev/default/other/uid")?.trim())?;
    contains_all(&other, &["HTTP/1.1 403 ", "not valid for this object"])
}

/// Applies the example of the registry page to the VM `web`: its command saves the guest's output with a ticket, which is of no
/// use afterwards.
pub fn of_terraform(platform: &Platform) -> Result<()> {
    let example = "examples/ephemeral-resources/berth_console/ephemeral-resource.tf";
    let example = fs::read_to_string(workspace::root().join(example))?;
    let example = example.replace("berth_vm.web", "data.berth_vm.web");
    let keeps = "boot.log || exit\n      printf '%s' \"$TICKET\" > ticket\n      printf '%s' \"$ADDRESS\" > address\n";
    let project = platform.project_of(&example.replacen("boot.log\n", keeps, 1))?;
    project.init()?;
    project.write("web.tf", "data \"berth_vm\" \"web\" {\n  name = \"web\"\n}\n")?;
    project.apply()?;
    contains_all(&project.read("boot.log")?, &["HTTP/1.1 101 ", "berth-guest-ready"])?;
    let (ticket, address) = (project.read("ticket")?, project.read("address")?);
    let again = exchange(platform, &address, "/v1/namespaces/default/vms/web/log", &ticket)?;
    contains_all(&again, &["HTTP/1.1 403 ", "used before"])?;
    ensure!(ticket.len() > 100, "{} bytes of a ticket", ticket.len());
    ensure!(!project.read("terraform.tfstate")?.contains(&ticket), "the ticket is in the state");
    // The command refuses another certificate than the one it names.
    let wrong = "3 0 1 $(printf 0%.0s $(seq 64))";
    project.edit("main.tf", "3 0 1 $CERTIFICATE", wrong)?;
    project.apply_with(&["-replace=terraform_data.boot_log"])?.failure()?;
    ensure!(!project.read("boot.log")?.contains("HTTP/1.1 101 "), "another certificate was accepted");
    project.destroy().map(drop)
}

fn exchange(platform: &Platform, address: &str, path: &str, ticket: &str) -> Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(platform.host().state().join("console.pem"))?)?;
    let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let to = address.to_owned();
    let socket = platform.namespace().inside(move || Ok(TcpStream::connect(&to)?))?;
    socket.set_read_timeout(Some(SOON))?;
    let client = ClientConnection::new(Arc::new(tls), ServerName::try_from("berth-console")?)?;
    let mut stream = StreamOwned::new(client, socket);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: berth-console\r\n\
         Authorization: Bearer {ticket}\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    // A refusal ends the connection without an end of TLS.
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
