//! Traces of packets over one host or two, as text and as JSON. Pure.

use std::fmt::Write as _;

use berth_agent::PacketTrace;
use berth_host::{StepResult, TraceDirection, TraceEnd, TraceObject, TraceStep, TracedPacket, TracedRule};
use serde_json::{Value, json};

/// The way of a packet, on each host that was asked, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Way {
    pub(crate) hosts: Vec<PacketTrace>,
    /// Why the last host's trace is not the end of the way, although it passes there.
    pub(crate) open: Option<String>,
}

/// The result of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Dropped,
    Rejected,
    Undecided,
}

impl Verdict {
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Dropped | Self::Rejected => 1,
            Self::Undecided => 2,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passes",
            Self::Dropped => "dropped",
            Self::Rejected => "rejected",
            Self::Undecided => "undecided",
        }
    }
}

impl Way {
    pub(crate) fn verdict(&self) -> Verdict {
        match self.hosts.last().map(|last| &last.trace.end) {
            Some(TraceEnd::Dropped) => Verdict::Dropped,
            Some(TraceEnd::Rejected) => Verdict::Rejected,
            Some(
                TraceEnd::Guest { .. } | TraceEnd::Host | TraceEnd::Outside { .. } | TraceEnd::Tunnel { .. },
            ) if self.open.is_none() => Verdict::Passed,
            _ => Verdict::Undecided,
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({"verdict": self.verdict().as_str(), "hosts": self.hosts, "open": self.open})
    }

    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let steps = self.hosts.iter().flat_map(|host| &host.trace.steps);
        let width = steps.map(|step| step.place.len()).max().unwrap_or_default();
        for (number, host) in self.hosts.iter().enumerate() {
            if number == 0 {
                // Writing into a String cannot fail.
                let _ = writeln!(out, "{}", packet(&host.packet));
            }
            let _ = writeln!(out, "on host {}:", host.host);
            for step in &host.trace.steps {
                let line = format!("  {:<13} {:<width$}  {}", result(step.result), step.place, reason(step));
                let _ = writeln!(out, "{}", line.trim_end());
            }
        }
        let _ = writeln!(out, "{}", self.end());
        out
    }

    /// The last sentence.
    fn end(&self) -> String {
        let Some(last) = self.hosts.last() else { return "Undecided: no host was asked.".to_owned() };
        if let Some(open) = &self.open {
            return format!("Undecided: {open}.");
        }
        let by = last.trace.steps.last().and_then(|step| step.by.as_ref()).map(object);
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        match &last.trace.end {
            TraceEnd::Guest { interface, packet } => {
                format!("It passes: {} gets it{}.", vm(interface), at(packet))
            }
            TraceEnd::Host => format!("It passes: host {} itself gets it.", last.host),
            TraceEnd::Outside { interface, packet } => {
                format!(
                    "It passes: it leaves host {} by {interface}, from {}{}.",
                    last.host,
                    packet.from,
                    at(packet)
                )
            }
            TraceEnd::Tunnel { network, .. } => {
                format!("It passes: it leaves host {} by the tunnel of Network {network}.", last.host)
            }
            TraceEnd::Dropped => format!("It is dropped on host {}{by}.", last.host),
            TraceEnd::Rejected => {
                format!("It is rejected on host {}{by}: its sender gets an error.", last.host)
            }
            TraceEnd::Undecided => format!("Undecided: a step on host {} was not evaluated.", last.host),
        }
    }
}

fn packet(packet: &TracedPacket) -> String {
    let TracedPacket { from, to, protocol, port, icmp_type } = packet;
    let name = protocol.as_str();
    match (protocol.has_ports(), icmp_type) {
        (true, _) => format!("{name} from {from} to {to} port {port}"),
        (false, Some(number)) => format!("{name} of type {number} from {from} to {to}"),
        (false, None) => format!("{name} echo request from {from} to {to}"),
    }
}

fn at(packet: &TracedPacket) -> String {
    match packet.protocol.has_ports() {
        true => format!(" at {} port {}", packet.to, packet.port),
        false => format!(" at {}", packet.to),
    }
}

const fn result(result: StepResult) -> &'static str {
    match result {
        StepResult::Passed => "passes",
        StepResult::Rewritten => "rewritten",
        StepResult::Dropped => "dropped",
        StepResult::Rejected => "rejected",
        StepResult::NotEvaluated => "not evaluated",
        StepResult::Note => "note",
    }
}

/// The object and the detail of a step.
fn reason(step: &TraceStep) -> String {
    match (&step.by, step.detail.as_str()) {
        (None, detail) => detail.to_owned(),
        (Some(by), "") => object(by),
        (Some(by), detail) => format!("{}: {detail}", object(by)),
    }
}

fn object(by: &TraceObject) -> String {
    let direction = |direction: TraceDirection| match direction {
        TraceDirection::Ingress => "ingress",
        TraceDirection::Egress => "egress",
    };
    match by {
        TraceObject::SecurityGroup { name, direction: of, rule: Some(TracedRule { number, name: rule }) } => {
            format!("SecurityGroup {name}, {} rule {number} ({rule})", direction(*of))
        }
        TraceObject::SecurityGroup { name, direction: of, rule: None } => {
            format!("SecurityGroup {name}, {}", direction(*of))
        }
        TraceObject::SecurityGroups { names, direction: of } if names.len() == 1 => {
            format!("SecurityGroup {}, {}", names[0], direction(*of))
        }
        TraceObject::SecurityGroups { names, direction: of } => {
            format!("SecurityGroups {}, {}", names.join(", "), direction(*of))
        }
        TraceObject::Network { name } => format!("Network {name}"),
        TraceObject::Interface { name } => vm(name),
        TraceObject::PublicAddress { address } => format!("public address {address}"),
        TraceObject::Host => "host".to_owned(),
        TraceObject::OtherProgram => "another program".to_owned(),
    }
}

/// An interface, which an answer names as `VM/INTERFACE`.
fn vm(interface: &str) -> String {
    match interface.split_once('/') {
        Some((vm, interface)) => format!("VM {vm}, interface {interface}"),
        None => format!("a VM {interface}"),
    }
}

#[cfg(test)]
mod tests {
    use berth_host::{Trace, TraceProtocol};

    use super::*;

    fn traced(host: &str, steps: Vec<TraceStep>, end: TraceEnd) -> PacketTrace {
        let (host, interface) = (host.to_owned(), "nic0".to_owned());
        PacketTrace { host, interface, packet: tcp(443), trace: Trace { steps, end } }
    }

    fn tcp(port: u16) -> TracedPacket {
        let ip = |text: &str| text.parse().expect("an address");
        TracedPacket {
            from: ip("10.0.0.2"),
            to: ip("10.0.0.3"),
            protocol: TraceProtocol::Tcp,
            port,
            icmp_type: None,
        }
    }

    fn step(place: &str, result: StepResult, by: TraceObject, detail: &str) -> TraceStep {
        TraceStep { place: place.into(), result, by: Some(by), detail: detail.into() }
    }

    fn over_two_hosts() -> Way {
        let source = step(
            "source check",
            StepResult::Passed,
            TraceObject::Interface { name: "web/nic0".into() },
            "the address is the interface's",
        );
        let egress = TraceObject::SecurityGroup {
            name: "web".into(),
            direction: TraceDirection::Egress,
            rule: Some(TracedRule { number: 2, name: "db".into() }),
        };
        let egress = step("security groups, egress", StepResult::Passed, egress, "");
        let tunnel = TraceEnd::Tunnel { network: "app".into(), packet: tcp(443) };
        let groups =
            TraceObject::SecurityGroups { names: vec!["db".into()], direction: TraceDirection::Ingress };
        let ingress =
            step("security groups, ingress", StepResult::Dropped, groups, "no rule allows the packet");
        let hosts =
            vec![traced("h1", vec![source, egress], tunnel), traced("h2", vec![ingress], TraceEnd::Dropped)];
        Way { hosts, open: None }
    }

    #[test]
    fn the_text_has_a_line_for_each_step_and_a_sentence_at_the_end() {
        let lines = [
            "tcp from 10.0.0.2 to 10.0.0.3 port 443",
            "on host h1:",
            "  passes        source check              VM web, interface nic0: the address is the interface's",
            "  passes        security groups, egress   SecurityGroup web, egress rule 2 (db)",
            "on host h2:",
            "  dropped       security groups, ingress  SecurityGroup db, ingress: no rule allows the packet",
            "It is dropped on host h2 by SecurityGroup db, ingress.",
        ];
        assert_eq!(over_two_hosts().text().lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn the_verdict_is_that_of_the_last_host_and_open_ends_are_undecided() {
        let mut way = over_two_hosts();
        assert_eq!((way.verdict(), way.verdict().exit_code()), (Verdict::Dropped, 1));
        way.hosts.pop();
        assert_eq!((way.verdict(), way.verdict().exit_code()), (Verdict::Passed, 0));
        way.open = Some("no VM of this namespace has the address".into());
        assert_eq!((way.verdict(), way.verdict().exit_code()), (Verdict::Undecided, 2));
        assert!(way.text().ends_with("Undecided: no VM of this namespace has the address.\n"));
        assert_eq!(way.json()["verdict"], "undecided");
        let rejected = Way { hosts: vec![traced("h1", Vec::new(), TraceEnd::Rejected)], open: None };
        assert_eq!(rejected.verdict().exit_code(), 1);
        assert_eq!(Way { hosts: Vec::new(), open: None }.verdict(), Verdict::Undecided);
    }

    #[test]
    fn the_answer_of_a_host_is_read_as_it_was_written() {
        for host in over_two_hosts().hosts {
            let text = serde_json::to_string(&host).expect("JSON");
            assert_eq!(serde_json::from_str::<PacketTrace>(&text).expect("an answer"), host);
        }
    }
}
