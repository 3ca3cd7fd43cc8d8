//! A task that reads a socket on a link.

use tokio::task::JoinHandle;

/// The task ends with this.
#[derive(Debug)]
pub(super) struct Listener {
    link: u32,
    task: JoinHandle<()>,
}

impl Listener {
    /// `link`: the index of the link that the task reads from.
    pub(super) fn new(link: u32, task: JoinHandle<()>) -> Self {
        Self { link, task }
    }

    /// Whether it still reads from this link.
    pub(super) fn is_on(&self, link: u32) -> bool {
        self.link == link && !self.task.is_finished()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}
