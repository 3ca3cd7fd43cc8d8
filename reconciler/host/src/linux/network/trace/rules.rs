//! Evaluates berth's rules for one packet. Pure.
//!
//! It interprets the JSON that `ruleset` writes, not a description of it: a rule that is added there is evaluated here. It knows exactly
//! the expressions that berth's rules consist of. A rule with another expression, or with bytes that the packet does not define, has the
//! decision [`Decision::Unknown`], unless another of its conditions does not match. If such a rule can only drop or reject, and the rest of
//! its chain refuses the packet too, that refusal is the decision.
//!
//! The packet opens a connection: answers are judged by the connection, which `conntrack` has.

use std::collections::BTreeMap;

use serde_json::Value;

use super::matching::{Frame, Lookup, Sets};

/// The deepest jump that is followed. berth's rules have three.
const DEPTH: usize = 8;

/// berth's tables, as they are written.
#[derive(Debug, Default)]
pub(super) struct Ruleset {
    chains: Vec<Chain>,
    sets: Sets,
}

#[derive(Debug)]
struct Chain {
    family: String,
    name: String,
    /// Hook and priority of a chain in which packets begin.
    base: Option<(String, i64)>,
    rules: Vec<Rule>,
}

/// A rule, and the text that `nft` shows beside it.
#[derive(Clone, Debug)]
struct Rule {
    expressions: Vec<Value>,
    comment: Option<String>,
}

/// A rule that has decided.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hit {
    pub(super) family: String,
    pub(super) chain: String,
    pub(super) comment: Option<String>,
    /// The rule's expressions, as JSON. They name what belongs to others, and are in no answer.
    pub(super) rule: String,
    pub(super) decision: Decision,
}

/// The decision of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    Accept,
    Drop,
    Reject,
    /// Another destination, one of so many.
    Destination {
        address: String,
        port: Option<u16>,
        choices: usize,
    },
    /// Another source.
    Source {
        address: String,
    },
    /// The address of the interface it leaves by as the source.
    Masquerade,
    Unknown,
}

/// The result of a rule or of a chain that others jump to.
enum Flow {
    Next,
    /// The end of this chain, by `return` or at the end of another one that it has gone to.
    Return,
    Hit(Hit),
    /// Refused by this rule, or the next one: that is not known.
    RefusedOrNext(Hit),
}

impl Ruleset {
    /// Reads a transaction that makes the tables.
    pub(super) fn of(transaction: &Value) -> Self {
        let mut ruleset = Self::default();
        let commands = transaction["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
        for added in commands.iter().filter_map(|command| command.get("add")) {
            if let Some(chain) = added.get("chain") {
                let priority = chain["prio"].as_i64().unwrap_or_default();
                let base = chain["hook"].as_str().map(|hook| (hook.to_owned(), priority));
                let (family, name) = (text(&chain["family"]), text(&chain["name"]));
                ruleset.chains.push(Chain { family, name, base, rules: Vec::new() });
            } else if let Some(rule) = added.get("rule") {
                let (family, name) = (text(&rule["family"]), text(&rule["chain"]));
                let expressions = rule["expr"].as_array().cloned().unwrap_or_default();
                let comment = rule["comment"].as_str().map(str::to_owned);
                if let Some(chain) = ruleset.chains.iter_mut().find(|c| c.family == family && c.name == name)
                {
                    chain.rules.push(Rule { expressions, comment });
                }
            } else if let Some(set) = added.get("set").or_else(|| added.get("map")) {
                ruleset.sets.add(&text(&set["family"]), &text(&set["name"]), &set["elem"]);
            }
        }
        ruleset
    }

    /// Returns the decisions at a hook, one for each chain that has any, in order. A packet that is dropped does not come to the next.
    pub(super) fn at(&self, family: &str, hook: &str, frame: &Frame) -> Vec<Hit> {
        let mut chains: BTreeMap<(i64, usize), &Chain> = BTreeMap::new();
        for (number, chain) in self.chains.iter().enumerate().filter(|(_, chain)| chain.family == family) {
            if let Some((_, priority)) = chain.base.as_ref().filter(|(of, _)| of == hook) {
                chains.insert((*priority, number), chain);
            }
        }
        let mut hits = Vec::new();
        for chain in chains.into_values() {
            if let Flow::Hit(hit) | Flow::RefusedOrNext(hit) = self.follow(chain, frame, 0) {
                let is_end = matches!(hit.decision, Decision::Drop | Decision::Reject | Decision::Unknown);
                hits.push(hit);
                if is_end {
                    break;
                }
            }
        }
        hits
    }

    /// The rules that drop or reject, as chain and hit.
    #[cfg(test)]
    pub(super) fn refusals(&self) -> Vec<Hit> {
        let mut refusals = Vec::new();
        for chain in &self.chains {
            for rule in &chain.rules {
                let decision = match rule.expressions.last() {
                    Some(last) if last.get("drop").is_some() => Decision::Drop,
                    Some(last) if last.get("reject").is_some() => Decision::Reject,
                    _ => continue,
                };
                refusals.push(chain.hit(rule, decision));
            }
        }
        refusals
    }

    fn follow(&self, chain: &Chain, frame: &Frame, depth: usize) -> Flow {
        let mut open = None;
        for rule in &chain.rules {
            match self.rule(chain, rule, frame, depth) {
                Flow::Next => {}
                Flow::Return => break,
                Flow::RefusedOrNext(hit) => open = open.or(Some(hit)),
                Flow::Hit(hit) => {
                    let is_refused = matches!(hit.decision, Decision::Drop | Decision::Reject);
                    return Flow::Hit(open.filter(|_| !is_refused).unwrap_or(hit));
                }
            }
        }
        open.map_or(Flow::Next, Flow::RefusedOrNext)
    }

    fn rule(&self, chain: &Chain, rule: &Rule, frame: &Frame, depth: usize) -> Flow {
        let mut is_unknown = false;
        let mut statement = None;
        for expression in &rule.expressions {
            if let Some(condition) = expression.get("match") {
                match self.sets.applies(&chain.family, condition, frame) {
                    Some(true) => {}
                    Some(false) => return Flow::Next,
                    None => is_unknown = true,
                }
            } else if let Some(limit) = expression.get("limit") {
                // A packet alone is below every limit.
                match limit["inv"].as_bool() {
                    Some(true) => return Flow::Next,
                    _ => is_unknown = true,
                }
            } else if ["counter", "mangle", "notrack"].iter().all(|name| expression.get(name).is_none()) {
                // A packet that is counted, marked or not tracked goes on.
                statement = Some(expression);
            }
        }
        match statement {
            None => Flow::Next,
            Some(statement) if is_unknown => {
                let hit = chain.hit(rule, Decision::Unknown);
                let is_refusal = ["drop", "reject"].iter().any(|name| statement.get(name).is_some());
                if is_refusal { Flow::RefusedOrNext(hit) } else { Flow::Hit(hit) }
            }
            Some(statement) => self.statement(chain, rule, (statement, frame), depth),
        }
    }

    fn statement(
        &self,
        chain: &Chain,
        rule: &Rule,
        (statement, frame): (&Value, &Frame),
        depth: usize,
    ) -> Flow {
        let decided = |decision| Flow::Hit(chain.hit(rule, decision));
        if let Some(vmap) = statement.get("vmap") {
            return match self.sets.look_up(&chain.family, vmap, frame) {
                Lookup::Missing => Flow::Next,
                Lookup::Found(verdict) => self.statement(chain, rule, (&verdict, frame), depth + 1),
                Lookup::OneOf(_) | Lookup::Unknown => decided(Decision::Unknown),
            };
        }
        if depth >= DEPTH {
            return decided(Decision::Unknown);
        }
        if let Some(target) = statement.get("jump").or_else(|| statement.get("goto")) {
            let name = text(&target["target"]);
            let target = self.chains.iter().find(|each| each.family == chain.family && each.name == name);
            let Some(target) = target else { return decided(Decision::Unknown) };
            return match self.follow(target, frame, depth + 1) {
                Flow::Next if statement.get("goto").is_some() => Flow::Return,
                Flow::RefusedOrNext(hit) if statement.get("goto").is_some() => Flow::Hit(hit),
                flow => flow,
            };
        }
        if statement.get("return").is_some() {
            return Flow::Return;
        }
        if let Some(dnat) = statement.get("dnat") {
            let port = dnat["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            return self.translated(chain, (&dnat["addr"], frame), |address, choices| {
                chain.hit(rule, Decision::Destination { address, port, choices })
            });
        }
        if let Some(snat) = statement.get("snat") {
            return self.translated(chain, (&snat["addr"], frame), |address, _| {
                chain.hit(rule, Decision::Source { address })
            });
        }
        let known = [
            ("accept", Decision::Accept),
            ("drop", Decision::Drop),
            ("reject", Decision::Reject),
            ("masquerade", Decision::Masquerade),
        ];
        let found = known.into_iter().find(|(name, _)| statement.get(name).is_some());
        decided(found.map_or(Decision::Unknown, |(_, decision)| decision))
    }

    /// An address, or the one that a map has for the packet. A rule whose map has none does nothing.
    fn translated(
        &self,
        chain: &Chain,
        (address, frame): (&Value, &Frame),
        hit: impl Fn(String, usize) -> Hit,
    ) -> Flow {
        if let Some(address) = address.as_str() {
            return Flow::Hit(hit(address.to_owned(), 1));
        }
        match self.sets.look_up(&chain.family, &address["map"], frame) {
            Lookup::Missing => Flow::Next,
            Lookup::Found(address) => Flow::Hit(hit(text(&address), 1)),
            Lookup::OneOf(addresses) => {
                let preferred = frame.preferred.map(|address| address.to_string());
                let wanted = addresses.iter().find(|address| Some(*address) == preferred.as_ref());
                let chosen = wanted.or(addresses.first()).cloned().unwrap_or_default();
                Flow::Hit(hit(chosen, addresses.len()))
            }
            Lookup::Unknown => Flow::Hit(Hit { decision: Decision::Unknown, ..hit(String::new(), 0) }),
        }
    }
}

impl Chain {
    fn hit(&self, rule: &Rule, decision: Decision) -> Hit {
        Hit {
            family: self.family.clone(),
            chain: self.name.clone(),
            comment: rule.comment.clone(),
            rule: Value::from(rule.expressions.clone()).to_string(),
            decision,
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
