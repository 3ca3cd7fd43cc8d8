//! The guests of bridged networks whose requests a server on this host answers, each by a socket on its tap.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinHandle;

use super::listener::Listener;
use super::netlink::{Link, network};
use super::{Result, bridge_mac};

/// `G`: a guest, as the server's task sees it.
#[derive(Debug)]
pub(super) struct AnsweredGuests<G> {
    /// By tap.
    guests: Mutex<BTreeMap<String, Answered<G>>>,
}

/// A guest that is answered, with the socket once its tap is there.
#[derive(Debug)]
struct Answered<G> {
    bridge: String,
    guest: Arc<Mutex<G>>,
    listener: Option<Listener>,
}

impl<G> Default for AnsweredGuests<G> {
    fn default() -> Self {
        Self { guests: Mutex::default() }
    }
}

impl<G: Clone> AnsweredGuests<G> {
    fn guests(&self) -> MutexGuard<'_, BTreeMap<String, Answered<G>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has exactly these guests of a bridge, by tap, from now on.
    pub(super) fn set(&self, bridge: &str, wanted: &BTreeMap<&str, &G>) {
        let mut guests = self.guests();
        guests.retain(|tap, of| of.bridge != bridge || wanted.contains_key(tap.as_str()));
        for (tap, guest) in wanted {
            match guests.get(*tap) {
                Some(of) if of.bridge == bridge => {
                    *of.guest.lock().unwrap_or_else(PoisonError::into_inner) = (*guest).clone();
                }
                _ => {
                    let guest = Arc::new(Mutex::new((*guest).clone()));
                    let of = Answered { bridge: bridge.to_owned(), guest, listener: None };
                    guests.insert((*tap).to_owned(), of);
                }
            }
        }
    }

    /// Answers no guest of this bridge any more.
    pub(super) fn forget(&self, bridge: &str) {
        self.guests().retain(|_, of| of.bridge != bridge);
    }

    /// Begins to answer the guest of a tap, if it is to be answered and is not yet. `answer`: opens the socket and starts the task, which
    /// answers with this MAC address.
    pub(super) fn listen(
        &self,
        tap: &Link,
        answer: impl FnOnce([u8; 6], Arc<Mutex<G>>) -> io::Result<JoinHandle<()>>,
    ) -> Result<()> {
        let mut guests = self.guests();
        let Some(of) = guests.get_mut(&tap.name) else { return Ok(()) };
        if of.listener.as_ref().is_some_and(|open| open.is_on(tap.index)) {
            return Ok(());
        }
        let task = answer(bridge_mac(&of.bridge), of.guest.clone())
            .map_err(|error| network("listen on", &tap.name, error.to_string()))?;
        of.listener = Some(Listener::new(tap.index, task));
        Ok(())
    }
}
