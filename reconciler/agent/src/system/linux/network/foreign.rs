//! Firewalls that are not berth's, and whether they let guests' packets through.

use serde_json::Value;

use super::firewall::NFT;
use super::{BRIDGE_PREFIX, Result, ruleset};
use crate::system::Forwarding;

pub(super) async fn forwarding() -> Result<Forwarding> {
    // Chains alone are few; rules may be tens of thousands, and are read only where they matter.
    let found = judge(&list("chains").await?);
    if found.ok { Ok(found) } else { Ok(judge(&list("ruleset").await?)) }
}

async fn list(what: &str) -> Result<Value> {
    let output = NFT.run(&["-j", "list", what], Vec::new()).await?;
    if !output.ok {
        return Err(NFT.failed(output.stderr));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| NFT.failed(e.to_string()))
}

/// A chain that drops what nobody accepted, in a table that does not know our bridges, drops guests' packets:
/// in nftables every chain of a hook has to let a packet pass.
fn judge(ruleset: &Value) -> Forwarding {
    let items = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let dropping = items.iter().filter_map(|i| i.get("chain")).filter(|c| {
        let foreign = c["table"] != ruleset::TABLE;
        foreign
            && c["hook"] == "forward"
            && c["policy"] == "drop"
            && (c["family"] == "ip" || c["family"] == "inet")
    });
    let closed: Vec<String> = dropping
        .filter(|chain| !lets_us_through(items, chain))
        .map(|c| format!("{} {} {}", text(&c["family"]), text(&c["table"]), text(&c["name"])))
        .collect();
    let Some(first) = closed.first() else {
        return Forwarding { ok: true, message: "nothing on this host drops guests' packets".to_owned() };
    };
    let (family, rest) = first.split_once(' ').unwrap_or(("ip", first));
    let message = format!(
        "the firewall chain {} drops forwarded packets, guests' too: accept them there (nft insert rule {family} \
         {rest} iifname \"{BRIDGE_PREFIX}*\" accept; nft insert rule {family} {rest} oifname \"{BRIDGE_PREFIX}*\" accept)",
        closed.join(", ")
    );
    Forwarding { ok: false, message }
}

/// Whether a rule of the chain's table names our bridges: whoever wrote it knows of them.
fn lets_us_through(items: &[Value], chain: &Value) -> bool {
    items.iter().filter_map(|i| i.get("rule")).any(|rule| {
        rule["table"] == chain["table"]
            && rule["family"] == chain["family"]
            && rule["expr"].to_string().contains(BRIDGE_PREFIX)
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
        let found = judge(&json!({"nftables": docker()}));
        assert!(!found.ok);
        insta::assert_snapshot!(found.message, @r#"the firewall chain ip filter FORWARD drops forwarded packets, guests' too: accept them there (nft insert rule ip filter FORWARD iifname "bth-*" accept; nft insert rule ip filter FORWARD oifname "bth-*" accept)"#);
    }

    #[test]
    fn a_chain_that_was_told_of_our_bridges_is_fine() {
        let mut items = docker();
        items.push(json!({"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "expr":
            [{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-*"}}, {"accept": null}]}}));
        assert!(judge(&json!({"nftables": items})).ok);
        assert!(judge(&json!({"nftables": [docker()[1]]})).ok, "our own table is no stranger");
    }
}
