//! The labels of the host of a disk: read once, when the disk gets its host.

use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken, Value};

use crate::{
    api::{Address, Api, RetryLimit},
    change::PlannedChange,
    field::{Field, Shape},
    host_labels,
};

/// The time limit for reading a host's labels, in seconds.
const READ_SECONDS: u64 = 2;

pub(super) fn field() -> Field {
    let selector = Field::spec("host_selector", Shape::TextMap).text(
        "Labels the Host of the file must have, in addition to those that its first VM asks for. A copy is made on the host of its \
         source, which must have them too. Read when the disk gets its host: no change moves its file, and one that its host does \
         not fit is refused. Default: none.",
    );
    Field::spec("placement", Shape::Object(vec![selector]))
}

fn path() -> AttributePath {
    AttributePath::root("placement").attribute("host_selector")
}

/// Refuses a selector that the host of the disk does not fit, and warns of one that no host fits.
pub(super) async fn look(api: &Api, change: &mut PlannedChange<'_>) {
    let selector = change.planned.get("placement").get("host_selector").clone();
    if !selector.is_wholly_known() || selector.is_null() {
        return;
    }
    let is_new = change.is_create() || !change.replace.is_empty();
    let is_changed = change.prior.get("placement").get("host_selector") != &selector;
    let bound = change.prior.get("host").as_str().filter(|host| !host.is_empty()).map(str::to_owned);
    match bound.filter(|_| !is_new) {
        Some(bound) if is_changed => refuse_elsewhere(api, change, &bound, &selector).await,
        None if (is_new || is_changed) && !change.is_applied => {
            let run = change.run.clone();
            let Some(hosts) = run.hosts(api).await else { return };
            let ends = "A VM with the disk waits until one has.";
            change.diagnostics.extend(host_labels::warning(hosts, &selector, path(), ends));
        }
        _ => {}
    }
}

async fn refuse_elsewhere(api: &Api, change: &mut PlannedChange<'_>, bound: &str, selector: &Value) {
    let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
    let Ok(Some(host)) = api.get(&Address::cluster("hosts", bound), &retry_limit).await else { return };
    let labels = host.pointer("/metadata/labels").unwrap_or(&Json::Null);
    let Some((label, value)) = host_labels::first_missing(labels, selector) else { return };
    let detail = format!(
        "The file of a disk stays on the host where it was made: this one is on {bound}, which does not have the label {label} = \
         {value:?}. Declare a selector that this host fits, or another disk, which is made from a berth_backup of this one on \
         another host."
    );
    change.refuse("The file of a disk does not move to another host", detail, path());
}
