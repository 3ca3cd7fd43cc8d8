//! A Vault in the process of the test, which speaks the part of the HTTP API that is used. Its encryption is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::super::{ImageRules, LinuxConfig};
use super::*;

const TOKEN: &str = "hvs.canary";
const SECRET_ID: &str = "canary-of-the-secret-id";

/// A request as the server reads it.
struct Asked {
    path: String,
    head: String,
    body: Value,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }
}

enum Answer {
    Is(u16, Value),
    Text(u16, &'static str),
    Redirect,
    Endless,
    Hang,
}

/// Starts a server. Returns its address.
async fn serve(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut stream = stream;
                if let Some(asked) = read(&mut stream).await {
                    let answer = answer(&asked);
                    write(&mut stream, answer).await;
                }
            });
        }
    });
    address
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    loop {
        let mut block = [0; 4096];
        let count = stream.read(&mut block).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&block[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let mut asked = Asked { path: String::new(), head: head.to_owned(), body: Value::Null };
        let length = asked.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        if body.len() >= length {
            asked.path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            asked.body = serde_json::from_str(body).unwrap_or_default();
            return Some(asked);
        }
    }
}

async fn write(stream: &mut TcpStream, answer: Answer) {
    let (status, more, body) = match answer {
        Answer::Is(status, body) => (status, "", body.to_string()),
        Answer::Text(status, text) => (status, "", text.to_owned()),
        Answer::Redirect => (307, "location: http://127.0.0.1:1/\r\n", String::new()),
        Answer::Hang => return std::future::pending().await,
        Answer::Endless => {
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            if stream.write_all(head.as_bytes()).await.is_ok() {
                while stream.write_all(&[b' '; 1024]).await.is_ok() {}
            }
            return;
        }
    };
    let length = body.len();
    let text =
        format!("HTTP/1.1 {status} X\r\n{more}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    // The client may have gone.
    let _ = stream.write_all(text.as_bytes()).await;
}

fn errors(status: u16, error: &str) -> Answer {
    Answer::Is(status, json!({"errors": [error]}))
}

/// The transit engine `transit` with the key `berth`, for one token.
fn engine(asked: &Asked, token: &str) -> Answer {
    if asked.header("x-vault-token") != Some(token) {
        return errors(403, "permission denied");
    }
    match asked.path.as_str() {
        "/v1/transit/encrypt/berth" => {
            let turned: String = asked.text("plaintext").chars().rev().collect();
            Answer::Is(200, json!({"data": {"ciphertext": format!("vault:v1:{turned}"), "key_version": 1}}))
        }
        "/v1/transit/decrypt/berth" => match asked.text("ciphertext").strip_prefix("vault:v1:") {
            Some(text) => {
                let turned: String = text.chars().rev().collect();
                Answer::Is(200, json!({"data": {"plaintext": turned}}))
            }
            None => errors(400, "invalid ciphertext: no prefix"),
        },
        path if path.starts_with("/v1/transit/") => errors(400, "encryption key not found"),
        path => errors(404, &format!("no handler for route {path:?}")),
    }
}

fn host(allow: &[&str]) -> (TempDir, LinuxSystem) {
    let folder = tempfile::tempdir().expect("a folder");
    let allow = allow.iter().map(|range| range.parse().expect("a range")).collect();
    let images = ImageRules { allow, ..ImageRules::default() };
    let config = LinuxConfig { qemu_users: None, images, ..LinuxConfig::new(folder.path().join("state")) };
    let system = LinuxSystem::open(config).expect("opened");
    (folder, system)
}

fn with_token(address: &str) -> VaultAccess {
    VaultAccess {
        shown: "KeyClass ns/vault".to_owned(),
        address: address.to_owned(),
        mount: "transit".to_owned(),
        key: "berth".to_owned(),
        namespace: None,
        ca: None,
        login: VaultLogin::Token(TOKEN.to_owned().into()),
    }
}

fn with_role(address: &str) -> VaultAccess {
    let login = VaultLogin::AppRole { role_id: "hosts".to_owned(), secret_id: SECRET_ID.to_owned().into() };
    VaultAccess { login, ..with_token(address) }
}

fn key() -> DiskKey {
    DiskKey::new([7; DISK_KEY_LENGTH])
}

/// Returns the problem and the message of a failure, which has no secret in it.
fn explained<T: fmt::Debug>(result: Result<T>) -> (VaultProblem, String) {
    let error = result.expect_err("a failure");
    let text = error.chain();
    for secret in [TOKEN, SECRET_ID, key().passphrase().as_str()] {
        assert!(!text.contains(secret) && !format!("{error:?}").contains(secret), "{text}");
    }
    let SystemError::Vault { problem, .. } = error else { panic!("{error:?}") };
    (problem, text)
}

#[tokio::test]
async fn a_key_comes_back_as_it_was_encrypted() {
    let (_folder, system) = host(&["127.0.0.1/32"]);
    let address = serve(|asked| {
        assert_eq!(asked.header("x-vault-namespace"), Some("team/a"));
        engine(asked, TOKEN)
    })
    .await;
    let access = VaultAccess { namespace: Some("team/a".to_owned()), ..with_token(&address) };
    let encrypted = system.encrypt_key(&access, &key()).await.expect("encrypted");
    assert!(encrypted.starts_with("vault:v1:") && !encrypted.contains(&key().passphrase()));
    assert_eq!(system.decrypt_key(&access, &encrypted).await.expect("decrypted"), key());
    assert!(!format!("{access:?} {system:?}").contains(TOKEN));
}

#[tokio::test]
async fn a_login_is_kept_for_a_part_of_its_lease_and_made_anew_once_its_token_is_refused() {
    let (_folder, system) = host(&["127.0.0.1/32"]);
    let (logins, revoked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, refused) = (Arc::clone(&logins), Arc::clone(&revoked));
    let address = serve(move |asked| {
        if asked.path != "/v1/auth/approle/login" {
            let newest = format!("token-{}", counted.load(Ordering::SeqCst));
            let is_revoked = refused.load(Ordering::SeqCst) == counted.load(Ordering::SeqCst);
            return if is_revoked { errors(403, "permission denied") } else { engine(asked, &newest) };
        }
        if (asked.text("role_id"), asked.text("secret_id")) != ("hosts", SECRET_ID) {
            return errors(400, "invalid role or secret ID");
        }
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        let lease = if number == 1 { 3600 } else { 1 };
        Answer::Is(200, json!({"auth": {"client_token": format!("token-{number}"), "lease_duration": lease}}))
    })
    .await;
    let access = with_role(&address);
    for _ in 0..3 {
        system.encrypt_key(&access, &key()).await.expect("encrypted");
    }
    assert_eq!(logins.load(Ordering::SeqCst), 1);
    assert!(!format!("{system:?}").contains("token-1"));
    revoked.store(1, Ordering::SeqCst);
    system.encrypt_key(&access, &key()).await.expect("encrypted");
    assert_eq!(logins.load(Ordering::SeqCst), 2, "the first token was refused");
    tokio::time::sleep(Duration::from_millis(700)).await;
    system.encrypt_key(&access, &key()).await.expect("encrypted");
    assert_eq!(logins.load(Ordering::SeqCst), 3, "the lease of the second one is about to end");
    revoked.store(4, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(700)).await;
    let (problem, _) = explained(system.encrypt_key(&access, &key()).await);
    assert_eq!(
        (problem, logins.load(Ordering::SeqCst)),
        (VaultProblem::Denied, 4),
        "a new token is not tried again"
    );
    let other = VaultLogin::AppRole { role_id: "others".to_owned(), secret_id: SECRET_ID.to_owned().into() };
    let (problem, text) =
        explained(system.encrypt_key(&VaultAccess { login: other, ..access }, &key()).await);
    assert!(problem == VaultProblem::Denied && text.contains("the role ID and the secret ID"), "{text}");
}

/// Makes an answer.
type Made = fn() -> Answer;

#[tokio::test]
async fn each_failure_has_its_problem_and_a_sentence_without_secrets() {
    let (_folder, mut system) = host(&["127.0.0.1/32"]);
    system.vaults.limits = Limits { whole: Duration::from_secs(2), ..LIMITS };
    let answers: [(Made, VaultProblem, &str); 10] = [
        (
            || errors(403, "permission denied"),
            VaultProblem::Denied,
            "its policy permits update of transit/encrypt/berth",
        ),
        (|| errors(404, "no handler for route"), VaultProblem::NoKey, "no transit engine at transit"),
        (|| errors(400, "encryption key not found"), VaultProblem::NoKey, "no key berth at transit"),
        (
            || errors(400, "cipher: message authentication failed"),
            VaultProblem::Refused,
            "authentication failed",
        ),
        (|| errors(503, "Vault is sealed"), VaultProblem::Unreachable, "it is sealed: unseal it"),
        (
            || errors(500, &format!("{TOKEN} {}", key().passphrase())),
            VaultProblem::Unreachable,
            "(status 500)",
        ),
        (|| Answer::Redirect, VaultProblem::Unreachable, "redirects to another address"),
        (|| Answer::Text(200, "<html>"), VaultProblem::Unreachable, "is no JSON"),
        (|| Answer::Endless, VaultProblem::Unreachable, "larger than 64 KiB"),
        (|| Answer::Hang, VaultProblem::Unreachable, "no complete answer came in time"),
    ];
    for (answer, problem, words) in answers {
        let address = serve(move |_| answer()).await;
        let (found, text) = explained(system.encrypt_key(&with_token(&address), &key()).await);
        assert!(found == problem && text.contains(words), "{found:?} {text}");
        assert!(text.starts_with("KeyClass ns/vault: "), "{text}");
    }
    for answer in
        [json!({}), json!([1]), json!({"data": {"ciphertext": "x".repeat(9000), "plaintext": "AAAA"}})]
    {
        let address = serve(move |_| Answer::Is(200, answer.clone())).await;
        explained(system.encrypt_key(&with_token(&address), &key()).await);
        explained(system.decrypt_key(&with_token(&address), "vault:v1:x").await);
    }
    let (problem, text) = explained(system.encrypt_key(&with_token("http://127.0.0.1:1"), &key()).await);
    assert!(problem == VaultProblem::Unreachable && text.contains("cannot connect"), "{text}");
}

#[tokio::test]
async fn secrets_go_to_allowed_addresses_only_and_in_clear_text_to_this_host_only() {
    let (_folder, system) = host(&["127.0.0.1/32", "10.0.0.0/8"]);
    for (address, words) in [
        ("http://10.1.2.3:8200", "must begin with https://"),
        ("http://localhost:8200", "must begin with https://"),
        ("http://127.evil.example", "must begin with https://"),
        ("http://127.0.0.1:1/v1", "without a path"),
        ("https://a:b@10.1.2.3", "without a path"),
        ("ftp://127.0.0.1", "must be https://"),
        ("https://192.168.1.1:8200", "--image-allow"),
        ("http://[::1]:8200", "--image-allow"),
    ] {
        let (problem, text) = explained(system.encrypt_key(&with_token(address), &key()).await);
        assert!(problem == VaultProblem::Unreachable && text.contains(words), "{address}: {text}");
    }
    let access = VaultAccess { ca: Some("none".to_owned()), ..with_token("https://10.1.2.3") };
    let (problem, text) = explained(system.encrypt_key(&access, &key()).await);
    assert!(problem == VaultProblem::Denied && text.contains("no certificates in PEM"), "{text}");
}
