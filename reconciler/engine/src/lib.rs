//! What every reconciler stands on: work queue, watched objects, time, randomness, error messages.
//!
//! ```text
//!  queue         which key is next       table         the objects of one kind as last seen
//!  clock         the wall clock          identities    fresh names, reproducible by a seed
//!  error_chain   an error in one line
//! ```
//!
//! It names no kind, knows no Kubernetes client, and does no I/O.

pub mod clock;
pub mod error_chain;
pub mod identities;
pub mod queue;
pub mod table;

pub use clock::{Clock, RuntimeClock, SystemClock};
pub use error_chain::ErrorChain;
pub use identities::Identities;
pub use queue::Queue;
pub use table::Table;
