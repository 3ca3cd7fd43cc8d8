//! Counts the calls to the fake host and injects their faults.

use std::future::Future;
use std::io;

use super::{FakeSystem, FaultAction, When};
use crate::{Result, SystemError};

impl FakeSystem {
    pub(super) async fn call<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        *self.state().calls.entry(name).or_default() += 1;
        self.strike(name, When::Before).await?;
        let outcome = work.await;
        self.strike(name, When::After).await?;
        outcome
    }

    async fn strike(&self, name: &'static str, when: When) -> Result<()> {
        let faults = self.faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        match faults.fault(name, when).await {
            FaultAction::Continue => Ok(()),
            FaultAction::Error => Err(failed(name, "failed on purpose")),
            FaultAction::NoSpace => {
                Err(SystemError::NoSpace { what: name.to_owned(), needed: 1 << 30, free: 0 })
            }
            FaultAction::Hang => std::future::pending().await,
        }
    }
}

pub(super) fn failed(name: &'static str, why: &'static str) -> SystemError {
    SystemError::File { attempt: name, path: "/fake".into(), source: io::Error::other(why) }
}

pub(super) fn refused(name: &'static str, what: &str, why: &'static str) -> SystemError {
    SystemError::Network { attempt: name, name: what.to_owned(), detail: why.to_owned() }
}
