//! Values that do not tell one thing from another.

use std::cmp::Ordering;

/// Details of a piece of work that do not distinguish it from another one: with other details, it goes on as it was started.
#[derive(Clone, Debug)]
pub(crate) struct Details<T>(pub(crate) T);

impl<T> PartialEq for Details<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Details<T> {}

impl<T> PartialOrd for Details<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Details<T> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}
