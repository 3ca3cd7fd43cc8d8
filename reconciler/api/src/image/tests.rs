use super::*;

#[test]
fn a_redacted_url_has_no_secrets() {
    let redacted = redacted_url("https://me:sec@ret@example.org:8443/a.qcow2?X-Signature=secret#x");
    assert_eq!(redacted, "https://example.org:8443/a.qcow2?…");
    assert_eq!(redacted_url("https://example.org?token=secret"), "https://example.org?…");
    assert_eq!(redacted_url("https://example.org/a#secret"), "https://example.org/a");
    assert_eq!(redacted_url("https://me:secret@example.org"), "https://example.org");
    assert_eq!(redacted_url("file:///a/b@c.img"), "file:///a/b@c.img");
    assert_eq!(redacted_url("me:secret@example.org"), "example.org");
}

#[test]
fn an_image_is_shared_with_its_own_namespace_and_with_those_that_it_lists() {
    let image = |namespace: &str, spec: serde_json::Value| -> Image {
        serde_json::from_value(
            serde_json::json!({"metadata": {"name": "i", "namespace": namespace}, "spec": spec}),
        )
        .expect("an image")
    };
    let shared = |with: serde_json::Value| {
        let spec = serde_json::json!({"source": {"disk": "root"}, "sharedWith": with});
        let golden = image("golden", spec);
        ["golden", "team-a", "team-b"].map(|namespace| golden.is_shared_with(namespace))
    };
    assert_eq!(shared(serde_json::json!([])), [true, false, false]);
    assert_eq!(shared(serde_json::json!(["team-a"])), [true, true, false]);
    assert_eq!(shared(serde_json::json!(["team-b", "*"])), [true; 3]);
    let of_all = image(SHARED_NAMESPACE, serde_json::json!({"source": {"disk": "root"}}));
    assert!(of_all.is_shared_with("team-a"));

    let copy = |source: serde_json::Value| image("team-a", serde_json::json!({"source": source}));
    let foreign = copy(serde_json::json!({"image": "debian", "imageNamespace": "golden"}));
    assert_eq!(foreign.original(), Some(("golden", &"debian".into())));
    assert_eq!(foreign.foreign_original(), foreign.original());
    let own = copy(serde_json::json!({"image": "debian", "imageNamespace": "team-a"}));
    assert_eq!((own.original(), own.foreign_original()), (Some(("team-a", &"debian".into())), None));
    let plain = copy(serde_json::json!({"image": "debian"}));
    assert_eq!((plain.original(), plain.foreign_original()), (Some(("team-a", &"debian".into())), None));
    assert_eq!(copy(serde_json::json!({"disk": "root"})).original(), None);
}

#[test]
fn an_image_is_outdated_once_its_token_is_another_one_than_that_of_its_content() {
    let image = |token: Option<&str>, status: serde_json::Value| -> Image {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "golden", "uid": "u"}, "spec": {"source": {"disk": "root", "token": token}}, "status": status,
        }))
        .expect("an image")
    };
    let bound =
        |token: Option<&str>| serde_json::json!({"binding": {"host": "h1", "epoch": 1}, "token": token});
    assert!(!image(Some("2"), serde_json::Value::Null).is_outdated(), "nothing is made yet");
    for (declared, has, is_outdated) in
        [(None, None, false), (Some("2"), Some("2"), false), (Some("2"), None, true), (None, Some("2"), true)]
    {
        let found = image(declared, bound(has));
        assert_eq!(found.is_outdated(), is_outdated, "{declared:?} {has:?}");
    }
    let first = image(None, bound(None));
    let second = image(Some("2"), bound(Some("2")));
    assert_eq!(first.own_snapshot().as_deref(), Some("i-u"));
    assert_ne!(first.content_id("u"), second.content_id("u"));
    assert_eq!(second.content_id("u"), "u-af63af4c8601a015");
    assert!(second.own_snapshot().is_some_and(|id| id.len() < 63));
}

#[test]
fn other_hosts_copy_a_file_that_has_the_bytes_of_its_checksum_from_a_host_that_serves_it() {
    let image = |spec: serde_json::Value, server: bool| -> Image {
        let server =
            server.then(|| serde_json::json!({"address": "192.0.2.1:7444", "certificateSha256": "ab"}));
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "golden"}, "spec": spec,
            "status": {"binding": {"host": "h1", "epoch": 1}, "server": server},
        }))
        .expect("an image")
    };
    let made = serde_json::json!({"source": {"disk": "root"}});
    let host = |image: &Image| image.copied_from().map(|(host, _)| host.to_owned());
    assert_eq!(host(&image(made.clone(), true)).as_deref(), Some("h1"));
    assert_eq!(host(&image(made, false)), None);
    let mut pushed = serde_json::json!({"source": {"upload": {"size": 5}, "sha256": "0"}, "format": "raw"});
    assert!(host(&image(pushed.clone(), true)).is_some());
    pushed["compression"] = "xz".into();
    assert_eq!(host(&image(pushed.clone(), true)), None);
    pushed["compression"] = serde_json::Value::Null;
    pushed["format"] = "vmdk".into();
    assert_eq!(host(&image(pushed, true)), None);
    let downloaded = |url: &str| serde_json::json!({"source": {"url": url, "sha256": "0"}});
    assert_eq!(host(&image(downloaded("https://a/b"), true)).as_deref(), Some("h1"));
    assert_eq!(host(&image(downloaded("file:///a/b"), true)), None);
    let mut of_registry = image(downloaded("oci://a/b"), true);
    for (media_type, is_copied) in [
        ("application/octet-stream", true),
        ("application/vnd.example.disk+zstd", false),
        ("application/vnd.oci.image.layer.v1.tar", false),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", false),
    ] {
        of_registry.status.get_or_insert_default().media_type = Some(media_type.to_owned());
        assert_eq!(host(&of_registry).is_some(), is_copied, "{media_type}");
    }
}

#[test]
fn a_signed_url_is_not_in_the_debug_output_of_an_image() {
    let source = serde_json::json!({
        "url": "https://me:canary-1@a.example/x?sig=canary-2", "checksumUrl": "https://a.example/SHA256SUMS?sig=canary-3",
    });
    let spec: ImageSpec = serde_json::from_value(serde_json::json!({"source": source})).expect("a spec");
    let text = format!("{:?}", Image::new("a", spec));
    assert!(text.contains("a.example") && !text.contains("canary"), "{text}");
}
