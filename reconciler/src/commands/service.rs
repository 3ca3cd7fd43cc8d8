//! `berth service`: the units of systemd, and the end of guests before that of their machine.

mod installed;

use std::{
    ffi::OsString,
    fmt::Write as _,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use berth_agent::GuestsLeft;
use berth_host::linux::shut_down_guests;
use clap::{CommandFactory as _, Parser as _};
use http::Method;
use tokio::net::UnixStream;

use super::{local_agent, usage_server::SOCKET};
use crate::{
    cli::{Cli, ServiceAction, ServiceOptions, TimeSpan, UnitOptions},
    service::{Service, Unit, units},
};

/// How often the guests that still run are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The part of the time, at its end, in which guests are asked at once that have not been asked in their order.
const HURRY: u32 = 4;
/// The request to the agent then.
const LATE: &str = "/guests/hurry";
/// How often the agent may fail to answer in a row.
const MOST_FAILURES: u32 = 3;
/// The number of guests that a message names.
const NAMED: usize = 8;

pub(super) async fn run(options: ServiceOptions) -> anyhow::Result<()> {
    let state_dir = options.state.state_dir;
    match options.action {
        ServiceAction::Print(options) => {
            let mut text = String::new();
            for unit in described(&options, &state_dir)? {
                // Writing into a String cannot fail.
                let _ = writeln!(text, "# /etc/systemd/system/{}\n{}", unit.name, unit.text);
            }
            std::io::stdout().lock().write_all(text.as_bytes()).context("printing")
        }
        ServiceAction::Install { units, folder } => install(&described(&units, &state_dir)?, &folder),
        ServiceAction::StopGuests { suspend, timeout } => stop_guests(&state_dir, suspend, timeout).await,
        ServiceAction::StartGuests => start_guests(&state_dir).await,
    }
}

/// Returns the units for these options.
///
/// *Errors:* the command would refuse them.
fn described(options: &UnitOptions, state_dir: &Path) -> anyhow::Result<Vec<Unit>> {
    let UnitOptions { role, timeout: TimeSpan(timeout), suspend, environment, arguments } = options.clone();
    let program = std::env::current_exe().context("finding this program")?;
    let state_dir = std::path::absolute(state_dir).context("finding the state directory")?;
    let mut command: Vec<OsString> = vec!["berth".into(), role.as_str().into(), "--state-dir".into()];
    command.push(state_dir.clone().into());
    command.extend(arguments.iter().map(OsString::from));
    let variables = options_of_variables(role.as_str(), &environment, &command)?;
    command.extend(variables.into_iter().map(OsString::from));
    // An error is shown now, and not only in the log of a service that does not start.
    Cli::try_parse_from(command).with_context(|| format!("the options of `berth {}`", role.as_str()))?;
    units(&Service { program, role: role.as_str(), arguments, environment, state_dir, timeout, suspend })
}

/// Returns the options for which variables of the environment stand, so that their values are checked like those of options.
///
/// *Errors:* a variable of berth that the command does not have, or whose option is given as well.
pub(super) fn options_of_variables(
    role: &str,
    environment: &[(String, String)],
    given: &[OsString],
) -> anyhow::Result<Vec<String>> {
    let berth = Cli::command();
    let role_options = berth.find_subcommand(role).into_iter().flat_map(clap::Command::get_arguments);
    let known: Vec<&clap::Arg> = berth.get_arguments().chain(role_options).collect();
    let mut options = Vec::new();
    for (name, value) in environment.iter().filter(|(name, _)| name.starts_with("BERTH_")) {
        let option =
            known.iter().find(|option| option.get_env().is_some_and(|variable| variable == name.as_str()));
        let Some(long) = option.and_then(|option| option.get_long()) else {
            bail!("--env {name}: `berth {role}` has no option with this variable");
        };
        let names_the_option = |argument: &OsString| {
            let rest = argument.to_str().and_then(|argument| argument.strip_prefix("--")?.strip_prefix(long));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        if given.iter().any(names_the_option) {
            bail!("--env {name}: the option --{long} sets the same and has priority: leave one of them out");
        }
        // The value of a flag is not that of an option.
        if option.is_some_and(|option| option.get_action().takes_values()) && name != "BERTH_JOIN" {
            options.push(format!("--{long}={value}"));
        }
    }
    Ok(options)
}

fn install(units: &[Unit], folder: &Path) -> anyhow::Result<()> {
    if !folder.is_dir() {
        bail!(
            "{} is not a folder: is this a machine with systemd? Name another folder with --folder, or print the units with `berth service print`",
            folder.display()
        );
    }
    let (paths, is_again) = installed::write(units, folder)?;
    for path in paths {
        notice!("{}", path.display());
    }
    let names: Vec<&str> = units.iter().map(|unit| unit.name).collect();
    notice!("Start them with:");
    // Those that run do not take other options before a restart, in which guests run on.
    let restart = if is_again { " && systemctl restart berth.service" } else { "" };
    let command = format!("systemctl daemon-reload && systemctl enable --now {}{restart}\n", names.join(" "));
    std::io::stdout().lock().write_all(command.as_bytes()).context("printing")
}

/// Sends a request to this machine's agent. None: no agent runs.
async fn ask(state_dir: &Path, method: Method, path: &str) -> anyhow::Result<Option<GuestsLeft>> {
    let socket: PathBuf = state_dir.join(SOCKET);
    match UnixStream::connect(&socket).await {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        stream => {
            let stream =
                stream.with_context(|| format!("connecting to {}: are you root?", socket.display()))?;
            local_agent::request(stream, method, path)
                .await
                .map(Some)
                .context("asking the agent of this machine")
        }
    }
}

/// Has the guests stopped and waits for that.
///
/// *Errors:* some still run at the end.
async fn stop_guests(state_dir: &Path, suspend: bool, timeout: TimeSpan) -> anyhow::Result<()> {
    let end = Instant::now().checked_add(timeout.0).context("--timeout is too long")?;
    // The memory of guests that are suspended may be on its way to a file then.
    let hurry = if suspend { end } else { end - timeout.0 / HURRY };
    let mut path = if suspend { "/guests/suspend" } else { "/guests/stop" };
    let mut left: Vec<String> = Vec::new();
    let mut failures = 0;
    loop {
        // Each time anew: an agent that was restarted meanwhile would start the guests again.
        match ask(state_dir, Method::POST, path).await {
            Ok(Some(now)) if now.is_working => {
                for ended in left.iter().filter(|vm| !now.vms.contains(vm)) {
                    notice!("{ended} is off");
                }
                (left, failures) = (now.vms, 0);
                if left.is_empty() {
                    // Those that no object owns may be left.
                    return shut_down_all(state_dir, end).await;
                }
            }
            // It does not run, or waits for its control plane: there is no order of VMs, and no hook.
            Ok(_) => failures = MOST_FAILURES,
            Err(error) => {
                notice!("berth: {error:#}");
                failures += 1;
            }
        }
        if failures >= MOST_FAILURES {
            notice!("The agent of this machine does not answer: all guests are asked at once");
            return shut_down_all(state_dir, end).await;
        }
        let now = Instant::now();
        if now >= end {
            bail!("{} VMs are not off at the end of --timeout: {}", left.len(), some(&left));
        }
        if now >= hurry && path != LATE {
            notice!("{} VMs are not off yet: they are asked at once, whatever their order", left.len());
            path = LATE;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asks all guests that run to shut down, whatever the agent does, and waits for that.
///
/// *Errors:* some still run at the end.
async fn shut_down_all(state_dir: &Path, end: Instant) -> anyhow::Result<()> {
    let left = shut_down_guests(state_dir, end.saturating_duration_since(Instant::now())).await?;
    if !left.is_empty() {
        bail!("{} guests still run at the end of --timeout: instances {}", left.len(), some(&left));
    }
    Ok(())
}

async fn start_guests(state_dir: &Path) -> anyhow::Result<()> {
    if ask(state_dir, Method::POST, "/guests/start").await?.is_none() {
        // As after a boot, or because another state directory is in use.
        notice!(
            "No agent runs with the state directory {}: it starts the guests when it is started",
            state_dir.display()
        );
    }
    Ok(())
}

fn some(names: &[String]) -> String {
    let more = if names.len() > NAMED { ", …" } else { "" };
    format!("{}{more}", names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Role;

    fn options(role: Role, arguments: &[&str]) -> UnitOptions {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        UnitOptions {
            role,
            timeout: TimeSpan(Duration::from_secs(60)),
            suspend: false,
            environment: Vec::new(),
            arguments,
        }
    }

    #[test]
    fn units_are_written_only_for_options_that_the_command_takes() {
        let folder = tempfile::tempdir().expect("a folder");
        let good = described(&options(Role::Up, &["--listen", "0.0.0.0:7443"]), folder.path());
        install(&good.expect("valid"), folder.path()).expect("written");
        let written = std::fs::read_to_string(folder.path().join("berth.service")).expect("a unit");
        assert!(
            written.contains(" up --state-dir ") && written.contains(" --listen 0.0.0.0:7443"),
            "{written}"
        );
        let wrong = described(&options(Role::Host, &["--listen", "0.0.0.0:7443"]), folder.path());
        assert!(format!("{:#}", wrong.expect_err("refused")).starts_with("the options of `berth host`: "));
        let nowhere = install(&[], Path::new("/nonexistent")).expect_err("refused");
        assert!(nowhere.to_string().contains("a machine with systemd"), "{nowhere}");
    }

    #[test]
    fn variables_are_checked_like_the_options_that_they_stand_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let with = |role, arguments: &[&str], (name, value): (&str, &str)| {
            let environment = vec![(name.to_owned(), value.to_owned())];
            let options = UnitOptions { environment, ..options(role, arguments) };
            let texts =
                described(&options, folder.path()).map(|units| units.into_iter().map(|unit| unit.text));
            texts.map(|texts| texts.collect::<String>()).map_err(|error| format!("{error:#}"))
        };
        let good = with(Role::Host, &[], ("BERTH_API_QPS", "50")).expect("valid");
        assert!(good.contains("Environment=\"BERTH_API_QPS=50\"\n"), "{good}");
        for variable in
            [("HTTPS_PROXY", "http://proxy:3128"), ("BERTH_LOG", "debug"), ("BERTH_NO_CONSOLE", "true")]
        {
            assert!(with(Role::Up, &[], variable).is_ok(), "{variable:?}");
        }
        let none: &[&str] = &[];
        let cases = [
            (Role::Host, none, ("BERTH_API_QPS", "many"), "--api-qps"),
            (
                Role::Host,
                none,
                ("BERTH_LISTEN", "0.0.0.0:7443"),
                "`berth host` has no option with this variable",
            ),
            (
                Role::Up,
                &["--listen=0.0.0.0:7443"],
                ("BERTH_LISTEN", "1.2.3.4:5"),
                "the option --listen sets the same",
            ),
            (Role::Up, none, ("BERTH_STATE_DIR", "/srv"), "the option --state-dir sets the same"),
            (Role::Host, none, ("BERTH_JOIN", "berth1.x"), "readable by every user"),
        ];
        for (role, arguments, variable, expected) in cases {
            let refused = with(role, arguments, variable).expect_err(variable.0);
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[tokio::test]
    async fn without_an_agent_and_guests_both_commands_end_well() {
        let folder = tempfile::tempdir().expect("a folder");
        start_guests(folder.path()).await.expect("nothing to do");
        stop_guests(folder.path(), false, TimeSpan(Duration::from_secs(5))).await.expect("nothing to do");
    }
}
