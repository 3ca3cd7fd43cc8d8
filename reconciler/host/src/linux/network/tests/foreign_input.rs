//! A firewall of another program that drops requests of guests to the host.

use super::*;

#[test]
fn a_foreign_firewall_that_drops_dhcp_of_guests_is_noticed_and_its_advice_opens_it() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        f.networks.apply_firewall(&firewall(&[])).await.expect("written");
        run("nft", "add table inet filter");
        run("nft", "add chain inet filter input { type filter hook input priority 10 ; policy drop ; }");
        run("nft", "add chain inet filter services");
        run("nft", "add rule inet filter input iifname lo accept");
        run("nft", "add rule inet filter input jump services");
        run("nft", "add rule inet filter services tcp dport 22 accept");
        let found = f.networks.forwarding().await.expect("looked");
        assert!(!found.ok && found.message.contains("inet filter input"), "{found:?}");
        assert!(found.message.contains("DHCP (UDP port 67), DNS (UDP port 53)"), "{found:?}");
        // The fix that the message suggests.
        for port in [67, 53] {
            let rule = format!("iifname \"bth-*\" udp dport {port} accept");
            assert!(
                found.message.contains(&format!("nft insert rule inet filter input {rule}")),
                "{found:?}"
            );
            run("nft", &format!("insert rule inet filter input {}", rule.replace('"', "")));
        }
        let found = f.networks.forwarding().await.expect("looked");
        assert!(found.ok, "{found:?}");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}
