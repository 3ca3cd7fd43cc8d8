//! Logging: to standard error, as text or JSON, at a configurable level.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Options for logging.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// The log level (error, warn, info, debug), or per-module directives.
    #[arg(long = "log-level", env = "BERTH_LOG", default_value = "info", global = true)]
    pub level: String,
    /// The format of log lines.
    #[arg(long = "log-format", env = "BERTH_LOG_FORMAT", default_value = "text", global = true)]
    pub format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Starts logging for the whole process.
pub fn start(options: &LogOptions) {
    // The watchers' own messages add nothing to our warnings.
    let filter = EnvFilter::try_new(format!("{},kube_runtime=error,kube_client=error", options.level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
}
