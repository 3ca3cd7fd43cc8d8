//! The answers of S3 in XML. Pure.

use roxmltree::{Document, Node};

/// The maximum length of a text from an answer in a message.
const MAX_TEXT: usize = 300;

/// An answer to ListObjectsV2.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Listing {
    /// Keys, and the lengths of their objects.
    pub(super) objects: Vec<(String, u64)>,
    /// Those that end at the delimiter.
    pub(super) prefixes: Vec<String>,
    /// The token of the next page.
    pub(super) next: Option<String>,
}

/// Reads a page of a listing. The error explains why it is none.
pub(super) fn listing(body: &[u8]) -> Result<Listing, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the answer is not UTF-8".to_owned())?;
    let document = Document::parse(text).map_err(|error| format!("the answer is not XML: {error}"))?;
    let root = document.root_element();
    if root.tag_name().name() != "ListBucketResult" {
        return Err(format!("the answer is a {}, not a listing", shorten(root.tag_name().name())));
    }
    let mut listing = Listing::default();
    for child in root.children().filter(Node::is_element) {
        match child.tag_name().name() {
            "Contents" => {
                let key = field(child, "Key").ok_or("the answer has an object without a key")?;
                let length = field(child, "Size").and_then(|length| length.parse().ok());
                listing
                    .objects
                    .push((key.to_owned(), length.ok_or("the answer has an object without a length")?));
            }
            "CommonPrefixes" => {
                let prefix = field(child, "Prefix").ok_or("the answer has a prefix without text")?;
                listing.prefixes.push(prefix.to_owned());
            }
            _ => {}
        }
    }
    match field(root, "IsTruncated") {
        Some("false") => {}
        Some("true") => {
            let token = field(root, "NextContinuationToken").filter(|token| !token.is_empty());
            listing.next =
                Some(token.ok_or("the answer is truncated, and has no token for the rest")?.to_owned());
        }
        _ => return Err("the answer does not have IsTruncated".to_owned()),
    }
    Ok(listing)
}

/// Reads the code and message of an error, without control characters.
pub(super) fn error(body: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(body);
    let found = Document::parse(&text).ok().and_then(|document| {
        let root = document.root_element();
        let is_error = root.tag_name().name() == "Error";
        is_error.then(|| (field(root, "Code").map(shorten), field(root, "Message").map(shorten)))
    });
    match found {
        Some((code, message)) => (code.unwrap_or_default(), message.unwrap_or_default()),
        None => (String::new(), shorten(text.trim())),
    }
}

fn field<'a>(of: Node<'a, '_>, name: &str) -> Option<&'a str> {
    of.children().find(|child| child.tag_name().name() == name).map(|child| child.text().unwrap_or_default())
}

fn shorten(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TEXT).collect()
}

#[test]
fn a_listing_is_read_whatever_its_order_and_namespace() {
    let body = br#"<?xml version="1.0" encoding="UTF-8"?>
        <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>
        <IsTruncated>true</IsTruncated><NextContinuationToken>t/1=</NextContinuationToken>
        <Contents><Size>7</Size><Key>p/a&amp;b</Key></Contents><Contents><Key>p/c</Key><Size>0</Size></Contents>
        <CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes></ListBucketResult>"#;
    let expected = Listing {
        objects: vec![("p/a&b".to_owned(), 7), ("p/c".to_owned(), 0)],
        prefixes: vec!["p/d/".to_owned()],
        next: Some("t/1=".to_owned()),
    };
    assert_eq!(listing(body), Ok(expected));
    let last = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    assert_eq!(listing(last), Ok(Listing::default()));
}

#[test]
fn what_is_no_listing_is_an_error() {
    for (body, error) in [
        ("", "not XML"),
        ("<html></html>", "a html, not a listing"),
        ("<ListBucketResult>", "not XML"),
        ("<ListBucketResult></ListBucketResult>", "IsTruncated"),
        ("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "no token"),
        ("<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>", "without a length"),
        ("<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>", "without a key"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><ListBucketResult>&b;</ListBucketResult>", "not XML"),
    ] {
        let found = listing(body.as_bytes()).expect_err(body);
        assert!(found.contains(error), "{body}: {found}");
    }
}

#[test]
fn an_error_has_its_code_and_message() {
    let body = b"<Error><Code>NoSuchBucket</Code><Message>There is\x0ano bucket</Message></Error>";
    assert_eq!(error(body), ("NoSuchBucket".to_owned(), "There is no bucket".to_owned()));
    assert_eq!(error(b"bad\x07 gateway\xff\n"), (String::new(), "bad  gateway\u{fffd}".to_owned()));
    assert_eq!(error(&[b'x'; 1000]).1.len(), MAX_TEXT);
}
