//! `berth net trace`: asks the host of a VM for the way of a packet, and then the host of the VM that it is for.

use std::{io::Write as _, net::IpAddr, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use berth_agent::{PacketTrace, TypedApi};
use berth_api::{
    RuleProtocol, VM, VMState,
    console::ConsoleUse,
    packet_trace::{OtherEnd, TraceQuery},
    vm::InterfaceStatus,
};
use berth_host::{SENDER, StepResult, Trace, TraceEnd, TraceObject, TracedPacket};
use kube::{Client, ResourceExt, api::ListParams};
use tokio::{io::AsyncReadExt as _, time::timeout};

use super::console::connection;
use crate::{
    cli::{End, OutputForm, TraceOptions},
    failure,
    net_trace::{Verdict, Way},
    printable::{printable, printable_json},
};

/// The exit code of a failure, which is neither that of a packet that passes nor that of one that is dropped.
const FAILED: u8 = 2;
/// The time for a host to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// The maximum size of an answer in bytes.
const MAX_ANSWER: u64 = 1 << 20;
/// The number of VMs of the namespace that are searched for an address.
const MOST_VMS: u32 = 10_000;

/// Prints the way of a packet; returns 0 if it passes, 1 if it is dropped, and 2 if that is not decided.
pub(super) async fn trace(options: TraceOptions) -> ExitCode {
    match run(&options).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure::report(&error, FAILED),
    }
}

async fn run(options: &TraceOptions) -> anyhow::Result<u8> {
    let way = follow(options).await?;
    let out = match options.output {
        OutputForm::Text => printable(&way.text()),
        OutputForm::Json => printable_json(&format!("{:#}\n", way.json())),
    };
    std::io::stdout().write_all(out.as_bytes()).context("printing")?;
    Ok(way.verdict().exit_code())
}

/// An interface of a VM.
#[derive(Clone, Debug)]
struct Place {
    vm: String,
    interface: InterfaceStatus,
}

async fn follow(options: &TraceOptions) -> anyhow::Result<Way> {
    let (client, vm) = running(options, &options.vm).await?;
    let own =
        Place { vm: options.vm.clone(), interface: interface(&vm, options.interface.as_deref(), None)? };
    let neighbours = Neighbours { client, namespace: options.namespace.clone() };
    if let Some(to) = &options.to {
        let (to, target) = match to {
            End::Address(to) => (*to, None),
            End::Vm(name) => {
                let (_, vm) = running(options, name).await?;
                let target = Place {
                    vm: name.clone(),
                    interface: interface(&vm, None, Some(&own.interface.network))?,
                };
                (private(&target, options)?, Some(target))
            }
        };
        return sent(options, &neighbours, &own, to, target).await;
    }
    let to = if options.public { public(&own, is_ipv6(options, &own))? } else { private(&own, options)? };
    let from = match options.from.as_ref().context("neither --to nor --from")? {
        End::Vm(name) => {
            let (_, vm) = running(options, name).await?;
            let interface = interface(&vm, None, Some(&own.interface.network))?;
            Search { place: Some(Place { vm: name.clone(), interface }), is_complete: true }
        }
        End::Address(address) => neighbours.with_address(&own.interface.network, *address).await?,
    };
    // A VM of the namespace sends by its own host: its way is followed from there.
    let Search { place, is_complete } = from;
    if let Some(sender) = place {
        return sent(options, &neighbours, &sender, to, Some(own)).await;
    }
    let Some(End::Address(from)) = options.from else { bail!("the sender has no address") };
    let public = if options.public { Some(public(&own, from.is_ipv6())?) } else { None };
    let first = ask(options, &own, OtherEnd::From(from, public), port(options)).await?;
    let open = unasked(&first.trace, is_complete);
    let mut way = Way { hosts: vec![first], open: None };
    if way.verdict() == Verdict::Passed {
        way.open = open.map(str::to_owned);
    }
    Ok(way)
}

/// Why a packet that passes on its receiver's host may be dropped on another one before, which was not asked.
fn unasked(trace: &Trace, is_complete: bool) -> Option<&'static str> {
    let sender = trace.steps.iter().find(|step| step.place == SENDER && step.result == StepResult::Note)?;
    match sender.by {
        Some(TraceObject::Network { .. }) => Some(
            "on this host it passes, but no VM that you may list has the sender's address, so that the sender's host is not asked",
        ),
        None if !is_complete => {
            Some("on this host it passes, but not all VMs can be listed, of which one may be the sender")
        }
        _ => None,
    }
}

/// Whether a packet leaves by the network of a bridge of the host, where its receiver may be a VM of another host.
fn is_left_on_bridge(trace: &Trace) -> bool {
    let last = trace.steps.last();
    last.is_some_and(|step| {
        step.result == StepResult::Note && matches!(step.by, Some(TraceObject::Network { .. }))
    })
}

/// Follows a packet from its sender, and onto the host of its target.
async fn sent(
    options: &TraceOptions,
    neighbours: &Neighbours,
    sender: &Place,
    to: IpAddr,
    target: Option<Place>,
) -> anyhow::Result<Way> {
    let first = ask(options, sender, OtherEnd::To(to), port(options)).await?;
    let (end, is_on_bridge) = (first.trace.end.clone(), is_left_on_bridge(&first.trace));
    let mut way = Way { hosts: vec![first], open: None };
    let (packet, by_public) = match end {
        TraceEnd::Tunnel { packet, .. } => (packet, None),
        TraceEnd::Outside { packet, .. } if is_on_bridge => (packet, None),
        // To a target of another host: by a route, or to its public address, which that host sees from outside.
        TraceEnd::Outside { packet, .. } => {
            let Some(target) = &target else { return Ok(way) };
            let by_public = public(target, packet.to.is_ipv6()).ok().filter(|public| packet.to == *public);
            if by_public.is_none() && !has(target, packet.to) {
                return Ok(way);
            }
            (packet, by_public)
        }
        _ => return Ok(way),
    };
    // A public address may lead to another VM than the one that was named.
    let Search { place, is_complete } = match target {
        Some(target) if by_public.is_some() || has(&target, packet.to) => {
            Search { place: Some(target), is_complete: true }
        }
        _ => neighbours.with_address(&sender.interface.network, packet.to).await?,
    };
    let Some(target) = place else {
        // On a bridge of the host, an address that no VM has is a machine's outside.
        if !is_on_bridge || !is_complete {
            let (namespace, to) = (&options.namespace, packet.to);
            way.open = Some(format!(
                "on this host it passes, but no VM of namespace {namespace} that you may list has {to}, so that no other host is asked"
            ));
        }
        return Ok(way);
    };
    let TracedPacket { from, port, .. } = packet;
    match ask(options, &target, OtherEnd::From(from, by_public), port).await {
        Ok(second) => way.hosts.push(second),
        // The first part is known, and is shown.
        Err(error) => {
            way.open = Some(format!("on this host it passes, but the next one did not answer: {error:#}"))
        }
    }
    Ok(way)
}

/// Asks the host of a VM.
async fn ask(
    options: &TraceOptions,
    place: &Place,
    other: OtherEnd,
    port: u16,
) -> anyhow::Result<PacketTrace> {
    let interface = Some(place.interface.name.clone());
    let protocol = protocol(options, other.address());
    let query = TraceQuery { interface, other, protocol, port, icmp_type: options.icmp_type };
    if let Err(problem) = query.check() {
        bail!("{problem}");
    }
    let target = options.target(&place.vm);
    let stream = connection::open(&target, ConsoleUse::Trace, Some(&query.to_query())).await?;
    let mut answer = String::new();
    let mut stream = stream.take(MAX_ANSWER);
    let read = timeout(ANSWER, stream.read_to_string(&mut answer)).await;
    read.context("the host does not answer")?.context("reading the host's answer")?;
    serde_json::from_str(&answer).context("reading the host's answer: its version of berth may differ")
}

/// The protocol, by default an echo request of the address's family.
fn protocol(options: &TraceOptions, address: IpAddr) -> RuleProtocol {
    match (options.protocol, address) {
        (Some(protocol), _) => protocol.into(),
        (None, IpAddr::V4(_)) => RuleProtocol::Icmp,
        (None, IpAddr::V6(_)) => RuleProtocol::Icmpv6,
    }
}

fn port(options: &TraceOptions) -> u16 {
    options.port.unwrap_or_default()
}

/// Reads a VM that runs.
async fn running(options: &TraceOptions, name: &str) -> anyhow::Result<(Client, VM)> {
    let (client, vm) = connection::vm(&options.target(name)).await?;
    let state = vm.status.as_ref().and_then(|status| status.state);
    if state != Some(VMState::Running) {
        let state = state.map_or_else(|| "not reported yet".to_owned(), |state| format!("{state:?}"));
        bail!(
            "VM {name} does not run (its state is {state}): only the packets of a running VM can be traced. Start it: berth start {name}"
        );
    }
    Ok((client, vm))
}

/// Returns the interface of this name; without a name, the only one, or the only one on a network.
fn interface(vm: &VM, wanted: Option<&str>, network: Option<&str>) -> anyhow::Result<InterfaceStatus> {
    let all = vm.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default();
    let (name, names) =
        (vm.name_any(), all.iter().map(|each| each.name.as_str()).collect::<Vec<_>>().join(", "));
    let on_network: Vec<&InterfaceStatus> =
        all.iter().filter(|each| network.is_some_and(|network| each.network == network)).collect();
    let found = match (wanted, all, on_network.as_slice()) {
        (_, [], _) => bail!("VM {name} has no network interface"),
        (Some(wanted), ..) => all.iter().find(|each| each.name == wanted),
        (None, _, [only]) => Some(*only),
        (None, [only], _) => Some(only),
        (None, ..) if network.is_some() => {
            bail!(
                "VM {name} has several interfaces ({names}): give the address of one of them instead of the name of the VM"
            )
        }
        (None, ..) => bail!("VM {name} has several interfaces: choose one with --interface ({names})"),
    };
    match (found, wanted) {
        (Some(found), _) => Ok(found.clone()),
        (None, Some(wanted)) => bail!("VM {name} has no interface {wanted}: it has {names}"),
        (None, None) => bail!("VM {name} has no network interface"),
    }
}

/// Whether the packet is of IPv6: the other end has such an address, the protocol is of it, or this end has no other address.
fn is_ipv6(options: &TraceOptions, place: &Place) -> bool {
    let other = [&options.to, &options.from].into_iter().flatten().find_map(|end| match end {
        End::Address(address) => Some(*address),
        End::Vm(_) => None,
    });
    match other {
        Some(other) => other.is_ipv6(),
        None => {
            let is_only = place.interface.address.is_empty() && !place.interface.ipv6_address.is_empty();
            is_only || options.protocol.map(RuleProtocol::from) == Some(RuleProtocol::Icmpv6)
        }
    }
}

/// Returns the private address of the packet's family.
fn private(place: &Place, options: &TraceOptions) -> anyhow::Result<IpAddr> {
    let Place { vm, interface } = place;
    let (text, family) = match is_ipv6(options, place) {
        true => (&interface.ipv6_address, "IPv6"),
        false => (&interface.address, "IPv4"),
    };
    let found = text.parse::<IpAddr>();
    found.map_err(|_| {
        anyhow::anyhow!("interface {} of VM {vm} has no {family} address that berth knows", interface.name)
    })
}

/// Returns the public address of a family that leads to an interface.
fn public(place: &Place, is_ipv6: bool) -> anyhow::Result<IpAddr> {
    let (address, family) = match is_ipv6 {
        true => (&place.interface.public_ipv6_address, "IPv6"),
        false => (&place.interface.public_address, "IPv4"),
    };
    let address = address.as_deref().and_then(|address| address.parse::<IpAddr>().ok());
    address.with_context(|| {
        format!(
            "no public {family} address leads to interface {} of VM {} (leave out --public)",
            place.interface.name, place.vm
        )
    })
}

fn has(place: &Place, address: IpAddr) -> bool {
    let own = [&place.interface.address, &place.interface.ipv6_address];
    own.iter().any(|text| text.parse::<IpAddr>() == Ok(address))
}

/// The VMs of the namespace.
struct Neighbours {
    client: Client,
    namespace: String,
}

/// The result of looking for a VM.
struct Search {
    place: Option<Place>,
    /// Whether all VMs were looked at: false if the user may not list them, or there are too many.
    is_complete: bool,
}

impl Neighbours {
    /// Returns the interface on this network that has an address.
    async fn with_address(&self, network: &str, address: IpAddr) -> anyhow::Result<Search> {
        let vms: TypedApi<VM> = TypedApi::namespaced(self.client.clone(), &self.namespace);
        let vms = match vms.list(&ListParams::default().limit(MOST_VMS)).await {
            Ok(vms) => vms,
            Err(error) if crate::requests::has_code(&error, 403) => {
                return Ok(Search { place: None, is_complete: false });
            }
            Err(error) => return Err(error).context("looking for the VM with the address"),
        };
        let found = vms.iter().find_map(|vm| {
            let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
            let mut places = interfaces.filter(|each| each.network == network);
            let place =
                |interface: &InterfaceStatus| Place { vm: vm.name_any(), interface: interface.clone() };
            places.find_map(|each| Some(place(each)).filter(|place| has(place, address)))
        });
        let is_complete = vms.metadata.continue_.as_deref().unwrap_or_default().is_empty();
        Ok(Search { place: found, is_complete })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(networks: &[&str]) -> VM {
        let interfaces: Vec<serde_json::Value> = networks
            .iter()
            .enumerate()
            .map(|(n, network)| {
                json!({"name": format!("nic{n}"), "network": network, "macAddress": "52:54:00:00:00:01",
                "address": format!("10.0.{n}.2"), "ipv6Address": "fd00::2"})
            })
            .collect();
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"disks": []},
            "status": {"observedGeneration": 1, "interfaces": interfaces}}))
        .expect("a VM")
    }

    fn named(networks: &[&str], wanted: Option<&str>, network: Option<&str>) -> Result<String, String> {
        let found = interface(&vm(networks), wanted, network);
        found.map(|found| found.name).map_err(|error| error.to_string())
    }

    #[test]
    fn an_interface_is_named_or_the_only_one_or_the_one_on_the_network() {
        assert_eq!(named(&["ns/a"], None, None).as_deref(), Ok("nic0"));
        assert_eq!(named(&["ns/a", "ns/b"], Some("nic1"), None).as_deref(), Ok("nic1"));
        assert_eq!(named(&["ns/a", "ns/b"], None, Some("ns/b")).as_deref(), Ok("nic1"));
        assert_eq!(named(&["ns/a"], None, Some("ns/b")).as_deref(), Ok("nic0"));
        for (wanted, network, why) in [
            (None, None, "--interface"),
            (None, Some("ns/c"), "give the address of one"),
            (Some("nic7"), None, "has no interface nic7"),
        ] {
            let error = named(&["ns/a", "ns/b"], wanted, network).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        assert!(named(&[], None, None).expect_err("none").contains("no network interface"));
    }

    #[test]
    fn a_sender_that_was_not_found_leaves_the_answer_open_unless_it_is_outside() {
        let step = |place: &str, by| berth_host::TraceStep {
            place: place.to_owned(),
            result: StepResult::Note,
            by,
            detail: String::new(),
        };
        let network = || Some(TraceObject::Network { name: "ns/a".to_owned() });
        let from = |by| Trace { steps: vec![step(SENDER, by)], end: TraceEnd::Host };
        assert!(
            unasked(&from(network()), true).expect("by a tunnel").contains("the sender's host is not asked")
        );
        assert!(unasked(&from(None), false).expect("by a bridge").contains("not all VMs"));
        assert_eq!(unasked(&from(None), true), None);
        assert_eq!(unasked(&from(Some(TraceObject::Host)), false), None);
        let of_guest = Trace { steps: vec![step("source check", network())], end: TraceEnd::Host };
        assert_eq!(unasked(&of_guest, false), None);
        assert!(is_left_on_bridge(&from(network())) && !is_left_on_bridge(&from(None)));
    }

    #[test]
    fn a_place_has_the_addresses_of_its_interface() {
        let place = |network: &str| Place {
            vm: "web".into(),
            interface: interface(&vm(&[network]), None, None).expect("one"),
        };
        let ip = |text: &str| text.parse().expect("an address");
        assert!(has(&place("ns/a"), ip("10.0.0.2")) && has(&place("ns/a"), ip("fd00::2")));
        assert!(!has(&place("ns/a"), ip("10.0.0.3")));
        assert!(public(&place("ns/a"), false).expect_err("none").to_string().contains("--public"));
    }
}
