//! Content of the bootstrap volume (cloud-init NoCloud). Pure. May contain secrets: never printed.

use std::fmt;

use berth_api::VM;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::networking::guest_name;
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
        meta_data: Map<String, Value>,
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
        let (user_data, meta_data, network_config) =
            (text("userData"), text("metaData"), text("networkConfig"));
        if let Some(unusable) = unusable {
            return Self::Unusable(unusable);
        }
        let checked = network_config.as_deref().map_or(Ok(()), berth_api::user_data::check_network_config);
        let meta_data = match checked.and_then(|()| mapping(meta_data.as_deref().unwrap_or_default())) {
            Ok(meta_data) => meta_data,
            Err(error) => return Self::Unusable(format!("the bootstrap Secret: {error}")),
        };
        let found = Self::Secret { user_data, meta_data, network_config };
        match &found {
            Self::Secret { user_data: Some(user_data), .. } => {
                let checked = berth_api::user_data::check(user_data);
                checked.map_or_else(|error| Self::Unusable(format!("user data: {error}")), |()| found)
            }
            _ => found,
        }
    }

    /// Returns the data, unless a text of the VM's spec beside it is unusable.
    pub(crate) fn beside_spec(self, vm: &VM) -> Self {
        let Some(spec) = &vm.spec.bootstrap else { return self };
        let network_config = spec.network_config.as_deref();
        let checked = network_config.map_or(Ok(()), berth_api::user_data::check_network_config);
        match checked.and_then(|()| mapping(spec.meta_data.as_deref().unwrap_or_default())) {
            Ok(_) => self,
            Err(error) => Self::Unusable(format!("bootstrap: {error}")),
        }
    }

    /// Returns the bootstrap data of the VM's spec.
    pub(crate) fn inline(vm: &VM) -> Self {
        let user_data = vm.spec.bootstrap.as_ref().and_then(|b| b.user_data.as_deref()).unwrap_or_default();
        let checked = berth_api::user_data::check(user_data);
        checked.map_or_else(|error| Self::Unusable(format!("user data: {error}")), |()| Self::Inline)
    }
}

/// Reads meta-data. An empty text has no keys.
fn mapping(text: &str) -> Result<Map<String, Value>, String> {
    berth_api::user_data::check_meta_data(text)?;
    // The parser's words may quote the text.
    let parsed = serde_saphyr::from_str::<Option<Map<String, Value>>>(text);
    parsed.map(Option::unwrap_or_default).map_err(|_| "the meta-data cannot be read as a mapping".to_owned())
}

/// Returns the seed of a VM. YAML is written as JSON, which is a subset of YAML. Ignition does not read such a volume:
/// its configuration is passed separately.
pub(super) fn seed(vm: &VM, cloud_instance: &str, bootstrap: &Bootstrap) -> Seed {
    let mut meta_data = own_meta_data(vm, cloud_instance);
    meta_data.extend(declared_meta_data(vm, bootstrap));
    let (ignition, user) = match user_data(vm, bootstrap) {
        Some(text) if berth_api::user_data::is_ignition(text) => (Some(text.to_owned()), None),
        text => (None, text.map(str::to_owned)),
    };
    Seed {
        user_data: user.unwrap_or_else(|| "#cloud-config\n".to_owned()),
        meta_data: pretty(&Value::Object(meta_data)),
        network_config: declared_network_config(vm, bootstrap)
            .map_or_else(|| own_network_config(vm), str::to_owned),
        ignition,
    }
}

fn user_data<'a>(vm: &'a VM, bootstrap: &'a Bootstrap) -> Option<&'a str> {
    match bootstrap {
        Bootstrap::Secret { user_data, .. } => user_data.as_deref(),
        _ => vm.spec.bootstrap.as_ref()?.user_data.as_deref(),
    }
}

/// The meta-data of the Secret and of the VM's spec, which comes first.
fn declared_meta_data(vm: &VM, bootstrap: &Bootstrap) -> Map<String, Value> {
    let mut declared = match bootstrap {
        Bootstrap::Secret { meta_data, .. } => meta_data.clone(),
        _ => Map::new(),
    };
    let text = vm.spec.bootstrap.as_ref().and_then(|b| b.meta_data.as_deref());
    declared.extend(mapping(text.unwrap_or_default()).unwrap_or_default());
    declared
}

fn declared_network_config<'a>(vm: &'a VM, bootstrap: &'a Bootstrap) -> Option<&'a str> {
    let of_secret = match bootstrap {
        Bootstrap::Secret { network_config, .. } => network_config.as_deref(),
        _ => None,
    };
    vm.spec.bootstrap.as_ref().and_then(|b| b.network_config.as_deref()).or(of_secret)
}

/// Returns a digest of the bootstrap data, over the parts a person changes to have a guest configure itself again.
pub(super) fn digest(vm: &VM, bootstrap: &Bootstrap) -> String {
    let keys = vm.spec.bootstrap.as_ref().map(|b| b.ssh_authorized_keys.as_slice()).unwrap_or_default();
    let mut whole = vec![json!(user_data(vm, bootstrap)), json!(keys), json!(guest_name(vm))];
    let (meta_data, network_config) =
        (declared_meta_data(vm, bootstrap), declared_network_config(vm, bootstrap));
    // Without them the digest is the one that earlier versions have recorded.
    if !meta_data.is_empty() || network_config.is_some() {
        whole.push(json!([meta_data, network_config]));
    }
    let whole = Value::Array(whole);
    Sha256::digest(whole.to_string()).iter().map(|b| format!("{b:02x}")).collect()
}

fn own_meta_data(vm: &VM, cloud_instance: &str) -> Map<String, Value> {
    let keys = vm.spec.bootstrap.as_ref().map(|b| b.ssh_authorized_keys.clone()).unwrap_or_default();
    let own = [
        ("instance-id", json!(cloud_instance)),
        ("local-hostname", json!(guest_name(vm))),
        ("public-keys", json!(keys)),
    ];
    own.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
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

    fn secret(entries: &[(&str, &str)]) -> Bootstrap {
        let data =
            entries.iter().map(|(key, text)| ((*key).to_owned(), ByteString((*text).into()))).collect();
        Bootstrap::secret(&Secret { data: Some(data), ..Secret::default() })
    }

    #[test]
    fn declared_meta_data_is_added_to_what_berth_generates() {
        let mut vm = vm();
        let spec = vm.spec.bootstrap.as_mut().expect("it has one");
        spec.domain = Some("example.org".to_owned());
        spec.meta_data = Some("role: db\n".to_owned());
        spec.network_config = Some("version: 2\nethernets: {}\n".to_owned());
        let of_secret =
            secret(&[("metaData", "role: web\nrack: {row: 7}\n"), ("networkConfig", "version: 1\n")]);
        let seed = seed(&vm, "i-1", &of_secret);
        let meta: Value = serde_json::from_str(&seed.meta_data).expect("JSON");
        assert_eq!(
            meta,
            json!({"instance-id": "i-1", "local-hostname": "web.example.org",
                "public-keys": ["ssh-ed25519 AAAA me"], "role": "db", "rack": {"row": 7}})
        );
        assert_eq!(seed.network_config, "version: 2\nethernets: {}\n");
        vm.spec.bootstrap.as_mut().expect("it has one").meta_data = Some("instance-id: mine\n".to_owned());
        let meta: Value =
            serde_json::from_str(&super::seed(&vm, "i-1", &Bootstrap::Inline).meta_data).expect("JSON");
        assert_eq!(meta["instance-id"], "mine");
    }

    #[test]
    fn meta_data_or_a_network_configuration_that_no_guest_can_read_is_unusable() {
        for (key, text) in
            [("metaData", "canary"), ("metaData", "a: b: c\n"), ("networkConfig", "ethernets: {}\n")]
        {
            assert!(
                matches!(secret(&[(key, text)]), Bootstrap::Unusable(why) if !why.contains("canary")),
                "{text}"
            );
            let mut vm = vm();
            let spec = vm.spec.bootstrap.as_mut().expect("it has one");
            let field = if key == "metaData" { &mut spec.meta_data } else { &mut spec.network_config };
            *field = Some(text.to_owned());
            let found = Bootstrap::inline(&vm).beside_spec(&vm);
            assert!(matches!(found, Bootstrap::Unusable(why) if !why.contains("canary")), "{text}");
        }
        assert!(Bootstrap::inline(&vm()).beside_spec(&vm()) == Bootstrap::Inline);
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
        let mut others = [vm(), vm(), vm(), vm(), vm(), vm()];
        let bootstrap = |vm: &mut VM| vm.spec.bootstrap.clone().expect("it has one");
        let [a, b, c, d, e, f] = &mut others;
        a.spec.bootstrap =
            Some(berth_api::vm::Bootstrap { user_data: Some("#!/bin/sh".into()), ..bootstrap(a) });
        b.spec.bootstrap = Some(berth_api::vm::Bootstrap { ssh_authorized_keys: Vec::new(), ..bootstrap(b) });
        c.spec.bootstrap = Some(berth_api::vm::Bootstrap { hostname: Some("other".into()), ..bootstrap(c) });
        let text = |text: &str| Some(text.to_owned());
        d.spec.bootstrap = Some(berth_api::vm::Bootstrap { domain: text("example.org"), ..bootstrap(d) });
        e.spec.bootstrap = Some(berth_api::vm::Bootstrap { meta_data: text("a: 1"), ..bootstrap(e) });
        f.spec.bootstrap =
            Some(berth_api::vm::Bootstrap { network_config: text("version: 2"), ..bootstrap(f) });
        let of = |vm: &VM| digest(vm, &Bootstrap::Inline);
        assert_eq!(of(&first), of(&vm()));
        let earlier = "[null,[\"ssh-ed25519 AAAA me\"],\"web\"]";
        let earlier: String = Sha256::digest(earlier).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(of(&first), earlier, "another digest makes cloud-init run again after an upgrade");
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
