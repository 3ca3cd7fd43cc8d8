//! Failure on demand.

use std::fmt;

use async_trait::async_trait;

/// Which side of a call's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    Continue,
    /// It fails for no reason that would last.
    Error,
    /// It fails because the disk is full.
    NoSpace,
    /// It never returns: the caller is to be dropped here, as by a crash.
    Hang,
}

/// Decides about each call in turn. `call` is the method's name.
#[async_trait]
pub trait Faults: Send + Sync + fmt::Debug {
    async fn fault(&self, call: &'static str, when: When) -> FaultAction;
}

/// Everything works.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

#[async_trait]
impl Faults for NoFaults {
    async fn fault(&self, _: &'static str, _: When) -> FaultAction {
        FaultAction::Continue
    }
}
