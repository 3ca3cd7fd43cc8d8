//! Sources that ask for credentials.

use super::*;

const USER: &str = "Basic bWU6c2VjcmV0";

fn user() -> Credentials {
    Credentials { basic: Some(("me".to_owned(), "secret".to_owned())), ..Credentials::default() }
}

#[tokio::test]
async fn a_source_gets_the_user_the_token_and_the_headers_that_are_declared() {
    let bytes = raw(MIB);
    for (credentials, authorization, key) in [
        (user(), Some(USER), None),
        (
            Credentials { token: Some("t0ken".to_owned()), ..Credentials::default() },
            Some("Bearer t0ken"),
            None,
        ),
        (
            Credentials { headers: vec![("X-Key".to_owned(), "k3y".to_owned())], ..Credentials::default() },
            None,
            Some("k3y"),
        ),
    ] {
        let body = bytes.clone();
        let server = Server::start(move |request| {
            let is_right = request.authorization.as_deref() == authorization && request.key.as_deref() == key;
            if is_right { Reply::range(&body, request) } else { Reply::status(403) }
        });
        let cache = Cache::new();
        let source = source(server.url("/a"), &bytes, Format::Raw);
        let error = cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect_err("refused");
        assert!(error.chain().contains("403"), "{}", error.chain());
        cache.images.pull(&source, &credentials, &quiet()).await.expect("pulled");
    }
}

#[tokio::test]
async fn credentials_are_not_sent_to_where_a_source_redirects_to() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let elsewhere = Server::start(move |request| Reply::range(&body, request));
    let target = elsewhere.url("/signed?x=1");
    let server =
        Server::start(move |request| match (request.authorization.as_deref(), request.path.as_str()) {
            (Some(USER), "/a") => Reply::status(302).header("Location", "/b"),
            (Some(USER), "/b") => Reply::status(307).header("Location", &*target),
            _ => Reply::status(401),
        });
    let cache = Cache::new();
    let source = source(server.url("/a"), &bytes, Format::Raw);
    let with_header = Credentials { headers: vec![("X-Key".to_owned(), "k3y".to_owned())], ..user() };
    cache.images.pull(&source, &with_header, &quiet()).await.expect("pulled");
    assert_eq!(server.requests().len(), 2, "the same host gets them again");
    assert!(server.requests().iter().all(|request| request.key.as_deref() == Some("k3y")));
    let leaked = |request: &server::Request| request.authorization.is_some() || request.key.is_some();
    assert!(!elsewhere.requests().is_empty() && !elsewhere.requests().iter().any(leaked));
}

#[tokio::test]
async fn the_user_of_a_url_is_sent_again_to_the_same_server_and_to_no_other() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let elsewhere = Server::start(move |request| Reply::range(&body, request));
    let (target, own) = (elsewhere.url("/b"), Arc::new(std::sync::OnceLock::<String>::new()));
    let at = Arc::clone(&own);
    let server =
        Server::start(move |request| match (request.authorization.as_deref(), request.path.as_str()) {
            (Some(USER), "/a") => Reply::status(301).header("Location", at.get().expect("set").as_str()),
            (Some(USER), "/again") => Reply::status(302).header("Location", &*target),
            _ => Reply::status(401),
        });
    own.set(server.url("/again")).expect("once");
    let url = server.url("/a").replacen("http://", "http://me:secret@", 1);
    let cache = Cache::new();
    let source = source(url, &bytes, Format::Raw);
    cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect("pulled");
    assert!(elsewhere.requests().iter().all(|request| request.authorization.is_none()));
}

#[tokio::test]
async fn the_certificate_of_a_source_is_checked_against_the_authorities_of_its_secret() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start_tls(&made, move |request| Reply::range(&body, request));
    let cache = Cache::new();
    let source = source(server.url("/a"), &bytes, Format::Raw);
    for ca in [None, Some(other.cert.pem())] {
        let untrusted = Credentials { ca, ..Credentials::default() };
        let error = cache.images.pull(&source, &untrusted, &quiet()).await.expect_err("not trusted").chain();
        assert!(error.contains("certificate"), "{error}");
        // A machine without authorities of its own has no client that could find an unknown one.
        assert!(error.contains("ca.crt to the Secret") || error.contains("ca-certificates"), "{error}");
        assert!(server.requests().is_empty(), "{:?}", server.requests());
    }
    let trusted = Credentials { ca: Some(made.cert.pem()), ..Credentials::default() };
    let facts = cache.images.pull(&source, &trusted, &quiet()).await.expect("pulled");
    assert_eq!(fs::read(&facts.path).expect("in the cache"), bytes);
}

#[tokio::test]
async fn a_redirect_without_end_is_an_error() {
    let server = Server::start(|_| Reply::status(302).header("Location", "/again"));
    let cache = Cache::new();
    let source = source(server.url("/a"), &raw(10), Format::Raw);
    let error = cache.images.pull(&source, &user(), &quiet()).await.expect_err("no end");
    assert!(error.chain().contains("too many redirects"), "{}", error.chain());
}

#[tokio::test]
async fn credentials_that_cannot_be_sent_are_refused_before_the_source_is_asked() {
    let server = Server::start(|_| Reply::status(500));
    let cache = Cache::new();
    let source = source(server.url("/a"), &raw(10), Format::Raw);
    let bad = [
        Credentials { token: Some("two\nlines".to_owned()), ..Credentials::default() },
        Credentials { headers: vec![("X Key".to_owned(), "canary".to_owned())], ..Credentials::default() },
        Credentials { ca: Some("canary".to_owned()), ..Credentials::default() },
    ];
    for credentials in bad {
        let error = cache.images.pull(&source, &credentials, &quiet()).await.expect_err("refused");
        assert!(!error.chain().contains("canary"), "{}", error.chain());
    }
    assert!(server.requests().is_empty());
}
