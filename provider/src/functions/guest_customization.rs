//! `guest_customization`: the program with which a guest without cloud-init gets its host name, time zone and static addresses.
//!
//! It is the command of a hook that the guest agent runs. Values are arguments of the program, and no part of its text.

use std::net::IpAddr;

use berth_api::ResourceName;
use tfplugin6::{
    FunctionError, Type, Value,
    function::{Parameter, Signature},
};

/// The program, for a POSIX shell. An argument of a command has at most 4096 bytes.
const SCRIPT: &str = include_str!("guest_customization/customize.sh");
/// With more of them, the command would have more than the 64 arguments that a hook may have.
const MOST_INTERFACES: usize = 6;
/// The largest number of addresses, name servers and search domains of an interface.
const MOST_VALUES: usize = 8;

pub(super) fn signature() -> Signature {
    let settings = Parameter::new(
        "settings",
        Type::Dynamic,
        "An object with at least one of `hostname`, `timezone` (such as `Europe/Vienna`) and `interfaces`, \
         a list of at most 6 objects with `mac_address`, `addresses` (such as `192.0.2.10/24`, at most 8), \
         and optionally `gateway`, `gateway6`, `nameservers` and `search_domains` (the last two with at \
         most 8 each).",
    );
    Signature {
        description: "Returns the command of a `post_start` hook of a `berth_vm`, which the guest agent \
            runs after each start of the guest, for Linux images without cloud-init:\n\n- the host name, by \
            `hostnamectl` or `/etc/hostname`;\n- the time zone, by `timedatectl` or `/etc/localtime`;\n- \
            static addresses of the cards with these MAC addresses, by NetworkManager or systemd-networkd, \
            where they persist, or else by `ip` until the next boot.\n\nThe image needs a POSIX shell, and \
            qemu-guest-agent with permission to run programs. If a setting fails, the others are still \
            applied, and the command fails. Tested in Debian 12 with systemd-networkd."
            .into(),
        ..Signature::new(
            vec![settings],
            Type::list(Type::String),
            "The command that sets host name, time zone and addresses of a guest without cloud-init.",
        )
    }
}

pub(super) fn call(arguments: &[Value]) -> Result<Value, FunctionError> {
    let settings = typed(arguments.first().unwrap_or(&Value::Null));
    let settings = command(settings).map_err(|why| FunctionError::argument(0, why))?;
    Ok(Value::List(settings.into_iter().map(Value::from).collect()))
}

/// The value without its type.
fn typed(value: &Value) -> &Value {
    match value {
        Value::Dynamic(inner) => typed(&inner.1),
        other => other,
    }
}

fn command(settings: &Value) -> Result<Vec<String>, String> {
    check_names(settings, &["hostname", "timezone", "interfaces"])?;
    let mut command: Vec<String> = ["/bin/sh", "-c", SCRIPT, "berth"].map(str::to_owned).into();
    let before = command.len();
    if let Some(name) = text(settings, "hostname")? {
        if name.len() > 64 || !name.split('.').all(ResourceName::is_dns_label) {
            return Err(format!(
                "hostname: {name:?} is no host name: labels of lower-case letters, digits and \"-\", joined by dots, at most 64 characters"
            ));
        }
        command.push(format!("hostname={name}"));
    }
    if let Some(zone) = text(settings, "timezone")? {
        if !is_time_zone(zone) {
            return Err(format!("timezone: {zone:?} is no name of a time zone, such as Europe/Vienna"));
        }
        command.push(format!("timezone={zone}"));
    }
    let interfaces = list(settings, "interfaces", MOST_INTERFACES)?;
    for (i, interface) in interfaces.iter().enumerate() {
        let arguments = of_interface(typed(interface)).map_err(|why| format!("interfaces[{i}]: {why}"))?;
        // The first one is the MAC address. The later of two settings would take away what the earlier one has set.
        if let Some(mac) = arguments.first().filter(|mac| command.contains(mac)) {
            return Err(format!("interfaces[{i}]: another one has {mac} too"));
        }
        command.extend(arguments);
    }
    if command.len() == before {
        return Err("set at least one of hostname, timezone and interfaces".to_owned());
    }
    Ok(command)
}

/// The arguments for one network card.
fn of_interface(interface: &Value) -> Result<Vec<String>, String> {
    let known = ["mac_address", "addresses", "gateway", "gateway6", "nameservers", "search_domains"];
    check_names(interface, &known)?;
    let mac = text(interface, "mac_address")?.map(str::to_ascii_lowercase).unwrap_or_default();
    let is_mac = mac.split(':').count() == 6
        && mac.split(':').all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()));
    if !is_mac {
        return Err(format!("mac_address: {mac:?} is no MAC address, such as 52:54:00:12:34:56"));
    }
    let addresses = texts(interface, "addresses")?;
    let addresses: Vec<(IpAddr, u8)> = addresses.into_iter().map(prefixed).collect::<Result<_, _>>()?;
    if addresses.is_empty() {
        return Err("addresses: at least one is needed".to_owned());
    }
    let servers = texts(interface, "nameservers")?.into_iter();
    let servers: Vec<IpAddr> =
        servers.map(|server| address("nameservers", server)).collect::<Result<_, _>>()?;
    let domains = texts(interface, "search_domains")?;
    if let Some(wrong) =
        domains.iter().find(|name| name.len() > 253 || !name.split('.').all(ResourceName::is_dns_label))
    {
        return Err(format!("search_domains: {wrong:?} is no domain"));
    }
    let mut arguments = vec![format!("mac={mac}")];
    for (family, is_v4) in [("4", true), ("6", false)] {
        let of_family = |address: &IpAddr| address.is_ipv4() == is_v4;
        let own: Vec<String> = addresses
            .iter()
            .filter(|(address, _)| of_family(address))
            .map(|(address, length)| format!("{address}/{length}"))
            .collect();
        let name = if is_v4 { "gateway" } else { "gateway6" };
        let gateway = text(interface, name)?.map(|gateway| address(name, gateway)).transpose()?;
        if gateway.is_some_and(|gateway| !of_family(&gateway)) || (gateway.is_some() && own.is_empty()) {
            return Err(format!("{name}: it needs an address of the same family (IPv{family}) in addresses"));
        }
        let servers: Vec<String> =
            servers.iter().filter(|server| of_family(server)).map(ToString::to_string).collect();
        // Without an address of its own a card may have one of IPv6 from a router, and none of IPv4.
        if is_v4 && own.is_empty() && !servers.is_empty() {
            return Err("nameservers: one of IPv4 needs an IPv4 address in addresses".to_owned());
        }
        arguments.extend((!own.is_empty()).then(|| format!("addresses{family}={}", own.join(" "))));
        arguments.extend(gateway.map(|gateway| format!("gateway{family}={gateway}")));
        arguments.extend((!servers.is_empty()).then(|| format!("nameservers{family}={}", servers.join(" "))));
    }
    arguments.extend((!domains.is_empty()).then(|| format!("search={}", domains.join(" "))));
    arguments.push("apply".to_owned());
    Ok(arguments)
}

fn is_time_zone(text: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+-".contains(&b))
    };
    text.len() <= 64 && text.split('/').all(is_part)
}

fn address(name: &str, text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{name}: {text:?} is no IP address"))
}

/// Reads an address with the length of its prefix.
fn prefixed(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong = || format!("addresses: {text:?} is no address with a prefix, such as 192.0.2.10/24");
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let is_number = length.bytes().all(|b| b.is_ascii_digit());
    let length = length.parse::<u8>().ok().filter(|length| is_number && *length <= bits);
    Ok((address, length.ok_or_else(wrong)?))
}

/// Checks that an object has only attributes with these names.
fn check_names(object: &Value, known: &[&str]) -> Result<(), String> {
    let entries = object.as_map().ok_or_else(|| format!("it is an object with {}", known.join(", ")))?;
    match entries.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(format!("{unknown}: there is no such setting: one of {}", known.join(", "))),
        None => Ok(()),
    }
}

fn text<'a>(object: &'a Value, name: &str) -> Result<Option<&'a str>, String> {
    let value = typed(object.get(name));
    match value.as_str() {
        None if value.is_null() => Ok(None),
        None => Err(format!("{name}: it is a text")),
        text => Ok(text),
    }
}

fn list<'a>(object: &'a Value, name: &str, most: usize) -> Result<&'a [Value], String> {
    let value = typed(object.get(name));
    match value.as_list() {
        Some(elements) if elements.len() <= most => Ok(elements),
        Some(_) => Err(format!("{name}: at most {most} are possible")),
        None if value.is_null() => Ok(&[]),
        None => Err(format!("{name}: it is a list")),
    }
}

fn texts<'a>(object: &'a Value, name: &str) -> Result<Vec<&'a str>, String> {
    let wrong = || format!("{name}: it is a list of texts");
    let elements = list(object, name, MOST_VALUES)?.iter();
    elements.map(|element| typed(element).as_str().ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &[(&str, Value)]) -> Result<Vec<String>, String> {
        command(&Value::object(settings.iter().map(|(name, value)| (*name, value.clone()))))
    }

    fn card(settings: &[(&str, Value)]) -> Value {
        let mut card = Value::object([
            ("mac_address", Value::from("52:54:00:AA:00:01")),
            ("addresses", Value::List(vec![Value::from("192.0.2.10/24")])),
        ]);
        for (name, value) in settings {
            card.set(*name, value.clone());
        }
        Value::List(vec![card])
    }

    #[test]
    fn settings_are_arguments_of_the_program_by_family() {
        let more = [
            ("addresses", Value::from(vec!["192.0.2.10/24", "FD00::5/64", "192.0.2.11/24"])),
            ("gateway", Value::from("192.0.2.1")),
            ("gateway6", Value::from("fd00::1")),
            ("nameservers", Value::from(vec!["fd00::53", "192.0.2.53"])),
            ("search_domains", Value::from(vec!["a.example", "b.example"])),
        ];
        let command = of(&[
            ("hostname", Value::from("web-1.example")),
            ("timezone", Value::from("Etc/GMT+1")),
            ("interfaces", card(&more)),
        ]);
        let expected = [
            "hostname=web-1.example",
            "timezone=Etc/GMT+1",
            "mac=52:54:00:aa:00:01",
            "addresses4=192.0.2.10/24 192.0.2.11/24",
            "gateway4=192.0.2.1",
            "nameservers4=192.0.2.53",
            "addresses6=fd00::5/64",
            "gateway6=fd00::1",
            "nameservers6=fd00::53",
            "search=a.example b.example",
            "apply",
        ];
        assert_eq!(command.expect("valid")[4..], expected);
    }

    #[test]
    fn a_command_fits_a_hook() {
        assert!(SCRIPT.len() <= 4096, "{} bytes", SCRIPT.len());
        let (label, number) = ("a".repeat(63), MOST_VALUES / 2);
        let domain = [label.as_str(), &label, &label, &label[..61]].join(".");
        let (v4, v6) =
            (vec!["255.255.255.255/32"; number], vec!["fd00:1111:1111:1111:1111:1111:1111:1111/128"; number]);
        let all = |of: fn(&str) -> &str| {
            Value::List(v4.iter().chain(&v6).map(|text| Value::from(of(text))).collect())
        };
        let one = |i: usize| {
            let more = [
                ("mac_address", Value::from(format!("52:54:00:00:00:{i:02x}"))),
                ("addresses", all(|text| text)),
                ("gateway", Value::from("192.0.2.1")),
                ("gateway6", Value::from("fd00::1")),
                ("nameservers", all(|text| text.split('/').next().unwrap_or_default())),
                ("search_domains", Value::List(vec![Value::from(domain.as_str()); MOST_VALUES])),
            ];
            card(&more).index(0).clone()
        };
        let cards = |number: usize| Value::List((0..number).map(one).collect());
        let both = [
            ("hostname", Value::from("a")),
            ("timezone", Value::from("UTC")),
            ("interfaces", cards(MOST_INTERFACES)),
        ];
        let command = of(&both).expect("valid");
        // Each setting of each card is there: 9 arguments, of which two are the MAC address and the end.
        assert_eq!(command.len(), 4 + 2 + MOST_INTERFACES * 9);
        assert!(command.len() <= 64 && command.iter().all(|argument| argument.len() <= 4096));
        let refused = of(&[("interfaces", cards(MOST_INTERFACES + 1))]).expect_err("refused");
        assert_eq!(refused, "interfaces: at most 6 are possible");
    }

    #[test]
    fn settings_that_no_guest_can_have_are_refused() {
        for (settings, expected) in [
            (vec![], "set at least one of"),
            (vec![("hostname", Value::from("a b"))], "hostname: \"a b\" is no host name"),
            (vec![("hostname", Value::Bool(true))], "hostname: it is a text"),
            (vec![("timezone", Value::from("../etc/passwd"))], "timezone:"),
            (vec![("zone", Value::from("UTC"))], "zone: there is no such setting"),
            (vec![("interfaces", card(&[("mac_address", Value::from("x"))]))], "interfaces[0]: mac_address:"),
            (
                vec![("interfaces", card(&[("addresses", Value::from(vec!["192.0.2.1"]))]))],
                "interfaces[0]: addresses:",
            ),
            (vec![("interfaces", card(&[("gateway", Value::from("fd00::1"))]))], "interfaces[0]: gateway:"),
            (vec![("interfaces", card(&[("gateway6", Value::from("fd00::1"))]))], "interfaces[0]: gateway6:"),
            (
                vec![("interfaces", card(&[("search_domains", Value::from(vec!["$(reboot)"]))]))],
                "search_domains:",
            ),
            (
                vec![(
                    "interfaces",
                    card(&[
                        ("addresses", Value::from(vec!["fd00::5/64"])),
                        ("nameservers", Value::from(vec!["192.0.2.53"])),
                    ]),
                )],
                "interfaces[0]: nameservers: one of IPv4 needs",
            ),
            (
                vec![(
                    "interfaces",
                    Value::List([card(&[]), card(&[])].map(|cards| cards.index(0).clone()).into()),
                )],
                "interfaces[1]: another one has mac=52:54:00:aa:00:01 too",
            ),
        ] {
            let refused = of(&settings).expect_err(expected);
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
