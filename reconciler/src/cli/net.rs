//! The options of `berth net`.

use std::net::IpAddr;
use std::str::FromStr;

use berth_api::{RuleProtocol, security_group::IcmpType};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::{Connection, ConsoleTarget, OutputForm, StateDir};

/// `berth net`
#[derive(Args, Debug)]
pub struct NetOptions {
    /// The question.
    #[command(subcommand)]
    pub action: NetAction,
}

/// The questions about networks.
#[derive(Debug, Subcommand)]
pub enum NetAction {
    /// Shows step by step whether a packet from or to a VM passes, and which object drops it. Sends nothing. Exit code 0: it passes,
    /// 1: it is dropped or rejected, 2: an error, or not decided.
    Trace(TraceOptions),
}

/// `berth net trace`
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("other").required(true).args(["to", "from"])))]
pub struct TraceOptions {
    /// The VM's name.
    pub vm: String,
    /// The packet that the VM sends to this address, or to this VM of its namespace.
    #[arg(long, value_name = "ADDRESS|VM")]
    pub to: Option<End>,
    /// The packet that comes to the VM from this address, or from this VM of its namespace.
    #[arg(long, value_name = "ADDRESS|VM")]
    pub from: Option<End>,
    /// The destination port of TCP or UDP.
    #[arg(long, requires = "protocol", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The protocol. Default: an echo request (ping) of the address's family. Answers and connections that are open are not traced.
    #[arg(long, value_enum)]
    pub protocol: Option<TraceProtocolName>,
    /// The type of a query of ICMP or ICMPv6, as rules of security groups name it. Default: echo-request.
    #[arg(long, conflicts_with = "port")]
    pub icmp_type: Option<IcmpType>,
    /// The interface of the VM. Default: its only one.
    #[arg(long)]
    pub interface: Option<String>,
    /// With --from: the packet comes to the public address of the interface, not to its private one.
    #[arg(long, conflicts_with = "to")]
    pub public: bool,
    /// The form of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputForm,
    /// The VM's namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

impl TraceOptions {
    /// Returns a VM of the namespace.
    pub(crate) fn target(&self, vm: &str) -> ConsoleTarget {
        ConsoleTarget {
            vm: vm.to_owned(),
            namespace: self.namespace.clone(),
            state: self.state.clone(),
            connection: self.connection.clone(),
        }
    }
}

/// [`RuleProtocol`] as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceProtocolName {
    /// A segment that opens a connection.
    Tcp,
    /// A datagram.
    Udp,
    /// A query of IPv4, by default an echo request.
    Icmp,
    /// A query of IPv6, by default an echo request.
    Icmpv6,
}

impl From<TraceProtocolName> for RuleProtocol {
    fn from(protocol: TraceProtocolName) -> Self {
        match protocol {
            TraceProtocolName::Tcp => Self::Tcp,
            TraceProtocolName::Udp => Self::Udp,
            TraceProtocolName::Icmp => Self::Icmp,
            TraceProtocolName::Icmpv6 => Self::Icmpv6,
        }
    }
}

/// The other end of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// An address.
    Address(IpAddr),
    /// A VM of the same namespace.
    Vm(String),
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if text.contains('/') {
            return Err(format!("{text:?} names a VM of another namespace, or a range: give one IP address"));
        }
        // A mistyped address is no name of a VM: such names begin with a letter, or have one.
        if text.is_empty() || text.contains(':') || !text.contains(|c: char| c.is_ascii_alphabetic()) {
            return Err(format!("{text:?} is neither an IP address nor the name of a VM"));
        }
        Ok(Self::Vm(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_other_end_is_an_address_or_a_vm_of_the_namespace() {
        assert_eq!("10.0.0.3".parse(), Ok(End::Address("10.0.0.3".parse().expect("an address"))));
        assert_eq!("fd00::3".parse(), Ok(End::Address("fd00::3".parse().expect("an address"))));
        assert_eq!("db-1".parse(), Ok(End::Vm("db-1".to_owned())));
        for wrong in ["", "10.0.0", "10.0.0.256", "10.0.0.0/24", "ns/db", "fd00:::3"] {
            assert!(wrong.parse::<End>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_trace_has_one_other_end_and_a_port_has_a_protocol() {
        let is_accepted = |args: &str| {
            Cli::try_parse_from(["berth", "net", "trace", "web"].into_iter().chain(args.split(' '))).is_ok()
        };
        assert!(is_accepted("--to 10.0.0.3"));
        assert!(is_accepted("--to 10.0.0.3 --protocol tcp --port 443 --interface nic1 -o json -n ns"));
        assert!(is_accepted("--from db --public"));
        for wrong in [
            "-n ns",
            "--to 10.0.0.3 --from 10.0.0.4",
            "--to 10.0.0.3 --port 443",
            "--to 10.0.0.3 --protocol tcp --port 0",
            "--to 10.0.0.3 --protocol sctp",
            "--to 10.0.0.3 --public",
        ] {
            assert!(!is_accepted(wrong), "{wrong}");
        }
    }
}
