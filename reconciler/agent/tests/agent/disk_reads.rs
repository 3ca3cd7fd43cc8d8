//! Reads of backups and snapshots by clients with a ticket. On real sockets, and therefore in real time.

use berth_api::console::{DISK_READ_ACCOUNT, DOWNLOAD_ACCOUNT};
use berth_api::disk_read::{DiskOrigin, MAX_READ, ReadMessage, ReadRequest};
use berth_api::{Backup, BackupRepository, DiskSnapshot};
use berth_host::BackupFolderFacts;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::consoles::{SOON, Site};
use crate::fixture::{DATA, bound};

const SNAPSHOT: DiskOrigin = DiskOrigin::DiskSnapshot;
const GIB: u64 = 1 << 30;

/// An agent of h1 that has the snapshot `before` of the disk `data`, with these first bytes.
async fn site(bytes: &[u8]) -> (Site, DiskSnapshot) {
    let site = Site::start().await;
    let mut status = bound();
    for (field, value) in [("snapshotID", "s-1"), ("volumeID", DATA), ("pool", "default")] {
        status[field] = value.into();
    }
    site.fixture.make::<DiskSnapshot>("before", json!({"disk": "data"}), Some(status)).await;
    let taken = |snapshot: &DiskSnapshot| snapshot.status.as_ref().is_some_and(|s| s.taken_at.is_some());
    let snapshot = site.fixture.until::<DiskSnapshot>("before", taken).await;
    site.fixture.system.put_disk_data("s-1", bytes);
    (site, snapshot)
}

async fn ticket(site: &Site, origin: DiskOrigin, name: &str, uid: Option<String>) -> String {
    let audience = origin.audience("ns", name, &uid.expect("a uid"));
    site.token("ns", DISK_READ_ACCOUNT, audience).await
}

/// Opens the data, and returns its size.
async fn open(site: &Site, origin: DiskOrigin, name: &str, ticket: &str) -> (TlsStream<TcpStream>, u64) {
    let (mut stream, head) = site.request(&origin.path("ns", name), ticket).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let ReadMessage::Size(size) = message(&mut stream).await else { panic!("no size") };
    (stream, size)
}

async fn message(stream: &mut TlsStream<TcpStream>) -> ReadMessage {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(timeout(SOON, stream.read_u8()).await.expect("in time").expect("a message"));
    }
    serde_json::from_slice(&line).expect("a message")
}

/// Asks for a part, and returns it; the error is the host's.
async fn read(stream: &mut TlsStream<TcpStream>, offset: u64, length: u32) -> Result<Vec<u8>, String> {
    let mut line = serde_json::to_vec(&ReadRequest { offset, length }).expect("JSON");
    line.push(b'\n');
    stream.write_all(&line).await.expect("sent");
    match message(stream).await {
        ReadMessage::Data(count) => {
            let mut data = vec![0; count as usize];
            timeout(SOON, stream.read_exact(&mut data)).await.expect("in time").expect("data");
            Ok(data)
        }
        ReadMessage::Error(text) => Err(text),
        message => panic!("{message:?}"),
    }
}

#[tokio::test]
async fn a_client_with_a_ticket_reads_parts_of_a_snapshot_until_it_is_deleted() {
    let (site, snapshot) = site(b"hello").await;
    let published = snapshot.status.as_ref().and_then(|status| status.files.clone()).expect("published");
    assert_eq!(published.address, site.address());
    let once = ticket(&site, SNAPSHOT, "before", snapshot.uid()).await;
    let (mut stream, size) = open(&site, SNAPSHOT, "before", &once).await;
    assert_eq!(size, GIB);
    assert_eq!(read(&mut stream, 1, 6).await.expect("data"), b"ello\0\0");
    assert_eq!(read(&mut stream, GIB - u64::from(MAX_READ), MAX_READ).await.expect("data").len(), 1 << 20);
    let used = site.refused(&SNAPSHOT.path("ns", "before"), &once).await;
    assert!(used.starts_with("403 the ticket was used before"), "{used}");
    let refused = read(&mut stream, GIB, 1).await.expect_err("beyond the end");
    assert!(refused.contains("1 bytes at byte 1073741824"), "{refused}");
    assert!(timeout(SOON, stream.read_u8()).await.expect("in time").is_err(), "that was the end");

    let again = ticket(&site, SNAPSHOT, "before", snapshot.uid()).await;
    let (mut stream, _) = open(&site, SNAPSHOT, "before", &again).await;
    site.fixture.delete::<DiskSnapshot>("before").await;
    site.fixture.until_gone::<DiskSnapshot>("before").await;
    let ended = read(&mut stream, 0, 5).await.expect_err("deleted");
    assert!(ended.contains("the DiskSnapshot was deleted"), "{ended}");
}

#[tokio::test]
async fn a_ticket_that_was_used_opens_nothing_after_a_restart_of_the_agent_either() {
    let (mut site, snapshot) = site(b"hello").await;
    let path = SNAPSHOT.path("ns", "before");
    let once = ticket(&site, SNAPSHOT, "before", snapshot.uid()).await;
    drop(open(&site, SNAPSHOT, "before", &once).await);
    site.restart_agent().await;
    let address = site.address();
    let is_published = |snapshot: &DiskSnapshot| {
        let files = snapshot.status.as_ref().and_then(|status| status.files.as_ref());
        files.is_some_and(|files| files.address == address)
    };
    site.fixture.until::<DiskSnapshot>("before", is_published).await;
    let used = site.refused(&path, &once).await;
    assert!(used.starts_with("403 "), "{used}");
}

#[tokio::test]
async fn a_session_without_requests_ends_with_its_snapshot() {
    let (site, snapshot) = site(b"hello").await;
    let token = ticket(&site, SNAPSHOT, "before", snapshot.uid()).await;
    let (mut stream, _) = open(&site, SNAPSHOT, "before", &token).await;
    site.fixture.delete::<DiskSnapshot>("before").await;
    let ReadMessage::Error(ended) = message(&mut stream).await else { panic!("no end") };
    assert!(ended.contains("the DiskSnapshot was deleted"), "{ended}");
}

#[tokio::test]
async fn a_ticket_is_for_the_reads_of_one_snapshot() {
    let (site, snapshot) = site(b"").await;
    let audience = SNAPSHOT.audience("ns", "before", &snapshot.uid().expect("a uid"));
    let other = DiskOrigin::Backup.audience("ns", "before", &snapshot.uid().expect("a uid"));
    for (token, is_for) in [
        (site.token("ns", DISK_READ_ACCOUNT, other).await, "a backup"),
        (site.token("ns", DOWNLOAD_ACCOUNT, audience.clone()).await, "another right"),
        (site.token("default", DISK_READ_ACCOUNT, audience).await, "the right of another namespace"),
    ] {
        let answer = site.refused(&SNAPSHOT.path("ns", "before"), &token).await;
        assert!(answer.starts_with("403 the ticket is not valid"), "{is_for}: {answer}");
    }
    let mut open_streams = Vec::new();
    for _ in 0..2 {
        let token = ticket(&site, SNAPSHOT, "before", snapshot.uid()).await;
        open_streams.push(open(&site, SNAPSHOT, "before", &token).await);
    }
    let token = ticket(&site, SNAPSHOT, "before", snapshot.uid()).await;
    let answer = site.refused(&SNAPSHOT.path("ns", "before"), &token).await;
    assert!(answer.starts_with("429 2 clients read"), "{answer}");
}

#[tokio::test]
async fn a_backup_is_opened_with_the_secret_of_its_repository_once_it_is_complete() {
    let (site, _) = site(b"").await;
    let nas = BackupFolderFacts { name: "nas".into(), problem: None };
    site.fixture.system.change_facts(|facts| facts.backup_folders.push(nas));
    let secrets: Api<Secret> = Api::namespaced(site.fixture.client.clone(), "ns");
    let secret = json!({"metadata": {"name": "password"}, "stringData": {"password": "correct horse"}});
    let secret: Secret = serde_json::from_value(secret).expect("a Secret");
    secrets.create(&PostParams::default(), &secret).await.expect("created");
    let repository = json!({"folder": "nas", "passwordSecretName": "password"});
    site.fixture.make::<BackupRepository>("r", repository, None).await;
    let mut status = bound();
    for (field, value) in
        [("snapshotID", "s-1"), ("volumeID", "v-1"), ("backupID", "b-1"), ("pool", "default")]
    {
        status[field] = value.into();
    }
    let spec = json!({"repository": "r", "snapshot": "before"});
    let made = site.fixture.make::<Backup>("daily", spec, Some(status)).await;
    let token = ticket(&site, DiskOrigin::Backup, "daily", made.uid()).await;
    let path = DiskOrigin::Backup.path("ns", "daily");
    let early = site.refused(&path, &token).await;
    assert!(early.starts_with("404 ") || early.starts_with("403 "), "{early}");
    let backup = site.fixture.until::<Backup>("daily", Backup::is_complete).await;
    assert!(backup.status.as_ref().is_some_and(|status| status.files.is_some()), "{:?}", backup.status);
    site.fixture.system.put_disk_data("b-1", b"stored");
    let token = ticket(&site, DiskOrigin::Backup, "daily", backup.uid()).await;
    let (mut stream, size) = open(&site, DiskOrigin::Backup, "daily", &token).await;
    assert_eq!((size, read(&mut stream, 0, 6).await.expect("data").as_slice()), (GIB, &b"stored"[..]));
    stream.write_all(b"{\"declaration\":true}\n").await.expect("sent");
    assert_eq!(message(&mut stream).await, ReadMessage::Declaration(0), "no VM has the disk in its list");
    assert_eq!(read(&mut stream, 0, 6).await.expect("data"), b"stored", "the session goes on");
    let wrong = Patch::Merge(json!({"stringData": {"password": "battery staple"}}));
    secrets.patch("password", &PatchParams::default(), &wrong).await.expect("changed");
    let token = ticket(&site, DiskOrigin::Backup, "daily", backup.uid()).await;
    let answer = site.refused(&path, &token).await;
    assert!(answer.starts_with("409 ") && answer.contains("password"), "{answer}");
}
