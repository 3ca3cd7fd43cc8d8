//! The content of seeds.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
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
    let seed = seed(&vm(), "i-1", &inline(&vm()), &BTreeMap::new(), &[]);
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
      "ethernets": {
        "nic0": {
          "dhcp4": true,
          "match": {
            "macaddress": "52:54:00:aa:00:01"
          }
        }
      },
      "version": 2
    }
    "#);
}

#[test]
fn an_interface_with_an_ipv6_address_gets_it_by_dhcp() {
    let mut vm = vm();
    vm.status.as_mut().expect("it has one").interfaces[0].ipv6_address = "fd00:60::2".to_owned();
    let text = seed(&vm, "i-1", &inline(&vm), &BTreeMap::new(), &[]).network_config;
    let config = serde_json::from_str::<Value>(&text).expect("JSON")["ethernets"]["nic0"].clone();
    assert_eq!((&config["dhcp4"], &config["dhcp6"]), (&json!(true), &json!(true)));
}

#[test]
fn on_a_bridge_the_guest_gets_its_address_without_dhcp_unless_another_server_gives_it_out() {
    let lan = |spec| {
        let network = json!({"metadata": {"name": "b", "namespace": "a"}, "spec": spec});
        let network: Network = serde_json::from_value(network).expect("a Network");
        BTreeMap::from([("a/b".to_owned(), Lan::of(&network).expect("a bridge"))])
    };
    let bridge = json!({"name": "vmbr0"});
    let fixed = lan(json!({"type": "Bridge", "bridge": bridge, "cidr": "10.0.0.0/24", "dns": ["10.0.0.53"],
        "mtu": 9000, "ipv4": {"gateway": "10.0.0.1"}}));
    let config = |lans| {
        let text = seed(&vm(), "i-1", &inline(&vm()), &lans, &[]).network_config;
        serde_json::from_str::<Value>(&text).expect("JSON")["ethernets"]["nic0"].clone()
    };
    assert_eq!(
        config(fixed),
        json!({"match": {"macaddress": "52:54:00:aa:00:01"}, "dhcp4": false, "addresses": ["10.0.0.2/24"],
            "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}], "nameservers": {"addresses": ["10.0.0.53"]},
            "mtu": 9000})
    );
    let external = lan(json!({"type": "Bridge", "bridge": bridge, "ipv4": {"allocation": "External"}}));
    assert_eq!(config(external), json!({"match": {"macaddress": "52:54:00:aa:00:01"}, "dhcp4": true}));
}

#[test]
fn on_a_bridge_an_interface_has_routes_routers_and_a_largest_packet_of_its_own() {
    let network = json!({"metadata": {"name": "b", "namespace": "a"}, "spec": {"type": "Bridge", "bridge": {"name": "vmbr0"},
        "cidr": "10.0.0.0/24", "ipv4": {"gateway": "10.0.0.1"}, "ipv6CIDR": "2001:db8:7::/64", "ipv6": {"gateway": "fe80::1"},
        "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.0.0.9"}]}});
    let network: Network = serde_json::from_value(network).expect("a Network");
    let lans = BTreeMap::from([("a/b".to_owned(), Lan::of(&network).expect("a bridge"))]);
    let mut vm = vm();
    let own = json!({"name": "nic0", "network": "a/b", "macAddress": "52:54:00:aa:00:01", "address": "10.0.0.2",
        "ipv6Address": "2001:db8:7::2", "gateway": "10.0.0.8", "ipv6Gateway": "fe80::8", "mtu": 1400,
        "routes": [{"to": "192.168.0.0/16", "via": "10.0.0.7"}, {"to": "fd09::/48", "via": "2001:db8:7::7"}]});
    vm.status.as_mut().expect("it has one").interfaces[0] =
        serde_json::from_value(own).expect("an interface");
    let text = seed(&vm, "i-1", &inline(&vm), &lans, &[]).network_config;
    let config = serde_json::from_str::<Value>(&text).expect("JSON")["ethernets"]["nic0"].clone();
    assert_eq!(
        config["routes"],
        json!([{"to": "0.0.0.0/0", "via": "10.0.0.8"}, {"to": "192.168.0.0/16", "via": "10.0.0.7"},
            {"to": "::/0", "via": "fe80::8"}, {"to": "fd09::/48", "via": "2001:db8:7::7"}])
    );
    assert_eq!(config["mtu"], 1400);
}

#[test]
fn without_dhcp_the_guest_of_an_overlay_gets_all_of_a_lease_by_its_configuration_and_the_name_of_its_card() {
    let mut vm = vm();
    let interface = &mut vm.status.as_mut().expect("it has one").interfaces[0];
    interface.ipv6_address = "fd00:60::2".to_owned();
    interface.guest_name = Some("lan0".to_owned());
    let config = |own: Value| {
        let mut config = json!({"name": "nic0", "addresses": ["10.0.0.2/24", "fd00:60::2/64"], "gateways": ["10.0.0.1"],
            "dns": ["10.0.0.1", "fd00:60::1"], "searchDomains": ["app.internal"],
            "routes": [{"to": "192.168.0.0/16", "via": "10.0.0.9"}], "mtu": 1450});
        config.as_object_mut().expect("an object").extend(own.as_object().cloned().unwrap_or_default());
        let config: InterfaceConfig = serde_json::from_value(config).expect("a configuration");
        let text = seed(&vm, "i-1", &inline(&vm), &BTreeMap::new(), &[config]).network_config;
        serde_json::from_str::<Value>(&text).expect("JSON")["ethernets"]["nic0"].clone()
    };
    let card = json!({"macaddress": "52:54:00:aa:00:01"});
    assert_eq!(
        config(json!({"dhcp4": false, "dhcp6": false})),
        json!({"match": card, "set-name": "lan0", "dhcp4": false, "dhcp6": false, "accept-ra": false,
            "addresses": ["10.0.0.2/24", "fd00:60::2/64"],
            "nameservers": {"addresses": ["10.0.0.1", "fd00:60::1"], "search": ["app.internal"]},
            "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}, {"to": "192.168.0.0/16", "via": "10.0.0.9"}],
            "mtu": 1450})
    );
    assert_eq!(
        config(json!({"dhcp6": false})),
        json!({"match": card, "set-name": "lan0", "dhcp4": true, "dhcp6": false, "accept-ra": false,
            "addresses": ["fd00:60::2/64"],
            "nameservers": {"addresses": ["fd00:60::1"], "search": ["app.internal"]}, "mtu": 1450})
    );
    assert_eq!(config(json!({})), json!({"match": card, "set-name": "lan0", "dhcp4": true, "dhcp6": true}));
    let routes =
        json!([{"to": "192.168.0.0/16", "via": "10.0.0.9"}, {"to": "fd09::/48", "via": "fd00:60::9"}]);
    assert_eq!(
        config(json!({"routes": routes})),
        json!({"match": card, "set-name": "lan0", "dhcp4": true, "dhcp6": true,
            "routes": [{"to": "fd09::/48", "via": "fd00:60::9"}]}),
        "beside both leases"
    );
    assert_eq!(
        config(json!({"ipv6Autoconfiguration": true})),
        json!({"match": card, "set-name": "lan0", "dhcp4": true, "dhcp6": false, "accept-ra": true})
    );
}

#[test]
fn without_ipv4_the_guest_asks_for_an_ipv6_address_only() {
    let mut vm = vm();
    let interface = &mut vm.status.as_mut().expect("it has one").interfaces[0];
    (interface.address, interface.ipv6_address) = (String::new(), "fd00:60::2".to_owned());
    let text = seed(&vm, "i-1", &inline(&vm), &BTreeMap::new(), &[]).network_config;
    let config = serde_json::from_str::<Value>(&text).expect("JSON")["ethernets"]["nic0"].clone();
    assert_eq!((&config["dhcp4"], &config["dhcp6"]), (&json!(false), &json!(true)));
}

#[test]
fn on_a_bridge_the_guest_gets_its_ipv6_address_and_router_or_listens_to_the_networks_routers() {
    let config = |ipv6_address: &str, spec: Value| {
        let network = json!({"metadata": {"name": "b", "namespace": "a"}, "spec": spec});
        let network: Network = serde_json::from_value(network).expect("a Network");
        let lans = BTreeMap::from([("a/b".to_owned(), Lan::of(&network).expect("a bridge"))]);
        let mut vm = vm();
        let interface = &mut vm.status.as_mut().expect("it has one").interfaces[0];
        interface.ipv6_address = ipv6_address.to_owned();
        if network.range().is_none() {
            interface.address = String::new();
        }
        let text = seed(&vm, "i-1", &inline(&vm), &lans, &[]).network_config;
        serde_json::from_str::<Value>(&text).expect("JSON")["ethernets"]["nic0"].clone()
    };
    let (mac, bridge) = (json!({"macaddress": "52:54:00:aa:00:01"}), json!({"name": "vmbr0"}));
    let both = json!({"type": "Bridge", "bridge": bridge, "cidr": "10.0.0.0/24",
        "ipv6CIDR": "2001:db8:7::/64", "ipv6": {"gateway": "fe80::1"},
        "routes": [{"name": "office", "to": "fd09::/48", "via": "2001:db8:7::9"},
            {"name": "itself", "to": "fd0a::/48", "via": "2001:db8:7::32"}]});
    assert_eq!(
        config("2001:db8:7::32", both),
        json!({"match": mac, "dhcp4": false, "dhcp6": false, "accept-ra": false,
            "addresses": ["10.0.0.2/24", "2001:db8:7::32/64"], "routes": [{"to": "::/0", "via": "fe80::1"}, {"to": "fd09::/48", "via": "2001:db8:7::9"}]})
    );
    let only = json!({"type": "Bridge", "bridge": bridge, "ipv6": {"allocation": "External"}});
    assert_eq!(config("", only), json!({"match": mac, "dhcp4": false, "accept-ra": true}));
    let mixed = json!({"type": "Bridge", "bridge": bridge, "ipv4": {"allocation": "External"},
        "ipv6": {"allocation": "External"}});
    assert_eq!(config("", mixed), json!({"match": mac, "dhcp4": true, "accept-ra": true}));
}

#[test]
fn on_a_bridge_the_guest_gets_the_routes_and_domains_of_the_network_unless_its_interface_has_its_own() {
    let network = json!({"metadata": {"name": "b", "namespace": "a"}, "spec": {"type": "Bridge",
        "bridge": {"name": "vmbr0"}, "cidr": "10.0.0.0/24", "dns": ["10.0.0.53"],
        "searchDomains": ["example.org"], "ipv4": {"gateway": "10.0.0.1"},
        "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.0.0.9"},
            {"name": "itself", "to": "172.16.0.0/12", "via": "10.0.0.2"}]}});
    let network: Network = serde_json::from_value(network).expect("a Network");
    let lans = BTreeMap::from([("a/b".to_owned(), Lan::of(&network).expect("a bridge"))]);
    let config = |own: Value| {
        let mut vm = serde_json::to_value(vm()).expect("JSON");
        let interface = vm["status"]["interfaces"][0].as_object_mut().expect("an interface");
        interface.extend(own.as_object().cloned().unwrap_or_default());
        let vm: VM = serde_json::from_value(vm).expect("a VM");
        let text = seed(&vm, "i-1", &inline(&vm), &lans, &[]).network_config;
        let config = serde_json::from_str::<Value>(&text).expect("JSON")["ethernets"]["nic0"].clone();
        (config["routes"].clone(), config["nameservers"].clone())
    };
    let office = json!({"to": "192.168.0.0/16", "via": "10.0.0.9"});
    assert_eq!(
        config(json!({})),
        (
            json!([{"to": "0.0.0.0/0", "via": "10.0.0.1"}, office]),
            json!({"addresses": ["10.0.0.53"], "search": ["example.org"]})
        )
    );
    let own = json!({"defaultRoute": false, "dns": ["9.9.9.9"], "searchDomains": ["db.example.org"]});
    assert_eq!(
        config(own),
        (json!([office]), json!({"addresses": ["9.9.9.9"], "search": ["db.example.org"]}))
    );
}

#[test]
fn what_the_secret_says_replaces_what_we_would_write_and_is_never_printed() {
    let bootstrap = secret(&[("userData", "canary"), ("networkConfig", "version: 1")]);
    let seed = seed(&vm(), "i-1", &bootstrap, &BTreeMap::new(), &[]);
    assert_eq!((seed.user_data.as_str(), seed.network_config.as_str()), ("canary", "version: 1"));
    assert!(seed.meta_data.contains("local-hostname"));
    assert!(!format!("{bootstrap:?} {seed:?}").contains("canary"));
}

fn secret_of(entries: &[(&str, &str)]) -> Secret {
    let data = entries.iter().map(|(key, text)| ((*key).to_owned(), ByteString((*text).into()))).collect();
    Secret { data: Some(data), ..Secret::default() }
}

fn secret(entries: &[(&str, &str)]) -> Bootstrap {
    Bootstrap::of(&vm(), Some(&secret_of(entries)), None)
}

fn inline(vm: &VM) -> Bootstrap {
    Bootstrap::of(vm, None, None)
}

#[test]
fn the_default_user_and_its_password_are_below_the_user_data() {
    let mut vm = vm();
    assert_eq!(seed(&vm, "i-1", &inline(&vm), &BTreeMap::new(), &[]).vendor_data, None);
    let spec = vm.spec.bootstrap.as_mut().expect("it has one");
    (spec.user, spec.password_expires) = (Some("admin".to_owned()), Some(false));
    let data = seed(
        &vm,
        "i-1",
        &secret(&[("password", "$6$salt$hash"), ("userData", "#!/bin/sh\n")]),
        &BTreeMap::new(),
        &[],
    );
    insta::assert_snapshot!(data.vendor_data.expect("there is some"), @r##"
    #cloud-config
    {
      "chpasswd": {
        "expire": false
      },
      "password": "$6$salt$hash",
      "user": {
        "name": "admin"
      }
    }
    "##);
    assert_eq!(data.user_data, "#!/bin/sh\n");
    let hashed = seed(&vm, "i-1", &secret(&[("password", "hunter2")]), &BTreeMap::new(), &[])
        .vendor_data
        .expect("there is some");
    assert!(hashed.contains("$6$rounds=") && !hashed.contains("hunter2"), "{hashed}");
    let other = seed(&vm, "i-2", &secret(&[("password", "hunter2")]), &BTreeMap::new(), &[])
        .vendor_data
        .expect("there is some");
    assert_ne!(hashed, other, "each guest has its own salt");
}

#[test]
fn the_guest_agent_is_installed_by_a_script_beside_the_default_user_and_the_user_data() {
    let mut vm = vm();
    let spec = vm.spec.bootstrap.as_mut().expect("it has one");
    spec.guest_agent = Some(GuestAgentPolicy::Install);
    let data = secret(&[("userData", "#cloud-config\npackages: [nginx]\n")]);
    let alone = seed(&vm, "i-1", &data, &BTreeMap::new(), &[]);
    assert_eq!(alone.user_data, "#cloud-config\npackages: [nginx]\n");
    assert_eq!(alone.vendor_data.as_deref(), Some(INSTALL_AGENT));
    vm.spec.bootstrap.as_mut().expect("it has one").user = Some("admin".to_owned());
    let both = seed(&vm, "i-1", &data, &BTreeMap::new(), &[]).vendor_data.expect("there is some");
    let parts = both.strip_prefix("#cloud-config-archive\n").expect("an archive");
    let parts: Value = serde_json::from_str(parts).expect("JSON");
    assert_eq!(parts[0]["content"], "#cloud-config\n{\n  \"user\": {\n    \"name\": \"admin\"\n  }\n}\n");
    assert_eq!(
        (&parts[1]["type"], &parts[1]["content"]),
        (&json!("text/x-shellscript"), &json!(INSTALL_AGENT))
    );
    let of = |policy| {
        let mut vm = self::vm();
        vm.spec.bootstrap.as_mut().expect("it has one").guest_agent = policy;
        digest(&vm, &inline(&vm))
    };
    assert_eq!(of(Some(GuestAgentPolicy::Skip)), of(None));
    assert_ne!(of(Some(GuestAgentPolicy::Install)), of(None), "the guest configures itself again");
}

#[test]
fn keys_of_a_secret_follow_those_of_the_spec() {
    let keys = secret_of(&[("bob", "ssh-ed25519 BBBB bob\n")]);
    let meta = seed(&vm(), "i-1", &Bootstrap::of(&vm(), None, Some(&keys)), &BTreeMap::new(), &[]).meta_data;
    let meta: Value = serde_json::from_str(&meta).expect("JSON");
    assert_eq!(meta["public-keys"], json!(["ssh-ed25519 AAAA me", "ssh-ed25519 BBBB bob"]));
}

#[test]
fn declared_meta_data_is_added_to_what_berth_generates() {
    let mut vm = vm();
    let spec = vm.spec.bootstrap.as_mut().expect("it has one");
    spec.domain = Some("example.org".to_owned());
    spec.meta_data = Some("role: db\n".to_owned());
    spec.network_config = Some("version: 2\nethernets: {}\n".to_owned());
    let of_secret = secret(&[("metaData", "role: web\nrack: {row: 7}\n"), ("networkConfig", "version: 1\n")]);
    let seed = seed(&vm, "i-1", &of_secret, &BTreeMap::new(), &[]);
    let meta: Value = serde_json::from_str(&seed.meta_data).expect("JSON");
    assert_eq!(
        meta,
        json!({"instance-id": "i-1", "local-hostname": "web.example.org",
            "public-keys": ["ssh-ed25519 AAAA me"], "role": "db", "rack": {"row": 7}})
    );
    assert_eq!(seed.network_config, "version: 2\nethernets: {}\n");
    vm.spec.bootstrap.as_mut().expect("it has one").meta_data = Some("instance-id: mine\n".to_owned());
    let meta: Value =
        serde_json::from_str(&super::seed(&vm, "i-1", &inline(&vm), &BTreeMap::new(), &[]).meta_data)
            .expect("JSON");
    assert_eq!(meta["instance-id"], "mine");
}

#[test]
fn an_ignition_configuration_goes_where_ignition_reads_it() {
    let text = "{\"ignition\": {\"version\": \"3.4.0\"}}";
    let secret = secret(&[("userData", text)]);
    let mut vm = vm();
    vm.spec.bootstrap.as_mut().expect("it has one").user_data = Some(text.into());
    for bootstrap in [secret, inline(&vm)] {
        let seed = seed(&vm, "i-1", &bootstrap, &BTreeMap::new(), &[]);
        assert_eq!((seed.ignition.as_deref(), seed.user_data.as_str()), (Some(text), "#cloud-config\n"));
        assert!(!format!("{seed:?}").contains("3.4.0"), "it may hold secrets");
    }
}

#[test]
fn a_digest_differs_with_what_a_person_changes() {
    let first = vm();
    let mut others = [vm(), vm(), vm(), vm(), vm(), vm(), vm(), vm()];
    let bootstrap = |vm: &mut VM| *vm.spec.bootstrap.clone().expect("it has one");
    let [a, b, c, d, e, f, g, h] = &mut others;
    a.spec.bootstrap =
        Some(Box::new(berth_api::vm::Bootstrap { user_data: Some("#!/bin/sh".into()), ..bootstrap(a) }));
    b.spec.bootstrap =
        Some(Box::new(berth_api::vm::Bootstrap { ssh_authorized_keys: Vec::new(), ..bootstrap(b) }));
    c.spec.bootstrap =
        Some(Box::new(berth_api::vm::Bootstrap { hostname: Some("other".into()), ..bootstrap(c) }));
    let text = |text: &str| Some(text.to_owned());
    d.spec.bootstrap =
        Some(Box::new(berth_api::vm::Bootstrap { domain: text("example.org"), ..bootstrap(d) }));
    e.spec.bootstrap = Some(Box::new(berth_api::vm::Bootstrap { meta_data: text("a: 1"), ..bootstrap(e) }));
    f.spec.bootstrap =
        Some(Box::new(berth_api::vm::Bootstrap { network_config: text("version: 2"), ..bootstrap(f) }));
    g.spec.bootstrap = Some(Box::new(berth_api::vm::Bootstrap { user: text("admin"), ..bootstrap(g) }));
    h.spec.bootstrap =
        Some(Box::new(berth_api::vm::Bootstrap { password_expires: Some(false), ..bootstrap(h) }));
    let of = |vm: &VM| digest(vm, &inline(vm));
    assert_eq!(of(&first), of(&vm()));
    let earlier = "[null,[\"ssh-ed25519 AAAA me\"],\"web\"]";
    let earlier: String = Sha256::digest(earlier).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(of(&first), earlier, "another digest makes cloud-init run again after an upgrade");
    assert!(others.iter().all(|other| of(other) != of(&first)));
    let unattend = r#"<unattend xmlns="urn:schemas-microsoft-com:unattend"/>"#;
    for entry in [("password", "hunter2"), ("unattend.xml", unattend)] {
        assert_ne!(digest(&first, &secret(&[entry])), digest(&first, &secret(&[])), "{}", entry.0);
    }
    let keys = secret_of(&[("bob", "ssh-ed25519 BBBB bob\n")]);
    assert_ne!(digest(&first, &Bootstrap::of(&first, None, Some(&keys))), of(&first));
}

#[test]
fn the_digest_of_meta_data_is_the_one_that_earlier_versions_have_recorded() {
    let text = "role: db\n\
        rack: {row: 7, tags: [a, \"7\"]}\n\
        files:\n\
        - path: /etc/motd\n\
        \x20 mode: 0644\n\
        \x20 content: |\n\
        \x20   welcome\n\
        \x20   to db\n\
        - path: /etc/note\n\
        \x20 mode: \"0644\"\n\
        \x20 content: >-\n\
        \x20   one\n\
        \x20   line\n\
        limits: {rate: 1e3, share: 1.5, low: -17, mask: 0x1F}\n\
        backup: yes\n\
        debug: False\n\
        zone: ~\n";
    let earlier = concat!(
        r#"[null,["ssh-ed25519 AAAA me"],"web",[{"role":"db","rack":{"row":7,"tags":["a","7"]},"#,
        r#""files":[{"path":"/etc/motd","mode":644,"content":"welcome\nto db\n"},"#,
        r#"{"path":"/etc/note","mode":"0644","content":"one line"}],"#,
        r#""limits":{"rate":1000.0,"share":1.5,"low":-17,"mask":31},"#,
        r#""backup":true,"debug":false,"zone":null},null]]"#,
    );
    let earlier: String = Sha256::digest(earlier).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut vm = vm();
    vm.spec.bootstrap.as_mut().expect("it has one").meta_data = Some(text.to_owned());
    assert_eq!(digest(&vm, &inline(&vm)), earlier, "another digest makes cloud-init run again");
}

#[test]
fn the_digest_keeps_the_order_of_the_secret_and_of_its_own_parts() {
    let mut vm = vm();
    let spec = vm.spec.bootstrap.as_mut().expect("it has one");
    spec.meta_data = Some("c: 3\na: 4\n".to_owned());
    spec.guest_agent = Some(GuestAgentPolicy::Install);
    let data = secret_of(&[("metaData", "b: 1\na: 2\n"), ("password", "hunter2")]);
    let earlier = concat!(
        r#"[null,["ssh-ed25519 AAAA me"],"web",[{"b":1,"a":4,"c":3},null],"#,
        r#"{"user":[null,null],"password":"hunter2","unattend":null,"keys":[]},{"guestAgent":"Install"}]"#,
    );
    let earlier: String = Sha256::digest(earlier).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest(&vm, &Bootstrap::of(&vm, Some(&data), None)), earlier);
}
