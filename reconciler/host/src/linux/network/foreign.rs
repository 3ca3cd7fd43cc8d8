//! Firewalls that are not berth's, and whether they let guests' packets pass.

mod author;
mod evaluate;
mod legacy;
mod received;
mod service;

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};

use super::firewall::NFT;
use super::{BRIDGE_PREFIX, Result, ruleset, tunnel, wireguard};
use crate::Forwarding;

use author::Author;
pub(super) use received::Guests;

/// The packets, besides those of guests by IPv4, that other firewalls have to let pass on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needed {
    /// Those of tunnels to other hosts.
    pub(super) tunnels: bool,
    /// Those of encrypted tunnels to other hosts: the encrypted ones, and by IPv6 those in them.
    pub(super) encrypted: bool,
    /// Those of guests by IPv6.
    pub(super) ipv6: bool,
}

impl Needed {
    /// Returns the families of chains that forwarded packets pass.
    fn families(self) -> &'static [&'static str] {
        if self.ipv6 { ALL } else { IPV4 }
    }

    /// Returns the families of chains whose rules matter.
    fn read_families(self) -> &'static [&'static str] {
        if self.ipv6 || self.encrypted { ALL } else { IPV4 }
    }

    /// Returns the families and UDP ports of packets that the host receives from other hosts.
    fn received(self) -> Vec<(&'static [&'static str], u16)> {
        let tunnels = self.tunnels.then_some((IPV4, tunnel::PORT));
        let encrypted = self.encrypted.then_some((IPV4, wireguard::PORT));
        let within = self.encrypted.then_some((IPV6, tunnel::PORT));
        tunnels.into_iter().chain(encrypted).chain(within).collect()
    }
}

/// The table of chains that `iptables-legacy` made, which are in none of nftables'.
const LEGACY: &str = "iptables-legacy";

/// Whether other programs' firewalls let these packets pass, and those of guests to the host.
pub(super) async fn forwarding(needed: Needed, guests: &Guests) -> Result<Forwarding> {
    let legacy = legacy::read().await;
    let families = if guests.ipv6.is_empty() { needed.read_families() } else { ALL };
    let mut seen = read(families).await?;
    extend(&mut seen, legacy.clone());
    let mut forwarded = judge(&seen, needed);
    if !forwarded.ok {
        let mut all = list(&["ruleset"]).await?;
        extend(&mut all, legacy.clone());
        forwarded = judge(&all, needed);
    }
    if received::judge(&seen, guests).is_none() {
        return Ok(forwarded);
    }
    let mut tables = closed_tables(&seen).await?;
    extend(&mut tables, legacy);
    Ok(match received::judge(&tables, guests) {
        None => forwarded,
        Some(received) if forwarded.ok => received,
        Some(received) => {
            Forwarding { ok: false, message: format!("{}; {}", forwarded.message, received.message) }
        }
    })
}

/// Lists the tables that have a chain for received packets which drops what it does not accept. Other tables can have tens of
/// thousands of rules.
async fn closed_tables(seen: &Value) -> Result<Value> {
    let there = items(seen);
    let is_read = |chain: &&Value| chain["hook"] == "input" && is_closed(there, chain);
    let closed = foreign_chains(there, ALL).filter(is_read).filter(|chain| chain["table"] != LEGACY);
    let tables: BTreeSet<[&str; 2]> =
        closed.map(|chain| ["family", "table"].map(|key| text(&chain[key]))).take(MOST_CHAINS).collect();
    let mut all = json!({"nftables": []});
    for [family, table] in tables {
        // A table that has just been removed drops nothing.
        let Ok(listed) = list(&["table", family, table]).await else { continue };
        extend(&mut all, items(&listed).to_vec());
    }
    Ok(all)
}

fn extend(listing: &mut Value, items: Vec<Value>) {
    if let Some(all) = listing["nftables"].as_array_mut() {
        all.extend(items);
    }
}

/// Lists all chains, and the rules of other programs' ones of these families.
async fn read(families: &'static [&'static str]) -> Result<Value> {
    // There are few chains but possibly tens of thousands of rules, so rules are only read where they matter.
    let mut seen = list(&["chains"]).await?;
    let first = foreign_chains(items(&seen), families)
        .map(|c| ["family", "table", "name"].map(|key| text(&c[key]).to_owned()));
    for [family, table, name] in first.take(MOST_CHAINS).collect::<Vec<_>>() {
        // A chain that has just been removed drops nothing.
        let Ok(of_chain) = list(&["chain", &family, &table, &name]).await else { continue };
        let rules = items(&of_chain).iter().filter(|item| item.get("rule").is_some()).cloned();
        let rules: Vec<Value> = rules.collect();
        extend(&mut seen, rules);
    }
    Ok(seen)
}

/// A chain of another program that packets begin in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignChain {
    /// `ip`, `ip6`, or `inet` for both.
    pub(super) family: String,
    /// Family, table and name.
    pub(super) name: String,
    /// `forward` or `input`.
    pub(super) hook: String,
    /// Of guests' packets.
    pub(super) guests: Drops,
    /// Of those that tunnels bring.
    pub(super) tunnels: Drops,
}

/// The packets that a chain drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drops {
    /// Everything.
    All,
    /// All that none of its rules accepts.
    NotAccepted,
    /// Only what one of its rules drops; or its author took these packets into account.
    Selected,
}

/// Returns the chains of other programs that forwarded and received packets pass.
pub(super) async fn chains() -> Result<Vec<ForeignChain>> {
    let found = described(&read(ALL).await?);
    let is_open = |chain: &ForeignChain| [chain.guests, chain.tunnels] == [Drops::Selected; 2];
    // Another chain of the table may mention berth's links.
    if found.iter().all(is_open) { Ok(found) } else { Ok(described(&list(&["ruleset"]).await?)) }
}

fn described(ruleset: &Value) -> Vec<ForeignChain> {
    let items = items(ruleset);
    let port = tunnel::PORT.to_string();
    let describe = |chain: &Value| {
        // A rule for forwarded packets of berth's bridges says nothing of those to the host.
        let is_input = chain["hook"] == "input";
        let is_known = match is_input {
            true => rules_of(items, chain).any(|rule| rule["expr"].to_string().contains(BRIDGE_PREFIX)),
            false => speaks_of(items, chain, BRIDGE_PREFIX),
        };
        ForeignChain {
            family: text(&chain["family"]).to_owned(),
            name: name(chain),
            hook: text(&chain["hook"]).to_owned(),
            guests: drops(items, chain, is_known),
            tunnels: drops(items, chain, !is_input || speaks_of(items, chain, &port)),
        }
    };
    foreign_chains(items, ALL).map(describe).collect()
}

fn drops(items: &[Value], chain: &Value, is_known: bool) -> Drops {
    if is_known || !is_closed(items, chain) {
        return Drops::Selected;
    }
    let accepts_nothing =
        |e: &Value| ["match", "counter", "log", "drop", "reject"].iter().any(|name| e.get(name).is_some());
    let mut expressions = rules_of(items, chain).filter_map(|rule| rule["expr"].as_array()).flatten();
    if expressions.all(accepts_nothing) { Drops::All } else { Drops::NotAccepted }
}

/// The chains of other programs whose rules are read.
const MOST_CHAINS: usize = 32;
/// The families of chains that packets of IPv4 pass.
const IPV4: &[&str] = &["ip", "inet"];
/// The families of chains that packets of IPv6 pass.
const IPV6: &[&str] = &["ip6", "inet"];
/// The families of chains that packets pass.
const ALL: &[&str] = &["ip", "ip6", "inet"];

fn items(listing: &Value) -> &[Value] {
    listing["nftables"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Chains of other programs that forwarded or received packets begin in.
fn foreign_chains<'a>(
    items: &'a [Value],
    families: &'static [&'static str],
) -> impl Iterator<Item = &'a Value> {
    items.iter().filter_map(|i| i.get("chain")).filter(move |c| {
        c["table"] != ruleset::TABLE
            && (c["hook"] == "forward" || c["hook"] == "input")
            && families.iter().any(|family| c["family"] == *family)
    })
}

fn rules_of<'a>(items: &'a [Value], chain: &'a Value) -> impl DoubleEndedIterator<Item = &'a Value> {
    let keys = [("family", "family"), ("table", "table"), ("chain", "name")];
    let is_of =
        move |rule: &&Value| keys.iter().all(|(of_rule, of_chain)| rule[*of_rule] == chain[*of_chain]);
    items.iter().filter_map(|i| i.get("rule")).filter(is_of)
}

fn name(chain: &Value) -> String {
    format!("{} {} {}", text(&chain["family"]), text(&chain["table"]), text(&chain["name"]))
}

async fn list(what: &[&str]) -> Result<Value> {
    let output = NFT.run(&[&["-j", "list"], what].concat(), Vec::new()).await?;
    if !output.ok {
        return Err(NFT.failed(output.stderr));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| NFT.failed(e.to_string()))
}

/// Guests' packets are dropped by a chain with policy drop, or with a last rule that drops or rejects everything as firewalld's, if
/// no rule that its packets reach mentions berth's bridges: in nftables a packet has to pass every chain of a hook.
fn judge(ruleset: &Value, needed: Needed) -> Forwarding {
    let items = items(ruleset);
    let closed = dropping(items, needed.families(), "forward", BRIDGE_PREFIX);
    if let Some(first) = closed.first() {
        let message = format!(
            "the firewall chain {} drops forwarded packets, guests' too: accept them there ({})",
            names(&closed),
            Author::of(items, first).accept_forwarded(first)
        );
        return Forwarding { ok: false, message };
    }
    for (families, port) in needed.received() {
        let closed = dropping(items, families, "input", &port.to_string());
        if let Some(first) = closed.first() {
            let message = format!(
                "the firewall chain {} drops what other hosts send for networks that are here and there: accept it there \
                 ({})",
                names(&closed),
                Author::of(items, first).accept_port(first, port)
            );
            return Forwarding { ok: false, message };
        }
    }
    Forwarding { ok: true, message: "nothing on this host drops guests' packets".to_owned() }
}

/// Returns foreign chains of this hook that drop what none of their rules accepts, if no rule that their packets reach mentions
/// `known`.
fn dropping<'a>(
    items: &'a [Value],
    families: &'static [&'static str],
    hook: &str,
    known: &str,
) -> Vec<&'a Value> {
    let dropping = foreign_chains(items, families).filter(|c| c["hook"] == hook);
    dropping.filter(|chain| is_closed(items, chain)).filter(|chain| !speaks_of(items, chain, known)).collect()
}

fn names(chains: &[&Value]) -> String {
    chains.iter().map(|chain| name(chain)).collect::<Vec<_>>().join(", ")
}

/// Whether the chain drops what none of its rules accepts.
fn is_closed(items: &[Value], chain: &Value) -> bool {
    chain["policy"] == "drop" || ends_with_refusal(items, chain)
}

/// Whether the last rule of the chain drops or rejects every packet that reaches it.
fn ends_with_refusal(items: &[Value], chain: &Value) -> bool {
    let last = rules_of(items, chain).next_back();
    let expressions = last.and_then(|rule| rule["expr"].as_array()).map(Vec::as_slice).unwrap_or_default();
    let is = |name: &str, expression: &Value| expression.get(name).is_some();
    // That of iptables-nft has no notation in nftables.
    let refuses = |e: &Value| is("drop", e) || is("reject", e) || e["xt"]["name"] == "REJECT";
    expressions.last().is_some_and(refuses)
        && expressions.iter().all(|e| is("counter", e) || is("log", e) || refuses(e))
}

/// Whether a rule that packets of the chain may reach mentions berth's links: its author took them into account.
fn speaks_of(items: &[Value], chain: &Value, known: &str) -> bool {
    let of_table = |rule: &&Value| rule["table"] == chain["table"] && rule["family"] == chain["family"];
    let mut rules: HashMap<&str, Vec<&Value>> = HashMap::new();
    for rule in items.iter().filter_map(|i| i.get("rule")).filter(of_table) {
        rules.entry(text(&rule["chain"])).or_default().push(&rule["expr"]);
    }
    let mut next = vec![text(&chain["name"])];
    while let Some(name) = next.pop() {
        // Removed, so that each is looked at once.
        for rule in rules.remove(name).into_iter().flatten() {
            if rule.to_string().contains(known) {
                return true;
            }
            next.extend(rule.as_array().into_iter().flatten().flat_map(targets));
        }
    }
    false
}

/// Returns the chains that an expression of a rule leads to.
fn targets(expression: &Value) -> Vec<&str> {
    let mut targets: Vec<&str> = target(expression).into_iter().collect();
    let elements = expression["vmap"]["data"]["set"].as_array().into_iter().flatten();
    targets.extend(elements.filter_map(|pair| target(&pair[1])));
    targets
}

fn target(verdict: &Value) -> Option<&str> {
    ["jump", "goto"].into_iter().find_map(|kind| verdict[kind]["target"].as_str())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Needed = Needed { tunnels: false, encrypted: false, ipv6: false };
    const TUNNELLED: Needed = Needed { tunnels: true, ..ALONE };

    fn docker() -> Vec<Value> {
        vec![
            json!({"metainfo": {"version": "1.0.6"}}),
            json!({"chain": {"family": "inet", "table": "berth", "name": "forward", "hook": "forward", "policy": "accept"}}),
            json!({"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}}),
            json!({"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"}}),
        ]
    }

    #[test]
    fn a_chain_drops_all_only_if_none_of_its_rules_accepts() {
        let of = |items: Vec<Value>| {
            let found = described(&json!({"nftables": items}));
            found.into_iter().map(|chain| (chain.name, chain.guests, chain.tunnels)).collect::<Vec<_>>()
        };
        let input = |expr: Value| json!({"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "expr": expr}});
        let forward = |expr: Value| json!({"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "expr": expr}});
        let (all, some, selected) = (Drops::All, Drops::NotAccepted, Drops::Selected);
        let [forwarded, received] = ["ip filter FORWARD", "ip filter INPUT"].map(str::to_owned);
        assert_eq!(of(docker()), [(forwarded.clone(), all, selected), (received.clone(), all, all)]);

        let mut items = docker();
        items.push(forward(json!([{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-*"}}, {"accept": null}])));
        items.push(input(json!([{"jump": {"target": "ufw-user-input"}}])));
        let expected = [(forwarded, selected, selected), (received, some, some)];
        assert_eq!(of(items), expected, "the rule for forwarded packets is none for the host");

        let six = json!({"chain": {"family": "ip6", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "accept"}});
        assert_eq!(of(vec![six]), [("ip6 filter FORWARD".to_owned(), selected, selected)]);
    }

    #[test]
    fn a_foreign_chain_that_drops_is_named_with_what_to_do() {
        let found = judge(&json!({"nftables": docker()}), ALONE);
        assert!(!found.ok);
        insta::assert_snapshot!(found.message, @r#"the firewall chain ip filter FORWARD drops forwarded packets, guests' too: accept them there (nft insert rule ip filter FORWARD iifname "bth-*" accept; nft insert rule ip filter FORWARD oifname "bth-*" accept)"#);
    }

    /// As firewalld writes it, without the zones.
    #[test]
    fn a_chain_whose_last_rule_rejects_everything_is_named_like_one_that_drops() {
        let chain = json!({"chain": {"family": "inet", "table": "firewalld", "name": "filter_FORWARD", "hook": "forward", "policy": "accept"}});
        let rule = |expr: Value| json!({"rule": {"family": "inet", "table": "firewalld", "chain": "filter_FORWARD", "expr": expr}});
        let invalid = json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "invalid"}});
        let reject = json!({"reject": {"type": "icmpx", "expr": "admin-prohibited"}});
        let items = json!([
            chain,
            rule(json!([{"jump": {"target": "filter_FORWARD_ZONES"}}])),
            rule(json!([invalid, {"drop": null}])),
            rule(json!([reject]))
        ]);
        let found = judge(&json!({"nftables": items}), ALONE);
        assert!(!found.ok && found.message.contains("inet firewalld filter_FORWARD"), "{found:?}");
        let open = json!([chain, rule(json!([reject])), rule(json!([invalid, {"drop": null}]))]);
        assert!(judge(&json!({"nftables": open}), ALONE).ok, "the last rule drops some packets only");
        let zone = rule(
            json!([{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-00004d"}}, {"accept": null}]),
        );
        let known = json!([chain, zone, rule(json!([reject]))]);
        assert!(judge(&json!({"nftables": known}), ALONE).ok);
    }

    #[test]
    fn a_chain_that_was_told_of_our_bridges_is_fine() {
        let mut items = docker();
        items.push(json!({"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "expr":
            [{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-*"}}, {"accept": null}]}}));
        assert!(judge(&json!({"nftables": items}), ALONE).ok);
        assert!(judge(&json!({"nftables": [docker()[1]]}), TUNNELLED).ok, "our own table is no stranger");
    }

    #[test]
    fn a_chain_for_ipv6_matters_where_guests_have_a_way_by_ipv6() {
        let chain = json!({"chain": {"family": "ip6", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}});
        assert!(judge(&json!({"nftables": [chain]}), TUNNELLED).ok);
        let found = judge(&json!({"nftables": [chain]}), Needed { ipv6: true, ..ALONE });
        let advice = "nft insert rule ip6 filter FORWARD iifname";
        assert!(!found.ok && found.message.contains(advice), "{found:?}");
    }

    #[test]
    fn with_encrypted_tunnels_their_port_matters_and_by_ipv6_that_of_the_tunnels_in_them() {
        let encrypted = Needed { encrypted: true, ..ALONE };
        let chain = |family: &str| {
            let chain = json!({"family": family, "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"});
            judge(&json!({"nftables": [{"chain": chain}]}), encrypted)
        };
        assert!(chain("ip").message.contains("nft insert rule ip filter INPUT udp dport 51847 accept"));
        assert!(chain("ip6").message.contains("nft insert rule ip6 filter INPUT udp dport 4789 accept"));
        assert!(judge(&json!({"nftables": [docker()[1]]}), encrypted).ok);
    }

    #[test]
    fn a_chain_that_drops_what_other_hosts_send_matters_where_there_are_tunnels() {
        let mut items = vec![docker()[3].clone()];
        assert!(judge(&json!({"nftables": items}), ALONE).ok);
        let found = judge(&json!({"nftables": items}), TUNNELLED);
        let advice = "nft insert rule ip filter INPUT udp dport 4789 accept";
        assert!(!found.ok && found.message.contains(advice), "{found:?}");
        let port = json!({"payload": {"protocol": "udp", "field": "dport"}});
        items.push(json!({"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "expr":
            [{"match": {"op": "==", "left": port, "right": 4789}}, {"accept": null}]}}));
        assert!(judge(&json!({"nftables": items}), TUNNELLED).ok);
    }

    #[test]
    fn a_rule_for_packets_to_the_host_says_nothing_of_forwarded_ones() {
        let mut items = docker();
        items.push(json!({"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "expr":
            [{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-*"}}, {"accept": null}]}}));
        assert!(!judge(&json!({"nftables": items}), ALONE).ok);
        let jump = json!({"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "expr": [{"jump": {"target": "DOCKER-USER"}}]}});
        let allowed = json!({"rule": {"family": "ip", "table": "filter", "chain": "DOCKER-USER", "expr":
            [{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-*"}}, {"accept": null}]}});
        items.extend([jump, allowed]);
        assert!(judge(&json!({"nftables": items}), ALONE).ok, "packets reach that chain");
    }

    #[test]
    fn the_forwarding_of_each_firewall_program_is_opened_with_its_own_commands() {
        let ufw: Value = serde_json::from_str(include_str!("foreign/ufw.json")).expect("a listing");
        let found = judge(&ufw, ALONE).message;
        assert!(found.contains("(ufw route allow in on bth-+; ufw route allow out on bth-+)"), "{found}");
        let mut dockers = docker();
        dockers.push(json!({"chain": {"family": "ip", "table": "filter", "name": "DOCKER-USER"}}));
        let found = judge(&json!({"nftables": dockers}), ALONE).message;
        assert!(found.contains("(iptables -I DOCKER-USER -i bth-+ -j ACCEPT; iptables"), "{found}");
        let chain = json!({"chain": {"family": "inet", "table": "firewalld", "name": "filter_FORWARD", "hook": "forward", "policy": "drop"}});
        let found = judge(&json!({"nftables": [chain]}), ALONE).message;
        assert!(found.contains("firewall-cmd --permanent --zone=trusted --add-interface=bth-+"), "{found}");
    }
}
