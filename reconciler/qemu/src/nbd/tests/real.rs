//! qemu-nbd with images of qemu-img, both of the package qemu-utils.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::super::*;

const MIB: u64 = 1 << 20;

/// A running qemu-nbd, which ends with its client or with this.
struct Server {
    process: Child,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(program: &str, args: &[&str], folder: &Path) {
    let output =
        Command::new(program).args(args).current_dir(folder).output().expect("qemu-utils is installed");
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Server {
    /// Makes images in a folder and exports one.
    async fn start(make: impl FnOnce(&Path), options: &[&str], image: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        make(directory.path());
        let socket = directory.path().join("nbd.sock");
        let process = Command::new("qemu-nbd")
            .args(["--persistent", "--allocation-depth", "--export-name", "disk", "--socket"])
            .arg(&socket)
            .args(options)
            .arg(image)
            .current_dir(directory.path())
            .stderr(Stdio::null())
            .spawn()
            .expect("qemu-utils is installed");
        let server = Self { process, socket, _directory: directory };
        let limit = Instant::now() + Duration::from_secs(30);
        while !server.socket.exists() {
            assert!(Instant::now() < limit, "qemu-nbd does not listen");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server
    }

    async fn connect(&self) -> Client {
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            match Client::connect(&self.socket, "disk").await {
                // The socket exists a moment before it accepts connections.
                Err(NbdError::Connect { .. }) if Instant::now() < limit => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                connected => return connected.expect("it accepts"),
            }
        }
    }
}

/// Three layers: data of 1 in the lowest at 0 to 3 MiB, of 2 in the middle at 1 to 2 MiB, and of 3 in the top at 5 MiB; zeros in the top at 2 MiB.
fn chain(folder: &Path) {
    run("qemu-img", &["create", "-q", "-f", "qcow2", "base.qcow2", "64M"], folder);
    for (image, backing, commands) in [
        ("base", None, vec!["write -P 1 0 3M"]),
        ("middle", Some("base.qcow2"), vec!["write -P 2 1M 1M"]),
        ("top", Some("middle.qcow2"), vec!["write -P 3 5M 1M", "write -z 2M 1M"]),
    ] {
        let image = format!("{image}.qcow2");
        if let Some(backing) = backing {
            run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", backing, "-F", "qcow2", &image], folder);
        }
        for command in commands {
            run("qemu-io", &["-f", "qcow2", "-c", command, &image], folder);
        }
    }
}

#[tokio::test]
async fn the_layers_of_a_chain_are_told_apart() {
    let server = Server::start(chain, &["--read-only", "--format", "qcow2"], "top.qcow2").await;
    let mut client = server.connect().await;
    assert_eq!((client.size(), client.is_read_only()), (64 * MIB, true));
    let extents = client.extents(0, 64 * MIB).await.expect("they are known");
    let found: Vec<_> =
        extents.iter().map(|extent| (extent.length / MIB, extent.depth, extent.is_zero)).collect();
    let expected = [(1, 3, false), (1, 2, false), (1, 1, true), (2, 0, true), (1, 1, false), (58, 0, true)];
    assert_eq!(found, expected);
    assert!(extents[3].is_hole && !extents[0].is_hole);
    let part = client.extents(MIB / 2, MIB).await.expect("they are known");
    let found: Vec<_> = part.iter().map(|extent| (extent.length, extent.depth)).collect();
    assert_eq!(found, [(MIB / 2, 3), (MIB / 2, 2)]);

    let mut data = vec![9; 64 << 20];
    client.read_at(0, &mut data).await.expect("it is read");
    for (mib, expected) in [1, 2, 0, 0, 0, 3, 0].into_iter().enumerate() {
        let part = &data[mib << 20..(mib + 1) << 20];
        assert!(part.iter().all(|byte| *byte == expected), "MiB {mib}");
    }
    let mut few = [9; 3];
    client.read_at(MIB - 1, &mut few).await.expect("it is read");
    assert_eq!(few, [1, 2, 2]);
    client.read_at(64 * MIB, &mut []).await.expect("nothing is read");
    assert_eq!(client.extents(5, 0).await.expect("none"), []);

    for (offset, length) in [(64 * MIB, 1), (u64::MAX, 2), (0, 65 * MIB as usize)] {
        let error = client.read_at(offset, &mut vec![0; length]).await.expect_err("not on the disk");
        assert!(matches!(error, NbdError::OutOfRange { .. }), "{error}");
    }
    assert!(matches!(client.extents(1, 64 * MIB).await, Err(NbdError::OutOfRange { .. })));
    assert!(matches!(client.write_at(0, &[1]).await, Err(NbdError::NotOffered { what: "writes" })));
    assert!(matches!(client.write_zeroes(0, 1).await, Err(NbdError::NotOffered { what: "writes" })));
    client.disconnect().await.expect("in order");
}

#[tokio::test]
async fn what_is_written_is_read() {
    let make = |folder: &Path| {
        run("qemu-img", &["create", "-q", "-f", "qcow2", "new.qcow2", "512M"], folder);
    };
    let server = Server::start(make, &["--format", "qcow2", "--discard=unmap"], "new.qcow2").await;
    let mut client = server.connect().await;
    assert!(!client.is_read_only());
    let data: Vec<u8> = (0..9 << 20).map(|at: u32| (at % 251) as u8).collect();
    client.write_at(MIB + 1, &data).await.expect("written");
    client.write_at(300 * MIB, &[7; 512]).await.expect("written");
    // Longer than one request, and over data.
    client.write_zeroes(4 * MIB, 300 * MIB).await.expect("written");
    client.flush().await.expect("on the medium");
    client.disconnect().await.expect("in order");

    let mut client = server.connect().await;
    let mut read = vec![9; data.len()];
    client.read_at(MIB + 1, &mut read).await.expect("it is read");
    let kept = 3 << 20;
    assert_eq!(read[..kept - 1], data[..kept - 1]);
    assert!(read[kept..].iter().all(|byte| *byte == 0));
    let extents = client.extents(0, 512 * MIB).await.expect("they are known");
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), 512 * MIB);
    assert!(extents.last().is_some_and(|last| last.is_zero && last.depth == 0), "{extents:?}");
}

#[tokio::test]
async fn another_export_and_no_server_are_errors() {
    let server = Server::start(chain, &["--read-only", "--format", "qcow2"], "top.qcow2").await;
    drop(server.connect().await);
    let error = Client::connect(&server.socket, "other").await.expect_err("there is none").to_string();
    assert!(error.contains("\"other\"") && error.contains("not present"), "{error}");
    let error = Client::connect(&server.socket, &"x".repeat(5000)).await.expect_err("too long");
    assert!(matches!(error, NbdError::Refused { .. }), "{error}");
    let error = Client::connect(&server.socket.with_extension("none"), "disk").await.expect_err("no socket");
    assert!(matches!(error, NbdError::Connect { .. }), "{error}");
}

#[tokio::test]
async fn an_error_of_the_disk_leaves_the_connection_usable() {
    // Reads and writes of this area fail.
    let image = r#"json:{"driver":"raw","file":{"driver":"blkdebug","image":{"driver":"file","filename":"disk.raw"},
        "inject-error":[{"event":"none","errno":5,"sector":4096,"iotype":"read"},{"event":"none","errno":28,"sector":4096,"iotype":"write"}]}}"#;
    let make = |folder: &Path| run("qemu-img", &["create", "-q", "-f", "raw", "disk.raw", "16M"], folder);
    let server = Server::start(make, &[], image).await;
    let mut client = server.connect().await;
    let offset = 4096 * 512;
    let error = client.read_at(offset, &mut [0; 512]).await.expect_err("it fails");
    assert!(
        matches!(&error, NbdError::Failed { offset: 2_097_152, source, .. } if source.raw_os_error() == Some(5)),
        "{error}"
    );
    let error = client.write_at(offset, &[1; 512]).await.expect_err("it fails");
    assert!(
        matches!(&error, NbdError::Failed { source, .. } if source.raw_os_error() == Some(28)),
        "{error}"
    );
    client.write_at(0, &[1; 512]).await.expect("another place");
    client.read_at(0, &mut [0; 512]).await.expect("another place");
}

#[tokio::test]
async fn a_server_that_ends_is_an_error() {
    let mut server = Server::start(chain, &["--read-only", "--format", "qcow2"], "top.qcow2").await;
    let mut client = server.connect().await;
    server.process.kill().expect("it runs");
    server.process.wait().expect("it ends");
    let error = client.read_at(0, &mut [0; 512]).await.expect_err("it is gone");
    assert!(matches!(error, NbdError::Broken { .. }), "{error}");
    assert!(matches!(client.read_at(0, &mut [0; 512]).await, Err(NbdError::Unusable)));
}
