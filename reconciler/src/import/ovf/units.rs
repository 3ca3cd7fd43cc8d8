//! Units of DSP0004, and those of older descriptors.

/// The number of bytes of a unit: `byte * 2^20`, `MegaBytes`. None if it is another one.
pub(super) fn unit(text: &str) -> Option<u64> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_ascii_lowercase();
    let factor = match text.as_str() {
        "" | "byte" | "bytes" | "b" => return Some(1),
        "kilobytes" | "kilobyte" | "kb" => return Some(1 << 10),
        "megabytes" | "megabyte" | "mb" => return Some(1 << 20),
        "gigabytes" | "gigabyte" | "gb" => return Some(1 << 30),
        "terabytes" | "terabyte" | "tb" => return Some(1 << 40),
        other => other.strip_prefix("bytes*").or_else(|| other.strip_prefix("byte*"))?.to_owned(),
    };
    match factor.split_once('^') {
        None => factor.parse().ok(),
        Some((base, exponent)) => {
            let (base, exponent): (u64, u32) = (base.parse().ok()?, exponent.parse().ok()?);
            base.checked_pow(exponent)
        }
    }
}

/// An amount in bytes.
pub(super) fn bytes(amount: &str, of: &str) -> Option<u64> {
    amount.trim().parse::<u64>().ok()?.checked_mul(unit(of)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_all_products_are_read_and_others_are_not_guessed() {
        for (text, expected) in [
            ("byte * 2^20", Some(1 << 20)),
            ("byte*2^30", Some(1 << 30)),
            ("Byte * 10^3", Some(1000)),
            ("bytes", Some(1)),
            ("MegaBytes", Some(1 << 20)),
            ("GigaBytes", Some(1 << 30)),
            ("byte * 1024", Some(1024)),
            ("byte * 2^64", None),
            ("byte * 2^", None),
            ("hertz * 10^6", None),
            ("MB*2", None),
        ] {
            assert_eq!(unit(text), expected, "{text}");
        }
        assert_eq!(bytes(" 8 ", "byte * 2^30"), Some(8 << 30));
        for (amount, of) in
            [("-1", "byte"), ("${size}", "byte"), ("1.5", "GB"), ("18446744073709551615", "KB")]
        {
            assert_eq!(bytes(amount, of), None, "{amount} {of}");
        }
    }
}
