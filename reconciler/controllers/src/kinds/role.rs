//! Host access to Secrets: a host may read those that the VMs bound to it need, those with the credentials of images that it
//! downloads, and those with the keys of its encrypted disks, and no other. There is one Role per host and namespace.
//!
//! Only hosts that have an account of their own have such roles: the agent inside `berth up`, and one that uses an
//! administrator's kubeconfig, need none.

use berth_api::VM;
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
    match plan(cache.has_account(&host), &wanted, allowed(cache, key).as_deref()) {
        Decision::NoChange => {}
        Decision::Allow(secrets) => batch.write(Write::Allow { role: key.clone(), host, secrets }),
        Decision::Remove => batch.write(Write::Disallow(key.clone())),
    }
    Outcome::Settled
}

/// Permits a host to read the Secrets that a VM needs which is about to be bound to it.
pub(crate) fn grant(cache: &Cache, host: &str, vm: &VM, batch: &mut WriteBatch) {
    let role = Key::secrets_role(host, &vm.namespace().unwrap_or_default());
    batch.allow(cache, host, role, vm.spec.secrets().map(str::to_owned).collect());
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
    use berth_api::{Disk, SYSTEM_NAMESPACE, manifests::access};

    use super::*;
    use crate::plan::Step;

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
        let disk = serde_json::json!({
            "metadata": {"name": "d", "namespace": "ns", "uid": "d", "resourceVersion": "3"},
            "spec": {"size": "1Gi", "encryption": {"keyClass": "x"}},
        });
        let disk: Disk = serde_json::from_value(disk).expect("a Disk");
        let disk_key = Key::of(&disk);
        cache.put(account, now);
        cache.put(serde_json::from_value::<berth_api::KeyClass>(class).expect("a KeyClass"), now);
        cache.put(disk, now);
        let allowed = |host: &str| {
            let mut batch = WriteBatch::default();
            batch.allow(&cache, host, Key::secrets_role(host, "ns"), vec!["login".to_owned()]);
            let step = Step::BindDisk {
                disk: disk_key.clone(),
                host: host.to_owned(),
                pool: None,
                volume_id: "v-1".to_owned(),
                serial: "v1".to_owned(),
                used_by: Vec::new(),
            };
            batch.steps(&cache, Config::new().clock.now(), &[step]);
            let (writes, _) = batch.into_parts();
            let secrets = writes.into_iter().filter_map(|write| match write {
                Write::Allow { secrets, .. } => Some(secrets.join(" ")),
                _ => None,
            });
            secrets.collect::<Vec<_>>()
        };
        assert_eq!(allowed("h1"), ["login own"]);
        assert!(allowed("h2").is_empty(), "it needs no role");
    }

    #[test]
    fn the_host_is_read_from_the_name_of_its_role() {
        assert_eq!(host_of(&access::secrets_role_name("kvm-1.rack2")), Some("kvm-1.rack2"));
        assert_eq!(host_of(&access::role_name("kvm-1")), None);
    }
}
