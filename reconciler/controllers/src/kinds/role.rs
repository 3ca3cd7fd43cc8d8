//! Host access to Secrets: a host may read those that the VMs bound to it need, and those with the credentials of images that it
//! downloads, and no other. There is one Role per host and namespace.
//!
//! Only hosts that have an account of their own have such roles: the agent inside `berth up`, and one that uses an
//! administrator's kubeconfig, need none.

use berth_api::{Disk, SYSTEM_NAMESPACE, VM, manifests::access};
use kube::ResourceExt;

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    config::Config,
    key::Key,
    plan::Outcome,
};

/// The action for a host's Role in a namespace.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    NoChange,
    Allow(Vec<String>),
    Remove,
}

/// Returns the host of one of our Roles.
fn host_of(role: &str) -> Option<&str> {
    role.strip_prefix("berth-secrets-")
}

pub(crate) fn reconcile(cache: &Cache, _: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    // A host's other roles are those it joined with; they belong to the administrator.
    let Some(host) = host_of(&key.name).map(str::to_owned) else { return Outcome::Settled };
    let wanted = cache.secrets_of(&host, key.namespace());
    match plan(has_account(cache, &host), &wanted, allowed(cache, key).as_deref()) {
        Decision::NoChange => {}
        Decision::Allow(secrets) => batch.write(Write::Allow { role: key.clone(), host, secrets }),
        Decision::Remove => batch.write(Write::Disallow(key.clone())),
    }
    Outcome::Settled
}

/// Permits a host to read the Secrets that a VM needs which is about to be bound to it.
pub(crate) fn grant(cache: &Cache, host: &str, vm: &VM, batch: &mut WriteBatch) {
    let role = Key::secrets_role(host, &vm.namespace().unwrap_or_default());
    allow(cache, host, role, vm.spec.secrets().map(str::to_owned).collect(), batch);
}

/// Permits a host to read the key of the class of an encrypted Disk that is about to be bound to it.
pub(crate) fn grant_key(cache: &Cache, host: &str, disk: &Disk, batch: &mut WriteBatch) {
    if let Some((namespace, secret)) = cache.key_secret_of(disk) {
        allow(cache, host, Key::secrets_role(host, &namespace), vec![secret], batch);
    }
}

/// Permits a host to read these Secrets too.
fn allow(cache: &Cache, host: &str, role: Key, needed: Vec<String>, batch: &mut WriteBatch) {
    let known = cache.secrets_of(host, role.namespace());
    if has_account(cache, host) && needed.iter().any(|secret| !known.contains(secret)) {
        batch.allow(role, host, known.into_iter().chain(needed));
    }
}

fn has_account(cache: &Cache, host: &str) -> bool {
    cache.tables.accounts.named(SYSTEM_NAMESPACE, &access::account_name(host)).is_some()
}

/// Returns the Secrets the Role permits now; `None` if there is no Role.
fn allowed(cache: &Cache, key: &Key) -> Option<Vec<String>> {
    let role = cache.tables.roles.get(key)?;
    let names = role.rules.iter().flatten().flat_map(|rule| rule.resource_names.iter().flatten().cloned());
    Some(names.collect())
}

fn plan(has_account: bool, wanted: &[String], allowed: Option<&[String]>) -> Decision {
    match (has_account && !wanted.is_empty(), allowed) {
        (true, Some(allowed)) if allowed == wanted => Decision::NoChange,
        (true, _) => Decision::Allow(wanted.to_vec()),
        (false, Some(_)) => Decision::Remove,
        (false, None) => Decision::NoChange,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_host_may_read_just_what_its_vms_need() {
        let some = names(&["a", "b"]);
        assert_eq!(plan(true, &some, None), Decision::Allow(some.clone()));
        assert_eq!(plan(true, &some, Some(&some)), Decision::NoChange);
        assert_eq!(plan(true, &some, Some(&names(&["a"]))), Decision::Allow(some.clone()));
        assert_eq!(plan(true, &[], Some(&some)), Decision::Remove);
        assert_eq!(plan(false, &some, Some(&some)), Decision::Remove, "its account is gone");
        assert_eq!(plan(false, &some, None), Decision::NoChange, "it needs no role");
    }

    #[test]
    fn a_host_may_read_the_credentials_of_an_image_that_it_downloads() {
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        let now = tokio::time::Instant::now();
        let account = serde_json::json!({"metadata": {"name": access::account_name("h1"), "namespace": SYSTEM_NAMESPACE,
            "uid": "a", "resourceVersion": "1"}});
        let account: k8s_openapi::api::core::v1::ServiceAccount =
            serde_json::from_value(account).expect("an account");
        let image = serde_json::json!({
            "metadata": {"name": "golden", "namespace": "ns", "uid": "i", "resourceVersion": "2"},
            "spec": {"source": {"url": "https://a/b", "sha256": "0".repeat(64), "secretName": "login"}},
            "status": {"binding": {"host": "h1", "epoch": 1}},
        });
        cache.put(account, now);
        cache.put(serde_json::from_value::<berth_api::Image>(image).expect("an Image"), now);
        let mut batch = WriteBatch::default();
        reconcile(&cache, &Config::new(), &Key::secrets_role("h1", "ns"), &mut batch);
        let (writes, _) = batch.into_parts();
        let [Write::Allow { host, secrets, .. }] = &writes[..] else { panic!("{writes:?}") };
        assert_eq!((host.as_str(), secrets.as_slice()), ("h1", &["login".to_owned()][..]));
    }

    #[test]
    fn the_key_of_a_disk_and_the_secrets_of_its_vm_are_granted_in_one_write_before_both_are_bound() {
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        let now = tokio::time::Instant::now();
        let account = serde_json::json!({"metadata": {"name": access::account_name("h1"), "namespace": SYSTEM_NAMESPACE,
            "uid": "a", "resourceVersion": "1"}});
        let account: k8s_openapi::api::core::v1::ServiceAccount =
            serde_json::from_value(account).expect("an account");
        let class = serde_json::json!({
            "metadata": {"name": "x", "namespace": "ns", "uid": "k", "resourceVersion": "2"},
            "spec": {"secret": {"name": "own"}},
        });
        cache.put(account, now);
        cache.put(serde_json::from_value::<berth_api::KeyClass>(class).expect("a KeyClass"), now);
        let disk = |encryption: serde_json::Value| -> Disk {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "d", "namespace": "ns"}, "spec": {"size": "1Gi", "encryption": encryption},
            }))
            .expect("a Disk")
        };
        let mut batch = WriteBatch::default();
        grant_key(&cache, "h1", &disk(serde_json::Value::Null), &mut batch);
        grant_key(&cache, "without-account", &disk(serde_json::json!({"keyClass": "x"})), &mut batch);
        allow(&cache, "h1", Key::secrets_role("h1", "ns"), vec!["login".to_owned()], &mut batch);
        grant_key(&cache, "h1", &disk(serde_json::json!({"keyClass": "x"})), &mut batch);
        let (writes, _) = batch.into_parts();
        let [Write::Allow { host, secrets, .. }] = &writes[..] else { panic!("{writes:?}") };
        assert_eq!((host.as_str(), secrets.join(" ")), ("h1", "login own".to_owned()));
    }

    #[test]
    fn the_host_is_read_from_the_name_of_its_role() {
        assert_eq!(host_of(&access::secrets_role_name("kvm-1.rack2")), Some("kvm-1.rack2"));
        assert_eq!(host_of(&access::role_name("kvm-1")), None);
    }
}
