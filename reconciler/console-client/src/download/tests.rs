use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use berth_api::console::PROTOCOL;
use berth_api::vm::ConsoleAddress;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;
use crate::pinned::tests::acceptor;

fn expected(bytes: &[u8]) -> Expected {
    let digest = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Expected { size: bytes.len() as u64, digest }
}

async fn opened(path: &Path, bytes: &[u8]) -> Part {
    read(PartFile::open(path).expect("opened"), &expected(bytes)).await.expect("read")
}

/// A host, and the control plane that gives tickets for it.
struct Site {
    server: ConsoleAddress,
    tickets: AtomicUsize,
    /// The heads of the requests.
    requests: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl DownloadPlace for Site {
    type Error = &'static str;

    async fn target(&self) -> Result<Target, &'static str> {
        let count = self.tickets.fetch_add(1, Ordering::Relaxed);
        match count {
            0 => Err("no answer"),
            _ => {
                Ok(Target { server: self.server.clone(), path: "/a".to_owned(), ticket: format!("t{count}") })
            }
        }
    }

    fn is_passing(&self, error: &&'static str) -> bool {
        *error == "no answer"
    }

    fn progress(&self, _: u64) {}
}

impl Site {
    /// A host that sends each client the next one of these texts, and closes the connection.
    async fn start(answers: &'static [&'static str]) -> Self {
        let (acceptor, digits) = acceptor();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = requests.clone();
        tokio::spawn(async move {
            for answer in answers {
                let (stream, _) = listener.accept().await.expect("a client");
                let mut stream = acceptor.accept(stream).await.expect("TLS");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.expect("a request"));
                }
                seen.lock().expect("no panic").push(String::from_utf8(head).expect("text"));
                let accepted = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade:";
                let sent = format!("{accepted} {PROTOCOL}\r\n\r\n{answer}");
                stream.write_all(sent.as_bytes()).await.expect("sent");
                // The client may have closed it.
                let _ = stream.shutdown().await;
            }
        });
        let server = ConsoleAddress { address, certificate_sha256: digits };
        Self { server, tickets: AtomicUsize::default(), requests }
    }

    /// Returns the offset and the ticket of each request.
    fn requested(&self) -> Vec<(String, String)> {
        let between = |head: &str, from: &str| {
            let rest = head.split_once(from).expect("it is there").1;
            rest.split(char::is_whitespace).next().unwrap_or_default().to_owned()
        };
        let requests = self.requests.lock().expect("no panic");
        requests.iter().map(|head| (between(head, "offset="), between(head, "Bearer "))).collect()
    }
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(offset, ticket)| ((*offset).to_owned(), (*ticket).to_owned())).collect()
}

#[tokio::test]
async fn a_download_that_breaks_off_continues_with_another_ticket_and_the_file_stays_locked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.part");
    let site = Site::start(&["{\"size\":6}\nabc", "{\"size\":6}\ndef"]).await;
    let file = PartFile::open(&path).expect("opened");
    let file = fetch(&site, file, &expected(b"abcdef")).await.expect("downloaded");
    assert_eq!(site.requested(), pairs(&[("0", "t1"), ("3", "t2")]), "the first try has found no ticket");
    assert_eq!(std::fs::read(&path).expect("there"), b"abcdef");
    assert!(matches!(PartFile::open(&path), Err(PartError::Busy(_))));
    drop(file);
    assert!(PartFile::open(&path).is_ok());
}

#[tokio::test]
async fn bytes_of_another_file_are_downloaded_again_and_other_bytes_of_the_host_are_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.part");
    let site = Site::start(&["{\"size\":6}\ndef", "{\"size\":6}\nabcdef"]).await;
    std::fs::write(&path, "xyz").expect("written");
    let file = PartFile::open(&path).expect("opened");
    drop(fetch(&site, file, &expected(b"abcdef")).await.expect("downloaded"));
    assert_eq!(site.requested(), pairs(&[("3", "t1"), ("0", "t2")]));
    assert_eq!(std::fs::read(&path).expect("there"), b"abcdef");

    let site = Site::start(&["{\"size\":6}\ndef", "{\"size\":6}\nxyzdef"]).await;
    std::fs::write(&path, "xyz").expect("written");
    let file = PartFile::open(&path).expect("opened");
    let error = fetch(&site, file, &expected(b"abcdef")).await.expect_err("other bytes");
    assert!(matches!(error, FetchError::Download(DownloadError::Checksum)), "{error}");
    assert_eq!(std::fs::read(&path).expect("there"), b"", "wrong bytes do not stay");
}

#[tokio::test]
async fn a_file_is_received_up_to_its_size_and_one_of_another_size_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.part");
    let mut part = opened(&path, b"abcdef").await;
    let mut seen = Vec::new();
    let cut = receive(&mut b"{\"size\":6}\nabcd".as_slice(), &mut part, |at| seen.push(at)).await;
    let Err(DownloadError::Broken(text)) = &cut else { panic!("{cut:?}") };
    assert_eq!((text.as_str(), part.at()), ("the host closed it after 4 of 6 bytes", 4));
    let other = receive(&mut b"{\"size\":7}\nefg".as_slice(), &mut part, |_| {}).await;
    assert!(matches!(other, Err(DownloadError::Host(_))), "{other:?}");
    let more = receive(&mut b"{\"size\":6}\nefgh".as_slice(), &mut part, |at| seen.push(at)).await;
    assert!(more.is_ok() && part.is_whole() && part.verify().expect("read"), "{more:?}");
    assert_eq!(seen.last(), Some(&6));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_sends_no_size_or_nothing_more_is_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut part = opened(&folder.path().join("a.part"), b"abc").await;
    for wrong in [&b"{}\n"[..], &[b'x'; 2 * MAX_LINE]] {
        let answer = receive(&mut &*wrong, &mut part, |_| {}).await;
        assert!(matches!(answer, Err(DownloadError::Host(_))), "{answer:?}");
    }
    let (near, mut far) = tokio::io::duplex(64);
    far.write_all(b"{\"size\":3}\na").await.expect("sent");
    let silent = receive(&mut BufReader::new(near), &mut part, |_| {}).await;
    assert!(matches!(silent, Err(DownloadError::Broken(_))), "{silent:?}");
    assert_eq!(part.at(), 1, "it came");
}

#[test]
fn only_what_may_pass_by_itself_is_tried_again() {
    let refused = |code| DownloadError::Connect(ConnectError::Refused { code, text: String::new() });
    assert!(refused(429).is_passing() && refused(404).is_passing());
    assert!(!refused(400).is_passing() && !refused(401).is_passing());
    assert!(DownloadError::Broken(String::new()).is_passing() && !DownloadError::Checksum.is_passing());
}
