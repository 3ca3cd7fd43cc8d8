//! The way of one packet through this host: what passes or drops it, and the object that this follows from.
//!
//! ```text
//!  the agent's Firewall ─ ruleset ─▶ the transaction that berth writes ─▶ evaluated for the packet   rules, matching
//!                                        │ checksums, as before each write                           explain, path
//!                                        ▼
//!                                    the kernel's tables: the same, or the trace is undecided
//!  links, routes, rules of other programs ◀── the kernel                                             facts
//!  routers of guests ◀── the networks' configuration                                                 guest_routes
//! ```
//!
//! Two ways were open. A listing by `nft -j` is the truth, but nftables writes rules in a notation of its own, which differs between
//! its versions. A second description of what the rules mean is short, but is wrong as soon as a rule changes. So the transaction itself
//! is evaluated, which is berth's own and has one notation, and the checksums by which [`Rules`](super::firewall::Rules) notices foreign
//! changes say whether the kernel has it. Routes are asked of the kernel, for exactly this packet.

mod explain;
mod facts;
mod guest_routes;
mod matching;
mod path;
mod rules;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::ops::ControlFlow;

use super::firewall::{Installed, Rules};
use super::netlink::{Link, LinkKind, Netlink, RouteOfPacket};
use super::{BRIDGE_PREFIX, Result, foreign, ipv6, ruleset, tracking};
use crate::{StepResult, Trace, TraceEnd, TraceObject, TraceRequest, TraceStep};
use facts::{Facts, LinkFact, RouteFound};
use path::{Walk, is_link_local};
use rules::Ruleset;

/// Follows the packet of a request.
pub(super) async fn trace(netlink: &Netlink, rules: &Rules, request: &TraceRequest) -> Result<Trace> {
    let ipv6_closed = ipv6::closed(netlink, &request.firewall).await?;
    let installed = rules.installed(&request.firewall, &ipv6_closed).await?;
    let links = netlink.links().await?;
    let facts = Facts {
        links: links.iter().map(|link| fact(link, &links)).collect(),
        is_tracking_global: tracking::is_global_for(request.packet.to).await,
        is_ipv6_forwarded: ipv6::is_forwarded().await,
        foreign: foreign::chains().await?,
    };
    let ruleset = Ruleset::of(&ruleset::replace(&request.firewall, &ipv6_closed, &[]));
    let groups = ruleset::group_chains(&request.firewall.filters);
    let arrival = match request.is_sent || is_link_local(request.packet.from) {
        true => None,
        false => Some(found(netlink, &links, request.packet.from, None).await?),
    };
    let mut walk = Walk::new(request, &ruleset, &groups, &facts);
    let end = match walk.begin(arrival.as_ref()) {
        ControlFlow::Break(end) => end,
        ControlFlow::Continue(()) => {
            let frame = walk.frame();
            let (to, from, by) = (frame.now.to, frame.now.from, frame.by.clone());
            let route = found(netlink, &links, to, Some((from, by.as_str()))).await?;
            walk.finish(&route)
        }
    };
    Ok(judged(walk.into_trace(end), installed))
}

/// A trace of rules that the kernel does not have decides nothing.
fn judged(mut trace: Trace, installed: Installed) -> Trace {
    let detail = match installed {
        Installed::Yes => return trace,
        Installed::Changed => {
            "the host's filter is not what berth installed last, or is about to change: berth replaces it, ask again in a moment"
        }
        Installed::Missing => {
            "the host has none of berth's rules: another program has removed them, and berth writes them again within a second"
        }
    };
    let step = TraceStep {
        place: "rules of berth".to_owned(),
        result: StepResult::NotEvaluated,
        by: Some(TraceObject::Host),
        detail: detail.to_owned(),
    };
    trace.steps.insert(0, step);
    trace.end = TraceEnd::Undecided;
    trace
}

fn fact(link: &Link, links: &[Link]) -> LinkFact {
    let bridge = links.iter().find(|each| Some(each.index) == link.controller);
    let bridge = bridge.filter(|bridge| bridge.kind == Some(LinkKind::Bridge));
    LinkFact {
        name: link.name.clone(),
        is_up: link.up,
        bridge: bridge.map(|bridge| bridge.name.clone()),
        is_tracked: link.tracked,
    }
}

/// Asks the kernel for its route to an address. `from`: the sender and the interface by which its packet comes.
async fn found(
    netlink: &Netlink,
    links: &[Link],
    to: IpAddr,
    from: Option<(IpAddr, &str)>,
) -> Result<RouteFound> {
    let from = match from {
        None => None,
        Some((from, by)) => match links.iter().find(|link| link.name == by) {
            Some(link) => Some((from, link.index)),
            None => return Ok(RouteFound::None { detail: format!("the host has no interface {by}") }),
        },
    };
    let (link, gateway) = match netlink.route_to(to, from).await? {
        RouteOfPacket::Local => return Ok(RouteFound::Local),
        RouteOfPacket::None { errno } => return Ok(RouteFound::None { detail: no_route(errno).to_owned() }),
        RouteOfPacket::By { link, gateway, .. } => (link, gateway),
    };
    let Some(interface) = links.iter().find(|each| each.index == link).map(|link| link.name.clone()) else {
        return Ok(RouteFound::None {
            detail: "the interface of the route has just been removed".to_owned(),
        });
    };
    // The kernel names the address it would send from only for packets of the host itself.
    let source = match interface.starts_with(BRIDGE_PREFIX) {
        true => None,
        false => source_of(netlink, to).await?,
    };
    Ok(RouteFound::By { interface, gateway, source })
}

async fn source_of(netlink: &Netlink, to: IpAddr) -> Result<Option<IpAddr>> {
    match netlink.route_to(to, None).await? {
        RouteOfPacket::By { source, .. } => Ok(source),
        RouteOfPacket::Local | RouteOfPacket::None { .. } => Ok(None),
    }
}

fn no_route(errno: i32) -> &'static str {
    match errno {
        libc::EXDEV => {
            "the reverse path filter of the host (rp_filter) drops it: the host reaches the sender by another interface"
        }
        libc::EINVAL => {
            "a route of the host drops it (blackhole), or the host takes an address of the packet for one that cannot come by this interface"
        }
        libc::EACCES => "a route of the host prohibits it",
        _ => "the host has no route to the address, or does not forward packets",
    }
}
