//! A record of when which packet filters were in force on simulated hosts.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    path::Path,
    sync::{Arc, Weak},
    time::SystemTime,
};

use anyhow::Context;
use async_trait::async_trait;
use berth_host::{
    Filters,
    fake::{FakeSystem, FaultAction, Faults, When},
};
use serde_json::json;
use tracing::warn;

/// The call by which an agent puts filters in force.
const WRITES_FILTERS: &str = "apply_firewall";

/// The file of all hosts.
#[derive(Clone, Debug)]
pub(super) struct FilterRecord {
    file: Arc<File>,
}

impl FilterRecord {
    /// *Errors:* the file cannot be opened for writing.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Records the filters of a host from now on.
    pub(super) fn follow(&self, host: &str, system: &Arc<FakeSystem>) {
        let recorder =
            Recorder { record: self.clone(), host: host.to_owned(), system: Arc::downgrade(system) };
        system.set_faults(Arc::new(recorder));
    }
}

/// Looks at one host after each of its calls. It injects no fault.
#[derive(Debug)]
struct Recorder {
    record: FilterRecord,
    host: String,
    /// The host has this recorder.
    system: Weak<FakeSystem>,
}

#[async_trait]
impl Faults for Recorder {
    async fn fault(&self, call: &'static str, when: When) -> FaultAction {
        if call == WRITES_FILTERS
            && when == When::After
            && let Some(system) = self.system.upgrade()
        {
            let line = line(&self.host, &system.filters(), SystemTime::now());
            // One write for each line: those of several hosts do not mix.
            if let Err(error) = (&*self.record.file).write_all(line.as_bytes()) {
                warn!(%error, host = self.host, "the filters of a simulated host are not recorded");
            }
        }
        FaultAction::Continue
    }
}

fn line(host: &str, filters: &Filters, at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let last_rule = |group: &berth_host::FilterGroup| {
        Some((group.name.clone(), group.ingress.last().map(|rule| rule.name.clone())?))
    };
    let rules: BTreeMap<String, String> = filters.groups.iter().filter_map(last_rule).collect();
    let sizes = |ranges: &[(std::net::Ipv4Addr, std::net::Ipv4Addr)]| -> u64 {
        ranges.iter().map(|(first, last)| u64::from(u32::from(*last) - u32::from(*first)) + 1).sum()
    };
    let members: BTreeMap<&String, u64> =
        filters.sets.iter().map(|(name, ranges)| (name, sizes(ranges))).collect();
    let at = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    format!("{}\n", json!({"host": host, "at": at, "rules": rules, "members": members}))
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use berth_host::{FilterGroup, FilterRule};

    use super::*;

    #[test]
    fn a_line_has_the_last_rule_of_each_group_and_the_number_of_its_members() {
        let rule = |name: &str| FilterRule { name: name.to_owned(), ..FilterRule::default() };
        let group = FilterGroup {
            name: "ns/web".to_owned(),
            ingress: vec![rule("ssh"), rule("http")],
            ..FilterGroup::default()
        };
        let address = |last| Ipv4Addr::new(10, 0, 0, last);
        let ranges = vec![(address(2), address(9)), (address(20), address(20))];
        let filters = Filters {
            groups: vec![group],
            sets: BTreeMap::from([("ns/db".to_owned(), ranges)]),
            ..Filters::default()
        };
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(7);
        let expected =
            r#"{"at":7,"host":"sim-0001","members":{"ns/db":9},"rules":{"ns/web":"http"}}"#.to_owned();
        assert_eq!(line("sim-0001", &filters, at), expected + "\n");
    }
}
