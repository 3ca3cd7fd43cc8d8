//! The server's source of uids and generated names. A test with a seed gets the same ones in every run.

use std::sync::{Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Source of uids and generated name suffixes.
#[derive(Debug)]
pub(crate) struct Ids {
    random: Mutex<StdRng>,
}

/// The letters of Kubernetes' generated names: no vowels and no look-alikes, so that no words appear.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl Ids {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let random = seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        Self { random: Mutex::new(random) }
    }

    pub(crate) fn uid(&self) -> String {
        let mut bytes = [0_u8; 16];
        self.random.lock().unwrap_or_else(PoisonError::into_inner).fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// Returns a five-letter suffix for `generateName`.
    pub(crate) fn suffix(&self) -> String {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        (0..5).map(|_| char::from(SUFFIX_LETTERS[random.random_range(0..SUFFIX_LETTERS.len())])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_ids() {
        let (a, b) = (Ids::new(Some(7)), Ids::new(Some(7)));
        assert_eq!((a.uid(), a.suffix()), (b.uid(), b.suffix()));
        assert_ne!(a.uid(), Ids::new(Some(8)).uid());
    }
}
