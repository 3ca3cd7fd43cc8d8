//! The samples of several runs, and their published statistics: medians, because a single run on a shared machine is not
//! meaningful.

/// Values of one quantity, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// None when there are no values, or one is not a number.
    pub fn new(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        Some(Self(values))
    }

    /// The value that half of them do not exceed; for an even number, the mean of the middle two.
    pub fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        if self.0.len() % 2 == 1 { self.0[middle] } else { f64::midpoint(self.0[middle - 1], self.0[middle]) }
    }

    /// The least value that `percent` of them do not exceed (nearest rank).
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0[rank.min(self.0.len()) - 1]
    }

    /// The least value.
    pub fn least(&self) -> f64 {
        self.0[0]
    }

    /// The greatest value.
    pub fn greatest(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// The number of values.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples::new(values.to_vec()).expect("numbers")
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(samples(&[9.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(samples(&hundred).percentile(95), 95.0);
        assert_eq!(samples(&[1.0, 2.0, 3.0]).percentile(95), 3.0);
        assert_eq!(samples(&[7.0]).percentile(1), 7.0);
    }

    #[test]
    fn nothing_and_no_numbers_are_no_samples() {
        assert_eq!(Samples::new(Vec::new()), None);
        assert_eq!(Samples::new(vec![1.0, f64::NAN]), None);
    }
}
