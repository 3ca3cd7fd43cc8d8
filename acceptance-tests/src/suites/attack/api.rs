//! A tenant's attacks on the API server and on its other users.

use std::io::{Read, Write};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;

use super::tenant::Tenant;
use crate::access::{Access, Stream};
use crate::manifests;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::wait;

/// The time limit until a binding takes effect.
const SOON: Duration = Duration::from_secs(20);
/// The time limit until a watch ends after its token was revoked.
const REVOKED: Duration = Duration::from_secs(60);
/// The time limit for a response to an administrator, regardless of a tenant's load.
const ANSWERED: Duration = Duration::from_secs(5);
/// The number of slow request bodies, all of one tenant.
const SLOW: usize = 40;

/// Runs the cases; each cleans up after itself.
pub(super) fn run(report: &mut Report, platform: &Platform) {
    report.case("a tenant edits its own namespace and no other", || confined(platform));
    report.case("a tenant reads the quota of its namespace and does not change it", || limited(platform));
    report.case("a user with the verb patch alone does not create by applying", || patch_alone(platform));
    if !platform.is_embedded() {
        // Kubernetes aggregates roles in a controller manager, which is missing here, and has other limits.
        return;
    }
    report.case("slow bodies of a tenant do not delay an administrator", || slow_bodies(platform));
}

fn confined(platform: &Platform) -> Result<()> {
    let tenant = Tenant::new(platform, "attack-api")?;
    let kubectl = tenant.kubectl();
    kubectl.ok(&["get", "vms.berth.dev"])?;
    for elsewhere in ["default", "berth-system"] {
        let text = kubectl.within(elsewhere).refused(&["get", "secrets,vms.berth.dev"])?;
        ensure!(text.contains("Forbidden"), "{elsewhere}: {text}");
    }
    let listed = kubectl.ok(&["auth", "can-i", "--list"])?;
    for known in ["vms.berth.dev", "secrets", "selfsubjectaccessreviews.authorization.k8s.io", "/openapi/*"] {
        ensure!(listed.contains(known), "{known} is not in {listed}");
    }
    // A role grants no more than its author's permissions.
    let role = kubectl.refused(&["create", "role", "more", "--verb=*", "--resource=*"])?;
    ensure!(role.contains("orbidden"), "{role}");
    Ok(())
}

fn limited(platform: &Platform) -> Result<()> {
    let tenant = Tenant::new(platform, "attack-quota")?;
    let kubectl = tenant.kubectl();
    tenant.administrator().apply(&manifests::quota("team", &json!({"disks": 0})).to_string())?;
    kubectl.object("vmquota", "team")?;
    let raised = kubectl.apply_refused(&manifests::quota("team", &json!({"disks": 9})).to_string())?;
    ensure!(raised.contains("orbidden"), "{raised}");
    let removed = kubectl.refused(&["delete", "vmquota/team"])?;
    ensure!(removed.contains("orbidden"), "{removed}");
    tenant.administrator().condition("vmquota/team", "Ready=True", None, SOON)?;
    let beyond = manifests::blank_disk("beyond", "1Gi").to_string();
    // A real Kubernetes needs a moment to find the kind of the policy's parameters.
    let text = wait::until("the quota to be in force", SOON, || {
        kubectl.with_input(&["create", "--dry-run=server", "-f", "-"], &beyond)?.failure()
    })?;
    ensure!(text.contains("Quota team: disks: 0 used, 1 more needed, limit 0"), "{text}");
    kubectl.apply_refused(&beyond)?;
    Ok(())
}

fn patch_alone(platform: &Platform) -> Result<()> {
    let tenant = Tenant::new(platform, "attack-patch")?;
    let administrator = tenant.administrator();
    administrator.ok(&["create", "serviceaccount", "patcher"])?;
    administrator.ok(&[
        "create",
        "role",
        "patcher",
        "--verb=get,patch",
        "--resource=configmaps,publicips.berth.dev",
    ])?;
    let account = format!("--serviceaccount={}:patcher", tenant.namespace());
    administrator.ok(&["create", "rolebinding", "patcher", "--role=patcher", &account])?;
    let user = format!("--as=system:serviceaccount:{}:patcher", tenant.namespace());
    wait::until("the binding to take effect", SOON, || {
        administrator.ok(&["auth", "can-i", "patch", "configmaps", &user]).map(drop)
    })?;
    let manifests = [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}),
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP", "metadata": {"name": "made"}, "spec": {}}),
    ];
    for manifest in manifests.map(|manifest| manifest.to_string()) {
        let apply = ["apply", "--server-side", "-f", "-", &user];
        let text = administrator.with_input(&apply, &manifest)?.failure()?;
        ensure!(text.contains("cannot create resource"), "{text}");
        administrator.apply(&manifest)?;
        administrator.with_input(&apply, &manifest)?.success()?;
    }
    Ok(())
}

/// Sends a request head without a body.
fn begin(access: &Access, head: &str) -> Result<Stream> {
    let (host, token) = (&access.address, access.token());
    let mut stream = access.stream(2 * REVOKED)?;
    let text = format!("{head}\r\n").replacen(
        "\r\n",
        &format!("\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"),
        1,
    );
    stream.get_mut().write_all(text.as_bytes())?;
    stream.get_mut().flush()?;
    Ok(stream)
}

/// A watch whose token was revoked. Its end takes most of a minute: other cases run meanwhile.
#[derive(Debug)]
pub(super) struct RevokedWatch {
    /// When it has ended, after the revocation.
    ended: JoinHandle<Result<Duration>>,
    _tenant: Tenant,
}

impl RevokedWatch {
    /// Begins a watch, and revokes its token. Not on Kubernetes, which does not end watches.
    pub(super) fn begin(platform: &Platform) -> Result<Self> {
        let tenant = Tenant::new(platform, "attack-watch")?;
        let administrator = tenant.administrator();
        let path = format!("/api/v1/namespaces/{}/configmaps?watch=1&timeoutSeconds=600", tenant.namespace());
        let mut watch = begin(tenant.access(), &format!("GET {path} HTTP/1.1\r\nConnection: close\r\n"))?;
        let mut first = [0; 12];
        watch.read_exact(&mut first).context("the watch is not answered")?;
        ensure!(first == *b"HTTP/1.1 200", "{:?}", String::from_utf8_lossy(&first));
        administrator.ok(&["delete", "serviceaccount", "editor"])?;
        let revoked = Instant::now();
        administrator.ok(&["create", "configmap", "later"])?;
        let ended = thread::spawn(move || -> Result<Duration> {
            std::io::copy(&mut watch, &mut std::io::sink()).context("the watch does not end")?;
            Ok(revoked.elapsed())
        });
        Ok(Self { ended, _tenant: tenant })
    }

    /// Checks that it ends in time.
    pub(super) fn ends(self) -> Result<()> {
        let took = self.ended.join().map_err(|_| anyhow!("the reader of the watch panicked"))??;
        ensure!(took < REVOKED, "it ended after {took:.0?}");
        note(&format!("    it ended after {took:.0?}"));
        Ok(())
    }
}

fn slow_bodies(platform: &Platform) -> Result<()> {
    let tenant = Tenant::new(platform, "attack-slow")?;
    let administrator = tenant.administrator();
    let path = format!("/api/v1/namespaces/{}/configmaps", tenant.namespace());
    let head =
        format!("POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n");
    let slow: Vec<Stream> = (0..SLOW).map(|_| begin(tenant.access(), &head)).collect::<Result<_>>()?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"},
        "data": {"x": "x".repeat(500_000)}});
    let begun = Instant::now();
    administrator.apply(&map.to_string())?;
    let took = begun.elapsed();
    ensure!(took < ANSWERED, "the administrator waited {took:.0?}");
    drop(slow);
    Ok(())
}
