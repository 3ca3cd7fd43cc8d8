//! The API server's own counts.

use std::collections::BTreeMap;

/// `verb resource` → the number of successful requests. Requests without a resource are omitted.
pub type Requests = BTreeMap<(String, String), u64>;

/// The values in `/metrics` at one moment.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// The number of objects written.
    pub writes: u64,
    /// The number of transactions that wrote them.
    pub commits: u64,
    /// The number of successful requests.
    pub requests: Requests,
    /// The number of requests refused because of a conflict, and of other refusals.
    pub refused: u64,
    /// The number of open watches.
    pub watches: u64,
}

/// Whether a verb writes.
pub fn is_write(verb: &str) -> bool {
    matches!(verb, "create" | "update" | "patch" | "delete")
}

impl Counts {
    /// Parses the text of `/metrics`.
    pub fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<u64>() else { continue };
            match name {
                "berth_apiserver_writes_total" => counts.writes = value,
                "berth_apiserver_commits_total" => counts.commits = value,
                "berth_apiserver_watches" => counts.watches = value,
                _ if name.starts_with("berth_apiserver_requests_total{") => counts.request(name, value),
                _ => {}
            }
        }
        counts
    }

    fn request(&mut self, name: &str, value: u64) {
        let label = |label: &str| {
            let rest = name.split_once(&format!("{label}=\""))?.1;
            Some(rest.split_once('"')?.0.to_owned())
        };
        match (label("verb"), label("resource"), label("code").as_deref()) {
            (Some(verb), Some(resource), Some("2xx")) if !resource.is_empty() => {
                *self.requests.entry((verb, resource)).or_default() += value;
            }
            (_, _, Some("4xx" | "5xx")) => self.refused += value,
            _ => {}
        }
    }

    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let requests = self.requests.iter().filter_map(|(what, count)| {
            let new = count - earlier.requests.get(what).copied().unwrap_or_default();
            (new > 0).then(|| (what.clone(), new))
        });
        Self {
            writes: self.writes - earlier.writes,
            commits: self.commits - earlier.commits,
            requests: requests.collect(),
            refused: self.refused - earlier.refused,
            watches: self.watches,
        }
    }

    /// The number of requests that write one of these resources.
    pub fn writes_of(&self, resources: &[&str]) -> u64 {
        let writes = self
            .requests
            .iter()
            .filter(|((verb, resource), _)| is_write(verb) && resources.contains(&resource.as_str()));
        writes.map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_subtracted() {
        let text = "# HELP x\nberth_apiserver_requests_total{verb=\"patch\",resource=\"leases\",code=\"2xx\"} 5\n\
            berth_apiserver_requests_total{verb=\"get\",resource=\"\",code=\"2xx\"} 9\n\
            berth_apiserver_requests_total{verb=\"update\",resource=\"vms/status\",code=\"4xx\"} 2\n\
            berth_apiserver_writes_total 7\n";
        let counts = Counts::parse(text);
        assert_eq!((counts.writes, counts.refused, counts.writes_of(&["leases"])), (7, 2, 5));
        assert_eq!(counts.requests.len(), 1);
        let later = counts.since(&counts);
        assert_eq!((later.writes, later.refused, later.requests.len()), (0, 0, 0));
    }
}
