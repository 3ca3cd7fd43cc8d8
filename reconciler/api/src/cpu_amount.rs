//! CpuAmount: an amount of CPU time.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The largest amount in CPUs: no VM has more.
const MOST: u32 = 128;

/// The time of a number of the host's CPUs: a decimal number with at most three decimal places, from 0.01 to 128.
///
/// The text a user wrote is kept as it is; equality is by value, so `1.5` equals `1.50`.
///
/// *Guarantees:* what [`FromStr`] accepts the CRD's admission rule accepts too, and the other way round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuAmount(pub String);

/// Why a text is no amount of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no amount of CPUs: write a number from 0.01 to 128 with at most three decimal places, for example 1.5"
)]
pub struct ParseCpuAmountError(pub String);

impl CpuAmount {
    /// The amount of a number of thousandths of a CPU.
    #[must_use]
    pub fn from_millis(millis: u32) -> Self {
        let text = format!("{}.{:03}", millis / 1000, millis % 1000);
        Self(text.trim_end_matches('0').trim_end_matches('.').to_owned())
    }

    /// The amount in thousandths of a CPU.
    ///
    /// *Errors:* only possible for text that did not pass admission.
    pub fn millis(&self) -> Result<u32, ParseCpuAmountError> {
        parse(&self.0).ok_or_else(|| ParseCpuAmountError(self.0.clone()))
    }
}

fn parse(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |part: &str| !part.is_empty() && part.len() <= 3 && part.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let millis = whole.parse::<u32>().ok()? * 1000 + format!("{fraction:0<3}").parse::<u32>().ok()?;
    (10..=MOST * 1000).contains(&millis).then_some(millis)
}

impl FromStr for CpuAmount {
    type Err = ParseCpuAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(|_| Self(text.to_owned())).ok_or_else(|| ParseCpuAmountError(text.to_owned()))
    }
}

impl fmt::Display for CpuAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq for CpuAmount {
    fn eq(&self, other: &Self) -> bool {
        match (parse(&self.0), parse(&other.0)) {
            (Some(a), Some(b)) => a == b,
            _ => self.0 == other.0,
        }
    }
}

impl JsonSchema for CpuAmount {
    fn schema_name() -> Cow<'static, str> {
        "CpuAmount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": 8,
            "x-kubernetes-validations": [{
                "rule": "self.matches('^([0-9]{1,2}|0[0-9]{2}|1[01][0-9]|12[0-7])([.][0-9]{1,3})?$|^128([.]0{1,3})?$') && self.matches('^0*[1-9]|[.][1-9]|[.]0[1-9]')",
                "message": "must be a number of CPUs from 0.01 to 128 with at most three decimal places, for example 1.5",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_has_at_most_three_decimal_places_and_is_compared_by_value() {
        let millis = |text: &str| text.parse::<CpuAmount>().and_then(|amount| amount.millis());
        for (text, wanted) in [
            ("1.5", 1500),
            ("0.01", 10),
            ("2", 2000),
            ("128", 128_000),
            ("128.000", 128_000),
            ("007", 7000),
            ("0.250", 250),
        ] {
            assert_eq!(millis(text), Ok(wanted));
        }
        for wrong in [
            "", "0", "0.009", "0.0", "1.", ".5", "1.2345", "128.001", "129", "1000", "-1", "1500m", "1,5",
            " 1", "1e1", "a",
        ] {
            assert!(millis(wrong).is_err(), "{wrong}");
        }
        assert_eq!(CpuAmount("1.50".into()), CpuAmount("1.5".into()));
        assert_ne!(CpuAmount("1.5".into()), CpuAmount("1.51".into()));
    }

    proptest::proptest! {
        #[test]
        fn an_amount_survives_the_round_trip(millis in 10u32..=128_000) {
            proptest::prop_assert_eq!(CpuAmount::from_millis(millis).millis(), Ok(millis));
        }
    }
}
