//! The guests of QEMU processes, from this machine or from files.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use berth_host::linux::libvirt::image_format;
use berth_host::linux::qemu_processes::{QemuProcess, RunBy, qemu_processes};

use crate::import::{
    Domain,
    qemu::{self, CommandLine, FoundFile, MAX_COMMAND_LINE},
};

/// The most guests of a configuration.
const MAX_GUESTS: usize = 1_000;

/// The guests of these processes and files, or of all processes that neither berth nor libvirt runs.
pub(super) fn read(guests: &[PathBuf]) -> anyhow::Result<Vec<Domain>> {
    let mut domains = if guests.is_empty() { running()? } else { named(guests)? };
    ensure!(
        domains.len() <= MAX_GUESTS,
        "there are {} guests, and at most {MAX_GUESTS} are imported",
        domains.len()
    );
    qemu::make_macs_unique(&mut domains);
    Ok(domains)
}

/// All that can be imported; the others are left out with their reasons.
fn running() -> anyhow::Result<Vec<Domain>> {
    let mut domains = Vec::new();
    for process in qemu_processes()? {
        match of_process(&process) {
            Ok(domain) => domains.push(domain),
            Err(why) => {
                let name =
                    process.argv.windows(2).find(|pair| pair[0] == "-name").map(|pair| pair[1].as_str());
                let name = name.unwrap_or_default().chars().take(60).collect::<String>();
                let line = format!("berth: process {} {name:?} is left out: {why:#}", process.pid);
                notice!("{}", line.replace(char::is_control, " "));
            }
        }
    }
    Ok(domains)
}

fn named(guests: &[PathBuf]) -> anyhow::Result<Vec<Domain>> {
    let pid_of = |guest: &PathBuf| guest.to_str().and_then(pid_of);
    let has_pids = guests.iter().any(|guest| pid_of(guest).is_some());
    let processes = if has_pids { qemu_processes()? } else { Vec::new() };
    let mut domains = Vec::new();
    for guest in guests {
        let Some(pid) = pid_of(guest) else {
            let found = of_file(guest);
            domains.extend(found.with_context(|| format!("{} cannot be imported", guest.display()))?);
            continue;
        };
        let process = processes.iter().find(|process| process.pid == pid);
        let process = process
            .with_context(|| format!("there is no QEMU process {pid} (a file of this name: ./{pid})"))?;
        domains.push(of_process(process).with_context(|| format!("process {pid} cannot be imported"))?);
    }
    Ok(domains)
}

fn pid_of(text: &str) -> Option<i32> {
    text.parse().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit()))
}

fn of_process(process: &QemuProcess) -> anyhow::Result<Domain> {
    match process.run_by {
        RunBy::Berth => bail!("berth runs it"),
        RunBy::Libvirt => bail!("libvirt runs it: use berth import libvirt"),
        RunBy::Other => {}
    }
    let line = CommandLine {
        argv: process.argv.clone(),
        folder: process.folder.clone(),
        name: format!("qemu-{}", process.pid),
        pid: Some(process.pid),
    };
    let mut domain = qemu::read(&line, &find)?;
    if process.has_own_mounts {
        domain.notes.push(
            "its process sees other mounts than berth import, as in a container: its paths may mean other files".to_owned(),
        );
    }
    Ok(domain)
}

fn of_file(path: &Path) -> anyhow::Result<Vec<Domain>> {
    let mut text = String::new();
    match File::open(path)?.take(MAX_COMMAND_LINE as u64 + 1).read_to_string(&mut text) {
        Err(error) if error.kind() == ErrorKind::InvalidData => bail!("it is not UTF-8"),
        result => result?,
    };
    let folder = std::env::current_dir().context("looking at the working directory")?;
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let read = |argv: Vec<String>| {
        let line = CommandLine { argv, folder: Some(folder.clone()), name: name.clone(), pid: None };
        Ok(qemu::read(&line, &find)?)
    };
    qemu::split(&text)?.into_iter().map(read).collect()
}

/// Looks for a regular file. berth takes none over by a path with links.
fn find(path: &str) -> Option<FoundFile> {
    let about = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let real = fs::canonicalize(path).ok()?;
    let format = image_format(&real).ok()?;
    Some(FoundFile { path: real.to_str()?.to_owned(), format, size: about.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_anything_else_a_file() {
        assert_eq!(
            ["12", "./12", "+12", "-1", "", "web.sh", "99999999999"].map(pid_of),
            [Some(12), None, None, None, None, None, None]
        );
    }

    #[test]
    fn a_file_has_several_guests_and_its_disks_are_found_beside_it() {
        let folder = tempfile::tempdir().expect("a new folder");
        let disk = folder.path().join("disk");
        fs::write(&disk, b"QFI\xfb").expect("a new file");
        std::os::unix::fs::symlink(&disk, folder.path().join("link")).expect("a new link");
        let file = folder.path().join("guests.sh");
        let (folder, link) = (folder.path().display(), folder.path().join("link"));
        let text =
            format!("qemu-system-x86_64 -hda {} &\nkvm -name b -hda {folder}/absent.qcow2\n", link.display());
        fs::write(&file, text).expect("a new file");
        let found = read(&[file]).expect("it has two guests");
        let disks: Vec<_> = found.iter().map(|domain| (&*domain.name, &*domain.disks[0].format)).collect();
        assert_eq!(disks, [("guests", "qcow2"), ("b", "qcow2")]);
        let real = fs::canonicalize(&disk).expect("it exists").display().to_string();
        assert_eq!(found[0].disks[0].source, crate::import::DiskSource::Path(real));
        assert_eq!(found[1].interfaces[0].mac, None, "both have QEMU's first MAC address");
        let absent = read(&[PathBuf::from("1")]).expect_err("init is no QEMU").to_string();
        assert!(absent.contains("no QEMU process 1"), "{absent}");
    }
}
