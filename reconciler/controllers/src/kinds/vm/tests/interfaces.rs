//! New interfaces of a VM that has a host.

use super::*;

fn awaited(seen: &Observed) -> Vec<Dependency> {
    let bound = vm(json!({"binding": {"host": "h1", "epoch": 1}, "interfaces": []}));
    match plan(&bound, seen, &capacity()).outcome {
        Outcome::Settled => Vec::new(),
        Outcome::Blocked(dependencies) => dependencies,
    }
}

fn seen() -> Observed {
    Observed { disks: Vec::new(), ..observed(None) }
}

#[test]
fn a_new_interface_gets_its_address_once_its_network_is_there_and_once_an_address_is_free() {
    assert_eq!(awaited(&seen()), [], "it gets one at once");
    let of = |namespace: &str| {
        Dependency::Object(Key::namespaced(ObjectKind::Network, namespace, berth_api::DEFAULT_NAME))
    };
    let mut missing = seen();
    missing.networks = vec![None];
    missing.fresh.interfaces = vec![Err(String::new())];
    let waits = awaited(&missing);
    assert!(waits.contains(&of("default")) && waits.contains(&of("berth-shared")), "{waits:?}");
    let mut new = seen();
    let mut without_identifier = Network::clone(&network());
    without_identifier.status = None;
    new.networks = vec![Some(Arc::new(without_identifier))];
    assert!(awaited(&new).contains(&of("berth-shared")));
    let mut full = seen();
    full.fresh.interfaces = vec![Err("no free address".to_owned())];
    assert!(awaited(&full).contains(&Dependency::PrivateAddress));
}
