//! Probes of a VM: its host's question whether the guest does its work; and hooks, which have the guest do something, or take a snapshot
//! before it is stopped.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The greatest number of snapshots from before stops that are kept: a disk has 32 at most, and some are for other purposes.
const MOST_KEPT: i64 = 24;

/// A question that the VM's host asks its guest again and again: exactly one of `tcpSocket`, `httpGet` and `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.tcpSocket) ? 1 : 0) + (has(self.httpGet) ? 1 : 0) + (has(self.exec) ? 1 : 0) == 1").message("set exactly one of tcpSocket, httpGet and exec"))]
pub struct Probe {
    /// Succeeds if the guest accepts a TCP connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocket>,
    /// Succeeds if the guest answers an HTTP request with a status from 200 to 399. A redirection is not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// Succeeds if a program in the guest ends with exit code 0. Needs qemu-guest-agent in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// The time from the start of the guest, and from each of its reboots, to the first attempt, in seconds, at most 3600. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 3600))]
    pub initial_delay_seconds: i64,
    /// The time from one attempt to the next, in seconds, 1 to 3600. Default 10.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 3600))]
    pub period_seconds: i64,
    /// The time after which an attempt without an answer has failed, in seconds, 1 to 300. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_seconds: i64,
    /// The failures in a row after which the probe fails, 1 to 100. Default 3.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: i64,
    /// The successes in a row after which a probe that failed succeeds again, 1 to 100. Default 1; a liveness probe has no other.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub success_threshold: i64,
}

/// A TCP port of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TcpSocket {
    /// The port, at the private address of the VM's first interface.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i64,
}

/// An HTTP request to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpGet {
    /// The port, at the private address of the VM's first interface.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i64,
    /// The path, with a query if there is one. Default `/`.
    #[serde(default = "root")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/[!-~]*$"))]
    pub path: String,
}

/// A program in the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Exec {
    /// The program and its arguments: a path, or a name that the guest looks up in its `PATH`. No shell interprets them.
    #[schemars(length(min = 1, max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
}

/// Calls of the guest by its host, at the start and before a stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hooks {
    /// Called once after each start of the guest, as soon as the guest can be reached: until it has succeeded, or its time is over, `Ready` is
    /// `False` with the reason `HookRunning`. With the policy `Fail` the VM is `Stalled` after a failure; the guest runs on.
    /// Takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_start: Option<Hook>,
    /// Called before the guest is asked to shut down, within `stop.gracePeriodSeconds`; not before a stop with the mode `Hard`. With the policy `Fail`
    /// the guest is not stopped after a failure, except for a deletion or a drained host. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<PreStopHook>,
}

/// A call of the guest: exactly one of `httpGet` and `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.httpGet) != has(self.exec)").message("set exactly one of httpGet and exec"))]
pub struct Hook {
    /// An HTTP request to the guest, which succeeds with a status from 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// A program in the guest, which succeeds with exit code 0. Needs qemu-guest-agent in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// The time after which a call that has not succeeded has failed, in seconds, 1 to 3600. Default 30.
    #[serde(default = "thirty")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: i64,
    /// The effect of a failure: `Ignore`, it is as if the call had succeeded, or `Fail`. Default `Ignore`.
    #[serde(default)]
    pub failure_policy: HookFailurePolicy,
}

/// A call of the guest or a snapshot before a stop: exactly one of `httpGet`, `exec` and `snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.httpGet) ? 1 : 0) + (has(self.exec) ? 1 : 0) + (has(self.snapshot) ? 1 : 0) == 1").message("set exactly one of httpGet, exec and snapshot"))]
pub struct PreStopHook {
    /// An HTTP request to the guest, which succeeds with a status from 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// A program in the guest, which succeeds with exit code 0. Needs qemu-guest-agent in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// A VMSnapshot of the VM, named after it and the time of the stop, which succeeds once it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotHook>,
    /// The time after which a call that has not succeeded has failed, in seconds, 1 to 3600. Default 30.
    #[serde(default = "thirty")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: i64,
    /// The effect of a failure: `Ignore`, it is as if the call had succeeded, or `Fail`. Default `Ignore`.
    #[serde(default)]
    pub failure_policy: HookFailurePolicy,
}

/// The snapshot that a hook takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotHook {
    /// The number of snapshots of this hook that are kept, 1 to 24: the oldest ones beyond it are deleted once another one is taken. Default 3.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = MOST_KEPT))]
    pub keep: i64,
}

/// The effect of a hook that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HookFailurePolicy {
    #[default]
    Ignore,
    Fail,
}

impl Hook {
    /// Returns its call; None if it has none, which admission refuses.
    #[must_use]
    pub fn question(&self) -> Option<Question<'_>> {
        let http = self.http_get.as_ref().map(Question::HttpGet);
        http.or_else(|| self.exec.as_ref().map(Question::Exec))
    }
}

impl PreStopHook {
    /// Returns its call of the guest; None if it takes a snapshot.
    #[must_use]
    pub fn call(&self) -> Option<Hook> {
        self.snapshot.is_none().then(|| Hook {
            http_get: self.http_get.clone(),
            exec: self.exec.clone(),
            timeout_seconds: self.timeout_seconds,
            failure_policy: self.failure_policy,
        })
    }
}

fn thirty() -> i64 {
    30
}

/// The question of a probe, or the call of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    TcpSocket(&'a TcpSocket),
    HttpGet(&'a HttpGet),
    Exec(&'a Exec),
}

impl Probe {
    /// Returns its question; None if it has none, which admission refuses.
    #[must_use]
    pub fn question(&self) -> Option<Question<'_>> {
        let tcp = self.tcp_socket.as_ref().map(Question::TcpSocket);
        let http = || self.http_get.as_ref().map(Question::HttpGet);
        tcp.or_else(http).or_else(|| self.exec.as_ref().map(Question::Exec))
    }
}

fn root() -> String {
    "/".to_owned()
}

fn one() -> i64 {
    1
}

fn three() -> i64 {
    3
}

fn ten() -> i64 {
    10
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_probe_has_the_defaults_of_kubernetes() {
        let probe: Probe = serde_json::from_value(json!({"httpGet": {"port": 80}})).expect("a probe");
        let numbers = (
            probe.initial_delay_seconds,
            probe.period_seconds,
            probe.timeout_seconds,
            probe.failure_threshold,
            probe.success_threshold,
        );
        assert_eq!(numbers, (0, 10, 1, 3, 1));
        let path = HttpGet { port: 80, path: "/".to_owned() };
        assert_eq!(probe.question(), Some(Question::HttpGet(&path)));
    }

    #[test]
    fn a_hook_before_a_stop_calls_the_guest_or_keeps_three_snapshots() {
        let hook = |value| serde_json::from_value::<PreStopHook>(value).expect("a hook");
        let snapshot = hook(json!({"snapshot": {}}));
        assert_eq!(snapshot.snapshot, Some(SnapshotHook { keep: 3 }));
        assert_eq!((snapshot.call(), snapshot.timeout_seconds), (None, 30));
        let exec = json!({"exec": {"command": ["true"]}, "timeoutSeconds": 5, "failurePolicy": "Fail"});
        let of_guest: Hook = serde_json::from_value(exec.clone()).expect("a hook");
        assert_eq!(hook(exec).call(), Some(of_guest));
    }
}
