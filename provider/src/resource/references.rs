//! The objects that a resource names: those that neither exist nor are created by the same run.
//!
//! A plan warns of them after a moment. An apply waits for as long as another apply of the run may create them, and then fails:
//! nothing that the control plane would wait for is left to come.

use std::time::Duration;

use futures::future::join_all;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken, Diagnostic, Value};
use tokio::time::{Instant, sleep};

use super::KindResource;
use crate::{
    api::{Address, Api, RetryLimit, Selection},
    change::PlannedChange,
    field::{Field, Shape},
    mapping::find_named,
    references::{DISK, DISK_SNAPSHOT, Named, ORIGINAL_IMAGE},
    run::Run,
};

/// The time for which a plan waits until another resource of the same run is planned. Terraform plans resources without
/// references between them in any order, many at a time.
const PLAN_PATIENCE: Duration = Duration::from_millis(500);
/// The time without any other apply after which nothing more is expected of the run.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// The time limit for reading an object, in seconds.
const READ_SECONDS: u64 = 2;
/// The number of other namespaces that a message lists.
const LISTED: usize = 3;

impl KindResource {
    /// Warns of objects that a planned change newly names and that do not exist.
    pub(super) async fn look_for_references(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let until = Instant::now() + PLAN_PATIENCE;
        let is_over = || Instant::now() + PAUSE > until;
        self.check_references(api, change, is_over, "").await;
    }

    /// Refuses to apply a change that newly names objects that do not exist, once nothing in this run can create them.
    pub(super) async fn await_references(
        &self,
        api: &Api,
        change: &mut PlannedChange<'_>,
        limit: &RetryLimit,
    ) {
        let run = change.run.clone();
        let _waiting = run.wait_for_object();
        let is_over = || run.is_idle_for(IDLE_TIME) || Instant::now() + PAUSE > limit.until;
        let hint = " Nothing in this run creates it. If another resource of this configuration does, use that resource's name \
                    attribute here, or depends_on.";
        tokio::select! {
            () = self.check_references(api, change, is_over, hint) => {}
            // The request that follows fails as interrupted.
            () = limit.cancel.cancelled() => {}
        }
    }

    async fn check_references(
        &self,
        api: &Api,
        change: &mut PlannedChange<'_>,
        is_over: impl Fn() -> bool,
        hint: &str,
    ) {
        let namespace = change.planned.get("namespace").as_str().unwrap_or_default().to_owned();
        let is_new = change.is_create() || !change.replace.is_empty();
        let nothing = Value::Null;
        let prior = if is_new { &nothing } else { change.prior };
        let mut left = named(&self.fields, prior, &change.planned);
        left.retain(|named| !namespace.is_empty() || !named.reference.is_namespaced());
        let run = change.run.clone();
        loop {
            let looks = left.iter().map(|named| exists(api, &run, named, &namespace));
            let found: Vec<bool> = join_all(looks).await;
            let mut found = found.into_iter();
            left.retain(|_| found.next() == Some(false));
            if left.is_empty() || is_over() {
                break;
            }
            sleep(PAUSE).await;
        }
        for named in left {
            let elsewhere = elsewhere(api, &named, &namespace, self.info.kind).await;
            change.missing.push(missing(&named, &namespace, &elsewhere, hint));
        }
    }

    /// Warns of an object that two resources of one run name, and that has one user at a time.
    pub(super) fn check_holders(&self, change: &mut PlannedChange<'_>) {
        let namespace = change.planned.get("namespace").as_str().unwrap_or_default().to_owned();
        if namespace.is_empty() || self.identity(&change.planned).is_none() {
            return;
        }
        let title = self.title(&self.address(&change.planned));
        for named in self.kind.holds(&change.planned) {
            for at in named.reference.places(&namespace, &named.name) {
                let Some(other) = change.run.hold(&at, &title) else { continue };
                let detail = format!(
                    "{}: {other} of this configuration names {} {} too, which has one user at a time: the second one \
                     waits until the first one releases it.",
                    named.path, named.reference.kind, named.name
                );
                let summary = format!("Two users of {} {}", named.reference.kind, named.name);
                change.diagnostics.push(Diagnostic::warning(summary, detail).at(named.path.clone()));
            }
        }
    }
}

/// Whether the object exists, or the run creates it. An object that cannot be read counts as one that exists.
async fn exists(api: &Api, run: &Run, named: &Named, namespace: &str) -> bool {
    for at in named.reference.places(namespace, &named.name) {
        if run.knows(&at) {
            return true;
        }
        let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
        match api.get(&at, &retry_limit).await {
            Ok(Some(_)) => {
                run.saw(&at);
                return true;
            }
            Ok(None) => {}
            Err(_) => return true,
        }
    }
    false
}

/// The other namespaces that have an object of this name.
async fn elsewhere(api: &Api, named: &Named, namespace: &str, user: &str) -> String {
    if !named.reference.is_namespaced() {
        return String::new();
    }
    let Some(first) = named.reference.places(namespace, &named.name).into_iter().next() else {
        return String::new();
    };
    let selection = Selection { fields: format!("metadata.name={}", named.name), ..Selection::default() };
    let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
    let all = Address { namespace: String::new(), ..first };
    let found = api.list_up_to(LISTED, &all, &selection, &|_| true, &retry_limit).await.unwrap_or_default();
    let others: Vec<&str> = found
        .iter()
        .filter_map(|object| object.pointer("/metadata/namespace").and_then(Json::as_str))
        .take(LISTED)
        .collect();
    if others.is_empty() {
        return String::new();
    }
    let others = others.join(", ");
    if named.reference == ORIGINAL_IMAGE {
        return format!(
            " Namespace {others} has one: to copy an image of another namespace, which has to be shared with this one, set \
             image_namespace beside it."
        );
    }
    format!(" Namespace {others} has one, but a {user} names objects of its own namespace.")
}

fn missing(named: &Named, namespace: &str, elsewhere: &str, hint: &str) -> Diagnostic {
    let Named { path, reference, name } = named;
    let list = reference
        .list
        .map(|list| format!(" The data source {list} lists the existing ones."))
        .unwrap_or_default();
    let detail = format!(
        "{path}: there is no {} {name:?} {}.{elsewhere}{list}{hint}",
        reference.kind,
        reference.place(namespace)
    );
    Diagnostic::error(format!("{} {name} does not exist", reference.kind), detail).at(path.clone())
}

/// The names in the planned values that the prior state does not have at the same place.
fn named(fields: &[Field], prior: &Value, planned: &Value) -> Vec<Named> {
    let mut found = Vec::new();
    find_named_objects(fields, prior, planned, &AttributePath::empty(), &mut found);
    found
}

fn find_named_objects(
    fields: &[Field],
    prior: &Value,
    planned: &Value,
    at: &AttributePath,
    found: &mut Vec<Named>,
) {
    for field in fields {
        let (was, is) = (prior.get(field.name), planned.get(field.name));
        let path = at.clone().attribute(field.name);
        match (&field.shape, field.refers) {
            (Shape::Object(fields), _) => find_named_objects(fields, was, is, &path, found),
            (Shape::Keyed(fields), _) => {
                for (i, element) in is.elements().iter().enumerate() {
                    let was = find_named(was.elements(), element).unwrap_or(&Value::Null);
                    find_named_objects(fields, was, element, &path.clone().index(i), found);
                }
            }
            (Shape::TextList(_), Some(reference)) => {
                let before: Vec<&str> = was.elements().iter().filter_map(Value::as_str).collect();
                let names =
                    is.elements().iter().enumerate().filter_map(|(i, name)| Some((i, name.as_str()?)));
                let names =
                    names.filter(|(_, name)| !(reference.has_default && *name == berth_api::DEFAULT_NAME));
                found.extend(names.filter(|(_, name)| !before.contains(name)).map(|(i, name)| Named {
                    path: path.clone().index(i),
                    reference,
                    name: name.to_owned(),
                }));
            }
            (_, Some(reference)) => {
                let Some(name) = is.as_str().filter(|name| was.as_str() != Some(name)) else { continue };
                let needs_no_object = reference.has_default && name == berth_api::DEFAULT_NAME;
                // A Disk with a template is created for the VM.
                let is_created = reference == DISK && !planned.get("template").is_null();
                // A user of an object of another namespace need not have the right to read it there.
                let elsewhere = [
                    (ORIGINAL_IMAGE, "image_namespace"),
                    (DISK, "disk_namespace"),
                    (DISK_SNAPSHOT, "snapshot_namespace"),
                ];
                let mut elsewhere = elsewhere.into_iter().filter(|(of, _)| *of == reference);
                let is_elsewhere = elsewhere.any(|(_, namespace)| !planned.get(namespace).is_null());
                if !needs_no_object && !is_created && !is_elsewhere && !name.is_empty() {
                    found.push(Named { path, reference, name: name.to_owned() });
                }
            }
            _ => {}
        }
    }
}
