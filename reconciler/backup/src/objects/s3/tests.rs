//! The client against a server in this process.

mod server;

use std::sync::Arc;

use super::*;
use server::{ACCESS_KEY, BUCKET, Misbehaviour, REGION, SECRET_KEY, Server, xml};

const QUICK: Limits = Limits {
    connect: Duration::from_secs(5),
    request: Duration::from_secs(60),
    rate: u32::MAX,
    attempts: 3,
    back_off: Duration::from_millis(1),
};

fn location(endpoint: &str) -> S3Location {
    S3Location {
        endpoint: endpoint.to_owned(),
        region: REGION.to_owned(),
        bucket: BUCKET.to_owned(),
        prefix: "site/berth".to_owned(),
        access_key_id: ACCESS_KEY.to_owned(),
        secret_access_key: SECRET_KEY.into(),
        ca_certificates: None,
        resolver: None,
    }
}

fn client(server: &Server) -> S3 {
    S3::with_limits(&location(&server.endpoint), QUICK).expect("valid")
}

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test]
async fn backups_in_a_bucket_are_restored() {
    let server = Server::start(|_, _, _| None).await;
    let s3 = client(&server);
    crate::tests::round_trip(Arc::new(s3)).await;
    assert_eq!(server.keys(), ["site/berth/repository.json"]);
}

/// Every third request fails in one of the ways that pass.
#[tokio::test]
async fn backups_succeed_on_a_server_with_passing_failures() {
    let server = Server::start(|number, _, _| {
        let failures = [
            Misbehaviour::Status(500, xml("InternalError")),
            Misbehaviour::Status(503, xml("SlowDown")),
            Misbehaviour::Truncates,
            Misbehaviour::Status(502, "<html>bad gateway</html>".to_owned()),
            Misbehaviour::Status(409, xml("OperationAborted")),
        ];
        (number % 3 == 1).then(|| failures[number / 3 % failures.len()].clone())
    })
    .await;
    let limits = Limits { attempts: 6, ..QUICK };
    let s3 = S3::with_limits(&location(&server.endpoint), limits).expect("valid");
    crate::tests::round_trip(Arc::new(s3)).await;
}

#[tokio::test]
async fn an_empty_prefix_is_the_whole_bucket() {
    let server = Server::start(|_, _, _| None).await;
    let location = S3Location { prefix: String::new(), ..location(&server.endpoint) };
    let s3 = S3::with_limits(&location, QUICK).expect("valid");
    assert_eq!(s3.first().await.expect("listed"), None);
    s3.put("disks/a/b", body("1")).await.expect("written");
    assert_eq!(server.keys(), ["disks/a/b"]);
    assert_eq!(s3.first().await.expect("listed").as_deref(), Some("disks/a/b"));
    assert_eq!(s3.folders("disks", 9).await.expect("listed"), ["a"]);
}

#[tokio::test]
async fn a_listing_has_all_pages() {
    let server = Server::start(|_, _, _| None).await;
    let s3 = client(&server);
    let names: Vec<String> = (0..10).map(|at| format!("disks/d{at}/backups/b")).collect();
    for name in &names {
        s3.put(name, body("12")).await.expect("written");
    }
    let mut found = Vec::new();
    let mut visit = |name: &str, length| {
        found.push((format!("disks/{name}"), length));
        Ok(())
    };
    s3.list("disks", &mut visit).await.expect("listed");
    assert_eq!(found, names.iter().map(|name| (name.clone(), 2)).collect::<Vec<_>>());
    assert_eq!(s3.folders("disks", 10).await.expect("listed").len(), 10);
    assert!(matches!(s3.folders("disks", 9).await, Err(Error::TooMany { limit: 9, .. })));
}

#[tokio::test]
async fn a_conditional_write_is_made_once() {
    let server = Server::start(|_, _, _| None).await;
    let s3 = client(&server);
    assert!(s3.create("new", body("1")).await.expect("written"));
    assert!(!s3.create("new", body("2")).await.expect("no error"));
    assert_eq!(s3.get("new", 9).await.expect("read"), Some(b"1".to_vec()));

    let without =
        Server::start(|number, _, _| (number == 0).then(|| Misbehaviour::Status(501, xml("NotImplemented"))))
            .await;
    assert!(client(&without).create("new", body("1")).await.expect("written"));
    assert_eq!(without.requests().len(), 2);

    // The write succeeded and its answer was lost.
    let lost = Server::start(|number, _, _| (number == 0).then_some(Misbehaviour::Truncates)).await;
    assert!(!client(&lost).create("new", body("1")).await.expect("no error"));
    assert_eq!(client(&lost).get("new", 9).await.expect("read"), Some(b"1".to_vec()));

    let ignores = Server::start(|_, _, _| Some(Misbehaviour::Unconditional)).await;
    assert!(client(&ignores).create("new", body("1")).await.expect("written"));
}

#[tokio::test]
async fn passing_failures_are_repeated_a_few_times_and_others_are_not() {
    for (status, code, requests, is_transient) in [
        (500, "InternalError", 3, true),
        (503, "SlowDown", 3, true),
        (429, "", 3, true),
        (400, "RequestTimeout", 3, true),
        (403, "AccessDenied", 1, false),
        (404, "NoSuchBucket", 1, false),
        (400, "AuthorizationHeaderMalformed", 1, false),
        (301, "PermanentRedirect", 1, false),
    ] {
        let server = Server::start(move |_, _, _| Some(Misbehaviour::Status(status, xml(code)))).await;
        let s3 = client(&server);
        let mut visit = |_: &str, _| Ok(());
        for error in [
            s3.get("x", 9).await.map(drop).expect_err(code),
            s3.put("x", body("1")).await.expect_err(code),
            s3.delete("x").await.expect_err(code),
            s3.list("x", &mut visit).await.expect_err(code),
        ] {
            let text = error.to_string();
            assert_eq!(error.is_transient(), is_transient, "{text}");
            for part in [&status.to_string(), code, &format!("about {code}"), &server.endpoint, BUCKET] {
                assert!(text.contains(part), "{text}: {part}");
            }
            for secret in [SECRET_KEY, ACCESS_KEY, "Signature"] {
                assert!(!format!("{text} {error:?}").contains(secret), "{text}");
            }
        }
        assert_eq!(server.requests().len(), requests * 4, "{code}");
    }
}

#[tokio::test]
async fn wrong_credentials_are_an_error_with_the_next_step() {
    let server = Server::start(|_, _, _| None).await;
    let location = S3Location { secret_access_key: "other".into(), ..location(&server.endpoint) };
    let s3 = S3::with_limits(&location, QUICK).expect("valid");
    let error = s3.get("x", 9).await.expect_err("refused").to_string();
    assert!(error.contains("SignatureDoesNotMatch") && error.contains("correct the access key"), "{error}");
    assert!(!format!("{s3:?}").contains("other"));
}

#[tokio::test]
async fn an_answer_without_end_or_in_parts_is_an_error() {
    for (misbehaviour, detail) in
        [(Misbehaviour::Stalls, "in time"), (Misbehaviour::Truncates, "the transfer failed")]
    {
        let always = misbehaviour.clone();
        let server = Server::start(move |number, _, _| (number > 0).then(|| always.clone())).await;
        client(&server).put("x", body("12345678")).await.expect("written");
        let limits = Limits { request: Duration::from_millis(400), ..QUICK };
        let s3 = S3::with_limits(&location(&server.endpoint), limits).expect("valid");
        let error = s3.get("x", 9).await.expect_err("no answer");
        assert!(matches!(error, Error::NoAnswer { attempts: 3, .. }) && error.is_transient(), "{error}");
        assert!(error.to_string().contains(detail), "{error}");
        assert_eq!(server.requests().len(), 4);
    }
    let error =
        S3::with_limits(&location("http://127.0.0.1:1"), QUICK).expect("valid").put("x", body("1")).await;
    let error = error.expect_err("there is no server");
    assert!(error.to_string().contains("cannot connect") && error.is_transient(), "{error}");
}

#[tokio::test]
async fn wrong_answers_are_errors() {
    let wrong = |body: &str| {
        let body = body.as_bytes().to_vec();
        Server::start(move |_, _, _| Some(Misbehaviour::Body(body.clone())))
    };
    for (answer, detail) in [
        ("hello", "not XML"),
        ("<html></html>", "not a listing"),
        (
            "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>other</Key><Size>1</Size></Contents></ListBucketResult>",
            "other key",
        ),
        (
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken></ListBucketResult>",
            "repeats a page",
        ),
    ] {
        let server = wrong(answer).await;
        let mut visit = |_: &str, _| Ok(());
        let error = client(&server).list("disks", &mut visit).await.expect_err(answer);
        assert!(
            matches!(error, Error::UnexpectedAnswer { .. }) && error.to_string().contains(detail),
            "{error}"
        );
        let error = client(&server).folders("disks", 9).await.expect_err(answer);
        assert!(error.to_string().contains(detail), "{error}");
    }
    let server = wrong("0123456789").await;
    assert!(matches!(client(&server).get("x", 9).await, Err(Error::Damaged { .. })));
    let server = wrong(&"x".repeat(MAX_ANSWER + 1)).await;
    assert!(matches!(client(&server).first().await, Err(Error::Damaged { .. })));
    // Not a server of S3.
    let server =
        Server::start(|_, _, _| Some(Misbehaviour::Status(404, "<html>not found</html>".to_owned()))).await;
    let error = client(&server).get("x", 9).await.expect_err("not S3");
    assert!(matches!(error, Error::Refused { status: 404, .. }), "{error}");
    assert!(matches!(client(&server).delete("x").await, Err(Error::Refused { status: 404, .. })));
}

#[tokio::test]
async fn the_certificate_of_the_endpoint_is_checked_against_the_given_authorities() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let pem = made.cert.pem();
    let server = Server::start_tls(made).await;
    let trusting = S3Location { ca_certificates: Some(pem), ..location(&server.endpoint) };
    let s3 = S3::with_limits(&trusting, QUICK).expect("valid");
    s3.put("x", body("1")).await.expect("written");
    assert_eq!(s3.get("x", 9).await.expect("read"), Some(b"1".to_vec()));
    // The host's own authorities did not issue it.
    if let Ok(s3) = S3::with_limits(&location(&server.endpoint), QUICK) {
        let error = s3.get("x", 9).await.expect_err("not trusted").to_string();
        assert!(error.contains("cannot connect") && error.contains("certificate"), "{error}");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Server::start(|_, _, _| None).await;
    let to = format!("{}/elsewhere", other.endpoint);
    let server = Server::start(move |_, _, _| Some(Misbehaviour::RedirectsTo(to.clone()))).await;
    let error = client(&server).put("x", body("1")).await.expect_err("redirected").to_string();
    assert!(error.contains("307") && error.contains("redirects are not followed"), "{error}");
    assert_eq!(other.requests(), [""; 0]);
}

#[test]
fn a_location_that_cannot_work_is_refused() {
    let good = location("https://s3.example.com");
    S3::new(&good).expect("valid");
    let other = |change: &dyn Fn(&mut S3Location)| {
        let mut location = good.clone();
        change(&mut location);
        location
    };
    let mut wrong = vec![
        other(&|location| location.region = String::new()),
        other(&|location| location.region = "a\nb".to_owned()),
        other(&|location| location.access_key_id = "a b".to_owned()),
        other(&|location| location.ca_certificates = Some("none".to_owned())),
    ];
    for endpoint in
        ["", "s3.example.com", "ftp://a", "https://a/path", "https://a?b", "https://u:pass@a", "https://a#b"]
    {
        wrong.push(other(&|location| location.endpoint = endpoint.to_owned()));
    }
    for bucket in ["", "ab", "a/b", "A-b", "..."] {
        wrong.push(other(&|location| location.bucket = bucket.to_owned()));
    }
    for prefix in ["/a", "a/", "a//b", "a/../b", ".", "ä", "a b", &"x".repeat(513)] {
        wrong.push(other(&|location| location.prefix = prefix.to_owned()));
    }
    for location in wrong {
        let error = S3::new(&location).expect_err("invalid").to_string();
        assert!(error.contains("not valid") && !error.contains("pass@"), "{location:?}: {error}");
    }
}
