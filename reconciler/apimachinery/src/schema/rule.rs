//! A rule of `x-kubernetes-validations`.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ErrorKind;
use super::expression::Expression;

/// The maximum number of remembered evaluations of one schema node.
const MAX_HELD: usize = 16 * 1024;

/// A rule as declared; compiled once the surrounding schema is known.
#[derive(Debug)]
pub struct Rule {
    pub(super) path: String,
    pub(super) source: String,
    pub(super) message: Option<String>,
    pub(super) message_source: Option<String>,
    pub(super) reason: Option<ErrorKind>,
    pub(super) field_path: Option<String>,
    pub(super) optional_old_self: bool,
    pub(super) program: Option<Expression>,
    pub(super) message_program: Option<Expression>,
}

/// The values that the rules of a node were found to hold for, as digests under a secret key, and the part of the
/// budget that it took. A rule is a function of what it reads, and most writes change something else.
#[derive(Debug, Default)]
pub(crate) struct Held {
    key: RandomState,
    turns: Mutex<HashMap<u64, i64>>,
}

impl Held {
    pub(super) fn digest(&self, hash: impl FnOnce(&mut dyn Hasher)) -> u64 {
        let mut hasher = self.key.build_hasher();
        hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn turns(&self, digest: u64) -> Option<usize> {
        self.lock().get(&digest).and_then(|turns| usize::try_from(*turns).ok())
    }

    pub(super) fn insert(&self, digest: u64, turns: i64) {
        let mut all = self.lock();
        if all.len() >= MAX_HELD {
            all.clear();
        }
        all.insert(digest, turns);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, i64>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
