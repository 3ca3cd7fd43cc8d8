//! What every reconciler stands on: time, randomness, error messages, watched objects.
//!
//! ```text
//!  clock         the wall clock          identities    fresh names, reproducible by a seed
//!  error_chain   an error in one line    table         the objects of one kind as last seen
//! ```
//!
//! It names no kind, knows no Kubernetes client, and does no I/O.

pub mod clock;
pub mod error_chain;
pub mod identities;
pub mod table;

pub use clock::{Clock, RuntimeClock, SystemClock};
pub use error_chain::ErrorChain;
pub use identities::Identities;
pub use table::Table;
