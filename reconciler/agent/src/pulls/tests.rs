use berth_api::Image;
use berth_host::VolumeOwner;
use berth_host::fake::FakeSystem;
use berth_qemu::machine::Format;

use super::wanted::MAX_CONCURRENT;
use super::*;
use crate::key::ObjectName;
use berth_engine::RuntimeClock;
use rand::{SeedableRng, rngs::StdRng};

const FIRST_BACK_OFF: Duration = Duration::from_millis(250);

fn wanted(namespace: &str, number: usize) -> Wanted {
    Wanted::Image(ImageSource {
        namespace: namespace.to_owned(),
        shared: false,
        url: format!("http://images.example/{number}"),
        shown: format!("http://images.example/{number}"),
        digest: format!("{number:064}"),
        format: Format::Raw,
        encoding: berth_host::Encoding::default(),
        secret: None,
        host: None,
        limits: DownloadLimits::default(),
    })
}

/// A control plane that gives this answer to every request.
fn answering(status: u16, body: &'static str) -> kube::Client {
    let answer = move |_: http::Request<kube::client::Body>| async move {
        let body = kube::client::Body::from(body.as_bytes().to_vec());
        let response = http::Response::builder().status(status).body(body);
        Ok::<_, std::convert::Infallible>(response.expect("a response"))
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

/// A control plane without any Secret.
fn no_secrets() -> kube::Client {
    answering(
        404,
        r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}"#,
    )
}

#[tokio::test(start_paused = true)]
async fn a_download_without_its_secret_waits_for_it() {
    let (system, pulls) = pulls();
    let Wanted::Image(source) = wanted("a", 1) else { panic!("an image") };
    let wanted = Wanted::Image(ImageSource { secret: Some("login".to_owned()), ..source });
    pulls.start(&wanted, waker());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let Some(Pull::Failed { readiness, again }) = pulls.state(&wanted, &waker()) else { panic!("it waits") };
    assert_eq!(readiness.reason(), Reason::WaitingForSecret);
    assert!(again.is_some_and(|again| again <= FIRST_WAIT));
    assert_eq!(system.pulls(), 0);
}

#[test]
fn a_copy_with_other_bytes_is_not_repeated_and_one_that_breaks_off_is() {
    let url = || "the image from host h1".to_owned();
    let again = |error: SystemError| match failed(Failure::Download(error, false), 1, None) {
        State::Failed { again, .. } => again.is_some(),
        state => panic!("{state:?}"),
    };
    assert!(again(SystemError::Download { url: url(), detail: "h1 does not answer".to_owned() }));
    for error in [
        SystemError::ChecksumMismatch { url: url(), declared: "ab".to_owned() },
        SystemError::ImageRefused { url: url(), detail: "not a qcow2 image".to_owned() },
        SystemError::ImageTooLarge { url: url(), detail: "more than 5 bytes".to_owned() },
    ] {
        assert!(!again(error));
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_another_host_or_other_work_has_is_waited_for_half_a_minute_at_most() {
    let url = || "volume v-1 from host h1".to_owned();
    let again = |failure| match failed(failure, 100, None) {
        State::Failed { again: Some(again), .. } => again.saturating_duration_since(Instant::now()),
        state => panic!("{state:?}"),
    };
    let away = || SystemError::Download { url: url(), detail: "h1 does not answer".to_owned() };
    let busy = SystemError::VolumeBusy { id: "v-1".to_owned(), detail: "a snapshot of it is being taken" };
    assert_eq!(again(Failure::Volume(away())), RETRY_VOLUME_EVERY);
    assert_eq!(again(Failure::Download(busy, true)), RETRY_VOLUME_EVERY);
    assert_eq!(again(Failure::Download(away(), true)), LONGEST_WAIT, "of an image");
}

#[test]
fn a_host_that_names_a_false_size_holds_up_no_image_that_its_source_has() {
    let url = || "the image from host h1".to_owned();
    for error in [
        SystemError::Download { url: url(), detail: "h1 does not answer".to_owned() },
        SystemError::ChecksumMismatch { url: url(), declared: "ab".to_owned() },
        SystemError::ImageTooLarge { url: url(), detail: "more than 5 bytes".to_owned() },
        SystemError::NoSpace { what: url(), needed: 5, free: 4 },
    ] {
        assert!(is_of_a_copy(&error), "{error:?}");
    }
    assert!(!is_of_a_copy(&SystemError::ImageRefused { url: url(), detail: "not a qcow2 image".to_owned() }));
}

#[tokio::test(start_paused = true)]
async fn a_download_gets_what_its_secret_has() {
    // printf 'me' | base64; printf 'canary' | base64
    let secret = r#"{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "login"}, "data": {"username": "bWU=", "password": "Y2FuYXJ5"}}"#;
    let (system, pulls) = pulls_with(answering(200, secret));
    let Wanted::Image(source) = wanted("a", 1) else { panic!("an image") };
    let wanted = Wanted::Image(ImageSource { secret: Some("login".to_owned()), ..source });
    pulls.start(&wanted, waker());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(system.credentials().basic, Some(("me".to_owned(), "canary".to_owned())));
    assert!(!format!("{wanted:?} {pulls:?}").contains("canary"));
}

#[tokio::test(start_paused = true)]
async fn an_image_with_a_url_that_cannot_be_copied_is_downloaded() {
    let (system, pulls) = pulls();
    let Wanted::Image(source) = wanted("a", 1) else { panic!("an image") };
    let host = Some(SourceHost {
        name: "h2".to_owned(),
        address: "192.0.2.2:7444".to_owned(),
        certificate_sha256: "ab".to_owned(),
        path: "/file".to_owned(),
        audience: "a".to_owned(),
    });
    let copy = Wanted::Image(ImageSource { host: host.clone(), ..source.clone() });
    pulls.start(&copy, waker());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((system.pulls(), system.copies()), (1, 0));
    assert_eq!(pulls.state(&copy, &waker()), None, "it is here");
    let (url, digest) = ("copy:u".to_owned(), format!("{:064}", 2));
    let only = Wanted::Image(ImageSource { host, url, digest, ..source });
    pulls.start(&only, waker());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let failed = pulls.state(&only, &waker());
    assert!(matches!(failed, Some(Pull::Failed { again: Some(_), .. })), "{failed:?}");
    assert_eq!(system.pulls(), 1, "there is nowhere to download it from");
}

#[tokio::test(start_paused = true)]
async fn a_download_takes_no_longer_than_declared_and_is_repeated_as_often_as_declared() {
    let (system, pulls) = pulls();
    let Wanted::Image(source) = wanted("a", 1) else { panic!("an image") };
    // Shorter than the download.
    let limits = DownloadLimits { timeout_seconds: Some(1), retries: Some(1) };
    let limited = Wanted::Image(ImageSource { limits, ..source });
    let mut failures = Vec::new();
    for _ in 0..2 {
        pulls.start(&limited, waker());
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert!(matches!(pulls.state(&limited, &waker()), Some(Pull::Running { .. })));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Some(Pull::Failed { readiness, again }) = pulls.state(&limited, &waker()) else {
            panic!("its time is over")
        };
        assert!(readiness.message().contains("longer than 1 s"), "{readiness:?}");
        failures.push((readiness.reason(), again.is_some()));
        tokio::time::sleep(again.unwrap_or_default()).await;
    }
    assert_eq!(failures, [(Reason::Retrying, true), (Reason::DownloadFailed, false)]);
    assert_eq!(system.pulls(), 2);
}

fn pulls() -> (Arc<FakeSystem>, Pulls) {
    pulls_with(no_secrets())
}

fn pulls_with(client: kube::Client) -> (Arc<FakeSystem>, Pulls) {
    let clock = Arc::new(RuntimeClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let system = Arc::new(FakeSystem::new(clock));
    system.serve_any_image(1 << 30);
    let pulls = Pulls::new(
        system.clone(),
        Arc::new(Queue::new(FIRST_BACK_OFF, StdRng::seed_from_u64(1))),
        Secrets::new(client.clone()),
        Copies::new(client, "h1"),
    );
    (system, pulls)
}

fn waker() -> Key {
    Key::new::<Image>(ObjectName::new("a", "a"))
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_downloads_holds_up_no_other() {
    let (system, pulls) = pulls();
    for number in 0..20 {
        pulls.start(&wanted("many", number), waker());
    }
    pulls.start(&wanted("other", 3), waker());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(system.pulls(), MAX_CONCURRENT as u64 + 1, "the other namespace's, of the same digest, too");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(system.pulls(), 21);
    assert!((0..20).all(|number| pulls.state(&wanted("many", number), &waker()).is_none()), "all have come");
}

#[tokio::test(start_paused = true)]
async fn every_object_that_waits_for_a_download_is_woken_at_its_end() {
    let (_, pulls) = pulls();
    let other = Key::new::<Image>(ObjectName::new("a", "b"));
    pulls.start(&wanted("a", 1), waker());
    let state = |follower: &Key| pulls.state(&wanted("a", 1), follower);
    assert!(matches!(state(&waker()), Some(Pull::Running { followed: true, .. })));
    assert!(matches!(state(&other), Some(Pull::Running { followed: false, .. })));
    pulls.follow(&wanted("a", 1), other.clone());
    assert!(matches!(state(&other), Some(Pull::Running { followed: true, .. })));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut woken = BTreeSet::new();
    while let Ok(key) = timeout(Duration::from_secs(1), pulls.shared.queue.next()).await {
        woken.insert(key);
    }
    assert!(woken.contains(&waker()) && woken.contains(&other), "{woken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_download_has_a_rate_once_it_has_reported_twice() {
    let (_, pulls) = pulls();
    let one = wanted("a", 1);
    let state = State::Running { done: 0, total: None, rate: None, reported: 0, reported_at: Instant::now() };
    let entry = Entry { task: None, wake: BTreeSet::new(), failures: 0, state };
    pulls.shared.entries().insert(one.clone(), entry);
    let rate_at = async |bytes: u64| {
        tokio::time::sleep(Duration::from_secs(4)).await;
        pulls.shared.progress(&one, bytes, Some(1000 << 20));
        let Some(Pull::Running { rate, .. }) = pulls.state(&one, &waker()) else { panic!("it runs") };
        rate
    };
    assert_eq!(rate_at(500 << 20).await, None, "these bytes may have been here before");
    let rate = rate_at(600 << 20).await;
    assert!(rate.is_some_and(|rate| (24 << 20..=25 << 20).contains(&rate)), "{rate:?}");
    assert_eq!(rate_at(601 << 20).await, rate, "it is no twentieth more");
    assert_eq!(per_second(1, Duration::ZERO), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_download_that_is_not_wanted_any_more_ends() {
    let (system, pulls) = pulls();
    let (kept, gone) = (wanted("a", 1), wanted("a", 2));
    pulls.start(&kept, waker());
    pulls.start(&gone, waker());
    tokio::time::sleep(Duration::from_millis(1)).await;
    pulls.keep_only(&BTreeSet::from([kept.clone()])).await;
    assert_eq!(pulls.state(&gone, &waker()), None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let images = system.leftovers().images;
    assert_eq!(images, [format!("{:064}", 1)], "only the other one has come");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_begins_again_from_another_snapshot_keeps_that_one_from_merges() {
    let (_, pulls) = pulls();
    let copy_of = |snapshot: &str| {
        let (namespace, name) = ("a".to_owned(), "d".to_owned());
        let new = NewVolume {
            encryption: None,
            pool: "slow".to_owned(),
            id: "v-2".to_owned(),
            size: None,
            base: None,
            snapshot: None,
            file: None,
            thick: false,
            shared: false,
            owner: VolumeOwner { namespace, name, uid: None, image: None, source: None },
        };
        let data = Fill::Snapshot { pool: "default".to_owned(), id: snapshot.to_owned() };
        Wanted::Fill("a".to_owned(), "v-2".to_owned(), Details(Box::new((new, data))))
    };
    pulls.start(&copy_of("s-1"), waker());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let failed = pulls.state(&copy_of("s-1"), &waker());
    assert!(matches!(failed, Some(Pull::Failed { .. })), "it is deleted: {failed:?}");
    // Another snapshot has its name now.
    pulls.start(&copy_of("s-2"), waker());
    assert_eq!(pulls.copied_snapshots(), BTreeSet::from(["s-2".to_owned()]));
}
