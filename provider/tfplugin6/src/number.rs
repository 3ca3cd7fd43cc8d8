//! Numbers of any size, exact: Terraform's are 512-bit, so neither an integer nor a float will do.

use std::{fmt, str::FromStr};

/// The longest number read, in digits. Far above what Terraform's 512 bits hold, and a bound on what `1e999999999`
/// may cost.
const MAX_DIGITS: usize = 4096;

/// An exact decimal number.
///
/// Kept canonical, so that `==` compares by value: `1.50` and `1.5` are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Number(Repr);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Repr {
    /// Every integer that fits.
    Int(i64),
    /// Everything else: `-?digits(.digits)?`, no superfluous zeros.
    Decimal(Box<str>),
}

/// Not a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a decimal number of at most {MAX_DIGITS} digits: {0:?}")]
pub struct NumberError(String);

impl Number {
    /// The integer, if it is one and fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match &self.0 {
            Repr::Int(int) => Some(*int),
            Repr::Decimal(_) => None,
        }
    }

    /// The integer, if it is one and fits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Repr::Int(int) => u64::try_from(*int).ok(),
            Repr::Decimal(text) => text.parse().ok(),
        }
    }

    /// The nearest float. Loses precision: for display and arithmetic, never to send a number on.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    /// The float that is exactly this number, if there is one.
    pub(crate) fn exact_f64(&self) -> Option<f64> {
        let float = self.to_f64();
        Self::exactly(float).filter(|number| number == self).map(|_| float)
    }

    /// Exactly this float, to its last binary digit; none if it is not finite. `0.1_f64` is *not* 0.1:
    /// [`TryFrom<f64>`] gives what a person would read.
    #[must_use]
    pub fn exactly(float: f64) -> Option<Self> {
        // 1074 digits hold the smallest float there is.
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
    // Where the point stands, counted from the first significant digit.
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
