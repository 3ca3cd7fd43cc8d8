//! A port of a PublicIP, as declared: the VMs that new connections go to.

use std::time::Duration;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceName;

/// The maximum number of ports of a PublicIP.
pub const MOST_PORTS: usize = 32;
/// The maximum number of targets of a port.
pub const MOST_TARGETS: usize = 32;

/// A port of a public address, which leads to one VM or spreads new connections over several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.protocol != 'udp' || !has(self.healthCheck) || has(self.healthCheck.port)").message("a health check of a udp port needs a port, which it asks by TCP").field_path(".healthCheck"),
    validation = Rule::new("has(self.port) || has(self.targetPort)").message("an entry without port needs a targetPort").field_path(".targetPort")
)]
pub struct PublicIPPort {
    /// Name of the port within its list, the key of the list, for example `https`.
    pub name: ResourceName,
    /// The port of the public address, 1 to 65535. Default: a free one of `portRange`, which is given out once, is in `status.ports`,
    /// and stays as long as an entry of this `name` and `protocol` exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i64>,
    /// The port of the VMs, 1 to 65535. Default: `port`; needed without one. Applied live, for new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub target_port: Option<i64>,
    /// `tcp` or `udp`. Default `tcp`.
    #[serde(default)]
    pub protocol: PortProtocol,
    /// Names of VMs of the same namespace, 1 to 32: new connections go to the first network interface of one that runs and whose
    /// health check succeeds, in turn. A VM that does not exist yet counts once it runs. Applied live: established connections go on.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self.all(t, self.filter(u, u == t).size() == 1)").message("a target can be named once"))]
    pub targets: Vec<ResourceName>,
    /// `ClientIP`: all connections of a client's address go to the same target, as long as it is available. `None` (default): each
    /// connection goes to the next one. Applied live.
    #[serde(default)]
    pub session_affinity: SessionAffinity,
    /// The question that decides whether a target gets new connections. Default: none, and a target gets some while its VM runs.
    /// Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
}

impl PublicIPPort {
    /// Returns the port of the VMs. Admission refuses an entry without one.
    pub fn port_of_targets(&self) -> Option<i64> {
        self.target_port.or(self.port)
    }
}

/// The protocol of a port.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum PortProtocol {
    #[default]
    Tcp,
    Udp,
}

impl PortProtocol {
    /// The protocol as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Which connections go to the same target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionAffinity {
    #[default]
    None,
    ClientIP,
}

/// A question to the targets of a port, which the host that has the address repeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.type) || self.type != 'tcp' || !has(self.path)").message("path is for the type http").field_path(".path")
)]
pub struct HealthCheck {
    /// `tcp`: a connection is accepted. `http`: a GET request is answered with a status from 200 to 399; a redirection is not
    /// followed. Default: `http` if `path` is set, else `tcp`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<HealthCheckType>,
    /// The path of the request, with a query if there is one. Default `/`. Only for `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/[!-~]*$"))]
    pub path: Option<String>,
    /// The port of the VMs that is asked, 1 to 65535. Default: `targetPort`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i64>,
    /// The time from one attempt to the next, `1s` to `999s`, or in minutes, `1m` to `10m`. Default `5s`.
    #[serde(default = "five_seconds")]
    #[schemars(length(max = 4), regex(pattern = r"^([1-9][0-9]{0,2}s|[1-9]m|10m)$"))]
    pub interval: String,
    /// The time after which an attempt without an answer has failed, `1s` to `60s`. Default `2s`.
    #[serde(default = "two_seconds")]
    #[schemars(length(max = 3), regex(pattern = r"^([1-9]|[1-5][0-9]|60)s$"))]
    pub timeout: String,
    /// The successes in a row after which a target gets new connections, 1 to 100. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub healthy_threshold: i64,
    /// The failures in a row after which a target gets no new connections, 1 to 100. Default 2.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 100))]
    pub unhealthy_threshold: i64,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            kind: None,
            path: None,
            port: None,
            interval: five_seconds(),
            timeout: two_seconds(),
            healthy_threshold: one(),
            unhealthy_threshold: two(),
        }
    }
}

impl HealthCheck {
    /// Returns the path of the request; None if a connection is enough.
    pub fn http_path(&self) -> Option<&str> {
        let is_http =
            self.kind == Some(HealthCheckType::Http) || (self.kind.is_none() && self.path.is_some());
        is_http.then(|| self.path.as_deref().unwrap_or("/"))
    }

    /// Returns the time from one attempt to the next.
    pub fn interval(&self) -> Duration {
        parse_duration(&self.interval).unwrap_or(Duration::from_secs(5))
    }

    /// Returns the longest time of an attempt.
    pub fn timeout(&self) -> Duration {
        parse_duration(&self.timeout).unwrap_or(Duration::from_secs(2))
    }
}

/// The question of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthCheckType {
    Tcp,
    Http,
}

/// Parses a whole number of seconds or minutes, such as `5s` or `2m`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix('s') {
        Some(number) => (number, 1),
        None => (text.strip_suffix('m')?, 60),
    };
    let is_number =
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    Some(Duration::from_secs(number.checked_mul(unit)?))
}

fn one() -> i64 {
    1
}

fn two() -> i64 {
    2
}

fn five_seconds() -> String {
    "5s".to_owned()
}

fn two_seconds() -> String {
    "2s".to_owned()
}

/// The state of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortStatus {
    /// Name of the port.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The port of the public address: the declared one, or the one that was given out. Absent while none is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Its protocol.
    #[serde(default)]
    pub protocol: PortProtocol,
    /// The number of its targets that get new connections.
    pub available: i64,
    /// The number of its targets.
    pub total: i64,
    /// Why the others get none: for each its name and the cause.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// A VM that runs and is a target, for the host that has the address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortTarget {
    /// Name of the VM.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The VM's host.
    #[schemars(length(max = 253))]
    pub host: String,
    /// The Network of its first interface, as `namespace/name`.
    #[schemars(length(max = 320))]
    pub network: String,
    /// The private address of its first interface.
    #[schemars(length(max = 45))]
    pub address: String,
}

/// An address in a Network, under which the host of a public address forwards connections to targets on other hosts, or over an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForwardingAddress {
    /// The Network, as `namespace/name`.
    #[schemars(length(max = 320))]
    pub network: String,
    /// The address, which no VM of the Network has.
    #[schemars(length(max = 45))]
    pub address: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_health_check_asks_for_a_path_only_if_it_has_one_or_is_of_type_http() {
        let path = |json: serde_json::Value| {
            let check: HealthCheck = serde_json::from_value(json).expect("a health check");
            check.http_path().map(str::to_owned)
        };
        assert_eq!(path(json!({})), None);
        assert_eq!(path(json!({"type": "tcp"})), None);
        assert_eq!(path(json!({"type": "http"})).as_deref(), Some("/"));
        assert_eq!(path(json!({"path": "/healthz"})).as_deref(), Some("/healthz"));
    }

    #[test]
    fn durations_are_whole_seconds_or_minutes() {
        assert_eq!(parse_duration("2s"), Some(Duration::from_secs(2)));
        assert_eq!(parse_duration("10m"), Some(Duration::from_secs(600)));
        for wrong in ["", "s", "2", "0s", "02s", "-1s", "1h", "1.5s", "99999999999999999999m"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
        let check = HealthCheck::default();
        assert_eq!((check.interval(), check.timeout()), (Duration::from_secs(5), Duration::from_secs(2)));
    }
}
