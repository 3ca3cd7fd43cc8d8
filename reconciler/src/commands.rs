//! The commands: thin wrappers around the libraries.

mod addresses;
mod agent;
mod backup;
mod connect;
mod console;
mod console_server;
mod controllers;
mod core_dumps;
mod crds;
mod descriptors;
mod diff;
mod disk_backup;
mod doctor;
mod download;
#[cfg(test)]
mod fake;
mod files;
mod graduate;
mod guest;
mod history;
mod host;
pub mod hosts;
mod image;
mod import;
mod incoming;
mod kubeconfig;
mod local_agent;
mod machine;
mod moves;
mod net;
mod outage;
mod port_forward;
mod power;
mod progress;
mod resources;
mod service;
mod signals;
mod simulate;
mod small_file;
mod state_dir;
mod this_machine;
mod token;
mod top;
mod trash;
mod undelete;
mod up;
mod usage_server;
mod vnc;
mod why;

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use berth_api::{console::ConsoleUse, disk_read::DiskOrigin};

use crate::{
    cli::{
        Cli, Command, DiskAction, DiskBackupAction, ImageAction, ImportSource, NetAction, SnapshotAction,
        UnpackImageOptions,
    },
    memory,
};
use power::Verb;

/// Runs the command; returns the exit code of this process.
///
/// *Errors:* the failure, as a chain for the user.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let done = match cli.command {
        Command::Exec(options) => return Ok(runtime()?.block_on(Box::pin(guest::exec(options)))),
        Command::Net(options) => match options.action {
            NetAction::Trace(options) => return Ok(runtime()?.block_on(Box::pin(net::trace(options)))),
        },
        Command::Cp(options) => runtime()?.block_on(Box::pin(guest::copy(options))),
        Command::PortForward(options) => runtime()?.block_on(Box::pin(port_forward::run(options))),
        Command::Ssh(options) => runtime()?.block_on(Box::pin(port_forward::ssh(options))),
        Command::Image(options) => match options.action {
            ImageAction::Push(options) => runtime()?.block_on(Box::pin(image::push(options))),
            ImageAction::Download(options) => runtime()?.block_on(Box::pin(download::image(options))),
        },
        Command::Disk(options) => match options.action {
            DiskAction::Download(options) => runtime()?.block_on(Box::pin(download::disk(options))),
        },
        Command::Snapshot(options) => runtime()?.block_on(Box::pin(snapshot(options.action))),
        Command::DiskBackup(options) => {
            return runtime()?.block_on(Box::pin(on_disk_backup(options.action)));
        }
        Command::UnpackImage(options) => unpack_image(&options),
        Command::Crds(options) => crds::run(&options),
        Command::Kubeconfig(options) => kubeconfig::run(&options),
        Command::Up(options) => serve(Box::pin(up::run(options))),
        Command::Controllers(options) => runtime()?.block_on(Box::pin(controllers::run(options))),
        Command::Host(options) => match &options.action {
            Some(action) => runtime()?.block_on(Box::pin(hosts::run(&options, action))),
            None => serve(Box::pin(host::run(options))),
        },
        Command::Token(options) => runtime()?.block_on(Box::pin(token::run(options))),
        Command::Backup(options) => backup::run(&options),
        Command::Restore(options) => backup::restore(&options),
        Command::Graduate(options) => runtime()?.block_on(Box::pin(graduate::run(options))),
        Command::Import(options) => match options.source {
            ImportSource::Libvirt(options) => runtime()?.block_on(Box::pin(import::libvirt(options))),
            ImportSource::Qemu(options) => import::qemu(&options),
            ImportSource::Ova(options) => import::ova(&options),
        },
        Command::Service(options) => runtime()?.block_on(Box::pin(service::run(options))),
        Command::Secrets(options) => backup::secrets(&options),
        Command::History(options) => runtime()?.block_on(Box::pin(history::run(options))),
        Command::Diff(options) => runtime()?.block_on(Box::pin(diff::run(options))),
        Command::Start(options) => runtime()?.block_on(Box::pin(power::run(Verb::Start, options))),
        Command::Stop(options) => runtime()?.block_on(Box::pin(power::run(Verb::Stop, options))),
        Command::Restart(options) => runtime()?.block_on(Box::pin(power::run(Verb::Restart, options))),
        Command::Pause(options) => runtime()?.block_on(Box::pin(power::run(Verb::Pause, options))),
        Command::Suspend(options) => runtime()?.block_on(Box::pin(power::run(Verb::Suspend, options))),
        Command::Move(options) => runtime()?.block_on(Box::pin(moves::run(options))),
        Command::Reset(options) => runtime()?.block_on(Box::pin(guest::press(options, ConsoleUse::Reset))),
        Command::Nmi(options) => runtime()?.block_on(Box::pin(guest::press(options, ConsoleUse::Nmi))),
        Command::Console(options) => runtime()?.block_on(Box::pin(console::console(options))),
        Command::Logs(options) => runtime()?.block_on(Box::pin(console::logs(options))),
        Command::Vnc(options) => runtime()?.block_on(Box::pin(vnc::vnc(options))),
        Command::Screenshot(options) => runtime()?.block_on(Box::pin(vnc::screenshot(options))),
        Command::Doctor(options) => runtime()?.block_on(Box::pin(doctor::run(options))),
        Command::Top(options) => runtime()?.block_on(Box::pin(top::run(options))),
        Command::Why(options) => runtime()?.block_on(Box::pin(why::run(options))),
        Command::Trash(options) => runtime()?.block_on(Box::pin(trash::run(options))),
        Command::Undelete(options) => runtime()?.block_on(Box::pin(undelete::run(options))),
    };
    done.map(|()| ExitCode::SUCCESS)
}

async fn snapshot(action: SnapshotAction) -> anyhow::Result<()> {
    match action {
        SnapshotAction::Download(options) => Box::pin(download::snapshot(options)).await,
        SnapshotAction::Ls(options) => Box::pin(files::list(DiskOrigin::DiskSnapshot, options)).await,
        SnapshotAction::Cp(options) => Box::pin(files::copy(DiskOrigin::DiskSnapshot, options)).await,
    }
}

async fn on_disk_backup(action: DiskBackupAction) -> anyhow::Result<ExitCode> {
    let done = match action {
        DiskBackupAction::Ls(options) => Box::pin(files::list(DiskOrigin::Backup, options)).await,
        DiskBackupAction::Cp(options) => Box::pin(files::copy(DiskOrigin::Backup, options)).await,
        DiskBackupAction::List(options) => Box::pin(disk_backup::list(options)).await,
        DiskBackupAction::Verify(options) => return Ok(Box::pin(disk_backup::verify(options)).await),
        DiskBackupAction::RestoreVm(options) => Box::pin(disk_backup::restore_vm(options)).await,
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn unpack_image(options: &UnpackImageOptions) -> anyhow::Result<()> {
    let UnpackImageOptions { input, output, archive, ova, compression } = options;
    let container_disk = archive.then_some(berth_host::linux::Archive::ContainerDisk);
    berth_host::linux::unpack(
        *compression,
        ova.map(berth_host::linux::Archive::Ova).or(container_disk),
        input,
        output,
    )?;
    Ok(())
}

/// How long an idle thread for blocking work lives: each keeps some 300 KiB for its allocations.
const IDLE_THREAD: Duration = Duration::from_secs(1);

/// How long the end of a host waits for blocking work: on a file system that does not answer it may never end.
const LAST_WORK: Duration = Duration::from_secs(30);

/// Runs a command that has a host.
fn serve<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime()?;
    let done = runtime.block_on(command);
    runtime.shutdown_timeout(LAST_WORK);
    done
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("berth")
        .thread_keep_alive(IDLE_THREAD)
        .on_thread_park(memory::before_a_wait)
        .enable_all()
        .build()
        .context("starting the runtime")
}
