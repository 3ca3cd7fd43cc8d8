//! Replies of `rbd` and `ceph`, which are not trusted: a server may be of any version.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::super::files::Space;

type Result<T> = std::result::Result<T, String>;

/// A lock of an image, and the client that has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Locker {
    pub(super) id: String,
    #[serde(rename = "locker")]
    pub(super) client: String,
    pub(super) address: String,
}

impl Locker {
    /// Whether its texts are what `rbd lock rm` takes, and no options.
    pub(super) fn is_plain(&self) -> bool {
        let number = self.client.strip_prefix("client.").unwrap_or_default();
        !self.id.starts_with('-') && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    }
}

/// Returns the size of an image, from `rbd info`.
pub(super) fn size(reply: &[u8]) -> Result<u64> {
    #[derive(Deserialize)]
    struct Info {
        size: u64,
    }
    parse::<Info>(reply).map(|info| info.size)
}

/// Whether an image is a clone, from `rbd info`.
pub(super) fn has_parent(reply: &[u8]) -> Result<bool> {
    #[derive(Deserialize)]
    struct Info {
        #[serde(default)]
        parent: Option<IgnoredAny>,
    }
    parse::<Info>(reply).map(|info| info.parent.is_some())
}

/// Returns the names of the images of a pool, from `rbd ls`.
pub(super) fn names(reply: &[u8]) -> Result<Vec<String>> {
    parse(reply)
}

/// Returns the sizes of the images of a pool, from `rbd ls -l`.
pub(super) fn sizes(reply: &[u8]) -> Result<BTreeMap<String, u64>> {
    #[derive(Deserialize)]
    struct Listed {
        image: String,
        size: u64,
        #[serde(default)]
        snapshot: Option<String>,
    }
    let listed: Vec<Listed> = parse(reply)?;
    let images = listed.into_iter().filter(|of| of.snapshot.is_none());
    Ok(images.map(|of| (of.image, of.size)).collect())
}

/// The space that an image takes beside the content that it is a clone of, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageUsage {
    /// Of what was written since its last snapshot, or at all.
    pub(super) used: u64,
    /// Of what was written before each snapshot, since the one before it; by name.
    pub(super) snapshots: BTreeMap<String, u64>,
}

/// Returns the space that an image takes, from `rbd du`, which lists it after its snapshots.
pub(super) fn usage(reply: &[u8]) -> Result<ImageUsage> {
    #[derive(Deserialize)]
    struct Image {
        used_size: u64,
        #[serde(default)]
        snapshot: Option<String>,
    }
    #[derive(Deserialize)]
    struct Report {
        images: Vec<Image>,
    }
    let (mut used, mut snapshots) = (None, BTreeMap::new());
    for Image { used_size, snapshot } in parse::<Report>(reply)?.images {
        match snapshot {
            Some(name) => drop(snapshots.insert(name, used_size)),
            None => used = Some(used_size),
        }
    }
    let used = used.ok_or("a reply without the image itself")?;
    Ok(ImageUsage { used, snapshots })
}

/// A snapshot of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// A later one has a greater number.
    pub(super) number: u64,
    pub(super) size: u64,
    pub(super) is_protected: bool,
}

/// Returns the snapshots of an image by name, from `rbd snap ls`.
pub(super) fn snapshots(reply: &[u8]) -> Result<BTreeMap<String, Snapshot>> {
    #[derive(Deserialize)]
    struct Listed {
        id: u64,
        name: String,
        size: u64,
        #[serde(default)]
        protected: serde_json::Value,
    }
    let listed: Vec<Listed> = parse(reply)?;
    let snapshot = |of: Listed| {
        let is_protected = of.protected == "true" || of.protected == true;
        (of.name, Snapshot { number: of.id, size: of.size, is_protected })
    };
    Ok(listed.into_iter().map(snapshot).collect())
}

/// Whether Ceph knows which objects of a snapshot were written, from `rbd info`.
pub(super) fn has_fast_diff(reply: &[u8]) -> Result<bool> {
    #[derive(Deserialize)]
    struct Info {
        features: Vec<String>,
        #[serde(default)]
        flags: Vec<String>,
    }
    let info: Info = parse(reply)?;
    // The flags are those of a state that is not valid.
    Ok(info.flags.is_empty() && info.features.iter().any(|feature| feature == "fast-diff"))
}

/// Returns the clients with the lock of an image, from `rbd lock ls`.
pub(super) fn lockers(reply: &[u8]) -> Result<Vec<Locker>> {
    parse(reply)
}

/// Returns the addresses of the clients that have an image open, from `rbd status`.
pub(super) fn watchers(reply: &[u8]) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Watcher {
        address: String,
    }
    #[derive(Deserialize)]
    struct Status {
        watchers: Vec<Watcher>,
    }
    let status: Status = parse(reply)?;
    Ok(status.watchers.into_iter().map(|watcher| watcher.address).collect())
}

/// Returns the space of a pool, from `ceph df`. None: the cluster does not report it, as without a manager.
pub(super) fn space(reply: &[u8], pool: &str) -> Result<Option<Space>> {
    #[derive(Deserialize)]
    struct Stats {
        #[serde(default)]
        stored: u64,
        #[serde(default)]
        max_avail: u64,
    }
    #[derive(Deserialize)]
    struct Pool {
        name: String,
        stats: Stats,
    }
    #[derive(Deserialize)]
    struct Report {
        #[serde(default)]
        pools: Vec<Pool>,
    }
    let report: Report = parse(reply)?;
    let of_pool = report.pools.into_iter().find(|of| of.name == pool);
    // The free space is counted without the copies of the data.
    let space = of_pool.map(|Pool { stats, .. }| Space {
        total: stats.stored.saturating_add(stats.max_avail),
        free: stats.max_avail,
    });
    Ok(space.filter(|space| space.total > 0))
}

/// Whether this can be given to `ceph` as the address of one client.
pub(super) fn is_address(text: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b".:/[]".contains(&b);
    let client = text.rsplit_once('/').map_or("", |(_, client)| client);
    (1..=128).contains(&text.len())
        && text.bytes().all(is_part)
        // Without the number of the client it would be those of the whole machine.
        && client.bytes().all(|b| b.is_ascii_digit())
        && !client.is_empty()
        && client != "0"
}

fn parse<T: DeserializeOwned>(reply: &[u8]) -> Result<T> {
    serde_json::from_slice(reply).map_err(|error| format!("a reply that is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_ceph_16_are_read() {
        let info = br#"{"name":"berth-d1","id":"106cff5ce97d","size":67108864,"objects":16,"features":["layering"]}"#;
        assert_eq!((size(info), has_parent(info)), (Ok(64 << 20), Ok(false)));
        let clone = br#"{"name":"berth-d2","size":5,"parent":{"pool":"vms","image":"berth-image-ab","snapshot":"base","overlap":5}}"#;
        assert_eq!(has_parent(clone), Ok(true));
        let listed = br#"[{"image":"a","id":"1","size":5,"format":2},{"image":"a","id":"1","snapshot":"base","size":4,"format":2,
            "protected":"true"}]"#;
        assert_eq!(sizes(listed), Ok(BTreeMap::from([("a".to_owned(), 5)])));
        assert_eq!(
            names(br#"["berth-pool","berth-v-1"]"#),
            Ok(vec!["berth-pool".to_owned(), "berth-v-1".to_owned()])
        );
        assert!(names(b"{}").is_err());
        let with_base = br#"[{"id":4,"name":"base","size":1099511627776,"protected":"true","timestamp":"Sat Nov 28 18:21:30 2026"}]"#;
        let base = Snapshot { number: 4, size: 1 << 40, is_protected: true };
        assert_eq!(snapshots(with_base), Ok(BTreeMap::from([("base".to_owned(), base)])));
        for plain in [r#""protected":"false""#, r#""timestamp":"""#, r#""protected":false"#] {
            let listed = format!(r#"[{{"id":4,"name":"s-1","size":5,{plain}}}]"#);
            let found = snapshots(listed.as_bytes()).expect("read");
            assert_eq!(found["s-1"], Snapshot { number: 4, size: 5, is_protected: false });
        }
        let locks = br#"[{"id":"auto 94107","locker":"client.4123","address":"10.0.0.1:0/3114482"}]"#;
        let found = lockers(locks).expect("read");
        let [id, client, address] = ["auto 94107", "client.4123", "10.0.0.1:0/3114482"].map(str::to_owned);
        assert_eq!(found, [Locker { id, client, address }]);
        assert!(found[0].is_plain());
        for (id, client) in [("--force", "client.1"), ("a", "-x"), ("a", "client."), ("a", "client.1 2")] {
            let [id, client, address] = [id, client, ""].map(str::to_owned);
            assert!(!Locker { id, client, address }.is_plain());
        }
        assert!(is_address(&found[0].address));
        assert_eq!(lockers(b"[]"), Ok(Vec::new()));
        let status = br#"{"watchers":[{"address":"10.0.0.1:0/3114482","client":4123,"cookie":1}]}"#;
        assert_eq!(watchers(status), Ok(vec!["10.0.0.1:0/3114482".to_owned()]));
        assert_eq!(watchers(br#"{"watchers":[]}"#), Ok(Vec::new()));
    }

    #[test]
    fn the_space_of_an_image_is_counted_apart_from_that_of_its_snapshots() {
        let plain = br#"{"images":[{"name":"berth-v-1","id":"106cff5ce97d","provisioned_size":67108864,"used_size":20971520}]}"#;
        assert_eq!(usage(plain), Ok(ImageUsage { used: 20 << 20, snapshots: BTreeMap::new() }));
        let with_snapshots = br#"{"images":[
            {"name":"berth-v-1","id":"1","snapshot":"s-1","snapshot_id":4,"provisioned_size":67108864,"used_size":20971520},
            {"name":"berth-v-1","id":"1","snapshot":"s-2","snapshot_id":5,"provisioned_size":67108864,"used_size":0},
            {"name":"berth-v-1","id":"1","provisioned_size":67108864,"used_size":4194304}],
            "total_provisioned_size":67108864,"total_used_size":25165824}"#;
        let snapshots = [("s-1".to_owned(), 20 << 20), ("s-2".to_owned(), 0)].into();
        assert_eq!(usage(with_snapshots), Ok(ImageUsage { used: 4 << 20, snapshots }));
        for other in ["{", "{}", r#"{"images":[]}"#, r#"{"images":[{"used_size":-1}]}"#] {
            assert!(usage(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn written_parts_are_known_only_while_the_state_of_the_objects_is_valid() {
        assert_eq!(has_fast_diff(br#"{"features":["layering","fast-diff"],"flags":[]}"#), Ok(true));
        let invalid = br#"{"features":["fast-diff"],"flags":["object map invalid","fast diff invalid"]}"#;
        assert_eq!(has_fast_diff(invalid), Ok(false));
        assert_eq!(has_fast_diff(br#"{"features":["layering"],"flags":[]}"#), Ok(false));
    }

    #[test]
    fn the_space_of_a_pool_is_what_fits_into_it_and_unknown_without_a_manager() {
        let report = br#"

{"stats":{"total_bytes":1073741824},"pools":[{"name":"vms","id":1,"stats":{"stored":73,"objects":5,"percent_used":7.1e-08,"max_avail":1020037312}}]}"#;
        let found = space(report, "vms").expect("read").expect("reported");
        assert_eq!((found.total, found.free), (1_020_037_385, 1_020_037_312));
        assert!(space(report, "other").expect("read").is_none());
        assert!(space(br#"{"stats":{"total_bytes":0},"pools":[]}"#, "vms").expect("read").is_none());
    }

    #[test]
    fn only_the_address_of_one_client_is_refused_by_the_cluster() {
        assert!(is_address("10.0.0.1:0/3114482") && is_address("[fd00::1]:0/7"));
        for other in ["", "10.0.0.1", "10.0.0.1:0/0", "10.0.0.1:0/", "-x/1", "10.0.0.1:0/1 2", "any"] {
            assert!(!is_address(other), "{other:?}");
        }
        assert!(size(b"{").is_err() && sizes(b"{}").is_err() && watchers(b"[]").is_err());
    }
}
