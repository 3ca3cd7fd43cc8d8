mod systemd;

use super::*;

fn service() -> Service {
    Service {
        program: "/usr/local/bin/berth".into(),
        role: "up",
        arguments: vec!["--listen".into(), "0.0.0.0:7443".into()],
        environment: Vec::new(),
        state_dir: "/var/lib/berth".into(),
        timeout: Duration::from_secs(600),
        suspend: false,
    }
}

fn text(service: &Service, name: &str) -> String {
    let units = units(service).expect("valid");
    units.into_iter().find(|unit| unit.name == name).expect("a unit").text
}

fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|found| found == line)
}

#[test]
fn a_stop_of_berth_ends_no_guest_and_a_shutdown_asks_them_first() {
    let (machines, berth, guests) = (
        text(&service(), "berth-machines.service"),
        text(&service(), "berth.service"),
        text(&service(), "berth-guests.service"),
    );
    // Without a process in it, systemd removes the control group; "-": its end ends no guest.
    let keeps = "ExecStart=-sleep infinity";
    for line in [keeps, "Delegate=yes", "RemainAfterExit=yes", "RefuseManualStop=yes", "OOMPolicy=continue"] {
        assert!(has_line(&machines, line), "{line}");
    }
    // The stop of a mount would stop the unit, and with it the guests.
    assert!(!machines.contains("RequiresMountsFor="), "{machines}");
    let start = "ExecStart=/usr/local/bin/berth up --state-dir /var/lib/berth --listen 0.0.0.0:7443";
    for line in [start, "KillMode=process", "RequiresMountsFor=/var/lib/berth"] {
        assert!(has_line(&berth, line), "{line}");
    }
    let after = |text: &str| -> String {
        text.lines().find(|line| line.starts_with("After=")).expect("an order").to_owned()
    };
    // Units are stopped in the reverse of this order: guests are asked, berth ends, what is left of guests is ended.
    assert!(after(&berth).ends_with(" berth-machines.service"));
    assert!(after(&guests).ends_with(" berth.service berth-machines.service"));
    // A unit that has failed to start has nothing to stop.
    let start = "ExecStart=-/usr/local/bin/berth service start-guests --state-dir /var/lib/berth";
    assert!(has_line(&guests, start), "{guests}");
    let stop = "ExecStop=/usr/local/bin/berth service stop-guests --state-dir /var/lib/berth --timeout 600s";
    assert!(has_line(&guests, stop) && has_line(&guests, "TimeoutStopSec=660"), "{guests}");
    let suspends = text(&Service { suspend: true, ..service() }, "berth-guests.service");
    assert!(has_line(&suspends, &format!("{stop} --suspend")), "{suspends}");
    for text in [machines, berth, guests] {
        assert!(!text.contains('@'), "a name without a value: {text}");
    }
}

#[test]
fn the_commands_in_the_units_are_commands_of_berth() {
    use clap::Parser as _;
    for unit in units(&service()).expect("valid") {
        for line in unit.text.lines().filter(|line| line.starts_with("Exec")) {
            let (_, command) = line.split_once('=').expect("a command");
            if command == "-sleep infinity" {
                continue;
            }
            let parsed = crate::cli::Cli::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }
}

#[test]
fn arguments_are_quoted_as_systemd_reads_them() {
    for (argument, expected) in [
        ("a=b,c:1", "a=b,c:1"),
        ("", "\"\""),
        ("two words", "\"two words\""),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        (r#"a"b\c"#, r#""a\"b\\c""#),
        ("a;b", "\"a;b\""),
        ("é", "\"é\""),
    ] {
        assert_eq!(quoted(argument).expect("allowed"), expected);
    }
    assert!(quoted("a\nExecStartPre=/bin/sh").is_err());
    let named = Service { arguments: vec!["@STATE_DIR@".into()], ..service() };
    assert!(text(&named, "berth.service").contains("--state-dir /var/lib/berth @STATE_DIR@"));
}

fn with_environment(variables: &[(&str, &str)]) -> Service {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Service { environment: variables.iter().map(owned).collect(), ..service() }
}

#[test]
fn variables_of_the_environment_are_in_the_unit_of_berth_alone() {
    let service = with_environment(&[
        ("HTTPS_PROXY", "http://proxy:3128"),
        ("_empty", ""),
        ("BERTH_LOG", r#"a "b" \c 50% $HOME @STATE_DIR@"#),
    ]);
    let unit = text(&service, "berth.service");
    for line in [
        r#"Environment="HTTPS_PROXY=http://proxy:3128""#,
        r#"Environment="_empty=""#,
        r#"Environment="BERTH_LOG=a \"b\" \\c 50%% $HOME @STATE_DIR@""#,
    ] {
        assert!(has_line(&unit, line), "{line}: {unit}");
    }
    assert!(unit.contains("\nExecStart=/usr/local/bin/berth up "), "{unit}");
    for other in ["berth-machines.service", "berth-guests.service"] {
        assert!(!text(&service, other).contains("Environment="), "{other}");
    }
}

#[test]
fn variables_that_have_no_place_in_a_unit_are_refused() {
    let refused =
        |variables: &[(&str, &str)]| units(&with_environment(variables)).expect_err("refused").to_string();
    for name in ["", "1ST", "A-B", "A B", "Ä", "A".repeat(129).as_str()] {
        assert!(refused(&[(name, "x")]).contains("is not the name of a variable"), "{name:?}");
    }
    assert!(refused(&[("BERTH_JOIN", "berth1.x")]).contains("readable by every user"));
    assert!(refused(&[("A", "x\nExecStartPre=/bin/sh")]).contains("no control characters"));
    assert!(refused(&[("A", &"x".repeat(LONGEST_VALUE + 1))]).contains("at most 4096 bytes"));
    assert_eq!(refused(&[("A", "x"), ("A", "y")]), "--env A: given twice");
    assert!(refused(&[("A", "x"); MOST_VARIABLES + 1]).contains("at most 64 variables"));
}

#[test]
fn values_that_have_no_place_in_a_unit_are_refused() {
    let refused = |service: Service| units(&service).expect_err("refused").to_string();
    let join = |text: &str| Service { role: "host", arguments: vec![text.to_owned()], ..service() };
    assert!(refused(join("--join")).contains("readable by every user"));
    assert!(refused(join("--join=berth1.x")).contains("Ctrl-C"));
    assert!(refused(Service { state_dir: "berth".into(), ..service() }).contains("absolute path"));
    let long = Service { timeout: Duration::from_secs(3600), ..service() };
    assert_eq!(
        refused(long),
        "--timeout: systemd ends a shutdown after 30 minutes: give guests at most 25 minutes"
    );
}
