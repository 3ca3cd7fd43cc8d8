//! A network segment: a switch with machines connected to it.

use std::cell::Cell;
use std::sync::Arc;

use anyhow::Result;

use crate::namespace::Namespace;

/// The name of the switch inside its namespace.
const SWITCH: &str = "switch";
/// The name of the interface on a connected machine.
pub const CARD: &str = "uplink";

/// The switch, in a namespace of its own and without an address.
#[derive(Debug)]
pub struct Segment {
    namespace: Arc<Namespace>,
    ports: Cell<u32>,
}

impl Segment {
    /// A segment without machines.
    pub fn new() -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.ip(&["link", "add", SWITCH, "type", "bridge", "forward_delay", "0"])?;
        namespace.ip(&["link", "set", SWITCH, "up"])?;
        Ok(Self { namespace, ports: Cell::new(0) })
    }

    /// Connects a machine; `address` has its prefix length. A `gateway` becomes its default route.
    pub fn plug(&self, machine: &Namespace, address: &str, gateway: Option<&str>) -> Result<()> {
        let port = format!("port{}", self.ports.get());
        self.ports.set(self.ports.get() + 1);
        self.namespace.ip(&[
            "link",
            "add",
            &port,
            "type",
            "veth",
            "peer",
            "name",
            CARD,
            "netns",
            machine.name(),
        ])?;
        self.namespace.ip(&["link", "set", &port, "master", SWITCH])?;
        self.namespace.ip(&["link", "set", &port, "up"])?;
        machine.ip(&["addr", "add", address, "dev", CARD])?;
        machine.ip(&["link", "set", CARD, "up"])?;
        if let Some(gateway) = gateway {
            machine.ip(&["route", "add", "default", "via", gateway])?;
        }
        Ok(())
    }
}
