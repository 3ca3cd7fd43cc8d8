//! No input makes the provider panic: any text in the `provider` block, any value that Terraform's types allow in a
//! resource, as a configuration and as a state.

use std::{sync::LazyLock, time::Duration};

use proptest::{collection::vec, prelude::*, sample::select};
use terraform_provider_berth::{
    BerthProvider,
    field::{Field, Shape},
};
use tfplugin6::{
    CancellationToken, Provider, Resource as _, Value,
    provider::{ClientCapabilities, ConfigureRequest},
    resource::{ImportRequest, ImportSource, PlanRequest, ReadRequest, ValidateRequest},
};
use tokio::runtime::Builder;

static PROVIDER: LazyLock<BerthProvider> = LazyLock::new(BerthProvider::default);
/// Another provider, so that its configuration affects no plan.
static CONFIGURED: LazyLock<BerthProvider> = LazyLock::new(BerthProvider::default);

/// Texts that look valid, and texts that do not.
fn text() -> impl Strategy<Value = String> {
    let known = [
        "",
        " ",
        "\n",
        "default",
        "a",
        "nic0",
        "web.data",
        "Running",
        "Stopped",
        "1Gi",
        "-1",
        "1e999999",
        "99999999999Ti",
        "52:54:00:00:00:01",
        "10.77.0.10",
        "https://127.0.0.1:1",
        "http://127.0.0.1:1",
        "127.0.0.1:1",
        "https://",
        "://",
        "[::1]",
        "https://[",
        "https://127.0.0.1/%zz",
        "secret\n",
        "a\u{0}b",
        "ä",
        "-----BEGIN CERTIFICATE-----\nx\n",
        "/nowhere",
        "/dev/null",
        "~/",
        "terraform-0123456789ab",
        "1+terraform-0123456789ab",
        "reboot",
        "replace",
        "ignore",
        "none",
        "24h",
        "9999999999999999999999h",
        "ssh-rsa A",
        "#cloud-config\n- [",
        "../..",
        "default/web",
        "/",
        "a/b/c",
    ];
    prop_oneof![select(known.to_vec()).prop_map(str::to_owned), ".{0,20}", "[ -~\r\n\t]{0,40}"]
}

fn any_of(shape: &Shape, unknowns: bool) -> BoxedStrategy<Value> {
    let known = match shape {
        Shape::Text(_) => text().prop_map(Value::from).boxed(),
        Shape::Integer => prop_oneof![any::<i64>(), -2_i64..70_000].prop_map(Value::from).boxed(),
        Shape::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Shape::TextMap | Shape::Annotations => {
            vec((text(), leaf(text().prop_map(Value::from).boxed(), unknowns)), 0..3)
                .prop_map(Value::object)
                .boxed()
        }
        Shape::TextList(_) => {
            vec(leaf(text().prop_map(Value::from).boxed(), unknowns), 0..3).prop_map(Value::List).boxed()
        }
        Shape::TextListMap => {
            let texts = vec(text().prop_map(Value::from), 0..3).prop_map(Value::List).boxed();
            vec((text(), leaf(texts, unknowns)), 0..3).prop_map(Value::object).boxed()
        }
        Shape::Object(fields) => object(fields, unknowns),
        Shape::Keyed(fields) => {
            vec(leaf(object(fields, unknowns), unknowns), 0..3).prop_map(Value::List).boxed()
        }
    };
    leaf(known, unknowns)
}

fn leaf(known: BoxedStrategy<Value>, unknowns: bool) -> BoxedStrategy<Value> {
    let other = if unknowns { vec![Value::Null, Value::UNKNOWN] } else { vec![Value::Null] };
    prop_oneof![4 => known, 1 => select(other)].boxed()
}

fn object(fields: &[Field], unknowns: bool) -> BoxedStrategy<Value> {
    let one = |field: &Field| {
        let name = field.name;
        any_of(&field.shape, unknowns).prop_map(move |value| (name, value))
    };
    fields.iter().map(one).collect::<Vec<_>>().prop_map(Value::object).boxed()
}

fn resource() -> impl Strategy<Value = (usize, Value, Value)> {
    (0..PROVIDER.kinds().len()).prop_flat_map(|at| {
        let fields = PROVIDER.kinds()[at].fields();
        (Just(at), object(fields, true), prop_oneof![Just(Value::Null), object(fields, false)])
    })
}

fn run(future: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_provider_block_is_configured_or_refused(texts in vec(prop_oneof![text().prop_map(Value::from), Just(Value::Null)], 10), http: bool) {
        let names = ["kubeconfig", "context", "host", "token", "ca_certificate", "namespace", "pool", "network", "owner"];
        let zone = texts[names.len()].clone();
        let label = zone.as_str().unwrap_or_default().to_owned();
        let mut config = Value::object(names.into_iter().zip(texts));
        config.set("host_selector", Value::object([("zone", zone)]));
        config.set("allow_loopback_http", Value::Bool(http));
        run(async {
            let provider = &*CONFIGURED;
            let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
            let found = provider.validate(ValidateRequest { config: config.clone(), client, cancel: cancel.clone() }).await;
            // The generated token may be a part of the address or of the label, which messages repeat.
            let host = config.get("host").as_str().unwrap_or_default();
            let is_secret = |token: &&str| token.trim().len() > 8 && !host.contains(*token) && !label.contains(*token);
            let secret = config.get("token").as_str().filter(is_secret).map(str::to_owned);
            let configured = provider.configure(ConfigureRequest { config, terraform_version: "1.11.4".into(), client, cancel: cancel.clone() }).await;
            for text in found.iter().chain(&configured) {
                assert!(secret.as_ref().is_none_or(|secret| !text.detail.contains(secret)), "{}", text.detail);
            }
            // A bad address would only show in the first request.
            let state = Value::object([("name", "a"), ("namespace", "default"), ("uid", "u")].map(|(n, v)| (n, Value::from(v))));
            let request = ReadRequest { state, private: Vec::new(), identity: None, provider_meta: Value::Null, client, cancel: cancel.clone() };
            let _ = tokio::time::timeout(Duration::from_millis(20), provider.kinds()[0].read(request)).await;
        });
    }

    #[test]
    fn any_resource_is_validated_planned_and_imported_or_refused((at, config, prior) in resource(), id in text()) {
        run(async {
            let kind = &PROVIDER.kinds()[at];
            let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
            let _ = kind.validate(ValidateRequest { config: config.clone(), client, cancel: cancel.clone() }).await;
            let request = PlanRequest {
                prior, proposed: config.clone(), config, private: id.clone().into_bytes(), identity: None,
                provider_meta: Value::Null, client, cancel: cancel.clone(),
            };
            let _ = kind.plan(request).await;
            let _ = kind.import(ImportRequest { source: ImportSource::Id(id), client, cancel }).await;
        });
    }
}
