//! `address_parse`: the parts of an IP address with or without the length of its prefix.

use std::net::IpAddr;

use tfplugin6::{
    FunctionError, Type, Value,
    function::{Parameter, Signature},
};

use super::text;

pub(super) fn parse_signature() -> Signature {
    let parts = Type::object([
        ("address", Type::String),
        ("prefix_length", Type::Number),
        ("network", Type::String),
        ("family", Type::String),
    ]);
    let address = Parameter::new(
        "address",
        Type::String,
        "An IPv4 or IPv6 address, with or without the length of its prefix: `10.0.0.5/24`, `10.0.0.5`, `fd00::5/64`.",
    );
    Signature {
        description: "Returns the parts of an address as an object:\n\n\
                      - `address`: the address alone, in its shortest spelling.\n\
                      - `prefix_length`: the length of the prefix; null without one.\n\
                      - `network`: the network that the prefix describes, such as `10.0.0.0/24`; null without one.\n\
                      - `family`: `IPv4` or `IPv6`."
            .into(),
        ..Signature::new(vec![address], parts, "The address, prefix and family of `10.0.0.5/24`.")
    }
}

pub(super) fn parse(arguments: &[Value]) -> Result<Value, FunctionError> {
    let text = text(arguments, 0);
    let wrong = |why: String| FunctionError::argument(0, why);
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| {
        wrong(format!("{text:?} is not an IP address: write for example \"10.0.0.5/24\" or \"fd00::5\""))
    })?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => None,
        Some(length) => {
            let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse::<u32>().ok().filter(|length| is_number && *length <= bits);
            Some(length.ok_or_else(|| {
                wrong(format!("the length of the prefix in {text:?} is not a number from 0 to {bits}"))
            })?)
        }
    };
    let network = length.map(|length| format!("{}/{length}", network_of(address, length)));
    Ok(Value::object([
        ("address", Value::from(address.to_string())),
        ("prefix_length", length.map_or(Value::Null, |length| Value::from(i64::from(length)))),
        ("network", Value::from(network)),
        ("family", Value::from(if address.is_ipv4() { "IPv4" } else { "IPv6" })),
    ]))
}

/// The address without its host bits.
fn network_of(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let host_bits = u32::MAX.checked_shr(length).unwrap_or(0);
            IpAddr::V4((u32::from(address) & !host_bits).into())
        }
        IpAddr::V6(address) => {
            let host_bits = u128::MAX.checked_shr(length).unwrap_or(0);
            IpAddr::V6((u128::from(address) & !host_bits).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_parts() {
        let parts = |text: &str| {
            let found = parse(&[Value::from(text)]).expect("an address");
            let part = |name: &str| found.get(name).as_str().unwrap_or("-").to_owned();
            (part("address"), found.get("prefix_length").as_i64(), part("network"), part("family"))
        };
        let of = |address: &str, length, network: &str, family: &str| {
            (address.to_owned(), length, network.to_owned(), family.to_owned())
        };
        assert_eq!(parts("10.0.0.5/24"), of("10.0.0.5", Some(24), "10.0.0.0/24", "IPv4"));
        assert_eq!(parts("10.0.0.5"), of("10.0.0.5", None, "-", "IPv4"));
        assert_eq!(parts("10.0.0.5/0"), of("10.0.0.5", Some(0), "0.0.0.0/0", "IPv4"));
        assert_eq!(parts("10.0.0.5/32"), of("10.0.0.5", Some(32), "10.0.0.5/32", "IPv4"));
        assert_eq!(parts("FD00:0::5/64"), of("fd00::5", Some(64), "fd00::/64", "IPv6"));
    }

    #[test]
    fn a_text_that_is_no_address_is_an_error_of_the_argument() {
        for text in
            ["", "web", "10.0.0", "10.0.0.5/", "10.0.0.5/33", "10.0.0.5/+8", "fd00::/129", "10.0.0.5/24/1"]
        {
            let error = parse(&[Value::from(text)]).expect_err(text);
            assert_eq!(error.argument, Some(0), "{text}");
        }
    }
}
