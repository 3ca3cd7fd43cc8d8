//! The host agent: makes what is bound to this host real, and tells what it sees.

pub mod system;
