//! Moves of running guests between hosts: those that leave, and those that come.
//!
//! ```text
//!   departures: the guest leaves      ──wire──▶  arrivals: the guest comes
//!   a task of its own for each move              a session of the server for hosts
//! ```
//!
//! The records that keep a guest from running twice are in the journals, see [`crate::journal`].

mod departures;
mod wire;

pub(crate) use departures::{DepartureState, Departures, FailedDeparture, NewDeparture, go_on};
pub(crate) use wire::{Line, read_line, write_line};
