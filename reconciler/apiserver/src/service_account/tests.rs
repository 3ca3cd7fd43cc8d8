use super::*;

fn claims() -> Claims {
    Claims {
        audiences: vec![ISSUER.into()],
        expires: 20,
        issued: 10,
        issuer: ISSUER.into(),
        id: "j".into(),
        account: AccountClaims {
            namespace: "ns".into(),
            serviceaccount: Named { name: "robot".into(), uid: "u".into() },
            secret: None,
        },
        not_before: 10,
        user: user_name("ns", "robot"),
    }
}

#[test]
fn a_token_says_what_was_signed_and_only_its_own_key_believes_it() {
    let (key, other) = (SigningKey::ephemeral().unwrap(), SigningKey::ephemeral().unwrap());
    let token = key.sign(&claims()).unwrap();
    assert_eq!(key.read(&Token::new(&token)).as_deref(), Some(&claims()));
    assert_eq!(key.read(&Token::new(&token)).as_deref(), Some(&claims()), "also when it is remembered");
    assert_eq!(other.read(&Token::new(&token)), None);
}

#[test]
fn what_was_changed_or_is_signed_otherwise_is_not_believed() {
    let key = SigningKey::ephemeral().unwrap();
    let token = key.sign(&claims()).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    let longer = URL_SAFE_NO_PAD.encode(serde_json::to_string(&Claims { expires: 99, ..claims() }).unwrap());
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    for forged in [
        format!("{}.{longer}.{}", parts[0], parts[2]),
        format!("{none}.{}.", parts[1]),
        format!("{none}.{}.{}", parts[1], parts[2]),
        parts[..2].join("."),
        "x".into(),
        String::new(),
        "a".repeat(MAX_TOKEN + 1),
    ] {
        assert_eq!(key.read(&Token::new(&forged)), None, "{forged}");
    }
}

#[test]
fn a_token_of_another_issuer_is_not_believed() {
    let key = SigningKey::ephemeral().unwrap();
    let token = key.sign(&Claims { issuer: "https://example.com".into(), ..claims() }).unwrap();
    assert_eq!(key.read(&Token::new(&token)), None);
}

#[test]
fn claims_are_written_as_kubernetes_writes_them() {
    let token = SigningKey::ephemeral().unwrap().sign(&claims()).unwrap();
    let body = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let account = serde_json::json!({"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "u"}});
    let expected = serde_json::json!({
        "aud": [ISSUER], "exp": 20, "iat": 10, "iss": ISSUER, "jti": "j", "kubernetes.io": account, "nbf": 10,
        "sub": "system:serviceaccount:ns:robot",
    });
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), expected);
}

#[test]
fn the_key_is_made_once_and_only_its_owner_reads_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let token = SigningKey::open(directory.path()).unwrap().sign(&claims()).unwrap();
    assert!(SigningKey::open(directory.path()).unwrap().read(&Token::new(&token)).is_some());
    let mode = std::fs::metadata(directory.path().join(KEY_FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
