//! The client against qemu-nbd, and against a server that does not follow the protocol.

mod hostile;
mod real;
