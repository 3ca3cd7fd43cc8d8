//! Reported values of a VM that no single field of its status has: the addresses and the network configuration by interface, the public
//! ports, and what waits for a power cycle.

use serde_json::{Map, Value as Json, json};
use tfplugin6::CancellationToken;

use super::network_config;
use crate::{
    api::{Address, Api, RetryLimit},
    fact::snake,
    readiness::Readiness,
};

/// The fields of an interface that name PublicIPs, and the fields with their addresses.
const PUBLIC: [(&str, &str); 2] = [("publicIP", "publicAddress"), ("publicIPv6", "publicIPv6Address")];
/// The time limit for reading a PublicIP, in seconds.
const READ_SECONDS: u64 = 2;

/// Adds the values to the view of a VM.
pub(super) fn view(object: &Json, view: &mut Json) {
    let (addresses, pending) = (addresses(object), pending_power_cycle(object));
    let public_ports = public_ports(object);
    let snapshots: Map<String, Json> = list(object, "/status/snapshots")
        .filter_map(|snapshot| Some((text(snapshot, "name")?.to_owned(), snapshot["takenAt"].clone())))
        .collect();
    let Some(view) = view.as_object_mut() else { return };
    if let Some(status) = view.entry("status").or_insert_with(|| json!({})).as_object_mut() {
        network_config::view(object, status);
        status.insert("addresses".into(), addresses);
        status.insert("publicPortAddresses".into(), public_ports);
        status.insert("pendingPowerCycle".into(), pending);
        status.insert("snapshots".into(), snapshots.into());
    }
}

fn list<'a>(object: &'a Json, pointer: &str) -> impl Iterator<Item = &'a Json> {
    object.pointer(pointer).and_then(Json::as_array).into_iter().flatten()
}

fn text<'a>(object: &'a Json, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Json::as_str).filter(|text| !text.is_empty())
}

/// The decided values of an interface of the spec.
fn decided<'a>(object: &'a Json, interface: &Json) -> Option<&'a Json> {
    list(object, "/status/interfaces").find(|other| other.get("name") == interface.get("name"))
}

fn addresses(object: &Json) -> Json {
    let of_interface = |interface: &Json| {
        let decided = decided(object, interface).unwrap_or(&Json::Null);
        let private = text(decided, "address");
        // An address that no longer leads here is reported until the host has seen the change.
        let [public, public_ipv6] =
            PUBLIC.map(|(named, reported)| text(interface, named).and_then(|_| text(decided, reported)));
        let ipv6 = text(decided, "ipv6Address");
        let addresses: Vec<&str> = private.into_iter().chain(public).chain(ipv6).chain(public_ipv6).collect();
        Some((text(interface, "name")?.to_owned(), json!(addresses)))
    };
    let by_name: Map<String, Json> =
        list(object, "/spec/networkInterfaces").filter_map(of_interface).collect();
    Json::Object(by_name)
}

/// The address and port of each public port, as clients write them.
fn public_ports(object: &Json) -> Json {
    let of_port = |public: &Json| {
        let (address, port) = (text(public, "address")?, public.get("port")?.as_i64()?);
        let place =
            if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
        Some((text(public, "name")?.to_owned(), Json::from(place)))
    };
    let by_name: Map<String, Json> = list(object, "/status/publicPorts").filter_map(of_port).collect();
    Json::Object(by_name)
}

/// The names in the words of the configuration. A restart that is requested brings everything: nothing waits beyond it.
fn pending_power_cycle(object: &Json) -> Json {
    let token = |pointer| object.pointer(pointer).and_then(Json::as_str);
    let requested = token("/spec/restartToken");
    if requested.is_some() && requested != token("/status/restartToken") {
        return json!([]);
    }
    let name = |name: &str| match name.split_once('[') {
        Some((attribute, key)) => format!("{}[{key}", snake(attribute)),
        None => snake(name),
    };
    list(object, "/status/pendingPowerCycle").filter_map(Json::as_str).map(name).collect()
}

/// Completes the public addresses from the PublicIPs: the VM's host reports them only while the VM runs, but the PublicIPs have
/// them before.
pub(super) async fn complete(api: &Api, mut object: Json) -> Json {
    for (named, reported) in PUBLIC {
        complete_family(api, &mut object, named, reported).await;
    }
    object
}

async fn complete_family(api: &Api, object: &mut Json, named: &str, reported: &str) {
    let namespace =
        object.pointer("/metadata/namespace").and_then(Json::as_str).unwrap_or_default().to_owned();
    let mut first = None;
    for (interface, public_ip) in public_ips_to_read(object, named, reported) {
        let place = Address::berth("publicips", &namespace, &public_ip);
        let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
        let Ok(Some(public_ip)) = api.get(&place, &retry_limit).await else { continue };
        // One of the other family does not lead to the interface.
        let is_its = |address: &str| address.contains(':') == (named == "publicIPv6");
        // The first address of a prefix alone is not the guest's.
        let address = public_ip
            .pointer("/status/address")
            .filter(|address| address.as_str().is_some_and(is_its))
            .filter(|_| public_ip.pointer("/status/prefix").is_none());
        let Some(address) = address else { continue };
        first.get_or_insert_with(|| address.clone());
        let interfaces = object.pointer_mut("/status/interfaces").and_then(Json::as_array_mut);
        let decided = interfaces.into_iter().flatten().find(|decided| decided["name"] == interface.as_str());
        if let Some(decided) = decided.and_then(Json::as_object_mut) {
            decided.insert(reported.into(), address.clone());
        }
    }
    if !has_public_address(object, reported)
        && let Some(first) = first
        && let Some(status) = object.get_mut("status").and_then(Json::as_object_mut)
    {
        status.insert(reported.into(), first);
    }
}

/// Whether the status has the first public address of a family for the current generation.
fn has_public_address(object: &Json, reported: &str) -> bool {
    object["status"][reported].is_string() && Readiness::of(object).current
}

/// The interfaces and PublicIPs whose addresses the status lacks for the current generation.
fn public_ips_to_read(object: &Json, named: &str, reported: &str) -> Vec<(String, String)> {
    let is_current = Readiness::of(object).current;
    let has_address = |interface: &Json| {
        let has_any = |decided: &Json| {
            text(decided, reported).is_some()
                || (named == "publicIPv6" && text(decided, "publicIPv6Prefix").is_some())
        };
        is_current && decided(object, interface).is_some_and(has_any)
    };
    list(object, "/spec/networkInterfaces")
        .filter(|interface| !has_address(interface))
        .filter_map(|interface| {
            Some((text(interface, "name")?.to_owned(), text(interface, named)?.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> Json {
        json!({
            "spec": {"networkInterfaces": [{"name": "nic0", "publicIP": "web"}, {"name": "nic1", "publicIPv6": "web6"},
                {"name": "nic2"}, {"name": "nic3", "publicIP": "both", "publicIPv6": "both6"}]},
            "status": {
                "interfaces": [
                    {"name": "nic0", "address": "10.77.0.10", "publicAddress": "192.0.2.7"},
                    {"name": "nic1", "address": "10.80.0.10", "publicAddress": "192.0.2.8", "ipv6Address": "fd00:60::10"},
                    {"name": "nic3", "address": "10.82.0.10", "publicAddress": "192.0.2.9", "ipv6Address": "fd00:61::10",
                     "publicIPv6Address": "2001:db8::9"},
                    {"name": "gone", "address": "10.81.0.10"},
                ],
                "pendingPowerCycle": ["class", "disks[other]", "networkInterfaces[nic1]"],
            },
        })
    }

    #[test]
    fn every_interface_of_the_spec_has_its_addresses_and_no_other() {
        let expected = json!({
            "nic0": ["10.77.0.10", "192.0.2.7"], "nic1": ["10.80.0.10", "fd00:60::10"], "nic2": [],
            "nic3": ["10.82.0.10", "192.0.2.9", "fd00:61::10", "2001:db8::9"],
        });
        assert_eq!(addresses(&vm()), expected);
    }

    #[test]
    fn a_public_port_is_an_address_with_a_port() {
        let object = json!({"status": {"publicPorts": [
            {"name": "web/ssh", "address": "203.0.113.5", "port": 30_017, "targetPort": 22, "protocol": "tcp"}]}});
        assert_eq!(public_ports(&object), json!({"web/ssh": "203.0.113.5:30017"}));
        let ipv6 = json!({"status": {"publicPorts": [{"name": "six/ssh", "address": "2001:db8::7", "port": 22, "targetPort": 22}]}});
        assert_eq!(public_ports(&ipv6), json!({"six/ssh": "[2001:db8::7]:22"}));
        assert_eq!(public_ports(&vm()), json!({}));
    }

    #[test]
    fn what_waits_is_named_as_in_the_configuration_until_a_restart_is_requested() {
        let mut vm = vm();
        let waiting = json!(["class", "disks[other]", "network_interfaces[nic1]"]);
        assert_eq!(pending_power_cycle(&vm), waiting);
        vm["spec"]["restartToken"] = "2".into();
        assert_eq!(pending_power_cycle(&vm), json!([]));
        vm["status"]["restartToken"] = "2".into();
        assert_eq!(pending_power_cycle(&vm), waiting);
        assert_eq!(pending_power_cycle(&json!({})), json!([]));
    }
}
