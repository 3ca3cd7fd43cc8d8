//! Fresh identities, passed in as a value, so that a test with a seed gets the same ones in every run.

use std::sync::{Arc, Mutex};

use rand::{Rng, SeedableRng, rngs::StdRng};

/// A source of fresh identities.
#[derive(Clone, Debug)]
pub struct Identities(Arc<Mutex<StdRng>>);

impl Identities {
    /// Identities from the operating system's randomness.
    pub fn random() -> Self {
        Self(Arc::new(Mutex::new(rand::make_rng())))
    }

    /// The same identities in the same order for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// Returns `digits` (at most 16) hexadecimal digits.
    pub fn hex(&self, digits: usize) -> String {
        let number = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next_u64();
        format!("{number:016x}")[..digits.min(16)].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_identities() {
        let (a, b) = (Identities::seeded(7), Identities::seeded(7));
        assert_eq!(a.hex(12), b.hex(12));
        assert_ne!(a.hex(12), a.hex(12));
        assert_eq!(a.hex(12).len(), 12);
    }
}
