//! A server of S3 in this process. It checks every signature, and misbehaves as its test asks for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::serve::Listener;
use percent_encoding::percent_decode_str;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::super::signature::{self, Credentials};

pub(super) const BUCKET: &str = "the-bucket";
pub(super) const REGION: &str = "eu-test-1";
pub(super) const ACCESS_KEY: &str = "AKTEST";
pub(super) const SECRET_KEY: &str = "very/secret+key";
/// Keys in a page of a listing.
const PAGE: usize = 3;

/// How the server misbehaves.
#[derive(Clone, Debug)]
pub(super) enum Misbehaviour {
    Status(u16, String),
    /// Acts, and then closes the connection within the answer.
    Truncates,
    /// Acts, and never answers.
    Stalls,
    Body(Vec<u8>),
    RedirectsTo(String),
    /// Ignores the condition of a write.
    Unconditional,
}

/// Decides about each request, by its number, method and address.
type Script = Box<dyn Fn(usize, &str, &str) -> Option<Misbehaviour> + Send + Sync>;

#[derive(Clone)]
pub(super) struct Server {
    pub(super) endpoint: String,
    state: Arc<ServerState>,
}

struct ServerState {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    requests: Mutex<Vec<String>>,
    script: Script,
    host: String,
}

impl Server {
    pub(super) async fn start(
        script: impl Fn(usize, &str, &str) -> Option<Misbehaviour> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let host = listener.local_addr().expect("bound").to_string();
        Self::serve(listener, format!("http://{host}"), host, Box::new(script))
    }

    /// With a certificate for `localhost`.
    pub(super) async fn start_tls(made: rcgen::CertifiedKey<rcgen::KeyPair>) -> Self {
        let key = rustls_pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .expect("a certificate with its key");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let host = format!("localhost:{}", listener.local_addr().expect("bound").port());
        let listener = TlsListener { listener, acceptor: TlsAcceptor::from(Arc::new(config)) };
        Self::serve(listener, format!("https://{host}"), host, Box::new(|_, _, _| None))
    }

    fn serve<L>(listener: L, endpoint: String, host: String, script: Script) -> Self
    where
        L: Listener,
        L::Addr: std::fmt::Debug,
    {
        let state = ServerState { objects: Mutex::default(), requests: Mutex::default(), script, host };
        let state = Arc::new(state);
        let router = Router::new().fallback(serve).with_state(Arc::clone(&state));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { endpoint, state }
    }

    /// Method and address of each request so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.state.objects.lock().unwrap().keys().cloned().collect()
    }
}

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            // A client that does not trust the certificate ends the handshake.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn serve(State(state): State<Arc<ServerState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 16 << 20).await else { return StatusCode::BAD_REQUEST.into_response() };
    let (method, address) = (parts.method.as_str().to_owned(), parts.uri.to_string());
    let number = {
        let mut requests = state.requests.lock().unwrap();
        requests.push(format!("{method} {address}"));
        requests.len() - 1
    };
    let query = parts.uri.query().unwrap_or_default();
    if let Err(code) = check(&state, &method, parts.uri.path(), query, &parts.headers, &body) {
        return error(403, code);
    }
    let misbehaviour = (state.script)(number, &method, &address);
    match &misbehaviour {
        Some(Misbehaviour::Status(status, body)) => {
            return (StatusCode::from_u16(*status).expect("a status"), body.clone()).into_response();
        }
        Some(Misbehaviour::Body(body)) => return body.clone().into_response(),
        Some(Misbehaviour::RedirectsTo(to)) => {
            return (StatusCode::TEMPORARY_REDIRECT, [("location", to.clone())], String::new())
                .into_response();
        }
        _ => {}
    }
    let is_new = parts.headers.get("if-none-match").is_some_and(|value| value == "*")
        && !matches!(misbehaviour, Some(Misbehaviour::Unconditional));
    let path = percent_decode_str(parts.uri.path()).decode_utf8().expect("UTF-8").into_owned();
    let response = match path.strip_prefix(&format!("/{BUCKET}")) {
        Some("") if method == "GET" => list(&state, query),
        Some(key) if key.starts_with('/') => object(&state, &method, &key[1..], &body, is_new),
        _ => error(404, "NoSuchBucket"),
    };
    match misbehaviour {
        Some(Misbehaviour::Truncates) => {
            let body = to_bytes(response.into_body(), 16 << 20).await.expect("in memory");
            let half = Ok(body.slice(..body.len() / 2));
            let broken = futures::stream::iter([half, Err(std::io::Error::other("closed"))]);
            let length = body.len().max(1).to_string();
            ([("content-length", length)], Body::from_stream(broken)).into_response()
        }
        Some(Misbehaviour::Stalls) => std::future::pending().await,
        _ => response,
    }
}

/// Checks the signature of a request.
fn check(
    state: &ServerState,
    method: &str,
    path: &str,
    query: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), &'static str> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let authorization = header("authorization");
    let signed = authorization.split("SignedHeaders=").nth(1).and_then(|rest| rest.split(',').next());
    let names: Vec<&str> = signed.ok_or("AccessDenied")?.split(';').collect();
    let needed = ["host", "x-amz-content-sha256", "x-amz-date"];
    if !needed.iter().all(|needed| names.contains(needed)) || header("host") != state.host {
        return Err("AccessDenied");
    }
    let sha256 = signature::sha256(body);
    if header("x-amz-content-sha256") != sha256 {
        return Err("XAmzContentSHA256Mismatch");
    }
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (*name, header(name))).collect();
    let request = signature::Request { method, path, query, headers: &headers, sha256: &sha256 };
    let credentials = Credentials {
        region: REGION.to_owned(),
        access_key_id: ACCESS_KEY.to_owned(),
        secret_access_key: SECRET_KEY.into(),
    };
    match credentials.sign(&request, header("x-amz-date")) == authorization {
        true => Ok(()),
        false => Err("SignatureDoesNotMatch"),
    }
}

fn object(state: &ServerState, method: &str, key: &str, body: &[u8], is_new: bool) -> Response {
    let mut objects = state.objects.lock().unwrap();
    match method {
        "GET" => match objects.get(key) {
            Some(body) => body.clone().into_response(),
            None => error(404, "NoSuchKey"),
        },
        "PUT" if is_new && objects.contains_key(key) => error(412, "PreconditionFailed"),
        "PUT" => {
            objects.insert(key.to_owned(), body.to_vec());
            StatusCode::OK.into_response()
        }
        "DELETE" => {
            objects.remove(key);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => error(405, "MethodNotAllowed"),
    }
}

fn list(state: &ServerState, query: &str) -> Response {
    let decode = |text: &str| percent_decode_str(text).decode_utf8().expect("UTF-8").into_owned();
    let query: BTreeMap<&str, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name, decode(value)))
        .collect();
    assert_eq!(query["list-type"], "2");
    let (prefix, after) = (&query["prefix"], query.get("continuation-token").cloned().unwrap_or_default());
    let most = query["max-keys"].parse::<usize>().expect("a number").min(PAGE);
    let objects = state.objects.lock().unwrap();
    let mut entries: Vec<(String, String)> = Vec::new();
    for (key, body) in objects.iter().filter(|(key, _)| key.starts_with(prefix)) {
        let folder = key[prefix.len()..].split_once('/').filter(|_| query.contains_key("delimiter"));
        let entry = match folder {
            Some((folder, _)) => {
                let folder = format!("{prefix}{folder}/");
                (folder.clone(), format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"))
            }
            None => {
                (key.clone(), format!("<Contents><Key>{key}</Key><Size>{}</Size></Contents>", body.len()))
            }
        };
        entries.push(entry);
    }
    entries.dedup();
    entries.retain(|(name, _)| *name > after);
    let rest = entries.split_off(entries.len().min(most));
    let next = entries.last().filter(|_| !rest.is_empty());
    let next = next.map(|(name, _)| format!("<NextContinuationToken>{name}</NextContinuationToken>"));
    let entries: String = entries.iter().map(|(_, entry)| entry.as_str()).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <IsTruncated>{}</IsTruncated>{}{entries}</ListBucketResult>",
        next.is_some(),
        next.unwrap_or_default()
    )
    .into_response()
}

pub(super) fn xml(code: &str) -> String {
    format!("<Error><Code>{code}</Code><Message>about {code}</Message></Error>")
}

fn error(status: u16, code: &str) -> Response {
    (StatusCode::from_u16(status).expect("a status"), xml(code)).into_response()
}
