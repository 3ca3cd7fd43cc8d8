//! `berth trash`: lists the files of deleted disks on all hosts.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use anyhow::Context;
use berth_agent::TypedApi;
use berth_api::{Host, StoragePool, StoragePoolSpec};
use k8s_openapi::jiff::Timestamp;
use kube::{ResourceExt, api::ListParams};

use super::connect;
use crate::{cli::TrashOptions, one_connection::client_of, printable::printable, top::aligned};

pub(super) async fn run(options: TrashOptions) -> anyhow::Result<()> {
    let config = connect::admin(&options.connection, &options.state.state_dir).await?;
    let client = client_of(config)?;
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let hosts = hosts.list(&ListParams::default()).await.context("listing hosts")?;
    let pools: TypedApi<StoragePool> = TypedApi::all(client);
    let pools = pools.list(&ListParams::default()).await.context("listing storage pools")?;
    let retention = pools.items.iter().map(|pool| (pool.name_any(), of_pool(&pool.spec))).collect();
    let lines = lines(&hosts.items, &retention, options.namespace.as_deref(), Timestamp::now());
    let mut out = std::io::stdout().lock();
    if lines.is_empty() {
        return writeln!(out, "no host has files of deleted disks").context("printing");
    }
    let head = ["HOST", "NAMESPACE", "DISK", "SIZE", "DELETED", "STAYS", "VOLUME"].map(str::to_owned).into();
    let table: Vec<Vec<String>> = std::iter::once(head).chain(lines).collect();
    out.write_all(printable(&aligned(&table)).as_bytes()).context("printing")
}

/// The time for which a pool keeps the files of deleted disks.
fn of_pool(spec: &StoragePoolSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.trash_retention_seconds).unwrap_or_default())
}

/// Returns a line for each file: by host, those in the trash first, the newest first.
fn lines(
    hosts: &[Host],
    retention: &BTreeMap<String, Duration>,
    namespace: Option<&str>,
    now: Timestamp,
) -> Vec<Vec<String>> {
    let is_listed = |of: &str| namespace.is_none_or(|wanted| wanted == of);
    let mut lines = Vec::new();
    for host in hosts {
        let Some(status) = &host.status else { continue };
        let by_default = of_pool(&StoragePoolSpec::default());
        for file in status.trash.iter().filter(|file| is_listed(&file.namespace)) {
            let retention = retention.get(&file.pool).copied().unwrap_or(by_default);
            let stays = stays(&file.deleted_at, retention, now);
            let cells = [&host.name_any(), &file.namespace, &file.name, &file.size, &file.deleted_at, &stays];
            lines.push(cells.into_iter().chain([&file.volume_id]).cloned().collect());
        }
        for file in status.retained_volumes.iter().filter(|file| is_listed(&file.namespace)) {
            let (unknown, stays) = ("-".to_owned(), "retained".to_owned());
            let cells = [&host.name_any(), &file.namespace, &file.name, &file.size, &unknown, &stays];
            lines.push(cells.into_iter().chain([&file.volume_id]).cloned().collect());
        }
    }
    lines
}

/// Returns the shortest time that a file stays, for people. The host counts only the time for which it is on.
fn stays(deleted_at: &str, retention: Duration, now: Timestamp) -> String {
    let Ok(deleted_at) = deleted_at.parse::<Timestamp>() else { return "-".to_owned() };
    let rested = Duration::try_from(now.duration_since(deleted_at)).unwrap_or_default();
    match retention.saturating_sub(rested).as_secs() {
        0 => "goes soon".to_owned(),
        left if left < 3600 => format!("{} min", left.div_ceil(60)),
        left if left < 2 * 86_400 => format!("{} h", left.div_ceil(3600)),
        left => format!("{} d", left.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host(name: &str) -> Host {
        serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {},
            "status": {
                "observedGeneration": 1, "vms": 0,
                "trash": [{"volumeID": "v-1", "pool": "fast", "namespace": "ns", "name": "data", "size": "1Gi",
                    "deletedAt": "1970-01-01T00:00:00Z"}],
                "retainedVolumes": [{"volumeID": "v-2", "pool": "default", "namespace": "other", "name": "db", "size": "2Gi"}],
            },
        }))
        .expect("a Host")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("small")
    }

    #[test]
    fn each_file_has_a_line_with_the_time_that_it_stays() {
        let retention = BTreeMap::from([("fast".to_owned(), Duration::from_secs(7200))]);
        let all = lines(&[host("h1"), host("h2")], &retention, None, at(60));
        assert_eq!(all[0], ["h1", "ns", "data", "1Gi", "1970-01-01T00:00:00Z", "2 h", "v-1"]);
        assert_eq!(all[1], ["h1", "other", "db", "2Gi", "-", "retained", "v-2"]);
        assert_eq!((all.len(), all[2][0].as_str()), (4, "h2"));
        let one = lines(&[host("h1")], &retention, Some("other"), at(60));
        assert_eq!((one.len(), one[0][2].as_str()), (1, "db"));
    }

    #[test]
    fn the_time_that_a_file_stays_is_rounded_up() {
        let left =
            |retention: u64, now: i64| stays("1970-01-01T00:00:00Z", Duration::from_secs(retention), at(now));
        assert_eq!(left(86_400, 0), "24 h");
        assert_eq!(left(86_400, 86_400 - 61), "2 min");
        assert_eq!(left(86_400, 86_400), "goes soon");
        assert_eq!(left(30 * 86_400, 1), "30 d");
        assert_eq!(left(60, -5), "1 min", "the clock of this machine is behind");
        assert_eq!(stays("yesterday", Duration::ZERO, at(0)), "-");
    }
}
