//! Folders that do not answer. In place of the marker is a FIFO: to open it for reading takes until something opens it for writing, and
//! can be interrupted by nothing else, as with a network file system whose server is gone.

use std::fs::OpenOptions;
use std::time::Instant;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// Longer than a look takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(30);

/// A folder that does not answer.
struct Silent {
    marker: PathBuf,
    kept: PathBuf,
    fifo: PathBuf,
}

impl Silent {
    fn new(f: &Fixture, folder: &str) -> Self {
        let (marker, kept) = (f.at(folder).join(MARKER), f.at(&format!("{folder}-kept")));
        let fifo = f.at(&format!("{folder}-fifo"));
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("made");
        fs::rename(&marker, &kept).expect("moved");
        fs::hard_link(&fifo, &marker).expect("linked");
        Self { marker, kept, fifo }
    }

    /// The server is back.
    fn end(self, folders: &PoolFolders, pool: &str) {
        self.end_when(|| folders.ensure_there(pool).is_ok());
    }

    fn end_when(self, is_seen: impl Fn() -> bool) {
        fs::rename(&self.kept, &self.marker).expect("moved");
        let begun = Instant::now();
        while !is_seen() {
            assert!(begun.elapsed() < DEADLINE, "it stays away");
            // Answers those that read it now. Reading and writing never waits.
            drop(OpenOptions::new().read(true).write(true).open(&self.fifo).expect("opened"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn two_pools(f: &Fixture) -> PoolFolders {
    fs::create_dir(f.at("slow")).expect("made");
    let folders = f.open(&[f.mapping(POOL, "fast"), f.mapping("slow", "slow")]).expect("opened");
    let folders = folders.with_patience(PATIENCE);
    let volumes = f.volumes(&folders);
    volumes.create(&new(), None).expect("made");
    let slow = NewVolume { pool: "slow".to_owned(), id: "v-2".to_owned(), ..new() };
    volumes.create(&slow, None).expect("made");
    folders
}

#[tokio::test]
async fn a_folder_that_does_not_answer_is_away_and_holds_up_no_other_pool() {
    let f = Fixture::new();
    let folders = two_pools(&f);
    let volumes = f.volumes(&folders);
    let silent = Silent::new(&f, "slow");
    let list = {
        let volumes = volumes.clone();
        move || volumes.volumes()
    };
    let there = folders.on_all(list).await.expect("listed");
    assert_eq!(there.iter().map(|volume| volume.pool.as_str()).collect::<Vec<_>>(), [POOL]);
    let facts = folders.facts().await;
    let problem = |pool: &str| facts.iter().find(|of| of.pool == pool).and_then(|of| of.problem.clone());
    assert_eq!(problem(POOL), None);
    assert!(problem("slow").expect("it is away").contains("does not answer for 1 s"));
    // One look goes on, and no other waits for it again.
    let begun = Instant::now();
    for _ in 0..100 {
        assert!(away(folders.ensure_there("slow")).contains("does not answer"));
        assert!(volumes.volume(POOL, ID).expect("read").is_some());
    }
    assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
    assert_eq!(volumes.volume("slow", "v-2").expect_err("it is away").variant(), "PoolAway");
    let other = NewVolume { id: "v-3".to_owned(), ..new() };
    volumes.create(&other, None).expect("made beside it");
    silent.end(&folders, "slow");
    assert_eq!(volumes.volumes().expect("listed").len(), 3);
}

#[tokio::test]
async fn work_in_a_folder_that_stops_answering_is_given_up_and_repeated_without_it() {
    let f = Fixture::new();
    let folders = two_pools(&f);
    let silent = Silent::new(&f, "slow");
    let marker = f.at("slow").join(MARKER);
    let read = move || fs::read(&marker).map_err(files::failed("read", &marker));
    let slow = BTreeSet::from(["slow".to_owned()]);
    let error = folders.on_pools(&slow, read).await.expect_err("it does not answer");
    assert_eq!(error.variant(), "PoolAway", "{error}");
    let fast = BTreeSet::from([POOL.to_owned()]);
    folders.on_pools(&fast, || Ok(())).await.expect("it is not concerned");
    silent.end(&folders, "slow");
    let silent = Silent::new(&f, "fast");
    let (tries, marker) = (Arc::new(Mutex::new(0)), silent.marker.clone());
    let count = Arc::clone(&tries);
    let once = move || {
        *locked(&count) += 1;
        let is_first = *locked(&count) == 1;
        if is_first { fs::read(&marker).map(drop).map_err(files::failed("read", &marker)) } else { Ok(()) }
    };
    folders.on_all(once).await.expect("the second time");
    assert_eq!(*locked(&tries), 2);
    silent.end(&folders, POOL);
}

#[tokio::test]
async fn a_pool_is_away_until_work_that_was_given_up_in_it_has_ended() {
    let f = Fixture::new();
    let folders = two_pools(&f);
    let silent = Silent::new(&f, "slow");
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let writes = move || {
        // An error: the test has failed.
        let _ = ended.recv();
        Ok(())
    };
    let slow = BTreeSet::from(["slow".to_owned()]);
    let error = folders.on_pools(&slow, writes).await.expect_err("it does not answer");
    assert_eq!(error.variant(), "PoolAway", "{error}");
    silent.end_when(|| away(folders.ensure_there("slow")).contains("has not ended"));
    let facts = folders.facts().await;
    let slow = facts.iter().find(|of| of.pool == "slow").expect("it is listed");
    assert!(slow.problem.as_ref().is_some_and(|problem| problem.contains("has not ended")), "{slow:?}");
    folders.ensure_there(POOL).expect("it is not concerned");
    end.send(()).expect("it waits");
    let begun = Instant::now();
    while folders.ensure_there("slow").is_err() {
        assert!(begun.elapsed() < DEADLINE, "it stays away");
        std::thread::sleep(Duration::from_millis(10));
    }
}
