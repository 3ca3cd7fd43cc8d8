//! The log in the format that Terraform reads: one JSON object per line on stderr.

use std::{
    fmt,
    io::{self, Write as _},
};

use serde_json::{Map, Value as Json};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

/// Dependencies that log every frame. Only their warnings are kept.
const NOISY: [&str; 6] = ["h2", "hyper", "hyper_util", "rustls", "tonic", "tower"];

/// Installs the log and the panic hook of this process.
pub(super) fn install(module: &str, environment: impl Fn(&str) -> Option<String>) {
    let level = level(module, environment);
    // Without a reader there is no subscriber either: every event costs one comparison.
    if level != LevelFilter::OFF {
        let noisy = NOISY.map(|target| (target, LevelFilter::WARN.min(level)));
        let filter = Targets::new().with_default(level).with_targets(noisy);
        let layer = Hclog { module: format!("provider.{module}"), out: || io::stderr().lock() };
        // A subscriber that the program has set before stays.
        let _ = tracing::subscriber::set_global_default(
            tracing_subscriber::registry().with(layer.with_filter(filter)),
        );
    }
    std::panic::set_hook(Box::new(|panic| {
        // When a panic ends the process, Terraform looks for exactly this word to show the user the panic.
        if cfg!(panic = "abort") {
            let _ = writeln!(io::stderr(), "panic: {panic}");
        }
        tracing::error!(%panic, "panicked");
    }));
}

/// The configured level: of this provider, else of all providers, else of everything.
fn level(module: &str, environment: impl Fn(&str) -> Option<String>) -> LevelFilter {
    let name = module.rsplit('-').next().unwrap_or_default().to_uppercase();
    let asked = [format!("TF_LOG_PROVIDER_{name}"), "TF_LOG_PROVIDER".to_owned(), "TF_LOG".to_owned()]
        .iter()
        .find_map(|variable| environment(variable).filter(|level| !level.is_empty()));
    match asked.unwrap_or_default().to_uppercase().as_str() {
        "ERROR" => LevelFilter::ERROR,
        "WARN" => LevelFilter::WARN,
        "INFO" => LevelFilter::INFO,
        "DEBUG" => LevelFilter::DEBUG,
        "" | "OFF" => LevelFilter::OFF,
        // `JSON` means everything as JSON; Terraform treats an unknown word as everything.
        _ => LevelFilter::TRACE,
    }
}

/// Writes events with the fields of their spans.
struct Hclog<M> {
    module: String,
    out: M,
}

impl<S, M, W> Layer<S> for Hclog<M>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    M: Fn() -> W + 'static,
    W: io::Write,
{
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = head(event.metadata(), &self.module);
        for span in
            context.event_scope(event).into_iter().flat_map(tracing_subscriber::registry::Scope::from_root)
        {
            if let Some(fields) = span.extensions().get::<Fields>() {
                line.extend(fields.0.clone());
            }
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_else(|| Json::from(""));
        line.insert("@message".to_owned(), message);
        line.extend(fields.0);
        let mut line = Json::Object(line).to_string();
        line.push('\n');
        // If stderr is closed, there is nowhere to report the error.
        let _ = (self.out)().write_all(line.as_bytes());
    }
}

fn head(metadata: &Metadata<'_>, module: &str) -> Map<String, Json> {
    let level = match *metadata.level() {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    let timestamp = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let head = [("@level", level), ("@module", module), ("@timestamp", timestamp.as_str())];
    head.into_iter().map(|(key, value)| (key.to_owned(), Json::from(value))).collect()
}

/// The fields of an event or span, as JSON.
#[derive(Debug, Default)]
struct Fields(Map<String, Json>);

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Json>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_with_its_fields_and_those_of_its_spans() {
        let written = Written::default();
        let out = written.clone();
        let layer = Hclog { module: "provider.x".to_owned(), out: move || out.clone() };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::info_span!("apply", resource = "web");
            let _entered = span.enter();
            tracing::warn!(tries = 2, error = "a\nb", "trying again");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1);
        let line: Json = serde_json::from_str(&text).unwrap();
        assert_eq!(line["@level"], "warn");
        assert_eq!(line["@message"], "trying again");
        assert_eq!(line["@module"], "provider.x");
        assert_eq!(
            (&line["tries"], &line["resource"], &line["error"]),
            (&2.into(), &"web".into(), &"a\nb".into())
        );
        let timestamp = line["@timestamp"].as_str().unwrap();
        assert!(timestamp.ends_with('Z') && timestamp.len() == 27, "{timestamp}");
    }

    #[test]
    fn the_most_specific_level_counts() {
        let level = |set: &[(&str, &str)]| {
            let get =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            level("terraform-provider-toy", get)
        };
        assert_eq!(level(&[]), LevelFilter::OFF);
        assert_eq!(level(&[("TF_LOG", "info")]), LevelFilter::INFO);
        assert_eq!(level(&[("TF_LOG", "TRACE"), ("TF_LOG_PROVIDER", "ERROR")]), LevelFilter::ERROR);
        assert_eq!(level(&[("TF_LOG_PROVIDER", "OFF"), ("TF_LOG_PROVIDER_TOY", "WARN")]), LevelFilter::WARN);
        assert_eq!(level(&[("TF_LOG", "JSON")]), LevelFilter::TRACE);
    }
}
