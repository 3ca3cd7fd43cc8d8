//! `berth history`: prints the history of an object, as far back as the control plane's log reaches.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::{cli::HistoryOptions, one_connection::client_of, printable::printable};

use super::{connect, resources};

pub(super) async fn run(options: HistoryOptions) -> anyhow::Result<()> {
    let (kind, name) = resources::kind_and_name(&options.object)?;
    let namespace = resources::checked(&options.namespace)?;
    let client = client_of(connect::admin(&options.connection, &options.state.state_dir).await?)?;
    let resource = resources::named(&client, &kind).await?;
    let path = format!("/history{}/{name}?limit={}", resource.path(Some(namespace)), options.limit);
    let history = match resources::get(&client, &path).await {
        Err(error) if resources::has_code(&error, 404) => bail!(
            "nothing is known of {kind}/{name}: it never was, or longer ago than history is kept; and only `berth up` \
             keeps history, Kubernetes does not"
        ),
        other => other.with_context(|| format!("asking for the history of {kind}/{name}"))?,
    };
    std::io::stdout().write_all(printable(&table(&history)).as_bytes()).context("printing")
}

/// The history as text, newest first.
fn table(history: &Value) -> String {
    let mut out = String::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for item in history["items"].as_array().into_iter().flatten() {
        let who = match text(&item["user"]) {
            none if none.is_empty() => "(not recorded)".to_owned(),
            user => format!("{} by {user} ({})", text(&item["verb"]), text(&item["manager"])),
        };
        let what = match text(&item["change"]).as_str() {
            "unknown" => "changed; what came before is no longer kept".to_owned(),
            other => other.to_owned(),
        };
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{}  {}  {who}: {what}", text(&item["revision"]), text(&item["time"]));
        for field in item["fields"].as_array().into_iter().flatten() {
            let (from, to) = (resources::short(field.get("from")), resources::short(field.get("to")));
            let _ = writeln!(out, "    {}: {from} -> {to}", text(&field["path"]));
        }
        if let Some(more) = item["moreFields"].as_u64().filter(|more| *more > 0) {
            let _ = writeln!(out, "    and {more} more fields");
        }
    }
    if history["truncated"] == true {
        out.push_str("… there is more: --limit\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn a_history_reads_line_by_line() {
        let history = json!({"truncated": true, "items": [
            {"revision": "9", "time": "2026-01-02T03:04:05.000Z", "user": "admin", "manager": "kubectl", "verb": "apply",
             "change": "changed", "moreFields": 2, "fields": [{"path": ".spec.cpus", "from": 1, "to": 2},
             {"path": ".spec.x", "to": "y"}]},
            {"revision": "3", "time": "2026-01-01T03:04:05.000Z", "user": "", "manager": "", "verb": "", "change": "created"},
        ]});
        let wanted = "9  2026-01-02T03:04:05.000Z  apply by admin (kubectl): changed\n\
            \x20   .spec.cpus: 1 -> 2\n    .spec.x: (none) -> \"y\"\n    and 2 more fields\n\
            3  2026-01-01T03:04:05.000Z  (not recorded): created\n… there is more: --limit\n";
        assert_eq!(super::table(&history), wanted);
    }
}
