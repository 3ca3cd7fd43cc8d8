//! The units as systemd reads them.

use std::process::Command;

use super::*;

#[test]
fn systemd_finds_no_fault_in_the_units() {
    let folder = tempfile::tempdir().expect("a folder");
    // It looks for the program.
    let program = std::env::current_exe().expect("this program");
    let service = Service { program, ..with_environment(&[("BERTH_LOG", "debug"), ("A", "50% \"x\" \\")]) };
    let mut files = Vec::new();
    for unit in units(&service).expect("valid") {
        let file = folder.path().join(unit.name);
        std::fs::write(&file, unit.text).expect("written");
        files.push(file);
    }
    let verified = Command::new("systemd-analyze").args(["--man=no", "verify"]).args(&files).output();
    let Ok(verified) = verified else {
        eprintln!("not verified: this machine has no systemd-analyze");
        return;
    };
    let found = String::from_utf8_lossy(&verified.stderr);
    // Of other units of the machine it complains as well.
    let ours: Vec<&str> = found.lines().filter(|line| line.contains("berth")).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}
