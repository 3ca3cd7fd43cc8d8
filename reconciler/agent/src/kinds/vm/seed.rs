//! Content of the bootstrap volume (cloud-init NoCloud). Pure. May contain secrets: never printed.

use std::fmt;

use berth_api::VM;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::networking::hostname;
use berth_host::Seed;

/// Limit in bytes. cloud-init itself accepts more, but a volume of text this large is a mistake.
const MAX_USER_DATA: usize = 1 << 20;

/// Source of a VM's bootstrap data.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Bootstrap {
    /// Not observed: the VM is not about to start.
    NotObserved,
    /// The VM's spec only.
    Inline,
    /// The Secret of this name does not exist yet.
    Missing(String),
    Secret {
        user_data: Option<String>,
        meta_data: Option<String>,
        network_config: Option<String>,
    },
    /// Not text, or not user data that a guest could use.
    Unusable(String),
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotObserved => "NotObserved",
            Self::Inline => "Inline",
            Self::Missing(_) => "Missing",
            Self::Secret { .. } => "Secret",
            Self::Unusable(_) => "Unusable",
        })
    }
}

impl Bootstrap {
    pub(crate) fn secret(secret: &Secret) -> Self {
        let mut unusable = None;
        let mut text = |key: &str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone())?;
            if bytes.len() > MAX_USER_DATA {
                unusable = Some(format!("key {key} of the bootstrap Secret is larger than 1 MiB"));
            }
            match String::from_utf8(bytes) {
                Ok(text) => Some(text),
                Err(_) => {
                    unusable = Some(format!("key {key} of the bootstrap Secret is no UTF-8 text"));
                    None
                }
            }
        };
        let found = Self::Secret {
            user_data: text("userData"),
            meta_data: text("metaData"),
            network_config: text("networkConfig"),
        };
        let found = unusable.map_or(found, Self::Unusable);
        match &found {
            Self::Secret { user_data: Some(user_data), .. } => {
                let checked = berth_api::user_data::check(user_data);
                checked.map_or_else(|error| Self::Unusable(format!("user data: {error}")), |()| found)
            }
            _ => found,
        }
    }

    /// Returns the bootstrap data of the VM's spec.
    pub(crate) fn inline(vm: &VM) -> Self {
        let user_data = vm.spec.bootstrap.as_ref().and_then(|b| b.user_data.as_deref()).unwrap_or_default();
        let checked = berth_api::user_data::check(user_data);
        checked.map_or_else(|error| Self::Unusable(format!("user data: {error}")), |()| Self::Inline)
    }
}

/// Returns the seed of a VM. YAML is written as JSON, which is a subset of YAML. Ignition does not read such a volume:
/// its configuration is passed separately.
pub(super) fn seed(vm: &VM, cloud_instance: &str, bootstrap: &Bootstrap) -> Seed {
    let (meta, network) = match bootstrap {
        Bootstrap::Secret { meta_data, network_config, .. } => (meta_data.clone(), network_config.clone()),
        _ => (None, None),
    };
    let (ignition, user) = match user_data(vm, bootstrap) {
        Some(text) if berth_api::user_data::is_ignition(text) => (Some(text.to_owned()), None),
        text => (None, text.map(str::to_owned)),
    };
    Seed {
        user_data: user.unwrap_or_else(|| "#cloud-config\n".to_owned()),
        meta_data: meta.unwrap_or_else(|| own_meta_data(vm, cloud_instance)),
        network_config: network.unwrap_or_else(|| own_network_config(vm)),
        ignition,
    }
}

fn user_data<'a>(vm: &'a VM, bootstrap: &'a Bootstrap) -> Option<&'a str> {
    match bootstrap {
        Bootstrap::Secret { user_data, .. } => user_data.as_deref(),
        _ => vm.spec.bootstrap.as_ref()?.user_data.as_deref(),
    }
}

/// Returns a digest of the bootstrap data, over the parts a person changes to have a guest configure itself again.
pub(super) fn digest(vm: &VM, bootstrap: &Bootstrap) -> String {
    let keys = vm.spec.bootstrap.as_ref().map(|b| b.ssh_authorized_keys.as_slice()).unwrap_or_default();
    let whole = json!([user_data(vm, bootstrap), keys, hostname(vm)]);
    Sha256::digest(whole.to_string()).iter().map(|b| format!("{b:02x}")).collect()
}

fn own_meta_data(vm: &VM, cloud_instance: &str) -> String {
    let keys = vm.spec.bootstrap.as_ref().map(|b| b.ssh_authorized_keys.clone()).unwrap_or_default();
    pretty(&json!({"instance-id": cloud_instance, "local-hostname": hostname(vm), "public-keys": keys}))
}

fn own_network_config(vm: &VM) -> String {
    let mut ethernets = Map::new();
    for interface in vm.status.iter().flat_map(|s| &s.interfaces) {
        let ethernet =
            json!({"match": {"macaddress": interface.mac_address.to_ascii_lowercase()}, "dhcp4": true});
        ethernets.insert(interface.name.clone(), ethernet);
    }
    pretty(&json!({"version": 2, "ethernets": ethernets}))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    fn vm() -> VM {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}],
                "bootstrap": {"sshAuthorizedKeys": ["ssh-ed25519 AAAA me"]}},
            "status": {"observedGeneration": 1, "interfaces": [
                {"name": "nic0", "network": "a/b", "macAddress": "52:54:00:AA:00:01", "address": "10.0.0.2"}]},
        }))
        .expect("a VM")
    }

    #[test]
    fn without_user_data_the_guest_gets_its_name_its_keys_and_dhcp() {
        let seed = seed(&vm(), "i-1", &Bootstrap::Inline);
        assert_eq!(seed.user_data, "#cloud-config\n");
        insta::assert_snapshot!(seed.meta_data, @r#"
        {
          "instance-id": "i-1",
          "local-hostname": "web",
          "public-keys": [
            "ssh-ed25519 AAAA me"
          ]
        }
        "#);
        insta::assert_snapshot!(seed.network_config, @r#"
        {
          "version": 2,
          "ethernets": {
            "nic0": {
              "match": {
                "macaddress": "52:54:00:aa:00:01"
              },
              "dhcp4": true
            }
          }
        }
        "#);
    }

    #[test]
    fn what_the_secret_says_replaces_what_we_would_write_and_is_never_printed() {
        let data = [("userData", "canary"), ("networkConfig", "version: 1")];
        let data = data.map(|(k, v)| (k.to_owned(), ByteString(v.into())));
        let bootstrap = Bootstrap::secret(&Secret { data: Some(data.into()), ..Secret::default() });
        let seed = seed(&vm(), "i-1", &bootstrap);
        assert_eq!((seed.user_data.as_str(), seed.network_config.as_str()), ("canary", "version: 1"));
        assert!(seed.meta_data.contains("local-hostname"));
        assert!(!format!("{bootstrap:?} {seed:?}").contains("canary"));
    }

    #[test]
    fn an_ignition_configuration_goes_where_ignition_reads_it() {
        let text = "{\"ignition\": {\"version\": \"3.4.0\"}}";
        let data = [("userData".to_owned(), ByteString(text.into()))].into();
        let secret = Bootstrap::secret(&Secret { data: Some(data), ..Secret::default() });
        let mut vm = vm();
        vm.spec.bootstrap.as_mut().expect("it has one").user_data = Some(text.into());
        for bootstrap in [secret, Bootstrap::inline(&vm)] {
            let seed = seed(&vm, "i-1", &bootstrap);
            assert_eq!((seed.ignition.as_deref(), seed.user_data.as_str()), (Some(text), "#cloud-config\n"));
            assert!(!format!("{seed:?}").contains("3.4.0"), "it may hold secrets");
        }
    }

    #[test]
    fn a_digest_differs_with_what_a_person_changes() {
        let first = vm();
        let mut others = [vm(), vm(), vm()];
        let bootstrap = |vm: &mut VM| vm.spec.bootstrap.clone().expect("it has one");
        let [a, b, c] = &mut others;
        a.spec.bootstrap =
            Some(berth_api::vm::Bootstrap { user_data: Some("#!/bin/sh".into()), ..bootstrap(a) });
        b.spec.bootstrap = Some(berth_api::vm::Bootstrap { ssh_authorized_keys: Vec::new(), ..bootstrap(b) });
        c.spec.bootstrap = Some(berth_api::vm::Bootstrap { hostname: Some("other".into()), ..bootstrap(c) });
        let of = |vm: &VM| digest(vm, &Bootstrap::Inline);
        assert_eq!(of(&first), of(&vm()));
        assert!(others.iter().all(|other| of(other) != of(&first)));
    }

    #[test]
    fn user_data_that_is_no_yaml_is_unusable_wherever_it_stands() {
        let data = [("userData".to_owned(), ByteString("#cloud-config\na: b: c\n".into()))].into();
        let secret = Bootstrap::secret(&Secret { data: Some(data), ..Secret::default() });
        let mut vm = vm();
        vm.spec.bootstrap.as_mut().expect("it has one").user_data = Some("#cloud-config\n- a\n".into());
        for (found, place) in [(secret, "line 2, column 5"), (Bootstrap::inline(&vm), "line 2")] {
            assert!(matches!(&found, Bootstrap::Unusable(text) if text.contains(place)), "{place}");
        }
    }

    #[test]
    fn a_secret_that_is_no_text_is_unusable() {
        let data = [("userData".to_owned(), ByteString(vec![0xff, 0xfe]))].into();
        let bootstrap = Bootstrap::secret(&Secret { data: Some(data), ..Secret::default() });
        assert!(matches!(bootstrap, Bootstrap::Unusable(_)));
    }
}
