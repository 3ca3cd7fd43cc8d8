//! Exact numbers of any size: Terraform's numbers are 512-bit, so neither an integer nor a float holds them.

use std::{fmt, str::FromStr};

/// The longest number accepted, in digits. Far more than Terraform's 512 bits hold; it bounds the cost of `1e999999999`.
const MAX_DIGITS: usize = 4096;

/// An exact decimal number.
///
/// Kept canonical, so that `==` compares by value: `1.50` and `1.5` are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Number(Repr);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Repr {
    /// Every integer that fits in an `i64`.
    Int(i64),
    /// Everything else: `-?digits(.digits)?`, no superfluous zeros.
    Decimal(Box<str>),
}

/// The error for a text that is not a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a decimal number of at most {MAX_DIGITS} digits: {0:?}")]
pub struct NumberError(String);

impl Number {
    /// The integer, if the number is one and fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match &self.0 {
            Repr::Int(int) => Some(*int),
            Repr::Decimal(_) => None,
        }
    }

    /// The integer, if the number is one and fits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Repr::Int(int) => u64::try_from(*int).ok(),
            Repr::Decimal(text) => text.parse().ok(),
        }
    }

    /// The nearest float. Loses precision: use it for display and arithmetic, never to pass a number on.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    /// The float that is exactly this number, if there is one.
    pub(crate) fn exact_f64(&self) -> Option<f64> {
        let float = self.to_f64();
        Self::exactly(float).filter(|number| number == self).map(|_| float)
    }

    /// The exact value of a float, to its last binary digit; none if it is not finite. `0.1_f64` is *not* 0.1:
    /// [`TryFrom<f64>`] gives the number a person expects.
    #[must_use]
    pub fn exactly(float: f64) -> Option<Self> {
        // 1074 digits represent the smallest float exactly.
        float.is_finite().then(|| format!("{float:.1074}").parse().ok()).flatten()
    }
}

macro_rules! from_small {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Number {
            fn from(value: $integer) -> Self {
                Self(Repr::Int(value.into()))
            }
        }
    )*};
}
from_small!(i32, i64, u16, u32);

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or_else(|_| Self(Repr::Decimal(value.to_string().into())), Self::from)
    }
}

/// The shortest decimal that reads back as this float: 0.1 is 0.1.
impl TryFrom<f64> for Number {
    type Error = NumberError;

    fn try_from(value: f64) -> Result<Self, NumberError> {
        value.to_string().parse()
    }
}

impl FromStr for Number {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        parse(text).ok_or_else(|| NumberError(text.chars().take(80).collect()))
    }
}

fn parse(text: &str) -> Option<Number> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
    if !all_digits || whole.len() + fraction.len() == 0 || whole.len() + fraction.len() > MAX_DIGITS {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let point = i64::try_from(whole.len()).ok()? + i64::from(exponent);
    let digits_before = digits.len() - digits.trim_start_matches('0').len();
    let significant = digits.trim_matches('0');
    if significant.is_empty() {
        return Some(Number(Repr::Int(0)));
    }
    // The position of the decimal point, counted from the first significant digit.
    let point = point - i64::try_from(digits_before).ok()?;
    if point.unsigned_abs() > MAX_DIGITS as u64 {
        return None;
    }
    Some(canonical(negative, significant, point))
}

/// `significant` starts and ends with a digit that is not zero.
fn canonical(negative: bool, significant: &str, point: i64) -> Number {
    let mut out = String::new();
    if negative {
        out.push('-');
    }
    let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap_or(0));
    let length = i64::try_from(significant.len()).unwrap_or(i64::MAX);
    if point >= length {
        out.push_str(significant);
        out.push_str(&zeros(point - length));
    } else if point <= 0 {
        out.push_str("0.");
        out.push_str(&zeros(-point));
        out.push_str(significant);
    } else {
        let (whole, fraction) = significant.split_at(usize::try_from(point).unwrap_or(0));
        out.push_str(whole);
        out.push('.');
        out.push_str(fraction);
    }
    out.parse().map_or_else(|_| Number(Repr::Decimal(out.into())), |int| Number(Repr::Int(int)))
}

/// Plain digits, never an exponent.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Int(int) => write!(f, "{int}"),
            Repr::Decimal(text) => write!(f, "{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> String {
        text.parse::<Number>().map_or_else(|error| error.to_string(), |number| number.to_string())
    }

    #[test]
    fn a_number_has_one_form_however_it_was_written() {
        for (written, canonical) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("007", "7"),
            ("1.50", "1.5"),
            (".5", "0.5"),
            ("1e3", "1000"),
            ("1.25E-3", "0.00125"),
            ("-12.5e1", "-125"),
            ("9223372036854775808", "9223372036854775808"),
            ("0.1", "0.1"),
        ] {
            assert_eq!(read(written), canonical, "{written}");
        }
    }

    #[test]
    fn what_is_no_number_or_too_long_is_refused() {
        for text in ["", "-", "1.2.3", "0x10", "NaN", "inf", "1e", "1e999999999", "1e-999999999", "1 "] {
            assert!(text.parse::<Number>().is_err(), "{text:?}");
        }
        assert!("9".repeat(MAX_DIGITS + 1).parse::<Number>().is_err());
    }

    #[test]
    fn a_float_is_read_exactly_or_as_a_person_would() {
        assert_eq!(Number::try_from(0.1).unwrap().to_string(), "0.1");
        let exact = Number::exactly(0.1).unwrap();
        assert!(exact.to_string().starts_with("0.1000000000000000055"));
        assert_eq!(exact.exact_f64(), Some(0.1));
        assert_eq!("0.1".parse::<Number>().unwrap().exact_f64(), None, "no float is 0.1");
        assert_eq!(Number::exactly(f64::NAN), None);
        assert!(Number::try_from(f64::INFINITY).is_err());
    }

    #[test]
    fn integers_fit_where_they_fit() {
        let big = Number::from(u64::MAX);
        assert_eq!((big.as_i64(), big.as_u64()), (None, Some(u64::MAX)));
        let small = Number::from(-1);
        assert_eq!((small.as_i64(), small.as_u64()), (Some(-1), None));
        assert_eq!("2.0".parse::<Number>().unwrap().as_i64(), Some(2));
    }

    proptest! {
        #[test]
        fn every_finite_float_survives(bits: u64) {
            let float = f64::from_bits(bits);
            prop_assume!(float.is_finite());
            let number = Number::exactly(float).unwrap();
            prop_assert_eq!(number.exact_f64(), Some(if float == 0.0 { 0.0 } else { float }));
        }

        #[test]
        fn reading_what_was_written_gives_the_same(text in "-?[0-9]{1,40}(\\.[0-9]{1,40})?") {
            let number: Number = text.parse().unwrap();
            prop_assert_eq!(number.to_string().parse::<Number>().unwrap(), number);
        }
    }
}
