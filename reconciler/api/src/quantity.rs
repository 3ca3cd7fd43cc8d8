//! Kubernetes quantities of bytes (`512Mi`, `4Gi`, `1G`), compared by value and never by text.

use std::{borrow::Cow, cmp::Ordering, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// An amount of bytes as a Kubernetes quantity: digits with an optional fraction and one of the suffixes
/// `Ki Mi Gi Ti Pi` (powers of 1024) or `k M G T P` (powers of 1000).
///
/// The text a user wrote is kept as it is; equality and order are by value, so `1Gi` equals `1024Mi`.
///
/// *Units:* bytes. *Guarantees:* what [`FromStr`] accepts the CRD's admission rule accepts too, and the other way round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

/// Why a text is not a quantity of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// Not of the form digits, fraction, suffix.
    #[error(
        "{0:?} is not a quantity: write a number with Ki, Mi, Gi, Ti, Pi or k, M, G, T, P, for example 512Mi or 4Gi"
    )]
    Form(String),
    /// Zero or less.
    #[error("{0:?} is not a positive amount: write for example 512Mi or 4Gi")]
    NotPositive(String),
    /// Past 2^63-1 bytes.
    #[error("{0:?} is too large: the largest amount is 8191Pi")]
    TooLarge(String),
}

const SUFFIXES: [(&str, u64); 11] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("", 1),
];

impl Quantity {
    /// The quantity of a number of bytes, in the largest binary unit that divides it (`4294967296` is `4Gi`).
    pub fn from_bytes(bytes: u64) -> Self {
        let unit =
            SUFFIXES[..5].iter().rev().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
        Self(match unit {
            Some((suffix, factor)) => format!("{}{suffix}", bytes / factor),
            None => bytes.to_string(),
        })
    }

    /// The amount in bytes, a fraction of a byte rounded up.
    ///
    /// *Errors:* the text is no positive quantity; only possible for text that did not pass admission.
    pub fn bytes(&self) -> Result<u64, ParseQuantityError> {
        parse(&self.0)
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn parse(text: &str) -> Result<u64, ParseQuantityError> {
    let form = || ParseQuantityError::Form(text.to_owned());
    if let Some(rest) = text.strip_prefix('-')
        && parse(rest).is_ok()
    {
        return Err(ParseQuantityError::NotPositive(text.to_owned()));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = SUFFIXES.iter().find(|(s, _)| *s == suffix).map(|(_, f)| u128::from(*f)).ok_or_else(form)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let bare_point = number.contains('.') && fraction.is_empty();
    if whole.is_empty() || bare_point || fraction.contains('.') || whole.len() > 19 || fraction.len() > 9 {
        return Err(form());
    }
    let whole: u128 = whole.parse().map_err(|_| form())?;
    let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| form())?);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| form())? };
    let bytes = whole * factor + (fraction * factor).div_ceil(scale);
    match u64::try_from(bytes) {
        Ok(0) => Err(ParseQuantityError::NotPositive(text.to_owned())),
        Ok(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
        _ => Err(ParseQuantityError::TooLarge(text.to_owned())),
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(|_| Self(text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        match (self.bytes(), other.bytes()) {
            (Ok(a), Ok(b)) => a == b,
            _ => self.0 == other.0,
        }
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.bytes().ok()?.cmp(&other.bytes().ok()?))
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": "self.matches('^[0-9]{1,19}([.][0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$') && self.matches('[1-9]')",
                "message": "must be a positive quantity with Ki, Mi, Gi, Ti, Pi or k, M, G, T, P, for example 512Mi or 4Gi",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, ParseQuantityError> {
        text.parse::<Quantity>().and_then(|q| q.bytes())
    }

    #[test]
    fn binary_and_decimal_suffixes_are_powers_of_1024_and_1000() {
        assert_eq!(bytes("512Mi"), Ok(512 << 20));
        assert_eq!(bytes("1.5Gi"), Ok(3 << 29));
        assert_eq!(bytes("4G"), Ok(4_000_000_000));
        assert_eq!(bytes("1"), Ok(1));
    }

    #[test]
    fn equality_is_by_value() {
        assert_eq!(Quantity("1Gi".into()), Quantity("1024Mi".into()));
        assert_ne!(Quantity("1Gi".into()), Quantity("1G".into()));
        assert!(Quantity("1Gi".into()) > Quantity("1G".into()));
    }

    #[test]
    fn text_that_is_no_quantity_is_refused() {
        for text in
            ["512MB", "lots", "", "Mi", "1.", ".5Gi", "1 Gi", "1e3", "0x10", "1..5", "99999999999999999999"]
        {
            assert!(matches!(bytes(text), Err(ParseQuantityError::Form(_))), "{text}");
        }
        for text in ["-1", "-1Gi", "0", "0Mi"] {
            assert!(matches!(bytes(text), Err(ParseQuantityError::NotPositive(_))), "{text}");
        }
        assert!(matches!(bytes("9000Pi"), Err(ParseQuantityError::TooLarge(_))));
    }

    proptest::proptest! {
        #[test]
        fn bytes_survive_the_round_trip(n in 1u64..=(i64::MAX as u64)) {
            proptest::prop_assert_eq!(Quantity::from_bytes(n).bytes(), Ok(n));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = bytes(&text);
        }
    }
}
