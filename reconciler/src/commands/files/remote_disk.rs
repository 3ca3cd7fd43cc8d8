//! The data of a disk at its host, for a thread that reads a file system.
//!
//! ```text
//!  thread: work ─▶ RemoteDisk ── request ──▶ this task ─▶ host
//!                  the last pieces ◀── data ─┘
//! ```
//!
//! The file system's data is hostile. Work that neither reads nor finds anything for long is given up: its thread ends with the process.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use berth_console_client::{DiskData, DiskDataError};
use berth_filesystems::Disk;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};

/// The length of a piece. Tables are near each other, and files are read in order.
const PIECE: u64 = 256 << 10;
/// The number of pieces that stay in memory.
const MOST_PIECES: usize = 128;
/// The longest time without progress, and how often it is looked for.
const STALLED: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Counts what the work finds.
#[derive(Clone, Debug, Default)]
pub(super) struct Alive(Arc<AtomicU64>);

impl Alive {
    pub(super) fn progress(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Request {
    offset: u64,
    length: u32,
    answer: oneshot::Sender<io::Result<Vec<u8>>>,
}

/// Runs work on the data in a thread of its own, and returns its result.
///
/// *Errors:* the first one of the connection, whatever the work makes of it; those of the work; a panic of the thread, or no progress.
pub(super) async fn with_disk<T: Send + 'static>(
    mut data: DiskData,
    work: impl FnOnce(Rc<dyn Disk>, &Alive) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (requests, mut incoming) = mpsc::channel(1);
    let (done, mut result) = oneshot::channel();
    let (alive, size) = (Alive::default(), data.size());
    let of_thread = alive.clone();
    let thread = std::thread::Builder::new().name("files".to_owned()).spawn(move || {
        let disk: Rc<dyn Disk> = Rc::new(RemoteDisk::new(requests, size));
        // Nothing waits for the result of work that was given up.
        let _ = done.send(work(disk, &of_thread));
    });
    thread.context("starting a thread")?;
    let (mut seen, mut since) = (alive.count(), Instant::now());
    let mut failed: Option<DiskDataError> = None;
    loop {
        tokio::select! {
            finished = &mut result => {
                if let Some(error) = failed {
                    return Err(anyhow::Error::new(error));
                }
                return finished.context("the file system is damaged, and reading it failed")?;
            }
            Some(request) = incoming.recv() => {
                let Request { offset, length, answer } = request;
                // After an error the connection is not used any more.
                let read = match &failed {
                    Some(_) => Err(gone()),
                    None => data.read(offset, length).await.map_err(|error| {
                        let text = error.to_string();
                        failed = Some(error);
                        io::Error::other(text)
                    }),
                };
                // The work has ended meanwhile.
                let _ = answer.send(read);
                alive.progress();
            }
            () = sleep(LOOK_EVERY) => {
                if alive.count() != seen {
                    (seen, since) = (alive.count(), Instant::now());
                } else if since.elapsed() > STALLED {
                    bail!("the file system is damaged: nothing was found in five minutes");
                }
            }
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the connection to the host has ended")
}

/// The data as a thread reads it.
struct RemoteDisk {
    requests: mpsc::Sender<Request>,
    size: u64,
    /// By offset, the last one first.
    pieces: RefCell<VecDeque<(u64, Vec<u8>)>>,
}

impl RemoteDisk {
    fn new(requests: mpsc::Sender<Request>, size: u64) -> Self {
        Self { requests, size, pieces: RefCell::default() }
    }

    /// Reads the piece that begins at this offset.
    fn fetch(&self, offset: u64) -> io::Result<Vec<u8>> {
        let length = u32::try_from((self.size - offset).min(PIECE)).unwrap_or(u32::MAX);
        let (answer, answered) = oneshot::channel();
        self.requests.blocking_send(Request { offset, length, answer }).map_err(|_| gone())?;
        answered.blocking_recv().map_err(|_| gone())?
    }
}

impl Disk for RemoteDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut pieces = self.pieces.borrow_mut();
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let (start, within) = (at - at % PIECE, usize::try_from(at % PIECE).unwrap_or_default());
            let known = pieces.iter().position(|(piece, _)| *piece == start);
            let piece = match known.and_then(|known| pieces.remove(known)) {
                Some(piece) => piece,
                None => (start, self.fetch(start)?),
            };
            let found = piece.1.get(within..).unwrap_or_default();
            let count = found.len().min(into.len() - done);
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into[done..done + count].copy_from_slice(&found[..count]);
            done += count;
            pieces.truncate(MOST_PIECES - 1);
            pieces.push_front(piece);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_are_fetched_once_and_end_with_the_disk() {
        let bytes: Vec<u8> = (0..PIECE * 2 + 10).map(|at| (at % 251) as u8).collect();
        let (requests, mut incoming) = mpsc::channel::<Request>(1);
        let whole = bytes.clone();
        let reader = std::thread::spawn(move || {
            let disk = RemoteDisk::new(requests, whole.len() as u64);
            for (offset, length) in [(0, 5), (3, 100), (PIECE as usize - 1, 2), (whole.len() - 4, 4), (7, 0)]
            {
                let mut found = vec![0; length];
                disk.read_at(offset as u64, &mut found).expect("read");
                assert!(found == whole[offset..offset + length], "{offset} {length}");
            }
            let beyond = disk.read_at(whole.len() as u64 - 1, &mut [0; 2]).expect_err("beyond the end");
            assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        });
        let mut asked = Vec::new();
        while let Some(Request { offset, length, answer }) = incoming.recv().await {
            asked.push((offset, length));
            let start = usize::try_from(offset).expect("small");
            answer.send(Ok(bytes[start..start + length as usize].to_vec())).expect("it waits");
        }
        reader.join().expect("all was right");
        assert_eq!(asked, [(0, PIECE as u32), (PIECE, PIECE as u32), (2 * PIECE, 10)]);
    }
}
