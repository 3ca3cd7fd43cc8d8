//! `quantity_bytes` and `bytes_quantity`: amounts as the attributes of berth write them, and as numbers.

use berth_api::Quantity;
use tfplugin6::{
    FunctionError, Number, Type, Value,
    function::{Parameter, Signature},
};

use super::text;

/// The units beside those of [`Quantity::from_bytes`].
const DECIMAL_UNITS: [(&str, u64); 5] = [
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
];

pub(super) fn to_bytes_signature() -> Signature {
    let quantity = Parameter::new(
        "quantity",
        Type::String,
        "A positive amount: a number with `Ki`, `Mi`, `Gi`, `Ti`, `Pi` (powers of 1024) or `k`, `M`, `G`, `T`, `P` (powers of \
         1000), or without a unit.",
    );
    Signature {
        description: "Returns the number of bytes of a quantity, so that sizes can be compared, added and divided. A fraction \
                      of a byte is rounded up."
            .into(),
        ..Signature::new(vec![quantity], Type::Number, "The bytes of a quantity such as `4Gi`.")
    }
}

pub(super) fn to_bytes(arguments: &[Value]) -> Result<Value, FunctionError> {
    let quantity = text(arguments, 0).parse::<Quantity>();
    let bytes = quantity.and_then(|quantity| quantity.bytes());
    let bytes = bytes.map_err(|error| FunctionError::argument(0, format!("{error}")))?;
    Ok(Value::Number(Number::from(bytes)))
}

pub(super) fn from_bytes_signature() -> Signature {
    let bytes = Parameter::new("bytes", Type::Number, "A positive whole number of bytes.");
    Signature {
        description: "Returns the shortest quantity of exactly this many bytes: `4Gi` of 4294967296, `4G` of 4000000000, \
                      `1025` of 1025. Of two equally short ones it is the one with a power of 1024."
            .into(),
        ..Signature::new(vec![bytes], Type::String, "The quantity of a number of bytes.")
    }
}

pub(super) fn from_bytes(arguments: &[Value]) -> Result<Value, FunctionError> {
    let number = arguments.first().and_then(Value::as_number);
    let bytes = number.and_then(Number::as_u64).filter(|bytes| (1..=i64::MAX.unsigned_abs()).contains(bytes));
    let Some(bytes) = bytes else {
        let shown = number.map(ToString::to_string).unwrap_or_default();
        let text = format!(
            "{shown} is not a positive whole number of bytes below 2^63: round it first, with ceil()"
        );
        return Err(FunctionError::argument(0, text));
    };
    let binary = Quantity::from_bytes(bytes).0;
    let decimal = DECIMAL_UNITS.iter().filter(|(_, factor)| bytes.is_multiple_of(*factor));
    let decimal = decimal.map(|(unit, factor)| format!("{}{unit}", bytes / factor));
    // The first of the shortest.
    let shortest = std::iter::once(binary).chain(decimal).min_by_key(String::len);
    Ok(Value::from(shortest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(bytes: u64) -> String {
        let found = from_bytes(&[Value::Number(Number::from(bytes))]).expect("a whole number");
        found.as_str().expect("a text").to_owned()
    }

    #[test]
    fn a_quantity_becomes_its_bytes() {
        let bytes = |text: &str| to_bytes(&[Value::from(text)]).map(|value| value.as_i64().unwrap_or(0));
        assert_eq!(bytes("4Gi"), Ok(4 << 30));
        assert_eq!(bytes("1.5k"), Ok(1500));
        let error = bytes("4GB").expect_err("it has no such unit");
        assert_eq!(error.argument, Some(0));
        assert!(error.text.contains("\"4GB\" is not a quantity"), "{error}");
    }

    #[test]
    fn bytes_become_their_shortest_quantity() {
        for (bytes, text) in [
            (4 << 30, "4Gi"),
            (4_000_000_000, "4G"),
            (1025, "1025"),
            (1536 << 20, "1536Mi"),
            (1024 * 1000, "1024k"),
            (1, "1"),
        ] {
            assert_eq!(quantity(bytes), text);
        }
        for wrong in ["0", "-1", "1.5", "9223372036854775808"] {
            let number = wrong.parse::<Number>().expect("a number");
            let error = from_bytes(&[Value::Number(number)]).expect_err(wrong);
            assert_eq!(error.argument, Some(0), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_shortest_quantity_is_exact(bytes in 1u64..=(i64::MAX as u64), unit in 0usize..5) {
            let bytes = (bytes >> 40).max(1) * [1, 1000, 1024, 1_000_000, 1 << 20][unit];
            proptest::prop_assert_eq!(Quantity(quantity(bytes)).bytes(), Ok(bytes));
            proptest::prop_assert!(quantity(bytes).len() <= bytes.to_string().len());
        }
    }
}
