use super::*;

fn claims() -> Claims {
    Claims {
        namespace: "ns".into(),
        name: "robot".into(),
        uid: "u".into(),
        secret: None,
        audiences: vec![ISSUER.into()],
        issued: 10,
        expires: 20,
        id: "j".into(),
    }
}

#[test]
fn a_token_says_what_was_signed_and_only_its_own_key_believes_it() {
    let (key, other) = (SigningKey::ephemeral().unwrap(), SigningKey::ephemeral().unwrap());
    let token = key.sign(&claims()).unwrap();
    assert_eq!(key.read(&token).as_deref(), Some(&claims()));
    assert_eq!(key.read(&token).as_deref(), Some(&claims()), "also when it is remembered");
    assert_eq!(other.read(&token), None);
}

#[test]
fn what_was_changed_or_is_signed_otherwise_is_not_believed() {
    let key = SigningKey::ephemeral().unwrap();
    let token = key.sign(&claims()).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    let longer = URL_SAFE_NO_PAD.encode(Claims { expires: 99, ..claims() }.to_json().to_string());
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
        assert_eq!(key.read(&forged), None, "{forged}");
    }
}

#[test]
fn the_key_is_made_once_and_only_its_owner_reads_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let token = SigningKey::open(directory.path()).unwrap().sign(&claims()).unwrap();
    assert!(SigningKey::open(directory.path()).unwrap().read(&token).is_some());
    let mode = std::fs::metadata(directory.path().join(KEY_FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
