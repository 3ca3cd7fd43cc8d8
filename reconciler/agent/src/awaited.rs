//! How long this host waits for downloads of other hosts, from which it copies the images then. A host that is away, or that only says
//! that it downloads an image, holds up no other for long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_host::ImageSource;
use tokio::time::Instant;

/// The longest wait without a new report of the other host.
const WITHOUT_PROGRESS: Duration = Duration::from_secs(300);
/// The longest wait.
const ALTOGETHER: Duration = Duration::from_secs(3600);

/// The namespace and the digest of an image: its other properties change while it is downloaded.
type ImageKey = (String, String);

/// Downloads of other hosts that this host waits for.
#[derive(Debug, Default)]
pub(crate) struct Awaited(Mutex<BTreeMap<ImageKey, Wait>>);

#[derive(Debug)]
struct Wait {
    begun: Instant,
    /// The last report of the other host, and when it was new.
    report: String,
    reported: Instant,
}

impl Awaited {
    /// Returns how long this host still waits for another one that reports this; zero: it downloads by itself.
    pub(crate) fn time_left(&self, image: &ImageSource, report: &str) -> Duration {
        let now = Instant::now();
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = waits.entry(key(image)).or_insert_with(|| Wait {
            begun: now,
            report: report.to_owned(),
            reported: now,
        });
        if wait.report != report {
            report.clone_into(&mut wait.report);
            wait.reported = now;
        }
        let end = (wait.reported + WITHOUT_PROGRESS).min(wait.begun + ALTOGETHER);
        end.saturating_duration_since(now)
    }

    /// Forgets the waits for downloads that nothing needs any more.
    pub(crate) fn keep_only<'a>(&self, images: impl Iterator<Item = &'a ImageSource>) {
        let kept: BTreeSet<ImageKey> = images.map(key).collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|image, _| kept.contains(image));
    }
}

fn key(image: &ImageSource) -> ImageKey {
    (image.namespace.clone(), image.digest.clone())
}

#[cfg(test)]
mod tests {
    use berth_host::{DownloadLimits, Encoding};
    use berth_qemu::machine::Format;

    use super::*;

    fn image() -> ImageSource {
        ImageSource {
            namespace: "ns".to_owned(),
            shared: false,
            url: "http://images.example/1".to_owned(),
            shown: "http://images.example/1".to_owned(),
            digest: "ab".to_owned(),
            format: Format::Raw,
            encoding: Encoding::default(),
            secret: None,
            host: None,
            limits: DownloadLimits::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_waits_while_the_other_one_makes_progress_and_an_hour_at_most() {
        let awaited = Awaited::default();
        let wanted = image();
        let wait = async |seconds: u64| tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(awaited.time_left(&wanted, "5 %"), WITHOUT_PROGRESS);
        wait(299).await;
        assert_eq!(awaited.time_left(&wanted, "5 %"), Duration::from_secs(1));
        assert_eq!(awaited.time_left(&wanted, "10 %"), WITHOUT_PROGRESS);
        wait(300).await;
        assert_eq!(awaited.time_left(&wanted, "10 %"), Duration::ZERO);
        // Progress of a host that was given up counts again: nothing was downloaded here meanwhile.
        for percent in 11..23 {
            awaited.time_left(&wanted, &format!("{percent} %"));
            wait(250).await;
        }
        assert_eq!(awaited.time_left(&wanted, "99 %"), Duration::from_secs(1), "an hour is over soon");
        awaited.keep_only([&wanted].into_iter());
        wait(1).await;
        assert_eq!(awaited.time_left(&wanted, "100 %"), Duration::ZERO);
        awaited.keep_only(std::iter::empty());
        assert_eq!(awaited.time_left(&wanted, "100 %"), WITHOUT_PROGRESS);
    }
}
