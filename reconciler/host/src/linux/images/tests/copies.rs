//! Copies from another host that misbehaves on request.

use std::sync::Mutex;

use async_trait::async_trait;
use futures::StreamExt as _;
use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::{ImageFile, RemoteError, copy_url};

/// The answer of the other host to one request.
#[derive(Clone, Debug)]
enum Sent {
    /// These bytes, of a file of this size.
    Bytes {
        size: u64,
        bytes: Vec<u8>,
    },
    Unreachable,
    Refused,
}

type Answer = Box<dyn Fn(u64) -> Sent + Send + Sync>;

/// A host that has a file, and the offsets that were requested.
struct OtherHost {
    answer: Answer,
    requests: Mutex<Vec<u64>>,
}

impl std::fmt::Debug for OtherHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OtherHost")
    }
}

impl OtherHost {
    fn new(answer: impl Fn(u64) -> Sent + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { answer: Box::new(answer), requests: Mutex::default() })
    }

    /// A host that sends this file from each offset, but no more than so many bytes at a time.
    fn sending(file: &[u8], most: usize) -> Arc<Self> {
        let file = file.to_vec();
        Self::new(move |offset| {
            let rest = &file[usize::try_from(offset).expect("small").min(file.len())..];
            Sent::Bytes { size: file.len() as u64, bytes: rest[..rest.len().min(most)].to_vec() }
        })
    }

    fn requests(&self) -> Vec<u64> {
        self.requests.lock().expect("no panic").clone()
    }
}

#[async_trait]
impl RemoteImage for OtherHost {
    async fn open(&self, offset: u64) -> std::result::Result<ImageFile, RemoteError> {
        self.requests.lock().expect("no panic").push(offset);
        match (self.answer)(offset) {
            Sent::Bytes { size, bytes } => {
                Ok(ImageFile { size, bytes: Box::new(std::io::Cursor::new(bytes)) })
            }
            Sent::Unreachable => Err(RemoteError::Unreachable("connecting: refused".to_owned())),
            Sent::Refused => Err(RemoteError::Refused("host h2 needs no copy of this image".to_owned())),
        }
    }
}

fn copied(bytes: &[u8]) -> ImageSource {
    source(copy_url("u-1"), bytes, Format::Raw)
}

async fn copy(images: &Arc<LinuxImages>, source: &ImageSource, host: &Arc<OtherHost>) -> Result<ImageFacts> {
    images.copy(source, Arc::clone(host) as Arc<dyn RemoteImage>, &quiet()).await
}

#[tokio::test]
async fn an_image_of_another_host_is_copied_once_and_served_in_turn() {
    let cache = Cache::new();
    let bytes = raw(3 * MIB);
    let (source, host) = (copied(&bytes), OtherHost::sending(&bytes, usize::MAX));
    assert!(cache.images.open_file(&source, 0).await.expect("looked at").is_none());
    let facts = copy(&cache.images, &source, &host).await.expect("copied");
    assert!(fs::read(&facts.path).expect("there") == bytes);
    assert!(facts.made_for.is_empty(), "the other host has it too");
    copy(&cache.images, &source, &host).await.expect("here");
    assert_eq!(host.requests(), [0]);
    let mut file = cache.images.open_file(&source, MIB as u64).await.expect("opened").expect("here");
    let mut rest = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut file.bytes, &mut rest).await.expect("read");
    assert!(file.size == bytes.len() as u64 && rest == bytes[MIB..]);
    let other = ImageSource { namespace: "other".to_owned(), ..source };
    assert!(cache.images.open_file(&other, 0).await.expect("looked at").is_none(), "it has no access");
}

#[tokio::test]
async fn a_copy_that_breaks_off_continues_also_after_a_restart() {
    let cache = Cache::new();
    let bytes = raw(3 * MIB);
    let (source, host) = (copied(&bytes), OtherHost::sending(&bytes, MIB));
    copy(&cache.images, &source, &host).await.expect("copied");
    assert_eq!(host.requests(), [0, MIB as u64, 2 * MIB as u64]);

    let cache = Cache::new();
    let file = bytes.clone();
    let breaks = OtherHost::new(move |offset| match offset {
        0 => Sent::Bytes { size: file.len() as u64, bytes: file[..MIB].to_vec() },
        _ => Sent::Refused,
    });
    let error = copy(&cache.images, &source, &breaks).await.expect_err("refused");
    assert!(error.chain().contains("host h2 needs no copy"), "{}", error.chain());
    assert_eq!(breaks.requests(), [0, MIB as u64], "a refusal is not repeated at once");
    let (images, host) = (cache.restarted(), OtherHost::sending(&bytes, usize::MAX));
    images.forget_downloads(&BTreeSet::from([source.clone()])).await.expect("kept");
    copy(&images, &source, &host).await.expect("copied");
    assert_eq!(host.requests(), [MIB as u64]);
}

#[tokio::test]
async fn other_bytes_than_those_of_the_checksum_are_not_kept() {
    let cache = Cache::new();
    let bytes = raw(MIB);
    let source = copied(&bytes);
    let mut wrong = bytes.clone();
    wrong[5] ^= 1;
    let error = copy(&cache.images, &source, &OtherHost::sending(&wrong, usize::MAX)).await;
    assert_eq!(error.expect_err("other bytes").variant(), "ChecksumMismatch");
    assert_eq!(cache.files(), Vec::<String>::new());
    // A part of other bytes, continued with the right ones, is copied again.
    let part = wrong[..MIB / 2].to_vec();
    let breaks = OtherHost::new(move |offset| match offset {
        0 => Sent::Bytes { size: MIB as u64, bytes: part.clone() },
        _ => Sent::Refused,
    });
    copy(&cache.images, &source, &breaks).await.expect_err("refused");
    let host = OtherHost::sending(&bytes, usize::MAX);
    copy(&cache.images, &source, &host).await.expect("copied");
    assert_eq!(host.requests(), [MIB as u64 / 2, 0]);
}

#[tokio::test]
async fn a_host_that_sends_more_than_it_says_or_has_less_than_before_is_not_believed() {
    let cache = Cache::new();
    let bytes = raw(MIB);
    let more = [bytes.clone(), vec![7; MIB]].concat();
    let chatty = OtherHost::new(move |_| Sent::Bytes { size: MIB as u64, bytes: more.clone() });
    let facts = copy(&cache.images, &copied(&bytes), &chatty).await.expect("copied");
    assert_eq!(facts.bytes, MIB as u64, "what follows is not read");

    let cache = Cache::with_limit(2 * MIB as u64);
    let large = OtherHost::new(|_| Sent::Bytes { size: 1 << 40, bytes: vec![0; MIB] });
    let error = copy(&cache.images, &copied(&bytes), &large).await.expect_err("too large");
    assert_eq!(error.variant(), "ImageTooLarge");
    assert_eq!(cache.files(), Vec::<String>::new());
    let (file, calls) = (bytes.clone(), AtomicU64::new(0));
    let shrinks = OtherHost::new(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Sent::Bytes { size: MIB as u64, bytes: file[..MIB / 2].to_vec() },
        1 => Sent::Bytes { size: 1, bytes: Vec::new() },
        _ => Sent::Bytes { size: MIB as u64, bytes: file.clone() },
    });
    copy(&cache.images, &copied(&bytes), &shrinks).await.expect("copied from the start");
    assert_eq!(shrinks.requests(), [0, MIB as u64 / 2, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_sends_nothing_for_a_minute_is_given_up() {
    let (near, mut far) = tokio::io::duplex(MIB);
    far.write_all(b"half").await.expect("it has the room");
    let mut blocks = copy::blocks(Box::new(near), 8);
    assert_eq!(blocks.next().await, Some(Ok(bytes::Bytes::from_static(b"half"))));
    assert_eq!(blocks.next().await, Some(Err("nothing came in time".to_owned())));
    drop(far);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_away_is_left_to_the_next_attempts() {
    let cache = Cache::new();
    let bytes = raw(MIB);
    let source = copied(&bytes);
    let file = bytes.clone();
    let ends = OtherHost::new(move |offset| match offset {
        0 => Sent::Bytes { size: MIB as u64, bytes: file[..MIB / 2].to_vec() },
        _ => Sent::Refused,
    });
    copy(&cache.images, &source, &ends).await.expect_err("it refuses the rest");
    let away = OtherHost::new(|_| Sent::Unreachable);
    let error = copy(&cache.images, &source, &away).await.expect_err("it is away");
    assert_eq!(error.chain(), "cannot download copy:u-1: connecting: refused");
    assert_eq!(away.requests(), [MIB as u64 / 2; 4], "what has come stays");
}

#[tokio::test]
async fn two_hosts_that_copy_an_image_at_once_have_whole_files_of_their_own() {
    let bytes = raw(3 * MIB);
    let (source, host) = (copied(&bytes), OtherHost::sending(&bytes, MIB));
    let caches = [Cache::new(), Cache::new()];
    let [first, second] = &caches;
    let both =
        futures::future::join(copy(&first.images, &source, &host), copy(&second.images, &source, &host));
    let (one, other) = both.await;
    for facts in [one.expect("copied"), other.expect("copied")] {
        assert!(fs::read(&facts.path).expect("there") == bytes, "{}", facts.path.display());
    }
    // Two callers of one host share a copy.
    let third = Cache::new();
    let shared =
        futures::future::join(copy(&third.images, &source, &host), copy(&third.images, &source, &host));
    let before = host.requests().len();
    let (one, other) = shared.await;
    assert_eq!(one.expect("copied"), other.expect("copied"));
    assert_eq!(host.requests().len() - before, 3, "a MiB at a time, once");
}
