//! The bootstrap volume's content (cloud-init NoCloud). Pure. May hold secrets: nothing of it is ever printed.

use std::fmt;

use berth_api::VM;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};

use crate::network::hostname;
use crate::system::Seed;

/// cloud-init itself takes more; a volume of text this large is a mistake.
const MAX_USER_DATA: usize = 1 << 20;

/// Where a VM's bootstrap data comes from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Bootstrap {
    /// The VM is not about to start.
    NotLooked,
    /// Nothing but what the VM itself says.
    Inline,
    /// The Secret of this name is not there yet.
    Missing(String),
    Secret {
        user_data: Option<String>,
        meta_data: Option<String>,
        network_config: Option<String>,
    },
    /// No text, or no user data that a guest could use.
    Unusable(String),
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotLooked => "NotLooked",
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

    /// What the VM itself says.
    pub(crate) fn inline(vm: &VM) -> Self {
        let user_data = vm.spec.bootstrap.as_ref().and_then(|b| b.user_data.as_deref()).unwrap_or_default();
        let checked = berth_api::user_data::check(user_data);
        checked.map_or_else(|error| Self::Unusable(format!("user data: {error}")), |()| Self::Inline)
    }
}

/// The seed of a VM. YAML is written as JSON, which is YAML.
pub(super) fn seed(vm: &VM, instance: &str, bootstrap: &Bootstrap) -> Seed {
    let (user, meta, network) = match bootstrap {
        Bootstrap::Secret { user_data, meta_data, network_config } => {
            (user_data.clone(), meta_data.clone(), network_config.clone())
        }
        _ => (vm.spec.bootstrap.as_ref().and_then(|b| b.user_data.clone()), None, None),
    };
    Seed {
        user_data: user.unwrap_or_else(|| "#cloud-config\n".to_owned()),
        meta_data: meta.unwrap_or_else(|| own_meta_data(vm, instance)),
        network_config: network.unwrap_or_else(|| own_network_config(vm)),
    }
}

fn own_meta_data(vm: &VM, instance: &str) -> String {
    let keys = vm.spec.bootstrap.as_ref().map(|b| b.ssh_authorized_keys.clone()).unwrap_or_default();
    pretty(&json!({"instance-id": instance, "local-hostname": hostname(vm), "public-keys": keys}))
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
