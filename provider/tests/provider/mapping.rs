//! From a configuration to the object that is declared, and back: a VM, and rules for all kinds.

mod kinds;

use serde_json::{Value as Json, json};
use terraform_provider_berth::{
    BerthProvider,
    field::{Field, Source},
    mapping::{PinnedFields, from_object, pinned_fields, refresh, same, to_spec},
    planning::plan,
};
use tfplugin6::Value;

use crate::stage::value;

fn spec_of(type_name: &str, config: &Json) -> Json {
    let provider = BerthProvider::default();
    let kind = provider.kinds().iter().find(|kind| kind.info().type_name == type_name).expect("a kind");
    let (fields, config) = (kind.fields(), value(config));
    let planned = plan(fields, &Value::Null, &config);
    let spec = Json::Object(to_spec(fields, &planned, &config, &PinnedFields::new()));

    // And back: the values observed in that object mean the same as the planned ones.
    let object = json!({"spec": spec});
    let observed = Value::Map(from_object(fields, &object));
    for field in fields.iter().filter(|field| matches!(field.source, Source::Spec(_))) {
        let (planned, observed) = (planned.get(field.name), observed.get(field.name));
        let local = field.name == "bootstrap";
        let undecided = !planned.is_wholly_known();
        assert!(
            local || undecided || same(&field.shape, field.meant(planned), field.meant(observed)),
            "{}: {planned:?} {observed:?}",
            field.name
        );
    }
    spec
}

#[test]
fn a_vm_becomes_the_custom_resource() {
    let config = json!({
        "name": "web", "class": "small", "disks": [{"name": "root", "boot": true}, {"name": "data", "bus": "sata"}],
        "pci_devices": [{"name": "gpu-a100"}, {"name": "nic", "count": 2}],
        "usb_devices": [{"name": "licence-key"}],
        "vgpus": [{"name": "a40-8q", "count": 2}],
        "shares": [{"name": "media", "tag": "films", "read_only": true}, {"name": "data"}],
        "memory": "1Gi", "huge_pages": "1Gi", "dedicated_cpu_placement": true, "secure_boot_keys": {"secret_name": "boot", "token": "1"}, "tpm": true, "cdroms": [{"image": "debian-netinst"}, {"name": "drivers", "connected": false, "boot_first": true, "guest_can_eject": false}],
        "network_interfaces": [{"public_ip": "web"}, {"name": "lan", "network": "lan", "mac_address": "52:54:00:AB:CD:EF", "model": "rtl8139", "link": "Down"}],
        "placement": {"group": "web", "host_selector": {"disk": "ssd"}, "move_policy": "WhenStopped", "affinity": [{"name": "db", "vm_selector": {"app": "db"}, "strategy": "pack"}]},
        "bootstrap": {"ssh_authorized_keys": ["ssh-rsa A b\n"], "hostname": "www", "domain": "example.org",
            "network_config": "version: 2\n", "meta_data": "role: db\n"},
        "guest_users": [{"name": "debian", "ssh_authorized_keys": ["ssh-rsa  A b\n"]}, {"name": "ops", "ssh_authorized_keys_secret": "keys", "password_secret": "passwords"}],
        "guest_agent": {"policy": "Upgrade"}, "stop": {"grace_period_seconds": 5}, "restart_mode": "Soft", "start_order": 3, "vm_group": "app",
        "hooks": {"pre_stop": {"exec": {"command": ["systemctl", "stop", "web"]}, "failure_policy": "Fail"}},
        "readiness_probe": {"http_get": {"port": 8080}, "timeout_seconds": 2},
        "liveness_probe": {"exec": {"command": ["systemctl", "is-active", "web"]}}, "uuid": "7F2F6D5E-5C1F-4C39-9D3A-0D8C5F1B2A3C",
    });
    insta::assert_json_snapshot!(spec_of("berth_vm", &config), @r#"
    {
      "bootstrap": {
        "domain": "example.org",
        "hostname": "www",
        "metaData": "role: db",
        "networkConfig": "version: 2",
        "sshAuthorizedKeys": [
          "ssh-rsa A b"
        ]
      },
      "cdroms": [
        {
          "bootFirst": false,
          "connected": true,
          "guestCanEject": true,
          "image": "debian-netinst",
          "name": "cdrom0"
        },
        {
          "bootFirst": true,
          "connected": false,
          "guestCanEject": false,
          "name": "drivers"
        }
      ],
      "class": "small",
      "dedicatedCpuPlacement": true,
      "deletionProtection": false,
      "disks": [
        {
          "boot": true,
          "bus": "virtio-scsi",
          "name": "root",
          "readOnly": false
        },
        {
          "boot": false,
          "bus": "sata",
          "name": "data",
          "readOnly": false
        }
      ],
      "graphics": "None",
      "guestAgent": {
        "policy": "Upgrade"
      },
      "guestUsers": [
        {
          "name": "debian",
          "sshAuthorizedKeys": [
            "ssh-rsa A b"
          ]
        },
        {
          "name": "ops",
          "passwordSecret": "passwords",
          "sshAuthorizedKeysSecret": "keys"
        }
      ],
      "hooks": {
        "preStop": {
          "exec": {
            "command": [
              "systemctl",
              "stop",
              "web"
            ]
          },
          "failurePolicy": "Fail",
          "timeoutSeconds": 30
        }
      },
      "hugePages": "1Gi",
      "livenessProbe": {
        "exec": {
          "command": [
            "systemctl",
            "is-active",
            "web"
          ]
        },
        "failureThreshold": 3,
        "initialDelaySeconds": 0,
        "periodSeconds": 10,
        "successThreshold": 1,
        "timeoutSeconds": 1
      },
      "memory": "1Gi",
      "networkInterfaces": [
        {
          "link": "Up",
          "name": "nic0",
          "network": "default",
          "publicIP": "web"
        },
        {
          "link": "Down",
          "macAddress": "52:54:00:ab:cd:ef",
          "model": "rtl8139",
          "name": "lan",
          "network": "lan"
        }
      ],
      "pciDevices": [
        {
          "count": 1,
          "name": "gpu-a100"
        },
        {
          "count": 2,
          "name": "nic"
        }
      ],
      "placement": {
        "affinity": [
          {
            "enforcement": "required",
            "name": "db",
            "strategy": "pack",
            "topologyKey": "kubernetes.io/hostname",
            "vmSelector": {
              "app": "db"
            }
          }
        ],
        "group": "web",
        "hostSelector": {
          "disk": "ssd"
        },
        "movePolicy": "WhenStopped"
      },
      "power": "Running",
      "readinessProbe": {
        "failureThreshold": 3,
        "httpGet": {
          "path": "/",
          "port": 8080
        },
        "initialDelaySeconds": 0,
        "periodSeconds": 10,
        "successThreshold": 1,
        "timeoutSeconds": 2
      },
      "restartMode": "Soft",
      "restartPolicy": "OnFailure",
      "secureBootKeys": {
        "secretName": "boot",
        "token": "1"
      },
      "shares": [
        {
          "name": "media",
          "readOnly": true,
          "tag": "films"
        },
        {
          "name": "data",
          "readOnly": false
        }
      ],
      "sound": false,
      "startDelaySeconds": 0,
      "startOrder": 3,
      "stop": {
        "gracePeriodSeconds": 5,
        "mode": "Graceful"
      },
      "suspendMode": "Disk",
      "tpm": true,
      "usbDevices": [
        {
          "count": 1,
          "name": "licence-key"
        }
      ],
      "uuid": "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c",
      "vgpus": [
        {
          "count": 2,
          "name": "a40-8q"
        }
      ],
      "vmGroup": "app",
      "vsock": false
    }
    "#);
    let smallest = json!({"name": "web", "class": "small", "disks": [{"name": "root", "boot": true}]});
    let interfaces = spec_of("berth_vm", &smallest)["networkInterfaces"].clone();
    assert_eq!(interfaces, json!([{"name": "nic0", "network": "default", "link": "Up"}]));
}

#[test]
fn what_was_declared_is_held_and_what_was_only_decided_is_not() {
    let provider = BerthProvider::default();
    let kind = provider.kinds().iter().find(|kind| kind.info().type_name == "berth_vm").expect("a kind");
    let object = json!({"spec": {"networkInterfaces": [{"name": "a", "macAddress": "52:54:00:00:00:01"}, {"name": "b"}]}});
    let found: Vec<String> = pinned_fields(kind.fields(), &object).into_iter().collect();
    assert_eq!(found, ["network_interfaces[a].mac_address"]);
}

#[test]
fn a_refresh_keeps_the_words_and_the_order_of_the_state() {
    let provider = BerthProvider::default();
    let kind = provider.kinds().iter().find(|kind| kind.info().type_name == "berth_vm").expect("a kind");
    let prior = value(
        &json!({"disks": [{"name": "b", "boot": true}, {"name": "a", "boot": false}], "placement": null,
        "bootstrap": {"ssh_authorized_keys": ["ssh-rsa A\n"]}}),
    );
    let object = json!({"spec": {"disks": [{"name": "a", "boot": false}, {"name": "c", "boot": false}, {"name": "b", "boot": true}],
        "placement": {}, "bootstrap": {"sshAuthorizedKeys": ["ssh-rsa A"]}}});
    let state = Value::Map(refresh(kind.fields(), &prior, &from_object(kind.fields(), &object)));
    let names: Vec<_> =
        state.get("disks").elements().iter().filter_map(|disk| disk.get("name").as_str()).collect();
    assert_eq!(names, ["b", "a", "c"]);
    assert!(state.get("placement").is_null());
    assert_eq!(state.get("bootstrap").get("ssh_authorized_keys").index(0).as_str(), Some("ssh-rsa A\n"));
}

/// Fields of a spec that are no attributes: user data and its checksum have attributes of their own, the others are for
/// `berth host`.
const NOT_DECLARED: [&str; 11] = [
    "VM.bootstrap.userData",
    "VM.bootstrap.checksum",
    // Always refused.
    "VM.disks.template.access",
    "VM.disks.template.deletionProtection",
    "VM.disks.template.importedFrom",
    "VM.disks.template.placement",
    "VM.disks.template.restore",
    "VM.disks.template.sharedWith",
    "Host.fenced",
    "Host.recovery",
    "Host.releasedOrphans",
];

fn find_undeclared(schema: &Json, fields: &[Field], at: &str, found: &mut Vec<String>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}.{key}");
        let field = fields.iter().find(|field| matches!(&field.source, Source::Spec(own) if own == key));
        let Some(field) = field else {
            found.push(path);
            continue;
        };
        let inner = if property["items"].is_object() { &property["items"] } else { property };
        find_undeclared(inner, field.children(), &path, found);
    }
}

#[test]
fn every_field_of_every_spec_is_an_attribute_of_its_resource() {
    let provider = BerthProvider::default();
    let mut undeclared = Vec::new();
    for definition in berth_api::manifests::crds() {
        let kind = definition["spec"]["names"]["kind"].as_str().expect("it has a name");
        let resource = provider.kinds().iter().find(|resource| resource.info().kind == kind);
        let resource = resource.unwrap_or_else(|| panic!("no resource for {kind}"));
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        find_undeclared(spec, resource.fields(), kind, &mut undeclared);
    }
    undeclared.sort_unstable();
    let mut expected = NOT_DECLARED.to_vec();
    expected.sort_unstable();
    assert_eq!(undeclared, expected);
}
