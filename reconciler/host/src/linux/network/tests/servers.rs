//! The DHCP and DNS servers of networks, which are killed.

use super::*;
use crate::Names;

fn pid(f: &Fixture, file: &str) -> i32 {
    let path = f.layout.network(BRIDGE).join(file);
    let text = std::fs::read_to_string(path).expect("dnsmasq has written it");
    text.trim().parse().expect("a process id")
}

fn kill(pid: i32) {
    use nix::sys::signal::{Signal, kill};
    kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).expect("as root");
}

#[test]
fn a_server_that_is_killed_is_noticed_at_once_and_one_that_is_restarted_on_purpose_is_not() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let ended = async |wait| {
            tokio::time::timeout(Duration::from_millis(wait), f.networks.network_server_ended()).await
        };
        assert!(ended(50).await.is_err(), "there is no server");
        let plain = network(BRIDGE, "10.77.0.0/24", Vec::new());
        f.networks.ensure(&plain).await.expect("made");
        assert!(ended(200).await.is_err(), "it runs");
        let before = pid(&f, "dnsmasq.pid");
        let changed = NetworkConfig { mtu: 1400, ..plain.clone() };
        f.networks.ensure(&changed).await.expect("changed");
        assert_ne!(pid(&f, "dnsmasq.pid"), before, "it was restarted");
        assert!(ended(200).await.is_err(), "on purpose");

        kill(pid(&f, "dnsmasq.pid"));
        let bridge = ended(2000).await.expect("noticed").expect("looked");
        assert_eq!(bridge, BRIDGE);
        assert!(ended(200).await.is_err(), "reported once");
        f.networks.ensure(&changed).await.expect("started again");
        assert!(ended(200).await.is_err(), "it runs");

        let names = Names { domain: "app.internal".to_owned(), is_searched: true, records: Vec::new() };
        f.networks.ensure(&NetworkConfig { names: Some(names), ..plain }).await.expect("with names");
        kill(pid(&f, "names.pid"));
        assert_eq!(ended(2000).await.expect("noticed").expect("looked"), BRIDGE, "its name server");
        f.networks.remove(BRIDGE).await.expect("removed");
        assert!(ended(200).await.is_err(), "it is not wanted any more");
    });
}

#[test]
fn a_network_whose_server_cannot_start_has_its_bridge_and_says_so() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let configuration = f.layout.network(BRIDGE).join("dnsmasq.conf");
        std::fs::create_dir_all(&configuration).expect("a folder in its place");
        let plain = network(BRIDGE, "10.77.0.0/24", Vec::new());
        let error = f.networks.ensure(&plain).await.expect_err("it cannot start");
        assert!(matches!(&error, SystemError::NetworkServer { bridge, .. } if bridge == BRIDGE), "{error:?}");
        assert!(ip(&format!("-4 addr show dev {BRIDGE}")).contains("10.77.0.1/24"));
        let other = network("bth-00004e", "10.78.0.0/24", Vec::new());
        f.networks.ensure(&other).await.expect("another is made");
        std::fs::remove_dir(&configuration).expect("it is empty");
        f.networks.ensure(&plain).await.expect("made");
        for bridge in [BRIDGE, "bth-00004e"] {
            f.networks.remove(bridge).await.expect("removed");
        }
    });
}
