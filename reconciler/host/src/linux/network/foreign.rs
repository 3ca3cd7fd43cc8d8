//! Firewalls that are not berth's, and whether they let guests' packets pass.

use serde_json::Value;

use super::firewall::NFT;
use super::{BRIDGE_PREFIX, Result, ruleset, tunnel};
use crate::Forwarding;

/// `tunnels`: whether this host's networks have tunnels to other hosts.
pub(super) async fn forwarding(tunnels: bool) -> Result<Forwarding> {
    // There are few chains but possibly tens of thousands of rules, so rules are only read where they matter.
    let found = judge(&list("chains").await?, tunnels);
    if found.ok { Ok(found) } else { Ok(judge(&list("ruleset").await?, tunnels)) }
}

async fn list(what: &str) -> Result<Value> {
    let output = NFT.run(&["-j", "list", what], Vec::new()).await?;
    if !output.ok {
        return Err(NFT.failed(output.stderr));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| NFT.failed(e.to_string()))
}

/// Guests' packets are dropped by a chain with policy drop in a table whose rules do not mention berth's bridges: in
/// nftables a packet has to pass every chain of a hook.
fn judge(ruleset: &Value, tunnels: bool) -> Forwarding {
    let items = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let closed = dropping(items, "forward", BRIDGE_PREFIX);
    if let Some(first) = closed.first() {
        let (family, rest) = first.split_once(' ').unwrap_or(("ip", first));
        let message = format!(
            "the firewall chain {} drops forwarded packets, guests' too: accept them there (nft insert rule {family} \
             {rest} iifname \"{BRIDGE_PREFIX}*\" accept; nft insert rule {family} {rest} oifname \"{BRIDGE_PREFIX}*\" accept)",
            closed.join(", ")
        );
        return Forwarding { ok: false, message };
    }
    let port = tunnel::PORT.to_string();
    let closed = if tunnels { dropping(items, "input", &port) } else { Vec::new() };
    if let Some(first) = closed.first() {
        let message = format!(
            "the firewall chain {} drops what other hosts send for networks that are here and there: accept it there \
             (nft insert rule {first} udp dport {port} accept)",
            closed.join(", ")
        );
        return Forwarding { ok: false, message };
    }
    Forwarding { ok: true, message: "nothing on this host drops guests' packets".to_owned() }
}

/// Lists foreign chains of this hook with policy drop, in tables whose rules do not mention `known`.
fn dropping(items: &[Value], hook: &str, known: &str) -> Vec<String> {
    let dropping = items.iter().filter_map(|i| i.get("chain")).filter(|c| {
        let foreign = c["table"] != ruleset::TABLE;
        foreign
            && c["hook"] == hook
            && c["policy"] == "drop"
            && (c["family"] == "ip" || c["family"] == "inet")
    });
    dropping
        .filter(|chain| !speaks_of(items, chain, known))
        .map(|c| format!("{} {} {}", text(&c["family"]), text(&c["table"]), text(&c["name"])))
        .collect()
}

/// Whether a rule of the chain's table mentions berth's links: its author took them into account.
fn speaks_of(items: &[Value], chain: &Value, known: &str) -> bool {
    items.iter().filter_map(|i| i.get("rule")).any(|rule| {
        rule["table"] == chain["table"]
            && rule["family"] == chain["family"]
            && rule["expr"].to_string().contains(known)
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn docker() -> Vec<Value> {
        vec![
            json!({"metainfo": {"version": "1.0.6"}}),
            json!({"chain": {"family": "inet", "table": "berth", "name": "forward", "hook": "forward", "policy": "accept"}}),
            json!({"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}}),
            json!({"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"}}),
        ]
    }

    #[test]
    fn a_foreign_chain_that_drops_is_named_with_what_to_do() {
        let found = judge(&json!({"nftables": docker()}), false);
        assert!(!found.ok);
        insta::assert_snapshot!(found.message, @r#"the firewall chain ip filter FORWARD drops forwarded packets, guests' too: accept them there (nft insert rule ip filter FORWARD iifname "bth-*" accept; nft insert rule ip filter FORWARD oifname "bth-*" accept)"#);
    }

    #[test]
    fn a_chain_that_was_told_of_our_bridges_is_fine() {
        let mut items = docker();
        items.push(json!({"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "expr":
            [{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-*"}}, {"accept": null}]}}));
        assert!(judge(&json!({"nftables": items}), false).ok);
        assert!(judge(&json!({"nftables": [docker()[1]]}), true).ok, "our own table is no stranger");
    }

    #[test]
    fn a_chain_that_drops_what_other_hosts_send_matters_where_there_are_tunnels() {
        let mut items = vec![docker()[3].clone()];
        assert!(judge(&json!({"nftables": items}), false).ok);
        let found = judge(&json!({"nftables": items}), true);
        let advice = "nft insert rule ip filter INPUT udp dport 4789 accept";
        assert!(!found.ok && found.message.contains(advice), "{found:?}");
        let port = json!({"payload": {"protocol": "udp", "field": "dport"}});
        items.push(json!({"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "expr":
            [{"match": {"op": "==", "left": port, "right": 4789}}, {"accept": null}]}}));
        assert!(judge(&json!({"nftables": items}), true).ok);
    }
}
