//! Walks over the instances of a host: all at once, since the QEMUs of any number of them may not answer.

use std::time::Duration;

use berth_host::InstanceFacts;
use futures::future::join_all;
use tokio::time::timeout;

use crate::error::Error;

/// Has each of these instances, whose guests may be paused, go on with this work, for this time at most.
pub(crate) async fn go_on<F>(
    limit: Duration,
    instances: Vec<InstanceFacts>,
    work: impl Fn(InstanceFacts) -> F,
) where
    F: Future<Output = Result<(), Error>>,
{
    let each = instances.into_iter().map(|facts| {
        let instance = facts.instance.clone();
        let work = Box::pin(work(facts));
        async move {
            match timeout(limit, work).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(instance, error = %error.chain(), "its guest may stay paused");
                }
                Err(_) => tracing::warn!(instance, "its monitor does not answer: its guest may stay paused"),
            }
        }
    });
    join_all(each).await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn instances_that_do_not_answer_do_not_hold_up_one_that_does() {
        let (limit, begun) = (Duration::from_secs(10), Instant::now());
        let instance =
            |number: usize| InstanceFacts { instance: format!("i-{number}"), journal: None, process: None };
        let went_on_after = Cell::new(None);
        let went_on = &went_on_after;
        let work = |facts: InstanceFacts| async move {
            if facts.instance != "i-99" {
                pending::<()>().await;
            }
            went_on.set(Some(begun.elapsed()));
            Ok(())
        };
        go_on(limit, (0..100).map(instance).collect(), work).await;
        assert_eq!(went_on_after.get(), Some(Duration::ZERO));
        // The timer of paused time has a resolution of one millisecond.
        assert!(begun.elapsed() <= limit + Duration::from_millis(1), "{:?}", begun.elapsed());
    }
}
