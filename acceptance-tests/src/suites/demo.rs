//! An interrupted `cargo demo`: it ends at once, with the correct exit code, and leaves nothing behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::Kit;
use crate::namespace::PREFIX;
use crate::process::Daemon;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::{process, wait, workspace};

/// The time limit until the point of interruption.
const REACHED: Duration = Duration::from_secs(240);
/// The time limit from the first signal to the end.
const ENDS: Duration = Duration::from_secs(45);
/// The time limit for a debug build of everything.
const BUILT: Duration = Duration::from_secs(1_200);

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    const FACT: &str = "the demo ends cleanly when it is interrupted";
    if !kit.is_debug() {
        report.skip(FACT, "the demo builds what it shows, and this run tests other binaries");
        return Ok(());
    }
    let program = report.step("the demo is built", || {
        kit.binaries()?;
        kit.debian_guests()?;
        build()
    })?;
    let (int, term) = (Signal::SIGINT, Signal::SIGTERM);
    report.case("interrupted while it builds berth, having shown how far that is", || {
        let demo = Demo::start(&program, |command, folder| {
            command.env("CARGO_TARGET_DIR", folder.join("target"));
            Ok(())
        })?;
        demo.contains_all(&["▸ Building berth", "crates: "])?;
        demo.interrupted(&[int], 130)
    });
    report.case("interrupted while it installs Debian into a folder", || {
        let cache = Cache::without_guest()?;
        let demo = Demo::start(&program, |command, _| {
            command.env("BERTH_CACHE", cache.folder.path());
            Ok(())
        })?;
        wait::until("Debian to be half installed", REACHED, || cache.guest_is_half_built())?;
        demo.interrupted(&[int], 130)?;
        cache.holds_nothing_half_built()
    });
    report.case("interrupted while berth starts", || {
        let demo = Demo::start(&program, |_, _| Ok(()))?;
        demo.contains_all(&["▸ Starting `berth up`"])?;
        std::thread::sleep(Duration::from_millis(300));
        demo.interrupted(&[int], 130)
    });
    report.case("interrupted twice at once", || {
        let demo = Demo::start(&program, |_, _| Ok(()))?;
        demo.contains_all(&["▸ terraform init"])?;
        demo.interrupted(&[int, int], 130)
    });
    report.case("terminated while Terraform applies", || {
        let demo = Demo::start(&program, |_, _| Ok(()))?;
        demo.contains_all(&["▸ terraform apply", "berth_vm.web: Creating"])?;
        demo.interrupted(&[term, int], 143)
    });
    Ok(())
}

fn build() -> Result<PathBuf> {
    let mut build = workspace::cargo();
    // Of the whole workspace, as `cargo demo`: with the features of one package, dependencies would be compiled again.
    build.args(["build", "--quiet", "--message-format=json", "--workspace", "--bin", "demo"]);
    let messages = process::run(&mut build, BUILT)?.success()?;
    workspace::executables(&messages).remove("demo").context("cargo built no demo")
}

/// A demo with temporary files and a marker of its own.
struct Demo {
    daemon: Daemon,
    log: PathBuf,
    temporary: PathBuf,
    mark: String,
    _folder: Scratch,
}

impl Demo {
    fn start(program: &Path, prepare: impl FnOnce(&mut Command, &Path) -> Result<()>) -> Result<Self> {
        let folder = Scratch::new()?;
        let (log, temporary) = (folder.path().join("log"), folder.path().join("temporary"));
        fs::create_dir_all(&temporary)?;
        let mark = format!("BERTH_DEMO_UNDER_TEST={}", folder.path().display());
        let (name, value) = mark.split_once('=').context("a variable")?;
        let mut command = Command::new(program);
        command.arg("--debug").env("TMPDIR", &temporary).env(name, value);
        prepare(&mut command, folder.path())?;
        let daemon = Daemon::spawn("the demo", &mut command, &log)?;
        Ok(Self { daemon, log, temporary, mark, _folder: folder })
    }

    /// Waits until the output contains all of `words`.
    fn contains_all(&self, words: &[&str]) -> Result<()> {
        wait::until(&format!("the demo to say {words:?}"), REACHED, || {
            let text = fs::read_to_string(&self.log)?;
            for word in words {
                ensure!(text.contains(word), "its output:\n{text}");
            }
            Ok(())
        })
    }

    /// Sends the signals one after the other; the demo must end with this code and leave nothing behind.
    fn interrupted(mut self, signals: &[Signal], code: i32) -> Result<()> {
        let pid = self.daemon.pid();
        self.daemon.must_run()?;
        let begun = Instant::now();
        for signal in signals {
            self.daemon.signal(*signal);
            std::thread::sleep(Duration::from_millis(50));
        }
        let status = self.daemon.ended(ENDS)?;
        let text = fs::read_to_string(&self.log)?;
        ensure!(status.code() == Some(code), "it ended with {status} after {:?}:\n{text}", begun.elapsed());
        ensure!(text.contains("cleaning up") && !text.contains("failed"), "its output:\n{text}");
        // Checked at once: the demo has waited for all processes that it ended.
        let left = [
            of_process(pid, Path::new("/run/netns"))?,
            entries(&self.temporary)?,
            processes(&self.mark, &self.temporary)?,
            mounts(&self.temporary)?,
        ]
        .concat();
        ensure!(left.is_empty(), "it left {left:#?}\nand printed:\n{text}");
        Ok(())
    }
}

fn entries(folder: &Path) -> Result<Vec<String>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    Ok(fs::read_dir(folder)?.flatten().map(|entry| entry.path().display().to_string()).collect())
}

/// Entries of a folder that are named after this process.
fn of_process(pid: u32, folder: &Path) -> Result<Vec<String>> {
    let ours = format!("/{PREFIX}{pid}-");
    Ok(entries(folder)?.into_iter().filter(|path| path.contains(&ours)).collect())
}

/// The processes that were started with the marker in their environment, or with a file of the folder on their command line.
fn processes(mark: &str, folder: &Path) -> Result<Vec<String>> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        // Processes may end during the search; for one that has ended both are empty.
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let (environment, line) = (read("environ"), read("cmdline"));
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        if marked || line.contains(&folder) {
            found.push(format!("{}: {line}", entry.path().display()));
        }
    }
    Ok(found)
}

fn mounts(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.display().to_string();
    let mounts = fs::read_to_string("/proc/mounts")?;
    Ok(mounts.lines().filter(|line| line.contains(&folder)).map(str::to_owned).collect())
}

/// A cache that has everything but the Debian guest.
struct Cache {
    folder: Scratch,
}

impl Cache {
    const GUEST: &'static str = "debian-guest-";

    fn without_guest() -> Result<Self> {
        let folder = Scratch::new()?;
        for entry in fs::read_dir(crate::cache::Cache::open()?.root())?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_entry = entry.path().is_dir() && !name.starts_with("building-");
            if is_entry && !name.starts_with(Self::GUEST) {
                symlink(entry.path(), folder.path().join(name))?;
            }
        }
        Ok(Self { folder })
    }

    fn half_built(&self) -> Result<Vec<String>> {
        Ok(entries(self.folder.path())?.into_iter().filter(|path| path.contains("/building-")).collect())
    }

    fn guest_is_half_built(&self) -> Result<()> {
        let packages = self.half_built()?.iter().any(|path| installs(Path::new(path)));
        ensure!(packages, "no package is being installed");
        Ok(())
    }

    fn holds_nothing_half_built(&self) -> Result<()> {
        let left = [self.half_built()?, mounts(self.folder.path())?].concat();
        ensure!(left.is_empty(), "it left {left:#?}");
        Ok(())
    }
}

/// Whether a root file system below this folder has a package database.
fn installs(folder: &Path) -> bool {
    let works = fs::read_dir(folder).into_iter().flatten().flatten();
    works.map(|work| work.path().join("root/var/lib/dpkg")).any(|database| database.is_dir())
}
