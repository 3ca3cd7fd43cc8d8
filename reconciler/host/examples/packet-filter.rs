//! The time until a host's kernel has the packet filters of many interfaces, and one member more or less: `cargo measure N15` runs it
//! as root in a network namespace of its own.
//!
//! ```text
//! packet-filter FOLDER INTERFACES RULES
//! ```
//!
//! Each result is a line `packet-filter KIND MILLISECONDS` on the standard output.

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use berth_host::linux::{LinuxConfig, LinuxSystem};
use berth_host::{FilterGroup, FilterProtocol, FilterRule, FilteredPort, Filters, Firewall, Networks, Port};

/// The number of changes of each kind.
const CHANGES: u32 = 20;
/// The members of the group that a rule names.
const MEMBERS: u32 = 10;
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 2);
const GROUP: &str = "default/web";
const NAMED: &str = "default/peers";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("packet-filter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, interfaces, rules] = &arguments[..] else {
        return Err(io::Error::other("packet-filter FOLDER INTERFACES RULES"));
    };
    // After two lines of headings, those of the interfaces.
    let devices = std::fs::read_to_string("/proc/self/net/dev")?;
    if devices.lines().skip(2).any(|line| !line.trim_start().starts_with("lo:")) {
        return Err(io::Error::other(
            "it replaces the rules of its network namespace: give it one without interfaces",
        ));
    }
    let count = |text: &String| text.parse::<u32>().map_err(io::Error::other);
    let (interfaces, rules) = (count(interfaces)?, count(rules)?);
    let system = LinuxSystem::open(LinuxConfig::new(folder)).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(&system, interfaces, rules))
}

async fn measure(system: &LinuxSystem, interfaces: u32, rules: u32) -> io::Result<()> {
    let mut firewall = firewall(interfaces, rules);
    apply("first", system, &firewall).await?;
    for number in 0..CHANGES {
        let group = &mut Arc::make_mut(&mut firewall.filters).groups[0];
        group.ingress.pop();
        group.ingress.push(rule(1000 + number));
        apply("rule", system, &firewall).await?;
    }
    for number in 0..CHANGES {
        let members = MEMBERS + (number + 1) % 2;
        Arc::make_mut(&mut firewall.filters).sets.insert(NAMED.to_owned(), addresses(members));
        apply("member", system, &firewall).await?;
    }
    Ok(())
}

async fn apply(kind: &str, system: &LinuxSystem, firewall: &Firewall) -> io::Result<()> {
    let began = Instant::now();
    system.apply_firewall(firewall).await.map_err(io::Error::other)?;
    writeln!(io::stdout(), "packet-filter {kind} {:.3}", began.elapsed().as_secs_f64() * 1e3)
}

/// Addresses with others between them, as those of VMs that were not made together.
fn addresses(count: u32) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    (0..count).map(|number| address(3 * number)).map(|address| (address, address)).collect()
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(FIRST) + number)
}

fn rule(number: u32) -> FilterRule {
    let port = u16::try_from(1 + number % 60_000).unwrap_or(1);
    let range = ipnet::Ipv4Net::new_assert(Ipv4Addr::from(0xC633_0000 + (number << 4)), 28);
    FilterRule {
        name: format!("rule-{number}"),
        protocol: FilterProtocol::Tcp,
        ports: vec![(port, port)],
        ranges: vec![range.into()],
        ..FilterRule::default()
    }
}

/// Interfaces with one group, which has half of the rules in each direction; one of them names another group.
fn firewall(interfaces: u32, rules: u32) -> Firewall {
    let port = |number: u32| Port {
        tap: format!("btt{number:08x}n0"),
        mac: format!("52:54:00:{:02x}:{:02x}:{:02x}", number >> 16 & 255, number >> 8 & 255, number & 255),
        address: Some(address(number)),
        ipv6: None,
    };
    let ports: Vec<Port> = (0..interfaces).map(port).collect();
    let filtered = |port: &Port| FilteredPort {
        port: port.clone(),
        groups: vec![GROUP.to_owned()],
        asks_dhcp: false,
        prefixes: Vec::new(),
    };
    let naming =
        FilterRule { name: "peers".to_owned(), sets: vec![NAMED.to_owned()], ..FilterRule::default() };
    let half = rules / 2;
    let group = FilterGroup {
        name: GROUP.to_owned(),
        ingress: std::iter::once(naming).chain((1..half).map(rule)).collect(),
        egress: Some((half..rules).map(rule).collect()),
    };
    let filters = Filters {
        ports: ports.iter().map(filtered).collect(),
        groups: vec![group],
        sets: [(NAMED.to_owned(), addresses(MEMBERS))].into(),
        ipv6_sets: [(NAMED.to_owned(), Vec::new())].into(),
    };
    Firewall { ports, filters: filters.into(), guests: true, ..Firewall::default() }
}
