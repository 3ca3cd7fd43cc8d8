//! Fault injection.

use std::fmt;

use async_trait::async_trait;

/// The side of a call's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    Continue,
    /// Fails with a transient error.
    Error,
    /// Fails because the disk is full.
    NoSpace,
    /// Never returns: the caller is expected to be dropped here, as by a crash.
    Hang,
}

/// Decides about each call in turn. `call` is the method's name.
#[async_trait]
pub trait Faults: Send + Sync + fmt::Debug {
    async fn fault(&self, call: &'static str, when: When) -> FaultAction;
}

/// Injects no fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

#[async_trait]
impl Faults for NoFaults {
    async fn fault(&self, _: &'static str, _: When) -> FaultAction {
        FaultAction::Continue
    }
}
