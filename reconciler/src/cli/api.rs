//! The options for requests to the control plane.

use std::time::Duration;

use clap::Args;

use super::{TimeSpan, time};
use crate::api_limits::{ApiLimits, Rate};

/// Limits of the requests of a program that runs all the time.
#[derive(Args, Clone, Copy, Debug)]
pub struct ApiOptions {
    /// How many requests to the control plane this program makes in each second of a long time; others wait. Watches and Leases are not
    /// counted.
    #[arg(long, env = "BERTH_API_QPS", default_value_t = 1_000, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub api_qps: u32,
    /// How many of these requests it makes at once, after a time without any.
    #[arg(long, env = "BERTH_API_BURST", default_value_t = 2_000, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub api_burst: u32,
    /// How long a request, other than a watch, waits for the begin of its answer before it fails and is repeated: 5s to 1h.
    #[arg(long, env = "BERTH_API_TIMEOUT", default_value = "90s", value_name = "TIME", value_parser = timeout)]
    pub api_timeout: TimeSpan,
    /// The interval between pings on the idle connection to the control plane, 1s to 5m: one without an answer for ten seconds is
    /// closed, and another one is opened. A connection through a proxy of the kubeconfig has none.
    #[arg(long, env = "BERTH_API_PING_INTERVAL", default_value = "20s", value_name = "TIME", value_parser = ping_interval)]
    pub api_ping_interval: TimeSpan,
}

impl ApiOptions {
    /// Returns the limits for a client.
    pub fn limits(&self) -> ApiLimits {
        ApiLimits {
            rate: Some(Rate { per_second: self.api_qps, burst: self.api_burst }),
            timeout: Some(self.api_timeout.0),
            ping_every: self.api_ping_interval.0,
        }
    }
}

fn timeout(text: &str) -> Result<TimeSpan, String> {
    let parsed = time(text)?;
    let is_allowed = (Duration::from_secs(5)..=Duration::from_secs(3_600)).contains(&parsed.0);
    is_allowed.then_some(parsed).ok_or_else(|| "must be at least 5s and at most 1h".to_owned())
}

fn ping_interval(text: &str) -> Result<TimeSpan, String> {
    let parsed = time(text)?;
    let is_allowed = (Duration::from_secs(1)..=Duration::from_secs(300)).contains(&parsed.0);
    is_allowed.then_some(parsed).ok_or_else(|| "must be at least 1s and at most 5m".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn limits(options: &[&str]) -> Result<ApiLimits, String> {
        let mut command = vec!["berth", "controllers"];
        command.extend(options);
        match Cli::try_parse_from(command).map_err(|error| error.to_string())?.command {
            Command::Controllers(options) => Ok(options.api.limits()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_limits_are_generous_unless_they_are_given() {
        let default = limits(&[]).expect("valid");
        assert_eq!(default.rate, Some(Rate { per_second: 1_000, burst: 2_000 }));
        assert_eq!(default.timeout, Some(Duration::from_secs(90)));
        assert_eq!(default.ping_every, ApiLimits::NONE.ping_every);
        let given =
            limits(&["--api-qps", "20", "--api-burst=40", "--api-timeout=5s", "--api-ping-interval=5m"]);
        let given = given.expect("valid");
        assert_eq!(given.rate, Some(Rate { per_second: 20, burst: 40 }));
        assert_eq!(given.timeout, Some(Duration::from_secs(5)));
        assert_eq!(given.ping_every, Duration::from_secs(300));
        let host = Cli::try_parse_from(["berth", "host", "--api-qps", "20"]);
        assert!(host.is_ok(), "{host:?}");
    }

    #[test]
    fn values_that_stop_a_program_are_refused() {
        for (option, expected) in [
            ("--api-qps=0", "not in 1..=100000"),
            ("--api-burst=0", "not in 1..=100000"),
            ("--api-timeout=4s", "must be at least 5s and at most 1h"),
            ("--api-timeout=2h", "must be at least 5s and at most 1h"),
            ("--api-ping-interval=0s", "must be at least 1s and at most 5m"),
            ("--api-ping-interval=6m", "must be at least 1s and at most 5m"),
        ] {
            let refused = limits(&[option]).expect_err(option);
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
