//! A control plane that does not answer for a while, as `berth up` while it is restarted.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::requests::is_outage;

/// How long a command that has begun waits for the control plane.
const LIMIT: Duration = Duration::from_secs(5 * 60);

/// The time for which the control plane has not answered.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<Option<Instant>>);

impl Outage {
    /// Returns the answer of the control plane, or none if it does not answer and may answer soon: the request is to be repeated. Says when
    /// the waiting begins and ends.
    ///
    /// *Errors:* the refusal of the request; the control plane has not answered for five minutes.
    pub(super) fn answer<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let error = match result {
            Ok(value) => {
                if since.take().is_some() {
                    notice!("the control plane answers again");
                }
                return Ok(Some(value));
            }
            Err(error) if !is_outage(&error) => return Err(error),
            Err(error) => error,
        };
        let begun = *since;
        match begun {
            Some(begun) if begun.elapsed() >= LIMIT => return Err(error),
            Some(_) => {}
            None => {
                notice!(
                    "the control plane does not answer, waiting for it for at most {} minutes: {error:#}",
                    LIMIT.as_secs() / 60
                );
                *since = Some(Instant::now());
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> anyhow::Result<u8> {
        Err(kube::Error::Service("connection refused".into()).into())
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_waited_out_for_a_limited_time() {
        let outage = Outage::default();
        assert_eq!(outage.answer(away()).expect("it may end"), None);
        tokio::time::advance(LIMIT - Duration::from_secs(1)).await;
        assert_eq!(outage.answer(away()).expect("it may end"), None);
        assert_eq!(outage.answer(Ok(7)).expect("an answer"), Some(7));
        tokio::time::advance(LIMIT).await;
        assert_eq!(outage.answer(away()).expect("another outage"), None);
        tokio::time::advance(LIMIT).await;
        let ended = outage.answer(away()).expect_err("it lasts too long");
        assert!(format!("{ended:#}").contains("connection refused"), "{ended:#}");
        let refused = outage.answer::<u8>(Err(anyhow::anyhow!("Image a was deleted meanwhile")));
        assert!(refused.is_err(), "it is no outage");
    }
}
