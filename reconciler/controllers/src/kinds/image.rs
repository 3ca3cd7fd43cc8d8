//! The Image controller: binds an image to a host that verifies it, to the host of the disk, the snapshot or the other image that it is
//! made from, or to one that an upload fits on. All but the first stay there. The users stay up to date here also after that:
//! no host knows all its disks.

mod holders;
mod origin;
mod original;
mod upload;

use std::sync::Arc;

use berth_api::console::{COPY_ACCOUNT, DOWNLOAD_ACCOUNT, UPLOAD_ACCOUNT};
use berth_api::{
    Binding, ConditionType, Image, ImageState, ImageStatus, Readiness, Reason, SYSTEM_NAMESPACE, condition,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind},
    kinds::{quota, ticket_accounts},
    plan::{Dependency, Outcome, Plan},
};
use origin::{Origin, Place};
use original::{Content, Obstacle, Original};

#[derive(Debug)]
struct Observed {
    /// A host that can verify it now.
    host: Option<String>,
    /// The host it is bound to is fenced, removed or silent.
    lost: bool,
    /// Another host, to check whether it refuses the image too.
    other: Option<String>,
    /// The Disk or the DiskSnapshot that it is made from. `None`: it has another source.
    origin: Option<Origin>,
    /// The Image that it is a copy of. `None`: as for `origin`.
    original: Option<Original>,
    /// The host that it is bound to, if that is fenced or removed.
    fenced: Option<String>,
    /// The host for the file, if it is uploaded; the error is for people.
    upload: Option<Result<String, String>>,
}

/// The number of hosts that must refuse an image before the image counts as bad, if there are as many.
const VERDICTS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    NoChange,
    Wait,
    Bind(String),
    /// To the host of what it is made from.
    BindTo(Place),
    /// To a host that has the content of its original.
    BindToCopy(Content),
    /// Its declaration can never be fulfilled, or its disk, snapshot or original is not shared with its namespace.
    Refuse(Reason, String),
    /// Its disk, snapshot or original is waited for, or a host that it fits on.
    WaitFor(Reason, String),
    /// To a host that it is uploaded to.
    BindForUpload(String),
    /// It was made on this host or uploaded to it, which is gone for good.
    Lost(String),
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(stored) = cache.tables.images.get(key).cloned() else { return Outcome::Settled };
    let image = for_token(&stored);
    let plan = within_quota(cache, &stored, plan(&image, &observe(cache, &image)));
    let mut status = status(&image, &plan.decision, config.clock.now());
    status.hosts = holders::of(cache, &image);
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(stored.as_ref(), status, &users, config.clock.now());
    if image.spec.source.upload.is_some() && image.metadata.deletion_timestamp.is_none() {
        ticket_accounts::ensure(cache, key.namespace(), &[UPLOAD_ACCOUNT], batch);
    }
    if image.is_copyable() && image.metadata.deletion_timestamp.is_none() {
        if image.is_local() {
            ticket_accounts::ensure(cache, key.namespace(), &[DOWNLOAD_ACCOUNT], batch);
        }
        ticket_accounts::ensure(cache, SYSTEM_NAMESPACE, &[COPY_ACCOUNT], batch);
    }
    plan.outcome
}

/// Holds an image back that no host has got yet, or whose content is to be made anew, while a Quota of its namespace is used up.
fn within_quota(cache: &Cache, stored: &Image, plan: Plan<Decision>) -> Plan<Decision> {
    let binds = matches!(
        &plan.decision,
        Decision::Bind(_) | Decision::BindTo(_) | Decision::BindToCopy(_) | Decision::BindForUpload(_)
    );
    let key = Key::of(stored);
    let excess = match stored.is_outdated() {
        true => quota::excess_of_image_anew(cache, &key),
        false => quota::excess(cache, &key),
    };
    match excess.filter(|_| binds) {
        Some(excess) => {
            Plan::blocked(Decision::WaitFor(Reason::QuotaExceeded, excess.text), vec![excess.dependency])
        }
        None => plan,
    }
}

fn observe(cache: &Cache, image: &Image) -> Observed {
    use kube::ResourceExt;
    // The Lease of a host that was just declared lost, or removed, is still fresh.
    let alive = |name: &str| cache.is_alive(name) && !cache.is_gone(name);
    let binding = image.status.as_ref().and_then(|s| s.binding.as_ref());
    // The host with the fewest VMs, then by name: verifying costs it a download.
    let hosts = cache.tables.hosts.all().map(|h| h.name_any()).filter(|name| alive(name));
    let host = hosts.min_by_key(|name| (cache.index.capacity.usage(name).vms, name.clone()));
    let mut all: Vec<String> =
        cache.tables.hosts.all().map(|h| h.name_any()).filter(|name| alive(name)).collect();
    all.sort();
    // Each binding that the scheduler made means one more host asked to verify.
    let asked = binding.map_or(0, |b| usize::try_from(b.epoch).unwrap_or(usize::MAX));
    let other = binding.filter(|_| asked < all.len().min(VERDICTS)).and_then(|b| {
        let after = all.iter().find(|name| **name > b.host).or(all.first());
        after.filter(|name| **name != b.host).cloned()
    });
    let origin = origin::observe(cache, image);
    let original = original::observe(cache, image);
    let fenced = binding.map(|b| b.host.clone()).filter(|host| cache.is_gone(host));
    let upload = upload::host(cache, image);
    let lost = binding.is_some_and(|b| !alive(&b.host));
    Observed { host, lost, other, origin, original, fenced, upload }
}

fn plan(image: &Image, observed: &Observed) -> Plan<Decision> {
    let status = image.status.as_ref();
    let is_bound = status.is_some_and(|s| s.binding.is_some());
    let is_verified = status.is_some_and(|s| s.virtual_size.is_some());
    if let Some(origin) = &observed.origin {
        return plan_made(image, origin, observed.fenced.as_ref());
    }
    if let Some(original) = &observed.original {
        return plan_copied(image, original, observed.fenced.as_ref());
    }
    if let Some(host) = &observed.upload {
        return plan_uploaded(image, host, observed);
    }
    if image.metadata.deletion_timestamp.is_some() || (is_bound && (is_verified || !observed.lost)) {
        // One host's refusal counts for that host only.
        let refused = status.is_some_and(|s| condition::is_true(&s.conditions, ConditionType::Stalled));
        if let Some(other) = observed.other.as_ref().filter(|_| refused && !is_verified)
            && image.metadata.deletion_timestamp.is_none()
        {
            return Plan::settled(Decision::Bind(other.clone()));
        }
        return if is_verified { Plan::settled(Decision::NoChange) } else { unchanged(image) };
    }
    match &observed.host {
        Some(host) => Plan::settled(Decision::Bind(host.clone())),
        None => Plan::blocked(Decision::Wait, vec![Dependency::Hosts]),
    }
}

/// The plan for an image that is made from a disk or a snapshot: it stays on the host that makes it.
fn plan_made(image: &Image, origin: &Origin, fenced: Option<&String>) -> Plan<Decision> {
    if let Some(plan) = stays(image, fenced) {
        return plan;
    }
    // Before anything else is read: the other texts would show that there is such an object.
    if let Some(text) = &origin.not_shared {
        let decision = Decision::Refuse(Reason::SourceNotShared, text.clone());
        return Plan::blocked(decision, vec![Dependency::Object(origin.key.clone())]);
    }
    if let Some(text) = &origin.refusal {
        // Another disk of that name may be declared.
        let decision = Decision::Refuse(Reason::NotSupported, text.clone());
        return Plan::blocked(decision, vec![Dependency::Object(origin.key.clone())]);
    }
    match &origin.place {
        Ok(place) => Plan::settled(Decision::BindTo(place.clone())),
        Err(text) => {
            let reason = match origin.key.kind {
                ObjectKind::DiskSnapshot => Reason::WaitingForSnapshot,
                _ => Reason::WaitingForDisk,
            };
            let dependencies = vec![Dependency::Object(origin.key.clone())];
            Plan::blocked(Decision::WaitFor(reason, text.clone()), dependencies)
        }
    }
}

/// The plan for an image that is a copy of another one: it stays on the host that it was found on.
fn plan_copied(image: &Image, original: &Original, fenced: Option<&String>) -> Plan<Decision> {
    if let Some(plan) = stays(image, fenced) {
        return plan;
    }
    let decision = match &original.content {
        Ok(content) => return Plan::settled(Decision::BindToCopy(content.clone())),
        Err(Obstacle::Waits(text)) => Decision::WaitFor(Reason::WaitingForImage, text.clone()),
        // Another original of that name may be declared.
        Err(Obstacle::Differs(text)) => Decision::Refuse(Reason::InvalidSpec, text.clone()),
        Err(Obstacle::NotShared(text)) => Decision::Refuse(Reason::ImageNotShared, text.clone()),
    };
    Plan::blocked(decision, vec![Dependency::Object(original.key.clone()), Dependency::Hosts])
}

/// The plan for an image that stays as it is. One that is bound is looked at again once a host falls silent or is fenced.
fn unchanged(image: &Image) -> Plan<Decision> {
    match image.metadata.deletion_timestamp {
        Some(_) => Plan::settled(Decision::NoChange),
        None => Plan::blocked(Decision::NoChange, vec![Dependency::Hosts]),
    }
}

/// Returns the plan for an image that is not bound to another host: one that is bound, or deleted. `None`: it is to be bound.
fn stays(image: &Image, fenced: Option<&String>) -> Option<Plan<Decision>> {
    let is_deleted = image.metadata.deletion_timestamp.is_some();
    let is_bound = image.status.as_ref().is_some_and(|status| status.binding.is_some());
    match fenced.filter(|_| !is_deleted) {
        Some(host) => Some(Plan::settled(Decision::Lost(host.clone()))),
        None => (is_bound || is_deleted).then(|| unchanged(image)),
    }
}

/// The plan for an image that is uploaded: it stays on the host that has it. Until then, another host takes the place of one that is
/// silent or that serves no uploads.
fn plan_uploaded(image: &Image, host: &Result<String, String>, observed: &Observed) -> Plan<Decision> {
    if image.metadata.deletion_timestamp.is_some() {
        return Plan::settled(Decision::NoChange);
    }
    let status = image.status.as_ref();
    let is_there = status.is_some_and(|status| status.virtual_size.is_some());
    if let Some(fenced) = observed.fenced.as_ref().filter(|_| is_there) {
        return Plan::settled(Decision::Lost(fenced.clone()));
    }
    if let Some(bound) = status.and_then(|status| status.binding.as_ref()) {
        let stalled = status.and_then(|status| condition::find(&status.conditions, "Stalled"));
        let serves_none = stalled.is_some_and(|stalled| stalled.reason == Reason::ImageNotAllowed.as_str());
        let next = match (serves_none, observed.lost, host) {
            _ if is_there => None,
            (true, ..) => observed.other.as_ref(),
            (false, true, Ok(host)) => Some(host),
            _ => None,
        };
        return match next.filter(|host| **host != bound.host) {
            Some(host) => Plan::settled(Decision::BindForUpload(host.clone())),
            None => unchanged(image),
        };
    }
    match host {
        Ok(host) => Plan::settled(Decision::BindForUpload(host.clone())),
        Err(text) => Plan::blocked(Decision::WaitFor(Reason::Pending, text.clone()), vec![Dependency::Hosts]),
    }
}

/// Returns the image with the status that its content is decided from: that of its present token.
fn for_token(stored: &Arc<Image>) -> Arc<Image> {
    let status = stored.status.as_ref();
    let is_bound = status.is_some_and(|status| status.binding.is_some());
    let token = stored.spec.source.token.as_ref();
    if stored.is_outdated() {
        Arc::new(anew(stored))
    } else if !is_bound && status.and_then(|status| status.token.as_ref()) != token {
        let mut image = stored.as_ref().clone();
        image.status.get_or_insert_default().token = token.cloned();
        Arc::new(image)
    } else {
        stored.clone()
    }
}

/// Returns the image with the status of a new one: its content is made for another token. Files of the former content stay on their hosts as
/// long as disks are based on them.
fn anew(image: &Image) -> Image {
    let former = image.status.clone().unwrap_or_default();
    let status = ImageStatus {
        observed_generation: former.observed_generation,
        conditions: former.conditions,
        used_by: former.used_by,
        token: image.spec.source.token.clone(),
        ..ImageStatus::default()
    };
    Image { status: Some(status), ..image.clone() }
}

fn status(image: &Image, decision: &Decision, now: Timestamp) -> ImageStatus {
    let mut status = image.status.clone().unwrap_or_default();
    let generation = image.metadata.generation.unwrap_or_default();
    let (reason, text) = match decision {
        Decision::NoChange => return status,
        Decision::Wait => (Reason::Pending, "there is no ready host that could verify it".to_owned()),
        Decision::WaitFor(reason, text) => (*reason, text.clone()),
        Decision::Bind(host) => {
            let epoch = status.binding.as_ref().map_or(1, |b| b.epoch + 1);
            status.binding = Some(Binding { host: host.clone(), epoch });
            (Reason::Pending, format!("host {host} verifies it"))
        }
        Decision::BindForUpload(host) => {
            let epoch = status.binding.as_ref().map_or(1, |b| b.epoch + 1);
            status.binding = Some(Binding { host: host.clone(), epoch });
            // The servers of the host before.
            (status.upload, status.server, status.download) = (None, None, None);
            (Reason::Pending, format!("host {host} takes the upload"))
        }
        Decision::BindTo(place) => {
            status.binding = Some(Binding { host: place.host.clone(), epoch: 1 });
            status.snapshot_id = Some(place.snapshot_id.clone());
            status.volume_id.clone_from(&place.volume_id);
            status.pool = Some(place.pool.clone());
            (Reason::Pending, format!("host {} makes it", place.host))
        }
        Decision::BindToCopy(content) => {
            status.binding = Some(Binding { host: content.host.clone(), epoch: 1 });
            status.checksum = Some(content.checksum.clone());
            status.media_type.clone_from(&content.media_type);
            (Reason::Pending, format!("host {} has its content", content.host))
        }
        Decision::Refuse(reason, text) => {
            let stalled = Readiness::Stalled(*reason, text.clone());
            stalled.write(&mut status.conditions, generation, now);
            status.state = Some(ImageState::Failed);
            status.observed_generation = generation;
            return status;
        }
        Decision::Lost(host) => {
            let text = format!("its file was on host {host}, which is gone for good: create another Image");
            Readiness::Stalled(Reason::HostFenced, text).write(&mut status.conditions, generation, now);
            status.state = Some(ImageState::Failed);
            (status.server, status.download) = (None, None);
            status.observed_generation = generation;
            return status;
        }
    };
    Readiness::Reconciling(reason, text).write(&mut status.conditions, generation, now);
    status.state = Some(ImageState::Pending);
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::json;
    use tokio::time::Instant;

    fn image(status: serde_json::Value) -> Image {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": "a", "namespace": "default"},
            "spec": {"source": {"url": "file:///a", "sha256": "0".repeat(64)}}, "status": status,
        }))
        .expect("an image")
    }

    fn observed(host: Option<&str>) -> Observed {
        let host = host.map(Into::into);
        Observed { host, lost: false, other: None, origin: None, original: None, fenced: None, upload: None }
    }

    #[test]
    fn an_image_moves_to_another_host_only_while_it_is_not_verified() {
        let lost = Observed { lost: true, ..observed(Some("b")) };
        let pulling = image(json!({"binding": {"host": "a", "epoch": 1}}));
        assert_eq!(plan(&pulling, &lost).decision, Decision::Bind("b".into()));
        let verified = image(json!({"binding": {"host": "a", "epoch": 1}, "virtualSize": "1Gi"}));
        assert_eq!(plan(&verified, &lost).decision, Decision::NoChange);
    }

    #[test]
    fn an_image_that_needs_its_host_is_looked_at_again_when_hosts_change() {
        let again = Plan::blocked(Decision::NoChange, vec![Dependency::Hosts]);
        let pulling = image(json!({"binding": {"host": "a", "epoch": 1}}));
        assert_eq!(plan(&pulling, &observed(Some("b"))), again);
        let mut verified = image(json!({"binding": {"host": "a", "epoch": 1}, "virtualSize": "1Gi"}));
        let settled = Plan::settled(Decision::NoChange);
        assert_eq!(plan(&verified, &observed(Some("b"))), settled, "others download it themselves");
        let key = Key::namespaced(ObjectKind::Disk, "default", "golden");
        let origin = Origin { key, place: Err(String::new()), not_shared: None, refusal: None };
        let made = Observed { origin: Some(origin), ..observed(None) };
        assert_eq!(plan(&verified, &made), again, "its data is on that host alone");
        let uploaded = Observed { upload: Some(Ok("a".into())), ..observed(None) };
        assert_eq!(plan(&verified, &uploaded), again);
        verified.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert_eq!(plan(&verified, &made), settled);
    }

    #[tokio::test]
    async fn an_image_whose_file_was_on_a_host_that_is_removed_is_lost() {
        let mut made = image(json!({"binding": {"host": "h1", "epoch": 1}, "virtualSize": "1Gi"}));
        made.spec.source = serde_json::from_value(json!({"disk": "golden"})).expect("a source");
        let mut cache = Cache::new(Duration::from_secs(40));
        let decided = |cache: &Cache| plan(&made, &observe(cache, &made)).decision;
        assert_eq!(decided(&cache), Decision::Lost("h1".into()));
        let host = json!({"metadata": {"name": "h1", "resourceVersion": "1"}, "spec": {}});
        cache.put(serde_json::from_value::<berth_api::Host>(host).expect("a Host"), Instant::now());
        assert_eq!(decided(&cache), Decision::NoChange, "it may be silent");
    }

    #[tokio::test]
    async fn an_image_that_is_being_downloaded_leaves_a_host_that_is_gone_while_its_lease_is_fresh() {
        let pulling = image(json!({"binding": {"host": "h1", "epoch": 1}}));
        let mut cache = Cache::new(Duration::from_secs(40));
        for name in ["h1", "h2"] {
            let host =
                json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"fenced": name == "h1"}});
            cache.put(serde_json::from_value::<berth_api::Host>(host).expect("a Host"), Instant::now());
            let lease =
                json!({"metadata": {"name": name, "namespace": SYSTEM_NAMESPACE, "resourceVersion": "1"}});
            cache.put(serde_json::from_value::<Lease>(lease).expect("a Lease"), Instant::now());
        }
        assert_eq!(plan(&pulling, &observe(&cache, &pulling)).decision, Decision::Bind("h2".into()));
    }

    #[tokio::test]
    async fn a_namespace_has_the_account_of_downloads_with_its_first_image_that_is_made_or_uploaded() {
        let is_written = |source: serde_json::Value| {
            let mut declared = image(json!(null));
            declared.spec.source = serde_json::from_value(source).expect("a source");
            let mut cache = Cache::new(Duration::from_secs(40));
            cache.put(declared, Instant::now());
            let mut batch = WriteBatch::default();
            let key = Key::namespaced(ObjectKind::Image, "default", "a");
            reconcile(&cache, &Config::new(), &key, &mut batch);
            batch.keys().any(|key| key == Key::ticket_account("default", DOWNLOAD_ACCOUNT))
        };
        assert!(is_written(json!({"snapshot": "s"})));
        assert!(is_written(json!({"upload": {"size": 5}, "sha256": "0".repeat(64)})));
        assert!(
            !is_written(json!({"url": "file:///a", "sha256": "0".repeat(64)})),
            "it is downloaded from its URL"
        );
    }

    #[test]
    fn what_one_host_refuses_another_is_asked_for() {
        let stalled = json!([{"type": "Stalled", "status": "True", "reason": "ChecksumMismatch", "message": "no",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let refused = image(json!({"binding": {"host": "a", "epoch": 1}, "conditions": stalled}));
        let seen = |other: Option<&str>| Observed { other: other.map(Into::into), ..observed(Some("a")) };
        assert_eq!(plan(&refused, &seen(Some("b"))).decision, Decision::Bind("b".into()));
        assert_eq!(plan(&refused, &seen(None)).decision, Decision::NoChange, "all were asked");
        let verified =
            image(json!({"binding": {"host": "a", "epoch": 1}, "conditions": stalled, "virtualSize": "1Gi"}));
        assert_eq!(plan(&verified, &seen(Some("b"))).decision, Decision::NoChange);
    }

    #[test]
    fn without_a_host_it_waits_for_one() {
        let plan = plan(&image(json!(null)), &observed(None));
        assert_eq!(plan.outcome, Outcome::Blocked(vec![Dependency::Hosts]));
    }

    #[test]
    fn an_uploaded_image_goes_to_a_host_that_it_fits_on_and_stays_where_it_is() {
        let mut pushed = image(json!(null));
        pushed.spec.source = serde_json::from_value(json!({"upload": {"size": 5}, "sha256": "0".repeat(64)}))
            .expect("a source");
        let seen = |host: Result<&str, &str>| Observed {
            upload: Some(host.map(Into::into).map_err(Into::into)),
            ..observed(None)
        };
        let waits = plan(&pushed, &seen(Err("no host has 5 bytes free")));
        assert_eq!(waits.outcome, Outcome::Blocked(vec![Dependency::Hosts]));
        let binds = plan(&pushed, &seen(Ok("h1"))).decision;
        assert_eq!(binds, Decision::BindForUpload("h1".into()));
        let now = Timestamp::UNIX_EPOCH;
        pushed.status = Some(status(&pushed, &binds, now));
        assert_eq!(plan(&pushed, &seen(Ok("h2"))).decision, Decision::NoChange);
        let silent = Observed { lost: true, ..seen(Ok("h2")) };
        assert_eq!(plan(&pushed, &silent).decision, Decision::BindForUpload("h2".into()));
        assert_eq!(
            status(&pushed, &Decision::BindForUpload("h2".into()), now).binding.map(|b| b.epoch),
            Some(2)
        );
        let mut refused = pushed.clone();
        let conditions = json!([{"type": "Stalled", "status": "True", "reason": "ImageNotAllowed", "message": "none",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let found = refused.status.get_or_insert_default();
        found.conditions = serde_json::from_value(conditions).expect("conditions");
        let other = Observed { other: Some("h3".into()), ..seen(Ok("h1")) };
        assert_eq!(plan(&refused, &other).decision, Decision::BindForUpload("h3".into()));
        assert_eq!(plan(&refused, &seen(Ok("h1"))).decision, Decision::NoChange, "all were asked");
        pushed.status.get_or_insert_default().virtual_size = Some("1Gi".into());
        assert_eq!(plan(&pushed, &silent).decision, Decision::NoChange, "no other host has it");
        let fenced = Observed { fenced: Some("h1".into()), ..silent };
        let gone = plan(&pushed, &fenced).decision;
        let lost = status(&pushed, &gone, now);
        assert_eq!(
            (lost.state, lost.conditions[0].reason.as_str()),
            (Some(ImageState::Failed), "HostFenced")
        );
    }

    #[test]
    fn a_copy_has_the_checksum_of_its_original_and_stays_where_that_was() {
        let key = Key::namespaced(ObjectKind::Image, "default", "golden");
        let seen = |content: Result<Content, Obstacle>| Observed {
            original: Some(Original { key: key.clone(), content }),
            ..observed(Some("a"))
        };
        let now = Timestamp::UNIX_EPOCH;
        let mut copy = image(json!(null));
        copy.spec.source = serde_json::from_value(json!({"image": "golden"})).expect("a source");
        let waits = plan(&copy, &seen(Err(Obstacle::Waits("Image golden is not verified yet".into()))));
        let needs = vec![Dependency::Object(key.clone()), Dependency::Hosts];
        assert_eq!(waits.outcome, Outcome::Blocked(needs));
        assert_eq!(status(&copy, &waits.decision, now).conditions[0].reason, "WaitingForImage");
        let differs = plan(&copy, &seen(Err(Obstacle::Differs("another format".into()))));
        let refused = status(&copy, &differs.decision, now);
        assert_eq!(
            (refused.state, refused.conditions[0].reason.as_str()),
            (Some(ImageState::Failed), "InvalidSpec")
        );
        let unshared = plan(&copy, &seen(Err(Obstacle::NotShared("no Image golden".into()))));
        assert_eq!(unshared.outcome, waits.outcome, "it is bound once that is shared");
        assert_eq!(status(&copy, &unshared.decision, now).conditions[0].reason, "ImageNotShared");
        let content = Content { host: "h2".into(), checksum: "ab".into(), media_type: Some("x+zstd".into()) };
        let bound = status(&copy, &plan(&copy, &seen(Ok(content))).decision, now);
        assert_eq!(bound.binding.as_ref().map(|binding| binding.host.as_str()), Some("h2"));
        assert_eq!((bound.checksum.as_deref(), bound.media_type.as_deref()), (Some("ab"), Some("x+zstd")));
        copy.status = Some(bound);
        let gone = seen(Err(Obstacle::Waits("Image golden does not exist (yet)".into())));
        assert_eq!(plan(&copy, &gone).decision, Decision::NoChange, "it needs its original no more");
        let fenced = Observed { fenced: Some("h2".into()), ..gone };
        assert_eq!(plan(&copy, &fenced).decision, Decision::Lost("h2".into()));
    }

    #[tokio::test]
    async fn another_token_has_the_content_made_anew_of_the_disk_as_it_is_now() {
        let source = json!({"disk": "root", "token": "2"});
        let status = json!({"binding": {"host": "h1", "epoch": 1}, "snapshotID": "i-u", "volumeID": "v-1", "pool": "fast",
            "checksum": "ab", "virtualSize": "1Gi", "bytes": 5});
        let made: Image = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "u"}, "spec": {"source": source}, "status": status,
        }))
        .expect("an image");
        assert!(made.is_outdated());
        let fresh = for_token(&Arc::new(made));
        assert!(!fresh.is_outdated() && fresh.digest().is_none());
        let mut new = fresh.as_ref().clone();
        new.status = None;
        assert_eq!(
            for_token(&Arc::new(new)).own_snapshot(),
            fresh.own_snapshot(),
            "as one that was declared so"
        );
        let disk: berth_api::Disk = serde_json::from_value(json!({
            "metadata": {"name": "root", "namespace": "default"}, "spec": {"size": "1Gi", "pool": "fast"},
            "status": {"binding": {"host": "h2", "epoch": 1}, "volumeID": "v-2", "size": "1Gi"},
        }))
        .expect("a disk");
        let mut cache = Cache::new(Duration::from_secs(40));
        cache.put(disk, Instant::now());
        let plan = plan(&fresh, &observe(&cache, &fresh));
        let bound = super::status(&fresh, &plan.decision, Timestamp::UNIX_EPOCH);
        assert_eq!(bound.binding.as_ref().map(|binding| binding.host.as_str()), Some("h2"));
        assert_eq!((bound.token.as_deref(), bound.volume_id.as_deref()), (Some("2"), Some("v-2")));
        assert_ne!(bound.snapshot_id.as_deref(), Some("i-u"), "another snapshot");
        assert!(bound.checksum.is_none() && bound.virtual_size.is_none());
    }

    #[test]
    fn an_image_of_a_disk_goes_to_the_host_of_the_disk_and_stays_there() {
        let mut made = image(json!(null));
        made.spec.source = serde_json::from_value(json!({"disk": "golden"})).expect("a source");
        let place = Place {
            host: "h2".into(),
            snapshot_id: "i-u".into(),
            volume_id: Some("v-1".into()),
            pool: "fast".into(),
        };
        let key = Key::namespaced(ObjectKind::Disk, "default", "golden");
        let seen = |place: Result<Place, String>| Observed {
            origin: Some(Origin { key: key.clone(), place, not_shared: None, refusal: None }),
            ..observed(Some("a"))
        };
        let mut foreign = seen(Err("Disk golden has no file yet".into()));
        foreign.origin.iter_mut().for_each(|origin| origin.not_shared = Some("no Disk golden".into()));
        let refused = plan(&made, &foreign);
        assert_eq!(refused.outcome, Outcome::Blocked(vec![Dependency::Object(key.clone())]));
        let refused = status(&made, &refused.decision, Timestamp::UNIX_EPOCH);
        assert_eq!(refused.conditions[0].reason, "SourceNotShared");
        let waits = plan(&made, &seen(Err("Disk golden has no file yet".into())));
        assert_eq!(waits.outcome, Outcome::Blocked(vec![Dependency::Object(key.clone())]));
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(status(&made, &waits.decision, now).conditions[0].reason, "WaitingForDisk");
        let binds = plan(&made, &seen(Ok(place)));
        let bound = status(&made, &binds.decision, now);
        assert_eq!(bound.binding.as_ref().map(|b| b.host.as_str()), Some("h2"));
        assert_eq!((bound.snapshot_id.as_deref(), bound.volume_id.as_deref()), (Some("i-u"), Some("v-1")));
        made.status = Some(bound);
        let lost = Observed { lost: true, ..seen(Err("Disk golden does not exist".into())) };
        assert_eq!(plan(&made, &lost).decision, Decision::NoChange, "no other host has its data");
        let fenced = Observed { fenced: Some("h2".into()), ..lost };
        let gone = plan(&made, &fenced).decision;
        assert_eq!(status(&made, &gone, now).state, Some(ImageState::Failed));
    }
}
