//! Logs: to standard error, as text or JSON, at a level of one's own.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How berth logs.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// What is logged: a level (error, warn, info, debug, trace) or per-module directives.
    #[arg(long = "log-level", env = "BERTH_LOG", default_value = "info", global = true)]
    pub level: String,
    /// The form of each line.
    #[arg(long = "log-format", env = "BERTH_LOG_FORMAT", default_value = "text", global = true)]
    pub format: LogFormat,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Starts logging for the whole process.
pub fn start(options: &LogOptions) {
    // The watchers' own chatter says nothing that our warnings do not.
    let filter = EnvFilter::try_new(format!("{},kube_runtime=error,kube_client=error", options.level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
}
