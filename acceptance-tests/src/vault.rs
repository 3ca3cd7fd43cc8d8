//! A server with the part of a Vault's HTTP API that berth uses, over TLS: a login by AppRole, and the transit engine with one key. It is
//! no Vault: it has no storage, its tokens do not expire, and its encryption hides a key from a search for it and no more.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::namespace::Namespace;

/// The identity of the AppRole.
pub const ROLE_ID: &str = "acceptance-role";
/// The secret that it logs in with.
pub const SECRET_ID: &str = "canary-of-the-secret-id";
const TOKEN: &str = "canary-of-the-token";
/// The most bytes of a request.
const LONGEST: u64 = 64 << 10;

#[derive(Debug, Default)]
struct State {
    refuses: AtomicBool,
    decrypted: AtomicU64,
    closed: AtomicBool,
}

/// A server inside a namespace.
#[derive(Debug)]
pub struct Vault {
    state: Arc<State>,
    address: SocketAddr,
    authority: String,
    namespace: Arc<Namespace>,
}

impl Vault {
    /// Starts a server on one of the namespace's addresses.
    pub fn start(namespace: &Arc<Namespace>, address: &str) -> Result<Self> {
        let (authority, tls) = certificates(address)?;
        let place = format!("{address}:0");
        let listener = namespace.inside(move || Ok(TcpListener::bind(place)?))?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if served.closed.load(Ordering::SeqCst) {
                    return;
                }
                let (served, tls) = (Arc::clone(&served), Arc::clone(&tls));
                std::thread::spawn(move || {
                    // A client may disconnect early.
                    let _ = serve(&served, tls, stream);
                });
            }
        });
        Ok(Self { state, address, authority, namespace: Arc::clone(namespace) })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate of its authority, in PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Has it refuse every request from now on, or not any more.
    pub fn refuse(&self, refuses: bool) {
        self.state.refuses.store(refuses, Ordering::SeqCst);
    }

    /// The number of keys that it has decrypted.
    pub fn decrypted(&self) -> u64 {
        self.state.decrypted.load(Ordering::SeqCst)
    }
}

impl Drop for Vault {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // The listener blocks in accept: one connection wakes it.
        let address = self.address;
        let _ = self.namespace.inside(move || Ok(TcpStream::connect(address)?));
    }
}

/// Makes an authority, and a certificate for the address.
fn certificates(address: &str) -> Result<(String, Arc<ServerConfig>)> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::<String>::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "acceptance tests");
    let authority_certificate = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new([address.to_owned()])?.signed_by(&key, &issuer)?;
    let chain = vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok((authority_certificate.pem(), Arc::new(tls)))
}

fn serve(state: &State, tls: Arc<ServerConfig>, socket: TcpStream) -> Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    socket.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(ServerConnection::new(tls)?, socket);
    let (path, token, body) = read(&mut stream)?;
    let (status, answer) = answer(state, &path, &token, &body);
    let body = answer.to_string();
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.conn.send_close_notify();
    Ok(stream.flush()?)
}

/// Returns the path, the token and the body of a request.
fn read(stream: &mut impl Read) -> Result<(String, String, Value)> {
    let mut reader = BufReader::new(stream.take(LONGEST));
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let path = first.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let (mut token, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "x-vault-token" => value.trim().clone_into(&mut token),
            "content-length" => length = value.trim().parse()?,
            _ => {}
        }
    }
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    Ok((path, token, serde_json::from_slice(&body)?))
}

fn answer(state: &State, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let failed = |status: u16, error: &str| (status, json!({"errors": [error]}));
    let text = |field: &str| body[field].as_str().unwrap_or_default();
    if state.refuses.load(Ordering::SeqCst) {
        return failed(403, "permission denied");
    }
    if path == "/v1/auth/approle/login" {
        return match (text("role_id"), text("secret_id")) {
            (ROLE_ID, SECRET_ID) => {
                (200, json!({"auth": {"client_token": TOKEN, "lease_duration": 3600, "renewable": true}}))
            }
            _ => failed(400, "invalid role or secret ID"),
        };
    }
    if token != TOKEN {
        return failed(403, "permission denied");
    }
    match path {
        "/v1/transit/encrypt/berth" => match STANDARD.decode(text("plaintext")) {
            Ok(plain) => {
                let sealed = STANDARD.encode(masked(plain));
                (200, json!({"data": {"ciphertext": format!("vault:v1:{sealed}"), "key_version": 1}}))
            }
            Err(_) => failed(400, "failed to base64-decode plaintext"),
        },
        "/v1/transit/decrypt/berth" => {
            let sealed =
                text("ciphertext").strip_prefix("vault:v1:").and_then(|text| STANDARD.decode(text).ok());
            let Some(sealed) = sealed else { return failed(400, "invalid ciphertext") };
            state.decrypted.fetch_add(1, Ordering::SeqCst);
            (200, json!({"data": {"plaintext": STANDARD.encode(masked(sealed))}}))
        }
        _ => failed(404, "no handler for route"),
    }
}

/// Its own inverse.
fn masked(bytes: Vec<u8>) -> Vec<u8> {
    let mask = Sha256::digest(b"the key of the acceptance tests");
    bytes.into_iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect()
}
