//! The programs `rbd` and `ceph`, with a time limit, and the files by which they and QEMU reach the cluster: copies of those that the
//! administrator of the host names, so that each can be read by its user only. The key is in these files alone.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_qemu::process::RunAs;

use super::super::files::{self, failed};
use super::super::program::{Output, Program};
use super::super::qemu_img::QEMU_IMG;
use super::Result;
use crate::{CephAccess, SystemError};

const RBD: Program = Program {
    name: "rbd",
    advice: "it manages the images of pools of Ceph (Debian, Ubuntu: apt install ceph-common; Fedora: dnf install ceph-common)",
};
const CEPH: Program = Program {
    name: "ceph",
    advice: "it asks for the space of pools of Ceph (Debian, Ubuntu: apt install ceph-common; Fedora: dnf install ceph-common)",
};
/// How long a question to the cluster may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a list of the images of a pool with their sizes may take: `rbd` opens each of them, also those of other hosts.
pub(super) const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// How long a change of a snapshot may take: a client that was killed has the lock of the image for half a minute.
pub(super) const LOCKED_FOR: Duration = Duration::from_secs(40);
/// How long the removal or the import of the data of an image may take.
pub(super) const LONG: Duration = Duration::from_secs(3600);
/// For how long Ceph refuses a client that was fenced, in seconds: ten years, longer than any machine runs. The default is one hour.
pub(super) const REFUSED_FOR: &str = "315360000";
/// Configuration files and keyrings are small.
const MOST_BYTES: u64 = 256 << 10;
const CONF: &str = "ceph.conf";
const KEYRING: &str = "keyring";
/// Settings that the copy has in another form or not at all, as they are written without spaces.
const REPLACED: [&str; 6] = [
    "keyring",
    "log_file",
    "admin_socket",
    "client_mount_timeout",
    "rados_mon_op_timeout",
    "rbd_blocklist_expire_seconds",
];

/// A version of Ceph: `16.2.15`.
pub(super) type Version = [u32; 3];

/// A way to a cluster.
#[derive(Debug)]
pub(super) struct Client {
    access: CephAccess,
    /// The storage pool, for errors.
    pool: String,
    /// The folder with the copies of the files.
    folder: PathBuf,
}

impl Client {
    pub(super) fn new(access: CephAccess, pool: String, folder: PathBuf) -> Self {
        Self { access, pool, folder }
    }

    pub(super) fn conf(&self) -> PathBuf {
        self.folder.join(CONF)
    }

    pub(super) fn keyring(&self) -> PathBuf {
        self.folder.join(KEYRING)
    }

    pub(super) fn user(&self) -> &str {
        &self.access.user
    }

    /// Copies the files of the administrator, if they have changed. The error is for people. Blocking.
    pub(super) fn prepare(&self) -> std::result::Result<(), String> {
        let conf = read(&self.access.conf)?;
        let keyring_path = self.access.keyring();
        let keyring = key_of(&read(&keyring_path)?, &self.access.user)
            .ok_or_else(|| format!("{} has no key of client.{}", keyring_path.display(), self.access.user))?;
        let own = self.folder.join(KEYRING);
        let conf = conf_of(&conf, &self.access.user, &own)?;
        files::ensure_private_folder(&self.folder).map_err(|error| error.chain())?;
        write(&own, &keyring, None).and_then(|()| write(&self.conf(), &conf, None)).map_err(|e| e.chain())
    }

    /// Runs `rbd`. A non-zero exit is not an error here.
    pub(super) async fn rbd(&self, args: &[&str], limit: Duration) -> Result<Output> {
        self.run(&RBD, args, limit).await
    }

    /// Runs `rbd`, which reads this input. A non-zero exit is not an error here.
    pub(super) async fn feed_rbd(&self, args: &[&str], input: Vec<u8>, limit: Duration) -> Result<Output> {
        let conf = self.conf().to_string_lossy().into_owned();
        let all = [&self.access_args(&conf)[..], args].concat();
        self.answered(limit, RBD.run_within(&all, input, limit + LONG)).await
    }

    /// Runs `rbd`, and gives its output to `take` as it arrives. A non-zero exit is not an error here.
    pub(super) async fn stream_rbd(
        &self,
        args: &[&str],
        limit: Duration,
        take: impl FnMut(&[u8]) + Send,
    ) -> Result<Output> {
        let conf = self.conf().to_string_lossy().into_owned();
        let all = [&self.access_args(&conf)[..], args].concat();
        self.stream_within(&RBD, &all, Vec::new(), limit, take).await
    }

    /// Runs a program that talks to the cluster with this input, such as a key, and gives its output to `take` as it arrives.
    ///
    /// *Errors*: those of [`Client::within`].
    pub(super) async fn stream_within(
        &self,
        program: &Program,
        args: &[&str],
        input: Vec<u8>,
        limit: Duration,
        take: impl FnMut(&[u8]) + Send,
    ) -> Result<Output> {
        self.answered(limit, program.stream_within(args, input, limit + LONG, take)).await
    }

    /// Runs `ceph`. A non-zero exit is not an error here.
    pub(super) async fn ceph(&self, args: &[&str]) -> Result<Output> {
        self.run(&CEPH, args, 2 * PATIENCE).await
    }

    /// Returns the version of Ceph's programs and libraries on this host. None: it is not understood.
    pub(super) async fn version() -> Result<Option<Version>> {
        let done = RBD.run(&["--version"], Vec::new()).await?;
        Ok(version_of(&String::from_utf8_lossy(&done.stdout)))
    }

    async fn run(&self, program: &Program, args: &[&str], limit: Duration) -> Result<Output> {
        let conf = self.conf().to_string_lossy().into_owned();
        let all = [&self.access_args(&conf)[..], args].concat();
        self.within(program, &all, limit).await
    }

    /// The arguments of a program by which it reaches the cluster.
    fn access_args<'a>(&'a self, conf: &'a str) -> [&'a str; 4] {
        ["--conf", conf, "--id", self.user()]
    }

    /// Runs a program that talks to the cluster.
    ///
    /// *Errors*: [`SystemError::PoolAway`] if it does not end in time or does not reach the cluster.
    pub(super) async fn within(&self, program: &Program, args: &[&str], limit: Duration) -> Result<Output> {
        self.answered(limit, program.run_within(args, Vec::new(), limit + LONG)).await
    }

    async fn answered(&self, limit: Duration, run: impl Future<Output = Result<Output>>) -> Result<Output> {
        match tokio::time::timeout(limit, run).await {
            // The program is killed: its future is dropped.
            Err(_) => Err(self.away(format!(
                "Ceph does not answer for {} s: are its monitors and enough of its OSDs there?",
                limit.as_secs()
            ))),
            Ok(Ok(output)) if !output.ok && is_unreachable(&output.stderr) => {
                Err(self.away(format!("Ceph cannot be used: {}", last_line(&output.stderr))))
            }
            Ok(done) => done,
        }
    }

    pub(super) fn away(&self, detail: String) -> SystemError {
        SystemError::PoolAway { pool: self.pool.clone(), detail }
    }

    /// The error of `rbd` that has ended with one.
    pub(super) fn failed(output: &Output) -> SystemError {
        match output.stderr.contains("(28)") || output.stderr.contains("(122)") {
            true => full(),
            false => RBD.failed(last_line(&output.stderr)),
        }
    }
}

/// Copies the files of a way to a cluster into the folder of an instance, for this user alone, and returns the configuration file.
/// Blocking.
pub(in super::super) fn lend(conf: &Path, instance: &Path, user: &RunAs) -> Result<PathBuf> {
    let pool = conf.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let read = |path: &Path| fs::read_to_string(path).map_err(failed("read", path));
    let keyring = conf.with_file_name(KEYRING);
    let (lent, lent_keyring) =
        (instance.join(format!("ceph-{pool}.conf")), instance.join(format!("ceph-{pool}.keyring")));
    let text = read(conf)?.replace(&line_of_keyring(&keyring), &line_of_keyring(&lent_keyring));
    write(&lent_keyring, &read(&keyring)?, Some(user))?;
    write(&lent, &text, Some(user))?;
    Ok(lent)
}

/// Writes a file that only root, or the group of this user, can read, unless it is the same. Its content is never readable for others.
fn write(path: &Path, text: &str, user: Option<&RunAs>) -> Result<()> {
    let is_same = fs::read_to_string(path).is_ok_and(|now| now == text);
    if !is_same {
        files::write_atomic(path, text.as_bytes(), 0o600)?;
    }
    match user {
        Some(user) => files::grant(path, Some(user)),
        None => Ok(()),
    }
}

fn read(path: &Path) -> std::result::Result<String, String> {
    let failed = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut text = String::new();
    fs::File::open(path).map_err(failed)?.take(MOST_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn line_of_keyring(keyring: &Path) -> String {
    format!("keyring = {}\n", keyring.display())
}

/// Returns the configuration with this keyring for the user, and with limits for a cluster that does not answer: a QEMU that opens an image
/// stands still until then. Clients write no log of their own.
///
/// It has no `rbd_blocklist_expire_seconds`, not even that of the administrator: librbd of Ceph 16 sends it as a text, which the monitors
/// refuse, so that no client could write to an image that a client that has ended holds the lock of.
fn conf_of(conf: &str, user: &str, keyring: &Path) -> std::result::Result<String, String> {
    let key = |line: &str| line.split('=').next().unwrap_or_default().trim().replace([' ', '-'], "_");
    let Some(monitors) = conf.lines().find(|line| key(line) == "mon_host") else {
        return Err("the configuration file of Ceph has no mon_host".to_owned());
    };
    if has_names(monitors) {
        return Err(
            "mon_host in the configuration file of Ceph has names of monitors: QEMU, which is confined, needs their addresses"
                .to_owned(),
        );
    }
    let header = format!("[client.{user}]");
    let own = format!(
        "{}log_file = /dev/null\nclient_mount_timeout = 10\nrados_mon_op_timeout = 10\n",
        line_of_keyring(keyring)
    );
    let mut text = String::new();
    let mut has_section = false;
    for line in conf.lines().filter(|line| !REPLACED.contains(&key(line).as_str())) {
        text.push_str(line);
        text.push('\n');
        if !has_section && line.trim() == header {
            has_section = true;
            text.push_str(&own);
        }
    }
    if !has_section {
        text.push_str(&format!("{header}\n{own}"));
    }
    Ok(text)
}

/// Whether a line with the monitors has other letters than those of addresses, such as `[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]`.
fn has_names(line: &str) -> bool {
    let value = line.split_once('=').map_or("", |(_, value)| value);
    let value = value.split('#').next().unwrap_or_default().replace("v1:", "").replace("v2:", "");
    value.bytes().any(|b| b.is_ascii_alphabetic() && !b.is_ascii_hexdigit())
}

/// Returns a keyring with the key of this user alone.
fn key_of(keyring: &str, user: &str) -> Option<String> {
    let header = format!("[client.{user}]");
    let section = keyring.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let mut lines = section.take_while(|line| !line.starts_with('['));
    let key = lines.find_map(|line| {
        let (name, key) = line.split_once('=')?;
        (name.trim() == "key").then(|| key.trim().to_owned())
    })?;
    Some(format!("{header}\n\tkey = {key}\n"))
}

/// Returns the version in a line such as `ceph version 16.2.15 (618f440892) pacific (stable)`.
fn version_of(line: &str) -> Option<Version> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "version").skip(1);
    let mut numbers = words.next()?.split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse::<u32>().ok()
    });
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// Whether a program did not reach the pool, so that it is not known what there is.
fn is_unreachable(stderr: &str) -> bool {
    let signs = [
        "couldn't connect to the cluster",
        "error connecting to the cluster",
        "error opening pool",
        "(110)",
        "(108)",
    ];
    signs.iter().any(|sign| stderr.contains(sign))
}

/// Whether `rbd` has found no such image.
pub(super) fn is_absent(output: &Output) -> bool {
    let signs = ["error opening image", "delete error: (2)"];
    !output.ok && output.stderr.contains("(2)") && signs.iter().any(|sign| output.stderr.contains(sign))
}

/// The error of a pool that is full, or has reached its quota.
fn full() -> SystemError {
    SystemError::NoSpace { what: "the pool of Ceph".to_owned(), needed: 0, free: 0 }
}

/// The error of a `qemu-img` that has not written all data to an image.
pub(super) fn not_written(output: &Output) -> SystemError {
    let signs = ["No space left on device", "Disk quota exceeded"];
    match signs.iter().any(|sign| output.stderr.contains(sign)) {
        true => full(),
        false => QEMU_IMG.failed(last_line(&output.stderr)),
    }
}

fn last_line(stderr: &str) -> &str {
    stderr.lines().last().unwrap_or("it gives no reason").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_of_a_configuration_has_its_own_keyring_and_limits() {
        let conf = "[global]\nmon host = 10.0.0.1\nrbd blocklist expire seconds = 60\nkeyring = /etc/ceph/$name.keyring\nlog file = /x\n";
        let own = "[client.berth]\nkeyring = /s/keyring\nlog_file = /dev/null\nclient_mount_timeout = 10\nrados_mon_op_timeout = 10\n";
        let made = conf_of(conf, "berth", Path::new("/s/keyring")).expect("made");
        assert_eq!(made, format!("[global]\nmon host = 10.0.0.1\n{own}"));
        let made =
            conf_of("mon_host=a\n[client.berth]\nrbd_cache = true\n", "berth", Path::new("/s/keyring"));
        assert_eq!(made.expect("made"), format!("mon_host=a\n{own}rbd_cache = true\n"));
        assert!(conf_of("[global]\n", "berth", Path::new("/s/keyring")).is_err());
        assert!(conf_of("mon_host = mon1.example.org\n", "berth", Path::new("/s/keyring")).is_err());
        assert!(
            !has_names("mon_host = [v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0] # mon1")
                && !has_names("mon_host=[fd00::b]")
        );
    }

    #[test]
    fn a_keyring_is_copied_with_the_key_of_the_user_alone() {
        let keyring =
            "[client.admin]\n\tkey = AAA=\n[client.berth]\n\tcaps mon = \"profile rbd\"\n\tkey = BBB==\n";
        assert_eq!(key_of(keyring, "berth").as_deref(), Some("[client.berth]\n\tkey = BBB==\n"));
        assert_eq!(key_of(keyring, "other"), None);
        assert_eq!(key_of("[client.berth]\n[client.admin]\nkey = AAA=\n", "berth"), None);
    }

    #[test]
    fn the_version_of_ceph_is_read() {
        let line = "ceph version 16.2.15 (618f440892089921c3e944a991122ddc44e60516) pacific (stable)\n";
        assert_eq!(version_of(line), Some([16, 2, 15]));
        assert_eq!(version_of("ceph version 19.2.0-1ubuntu (x) squid (rc)"), Some([19, 2, 0]));
        for other in ["", "ceph version", "ceph version Development (no_version)", "ceph version 16.2"] {
            assert_eq!(version_of(other), None, "{other:?}");
        }
    }

    #[test]
    fn an_image_that_is_not_there_differs_from_a_cluster_that_is_not() {
        let output = |stderr: &str| Output { ok: false, stdout: Vec::new(), stderr: stderr.to_owned() };
        let absent = output("rbd: error opening image nope: (2) No such file or directory");
        assert!(is_absent(&absent) && !is_unreachable(&absent.stderr));
        for away in [
            "rbd: couldn't connect to the cluster!\nrbd: listing images failed: (2) No such file or directory",
            "rbd: error opening pool 'nopool': (2) No such file or directory",
        ] {
            assert!(!is_absent(&output(away)) && is_unreachable(away), "{away}");
        }
        assert!(!is_absent(&output("rbd: getting metadata failed: (2) No such file or directory")));
    }

    #[test]
    fn data_for_which_a_pool_has_no_space_is_no_failure_of_the_program() {
        let written = |stderr: &str| {
            not_written(&Output { ok: false, stdout: Vec::new(), stderr: stderr.to_owned() }).variant()
        };
        for full in ["No space left on device", "Disk quota exceeded"] {
            assert_eq!(written(&format!("qemu-img: error while writing at byte 4194304: {full}")), "NoSpace");
        }
        assert_eq!(written("qemu-img: error while reading at byte 0: Input/output error"), "Program");
        assert_eq!(written(""), "Program");
    }

    #[test]
    fn an_instance_gets_files_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, instance) = (folder.path().join("fast"), folder.path().join("i-1"));
        fs::create_dir(&own).and_then(|()| fs::create_dir(&instance)).expect("made");
        let keyring = own.join(KEYRING);
        fs::write(&keyring, "[client.berth]\n\tkey = BBB==\n").expect("written");
        let conf = conf_of("mon_host = a\n", "berth", &keyring).expect("made");
        fs::write(own.join(CONF), conf).expect("written");
        let (uid, gid) = (nix::unistd::Uid::effective().as_raw(), nix::unistd::Gid::effective().as_raw());
        if uid != 0 {
            eprintln!("skipped: only root gives files to other users");
            return;
        }
        let lent = lend(&own.join(CONF), &instance, &RunAs { uid, gid }).expect("lent");
        assert_eq!(lent, instance.join("ceph-fast.conf"));
        let text = fs::read_to_string(&lent).expect("read");
        assert!(text.contains(&line_of_keyring(&instance.join("ceph-fast.keyring"))), "{text}");
        assert!(!text.contains(&*keyring.to_string_lossy()), "{text}");
    }
}
