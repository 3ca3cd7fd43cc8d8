//! Logging: to standard error, as text or JSON, at a configurable level.

use clap::{Args, ValueEnum};
use tracing::dispatcher::Dispatch;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter, util::SubscriberInitExt as _};

/// Options for logging.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// The log level (error, warn, info, debug), or per-module directives.
    #[arg(long = "log-level", env = "BERTH_LOG", default_value = "info", global = true, value_parser = level)]
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

/// Checks a level, or directives. A word that is no level would be taken for a module, and all other modules would be silent.
fn level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let is_known =
        |part: &str| part.contains('=') || LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
    let unknown = text.split(',').map(str::trim).find(|part| !part.is_empty() && !is_known(part));
    if let Some(unknown) = unknown {
        let levels = LEVELS.join(", ");
        return Err(format!("{unknown:?} is no level: one of {levels}; of a module: MODULE=LEVEL"));
    }
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Starts logging for the whole process.
pub fn start(options: &LogOptions) {
    let colors = std::io::IsTerminal::is_terminal(&std::io::stderr());
    subscriber(options, std::io::stderr, colors).init();
}

/// Writes log lines to this writer; `colors` is for text.
fn subscriber<W>(options: &LogOptions, writer: W, colors: bool) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The watchers' own messages add nothing to our warnings.
    let filter = EnvFilter::try_new(format!("{},kube_runtime=error,kube_client=error", options.level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match options.format {
        LogFormat::Text => Dispatch::new(builder.with_ansi(colors).finish()),
        LogFormat::Json => Dispatch::new(builder.json().finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Mutex};

    use super::*;

    /// The lines that these options write of an error, an information and a detail.
    fn lines(level: &str, format: LogFormat) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a new directory");
        let path = directory.path().join("log");
        let file = fs::File::create(&path).expect("the directory is ours");
        let options = LogOptions { level: level.to_owned(), format };
        tracing::dispatcher::with_default(&subscriber(&options, Mutex::new(file), false), || {
            tracing::error!(vm = "web", "the guest ended");
            tracing::info!(vm = "web", "the guest runs");
            tracing::debug!(vm = "web", "a detail");
        });
        fs::read_to_string(&path).expect("it was written").lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_of_text_has_time_level_message_and_fields() {
        let text = lines("info", LogFormat::Text);
        assert_eq!(text.len(), 2, "{text:?}");
        for word in ["ERROR", "berth::log", "the guest ended", "vm=\"web\""] {
            assert!(text[0].contains(word), "{word}: {text:?}");
        }
        assert!(text[0].starts_with(|first: char| first.is_ascii_digit()), "{text:?}");
        assert!(text[1].contains("INFO") && text[1].contains("the guest runs"), "{text:?}");
    }

    #[test]
    fn a_line_of_json_is_one_object() {
        let text = lines("info", LogFormat::Json);
        assert_eq!(text.len(), 2, "{text:?}");
        let line: serde_json::Value = serde_json::from_str(&text[0]).expect("it is JSON");
        assert_eq!(line["level"], "ERROR", "{line}");
        assert_eq!(line["fields"]["message"], "the guest ended", "{line}");
        assert_eq!(line["fields"]["vm"], "web", "{line}");
        assert!(line["timestamp"].is_string() && line["target"].is_string(), "{line}");
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for fine in ["", "info", "WARN", "off", "info,berth_agent=debug", "error,berth::log=trace"] {
            assert_eq!(level(fine), Ok(fine.to_owned()));
        }
        for wrong in ["warning", "info,debgu", "berth_agent", "berth_agent=loud"] {
            assert!(level(wrong).is_err(), "{wrong}");
        }
        assert!(
            level("warning").is_err_and(|error| error.starts_with("\"warning\" is no level: one of error"))
        );
    }

    #[test]
    fn the_level_and_directives_of_modules_filter() {
        for (level, count) in
            [("error", 1), ("warn", 1), ("info", 2), ("debug", 3), ("error,berth::log=debug", 3), ("off", 0)]
        {
            for format in [LogFormat::Text, LogFormat::Json] {
                assert_eq!(lines(level, format).len(), count, "{level}");
            }
        }
    }
}
