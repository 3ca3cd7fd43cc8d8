//! The ways to the control plane that a `provider` block offers.

use std::fs;

use serde_json::json;
use terraform_provider_berth::{
    BerthProvider,
    api::{Address, Api, RetryLimit},
    connection::{ConnectionSettings, connect},
};
use tfplugin6::{
    CancellationToken, Provider,
    provider::{ClientCapabilities, ConfigureRequest},
};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, text_of, value},
};

async fn works(settings: &ConnectionSettings) -> Result<(), String> {
    let (client, _) = connect(settings).await.map_err(|error| error.to_string())?;
    let retry_limit = RetryLimit::seconds(0, &CancellationToken::new());
    let found = Api::new(client).get(&Address::berth("vms", "default", "missing"), &retry_limit).await;
    found.map(|object| assert!(object.is_none())).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_kubeconfig_or_host_token_and_certificate_lead_in_and_nothing_less_does() {
    let directory = tempfile::tempdir().expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    let text = fs::read_to_string(&kubeconfig).expect("it was written");
    let host = text
        .split("server:")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .expect("it has a server");
    let by_file = ConnectionSettings {
        kubeconfig: Some(kubeconfig.display().to_string()),
        ..ConnectionSettings::default()
    };
    assert_eq!(works(&by_file).await, Ok(()));
    let no_context = ConnectionSettings { context: Some("nowhere".into()), ..by_file };
    assert!(works(&no_context).await.is_err_and(|error| error.contains("nowhere")));

    let (token, certificate) = plane.credentials();
    let by_token = ConnectionSettings {
        host: Some(host.trim_matches('"').into()),
        token: Some(token),
        ca_certificate: Some(certificate.clone()),
        ..ConnectionSettings::default()
    };
    assert_eq!(works(&by_token).await, Ok(()));
    let path = directory.path().join("ca.pem");
    fs::write(&path, certificate).expect("a new file");
    let by_path = ConnectionSettings { ca_certificate: Some(path.display().to_string()), ..by_token.clone() };
    assert_eq!(works(&by_path).await, Ok(()));

    let wrong_token = ConnectionSettings { token: Some("wrong".into()), ..by_token.clone() };
    assert!(works(&wrong_token).await.is_err());
    let unproven = ConnectionSettings { ca_certificate: None, ..by_token };
    assert!(works(&unproven).await.is_err_and(|error| error.to_lowercase().contains("certificate")));
    let unverified = ConnectionSettings { insecure_skip_tls_verify: true, ..unproven };
    assert_eq!(works(&unverified).await, Ok(()));
    for contradictory in [
        ConnectionSettings { ca_certificate: Some("ca.pem".into()), ..unverified.clone() },
        ConnectionSettings { host: None, kubeconfig: Some("kubeconfig".into()), ..unverified.clone() },
    ] {
        let error = works(&contradictory).await;
        assert!(error.is_err_and(|error| error.contains("insecure_skip_tls_verify")), "{contradictory:?}");
    }
    plane.close().await;
}

#[tokio::test]
async fn while_the_provider_block_is_unknown_creates_are_planned_and_a_read_fails() {
    for unknown in ["kubeconfig", "host", "token", "ca_certificate"] {
        let provider = BerthProvider::default();
        let request = ConfigureRequest {
            config: value(&json!({unknown: "<unknown>"})),
            terraform_version: "1.11.4".into(),
            client: ClientCapabilities::default(),
            cancel: CancellationToken::new(),
        };
        assert_eq!(text_of(&provider.configure(request).await), "", "{unknown}");
        let mut vm = Stage::new(&provider, "berth_vm");
        let config = json!({"name": "web", "class": "small", "disks": [{"name": "root", "boot": true}]});
        assert_eq!(text_of(&vm.plan(&config).await.diagnostics), "", "{unknown}");
        let before = value(&json!({"name": "web", "namespace": "default", "uid": "u"}));
        vm.state = before.clone();
        let text = text_of(&vm.read().await);
        assert!(text.contains(&format!("The provider's {unknown} is not known yet")), "{text}");
        assert_eq!(vm.state, before, "{unknown}");
    }
}
