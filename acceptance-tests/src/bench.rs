//! Programs that measure berth, or load it for longer than a suite can: `cargo measure`, `cargo scale`, `cargo crash`. The
//! suites `scale`, `load` and `crash` run the same code in small.

pub mod crash;
pub mod load;
pub mod measure;
pub mod scale;
