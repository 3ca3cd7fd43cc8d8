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

/// The verb of a label, which kube-apiserver writes as the method of the request.
fn verb_of(label: &str) -> String {
    match label {
        "POST" => "create".to_owned(),
        "PUT" => "update".to_owned(),
        "PATCH" | "APPLY" => "patch".to_owned(),
        _ => label.to_ascii_lowercase(),
    }
}

/// The value of a counter, which kube-apiserver writes in scientific notation once it is large.
fn whole(value: &str) -> Option<u64> {
    value
        .parse()
        .ok()
        .or_else(|| value.parse::<f64>().ok().and_then(|value| format!("{value:.0}").parse().ok()))
}

impl Counts {
    /// Parses the text of `/metrics` of berth or of kube-apiserver, which counts requests only.
    pub fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Some(value) = whole(value) else { continue };
            match name {
                "berth_apiserver_writes_total" => counts.writes = value,
                "berth_apiserver_commits_total" => counts.commits = value,
                "berth_apiserver_watches" => counts.watches = value,
                _ if name.starts_with("berth_apiserver_requests_total{") => counts.request(name, value),
                _ if name.starts_with("apiserver_request_total{") => {
                    let before = counts.all_writes();
                    counts.request(name, value);
                    counts.writes += counts.all_writes() - before;
                }
                _ => {}
            }
        }
        counts
    }

    fn request(&mut self, name: &str, value: u64) {
        let label =
            |label: &str| name.split_once(&format!("{label}=\""))?.1.split_once('"').map(|(text, _)| text);
        let (Some(verb), Some(resource), Some(code)) = (label("verb"), label("resource"), label("code"))
        else {
            return;
        };
        match code.as_bytes().first() {
            Some(b'2') if !resource.is_empty() => {
                let part = label("subresource").filter(|part| !part.is_empty());
                let resource = part.map_or_else(|| resource.to_owned(), |part| format!("{resource}/{part}"));
                *self.requests.entry((verb_of(verb), resource)).or_default() += value;
            }
            Some(b'4' | b'5') => self.refused += value,
            _ => {}
        }
    }

    fn all_writes(&self) -> u64 {
        self.requests.iter().filter(|((verb, _), _)| is_write(verb)).map(|(_, count)| count).sum()
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
        let text = "apiserver_request_total{code=\"201\",resource=\"vms\",subresource=\"\",verb=\"POST\"} 1.5e+06\n\
            apiserver_request_total{code=\"200\",resource=\"vms\",subresource=\"status\",verb=\"PUT\"} 2\n\
            apiserver_request_total{code=\"200\",resource=\"vms\",subresource=\"\",verb=\"LIST\"} 9\n\
            apiserver_request_total{code=\"409\",resource=\"vms\",subresource=\"\",verb=\"PUT\"} 3\n";
        let theirs = Counts::parse(text);
        assert_eq!((theirs.writes, theirs.refused, theirs.writes_of(&["vms/status"])), (1_500_002, 3, 2));
        assert_eq!(whole("NaN"), None);
        let later = counts.since(&counts);
        assert_eq!((later.writes, later.refused, later.requests.len()), (0, 0, 0));
    }
}
