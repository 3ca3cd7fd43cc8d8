//! The rules of `iptables-legacy`, which nftables does not list: read as the items of such a listing.

use serde_json::{Value, json};

use super::super::super::files::blocking;
use super::super::super::program::Program;
use super::LEGACY;

/// The families with the file that lists the tables in use, and the program that prints one.
const FAMILIES: [(&str, &str, Program); 2] = [
    ("ip", "/proc/net/ip_tables_names", Program { name: "iptables-legacy-save", advice: ADVICE }),
    ("ip6", "/proc/net/ip6_tables_names", Program { name: "ip6tables-legacy-save", advice: ADVICE }),
];
const ADVICE: &str = "it prints the rules of iptables-legacy (Debian, Ubuntu: apt install iptables; Fedora: dnf install iptables-legacy)";

/// Lists the chains and rules of the table `filter` in both families. Empty where no program has made that table.
pub(super) async fn read() -> Vec<Value> {
    let mut items = Vec::new();
    for (family, names, program) in FAMILIES {
        // The program would make the table.
        let tables = blocking(move || std::fs::read_to_string(names)).await.unwrap_or_default();
        if !tables.lines().any(|table| table == "filter") {
            continue;
        }
        match program.run(&["-t", "filter"], Vec::new()).await {
            Ok(output) if output.ok => {
                items.extend(parse(family, &String::from_utf8_lossy(&output.stdout)));
            }
            Ok(output) => tracing::debug!(family, error = output.stderr, "rules of iptables-legacy not read"),
            Err(error) => tracing::debug!(family, error = error.chain(), "rules of iptables-legacy not read"),
        }
    }
    items
}

/// Parses the output of `iptables-save` for one table.
fn parse(family: &str, text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| chain(family, line).or_else(|| rule(family, line))).collect()
}

fn chain(family: &str, line: &str) -> Option<Value> {
    let mut words = line.strip_prefix(':')?.split(' ');
    let (name, policy) = (words.next()?, words.next()?);
    let hook = match name {
        "INPUT" => "input",
        "FORWARD" => "forward",
        "OUTPUT" => "output",
        _ => return Some(json!({"chain": {"family": family, "table": LEGACY, "name": name}})),
    };
    let policy = policy.to_ascii_lowercase();
    let chain = json!({"family": family, "table": LEGACY, "name": name, "hook": hook, "policy": policy});
    Some(json!({"chain": chain}))
}

fn rule(family: &str, line: &str) -> Option<Value> {
    let words = words(line.strip_prefix("-A ")?);
    let mut words = words.iter().map(String::as_str);
    let chain = words.next()?;
    let mut expressions = Vec::new();
    let mut operator = "==";
    while let Some(word) = words.next() {
        if word == "!" {
            operator = "!=";
            continue;
        }
        let mut condition = |left: Value, right: Value| {
            expressions.push(json!({"match": {"op": operator, "left": left, "right": right}}));
        };
        let field = |protocol: &str, field: &str| json!({"payload": {"protocol": protocol, "field": field}});
        match word {
            "-i" => condition(json!({"meta": {"key": "iifname"}}), interface(words.next()?)),
            "-o" => condition(json!({"meta": {"key": "oifname"}}), interface(words.next()?)),
            "-p" => condition(json!({"meta": {"key": "l4proto"}}), json!(words.next()?)),
            "-s" => condition(field(family, "saddr"), address(words.next()?)),
            "-d" => condition(field(family, "daddr"), address(words.next()?)),
            "--sport" => condition(field("th", "sport"), port(words.next()?)),
            "--dport" => condition(field("th", "dport"), port(words.next()?)),
            "-m" => {
                let name = words.next()?;
                // The options of these are conditions of their own.
                if !["udp", "tcp"].contains(&name) {
                    expressions.push(json!({"xt": {"type": "match", "name": name}}));
                }
            }
            "-j" => expressions.push(target(words.next()?)),
            "-g" => expressions.push(json!({"goto": {"target": words.next()?}})),
            // An option of a match or a target.
            _ => {}
        }
        operator = "==";
    }
    Some(json!({"rule": {"family": family, "table": LEGACY, "chain": chain, "expr": expressions}}))
}

fn target(name: &str) -> Value {
    match name {
        "ACCEPT" => json!({"accept": null}),
        "DROP" => json!({"drop": null}),
        "RETURN" => json!({"return": null}),
        // The names of targets are in capitals, and those of chains may be too: a chain without rules passes all packets on.
        "REJECT" | "LOG" | "NFLOG" | "MARK" | "NFQUEUE" => json!({"xt": {"type": "target", "name": name}}),
        _ => json!({"jump": {"target": name}}),
    }
}

fn interface(name: &str) -> Value {
    match name.strip_suffix('+') {
        Some(start) => json!(format!("{start}*")),
        None => json!(name),
    }
}

fn address(text: &str) -> Value {
    match text.split_once('/').and_then(|(addr, len)| Some((addr, len.parse::<u8>().ok()?))) {
        Some((addr, len)) => json!({"prefix": {"addr": addr, "len": len}}),
        None => json!(text),
    }
}

fn port(text: &str) -> Value {
    let number = |text: &str| text.parse::<u16>().map_or_else(|_| json!(text), |number| json!(number));
    match text.split_once(':') {
        Some((first, last)) => json!({"range": [number(first), number(last)]}),
        None => number(text),
    }
}

/// Splits a line at blanks outside of quotation marks, as in comments.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            _ => words.last_mut().expect("there is a word").push(character),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::received::{Guests, judge};
    use super::*;

    const SAVED: &str = "\
# Generated by iptables-save v1.8.9
*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:ufw-user-input - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -s 10.0.0.0/8 -p tcp -m tcp --dport 22 -m comment --comment \"from -j ACCEPT the office\" -j ACCEPT
-A INPUT ! -i eth0 -p udp -m udp --dport 60:66 -j ACCEPT
-A INPUT -j allowed
-A INPUT -j REJECT --reject-with icmp-port-unreachable
COMMIT
";

    fn judged(saved: &str) -> Option<String> {
        let bridge = || "bth-0a1b2c3d".to_owned();
        let guests = Guests { ipv4: vec![bridge()], ipv6: Vec::new(), names: BTreeSet::new() };
        judge(&json!({"nftables": parse("ip", saved)}), &guests).map(|found| found.message)
    }

    #[test]
    fn rules_of_iptables_legacy_drop_dhcp_as_those_of_nftables() {
        let saved = SAVED.replace(":ufw-user-input - [0:0]\n", "");
        let found = judged(&saved).expect("it drops");
        assert!(found.contains("iptables-legacy -I INPUT -i bth-+ -p udp --dport 67 -j ACCEPT"), "{found}");
        let allowed = "-A allowed -i bth-+ -p udp -m udp --dport 67 -j ACCEPT\nCOMMIT";
        assert_eq!(judged(&saved.replace("COMMIT", allowed)), None);
        let elsewhere = "-A allowed -i virbr0 -p udp -m udp --dport 67 -j ACCEPT\nCOMMIT";
        assert!(judged(&saved.replace("COMMIT", elsewhere)).is_some());
        assert_eq!(judged(&saved.replace("60:66", "60:67")), None, "by a range");
    }

    #[test]
    fn ufw_over_iptables_legacy_is_named_with_its_own_commands() {
        let found = judged(SAVED).expect("it drops");
        assert!(found.contains("(ufw allow in on bth-+ to any port 67 proto udp)"), "{found}");
    }
}
