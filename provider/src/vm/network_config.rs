//! The network configuration that guests get, by interface.

use serde_json::{Map, Value as Json, json};

use crate::field::{Field, Shape};

const GATEWAYS: &str = "gatewaysByInterface";
const NAME_SERVERS: &str = "nameServersByInterface";
const ROUTES: &str = "routesByInterface";
const MTUS: &str = "mtusByInterface";

pub(super) fn observed() -> [Field; 4] {
    let lists =
        |name, pointer, text| Field { shape: Shape::TextListMap, ..Field::observed(name, pointer, text) };
    let gateways = lists(
        "gateways",
        "/status/gatewaysByInterface",
        "The routers of the guest's default routes, by interface: IPv4, then IPv6. The list of an interface is empty until the VM is placed, \
         and without those that others than berth give out.",
    );
    let name_servers = lists(
        "name_servers",
        "/status/nameServersByInterface",
        "The name servers that the guest gets, by interface. With `search_domains` and all else in `status.network_config` of the data source.",
    );
    let routes = lists(
        "routes",
        "/status/routesByInterface",
        "The guest's routes beside its default routes, by interface, for example `192.168.0.0/16 via 10.80.0.9`.",
    );
    let mtus = Field {
        shape: Shape::TextMap,
        ..Field::observed(
            "mtus",
            "/status/mtusByInterface",
            "The largest packet in bytes, by interface, once the VM is placed.",
        )
    };
    [gateways, name_servers, routes, mtus].map(|field| field.follows(&["network_interfaces"]))
}

/// Adds the values to the status in the view of a VM.
pub(super) fn view(object: &Json, status: &mut Map<String, Json>) {
    let by_interface = |value: fn(&Json) -> Json| -> Json {
        let interfaces = list(object.pointer("/spec/networkInterfaces"));
        let of_interface = |interface: &Json| {
            let mut configs = list(object.pointer("/status/networkConfig"));
            let config = configs.find(|config| config["name"] == interface["name"]);
            let name = interface["name"].as_str()?.to_owned();
            Some((name, value(config.unwrap_or(&Json::Null))))
        };
        let values: Map<String, Json> =
            interfaces.filter_map(of_interface).filter(|(_, value)| !value.is_null()).collect();
        values.into()
    };
    status.insert(GATEWAYS.into(), by_interface(|config| texts(&config["gateways"])));
    status.insert(NAME_SERVERS.into(), by_interface(|config| texts(&config["dns"])));
    status.insert(ROUTES.into(), by_interface(routes));
    status.insert(MTUS.into(), by_interface(mtu));
}

fn list(json: Option<&Json>) -> impl Iterator<Item = &Json> {
    json.and_then(Json::as_array).into_iter().flatten()
}

fn texts(json: &Json) -> Json {
    json!(list(Some(json)).filter_map(Json::as_str).collect::<Vec<_>>())
}

fn routes(config: &Json) -> Json {
    let route = |route: &Json| Some(format!("{} via {}", route["to"].as_str()?, route["via"].as_str()?));
    json!(list(Some(&config["routes"])).filter_map(route).collect::<Vec<_>>())
}

/// A text, as the values of a map have one type. Null: it is not known.
fn mtu(config: &Json) -> Json {
    config["mtu"].as_i64().map(|mtu| mtu.to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interface_of_the_spec_has_its_configuration_and_none_before_the_vm_is_placed() {
        let object = json!({
            "spec": {"networkInterfaces": [{"name": "lan"}, {"name": "wan"}]},
            "status": {"networkConfig": [
                {"name": "lan", "gateways": ["10.80.0.1", "fe80::1"], "dns": ["9.9.9.9"], "mtu": 1450,
                 "routes": [{"to": "192.168.0.0/16", "via": "10.80.0.9"}]},
                {"name": "gone", "gateways": ["10.81.0.1"], "mtu": 1500},
            ]},
        });
        let mut status = Map::new();
        view(&object, &mut status);
        assert_eq!(
            Json::from(status),
            json!({
                GATEWAYS: {"lan": ["10.80.0.1", "fe80::1"], "wan": []},
                NAME_SERVERS: {"lan": ["9.9.9.9"], "wan": []},
                ROUTES: {"lan": ["192.168.0.0/16 via 10.80.0.9"], "wan": []},
                MTUS: {"lan": "1450"},
            })
        );
    }

    #[test]
    fn the_attributes_are_where_the_view_puts_them() {
        let mut status = Map::new();
        view(&json!({}), &mut status);
        let view = json!({"status": status});
        for field in observed() {
            let crate::field::Source::Observed(pointer) = field.source else { panic!("{}", field.name) };
            assert_eq!(view.pointer(pointer), Some(&json!({})), "{}", field.name);
        }
    }
}
