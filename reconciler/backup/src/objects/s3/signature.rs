//! AWS Signature Version 4 of a request, in its headers. Pure.

use std::fmt::Write as _;

use aws_lc_rs::{digest, hmac};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret as _, SecretString};

/// All bytes but unreserved characters.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The access key of requests to one region.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) region: String,
    pub(super) access_key_id: String,
    pub(super) secret_access_key: SecretString,
}

/// A request to sign.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// With its slashes, encoded.
    pub(super) path: &'a str,
    /// Encoded, in the order of the names.
    pub(super) query: &'a str,
    /// In lower case, in the order of the names, with `host`, `x-amz-content-sha256` and `x-amz-date`.
    pub(super) headers: &'a [(&'a str, &'a str)],
    /// The digest of the body.
    pub(super) sha256: &'a str,
}

/// Encodes a part of a query.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Encodes a path, without its slashes.
pub(super) fn encode_path(text: &str) -> String {
    text.split('/').map(encode).collect::<Vec<_>>().join("/")
}

/// The digest of a body, as `x-amz-content-sha256` has it.
pub(super) fn sha256(body: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, body).as_ref())
}

/// The time, as `x-amz-date` has it.
pub(super) fn date(time: Timestamp) -> String {
    time.strftime("%Y%m%dT%H%M%SZ").to_string()
}

impl Credentials {
    /// Returns the value of the header `authorization`. `date` is that of the request.
    pub(super) fn sign(&self, request: &Request<'_>, date: &str) -> String {
        let Request { method, path, query, headers, sha256: body } = request;
        let signed = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{signed}\n{body}");
        let day = date.get(..8).unwrap_or(date);
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha256(canonical.as_bytes()));
        let signature = hex(hmac_sha256(self.key(day).as_ref(), &text).as_ref());
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={signed},Signature={signature}",
            self.access_key_id
        )
    }

    /// The key of one day.
    fn key(&self, day: &str) -> hmac::Tag {
        let secret = format!("AWS4{}", self.secret_access_key.expose_secret());
        let key = hmac_sha256(secret.as_bytes(), day);
        let key = hmac_sha256(key.as_ref(), &self.region);
        let key = hmac_sha256(key.as_ref(), "s3");
        hmac_sha256(key.as_ref(), "aws4_request")
    }
}

fn hmac_sha256(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text takes every byte");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk" in the
    /// reference of the S3 API.
    fn signature(request: &Request<'_>) -> String {
        let credentials = Credentials {
            region: "us-east-1".to_owned(),
            access_key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
        };
        let header = credentials.sign(request, "20130524T000000Z");
        let start = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=";
        assert!(header.starts_with(start), "{header}");
        header.rsplit_once("Signature=").expect("it has one").1.to_owned()
    }

    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
    const DATE: (&str, &str) = ("x-amz-date", "20130524T000000Z");

    #[test]
    fn the_signatures_are_those_of_the_documentation() {
        let empty = sha256(b"");
        let body = ("x-amz-content-sha256", empty.as_str());
        let get = Request {
            method: "GET",
            path: "/test.txt",
            query: "",
            headers: &[HOST, ("range", "bytes=0-9"), body, DATE],
            sha256: &empty,
        };
        assert_eq!(signature(&get), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
        let list = Request {
            method: "GET",
            path: "/",
            query: "max-keys=2&prefix=J",
            headers: &[HOST, body, DATE],
            sha256: &empty,
        };
        assert_eq!(signature(&list), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
        let lifecycle = Request { query: "lifecycle=", ..list };
        assert_eq!(signature(&lifecycle), "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
        let text = sha256(b"Welcome to Amazon S3.");
        let put = Request {
            method: "PUT",
            path: &encode_path("/test$file.text"),
            query: "",
            headers: &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                HOST,
                ("x-amz-content-sha256", &text),
                DATE,
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            sha256: &text,
        };
        assert_eq!(signature(&put), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    }

    #[test]
    fn the_time_and_the_encoding_are_those_of_the_signature() {
        let time: Timestamp = "2013-05-24T01:02:03.9Z".parse().expect("a time");
        assert_eq!(date(time), "20130524T010203Z");
        assert_eq!(encode_path("/a b/~c_-.d/+*é"), "/a%20b/~c_-.d/%2B%2A%C3%A9");
        assert_eq!(encode("a/b=c"), "a%2Fb%3Dc");
    }
}
