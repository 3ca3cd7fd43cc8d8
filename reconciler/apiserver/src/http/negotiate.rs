//! The `Accept` header: the response shapes that a client accepts.

use berth_apimachinery::error::{ApiError, Result};
use http::{HeaderMap, header};

/// The maximum number of media ranges in one header.
const MAX_RANGES: usize = 32;

/// The shape of objects in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Plain,
    Table,
    /// `PartialObjectMetadata`.
    Metadata,
}

#[derive(Debug, Default)]
pub(super) struct Accept {
    ranges: Vec<(String, Vec<(String, String)>)>,
}

pub(super) fn accept(headers: &HeaderMap) -> Accept {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(|value| value.split(',')).take(MAX_RANGES).map(range);
    Accept { ranges: ranges.filter(|(media, _)| !media.is_empty()).collect() }
}

fn range(text: &str) -> (String, Vec<(String, String)>) {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default().to_ascii_lowercase();
    let parameters = parts.filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
    (media, parameters.collect())
}

fn parameter<'a>(parameters: &'a [(String, String)], name: &str) -> &'a str {
    parameters.iter().find(|(k, _)| k == name).map_or("", |(_, v)| v)
}

fn is_json(media: &str) -> bool {
    matches!(media, "application/json" | "application/*" | "*/*")
}

impl Accept {
    /// Returns the first supported shape in the client's order; only JSON is supported, so protobuf is
    /// skipped.
    pub(super) fn wanted(&self) -> Result<Wanted> {
        if self.ranges.is_empty() {
            return Ok(Wanted::Plain);
        }
        for (_, parameters) in self.ranges.iter().filter(|(media, _)| is_json(media)) {
            let of_meta = parameter(parameters, "g") == "meta.k8s.io" && parameter(parameters, "v") == "v1";
            match parameter(parameters, "as") {
                "" => return Ok(Wanted::Plain),
                "Table" if of_meta => return Ok(Wanted::Table),
                "PartialObjectMetadata" | "PartialObjectMetadataList" if of_meta => {
                    return Ok(Wanted::Metadata);
                }
                _ => {}
            }
        }
        Err(ApiError::not_acceptable())
    }

    /// Whether the client accepts a document in some data format; the document chooses between JSON and
    /// protobuf.
    pub(super) fn takes_documents(&self) -> bool {
        let data = |media: &str| media == "*/*" || media.starts_with("application/");
        self.ranges.is_empty() || self.ranges.iter().any(|(media, _)| data(media))
    }

    /// Whether the client's first choice is exactly this media type.
    pub(super) fn prefers(&self, media: &str) -> bool {
        self.ranges.first().is_some_and(|(first, _)| first == media)
    }

    /// Returns the version of `apidiscovery.k8s.io` that the client accepts, if any.
    pub(super) fn wants_aggregated_discovery(&self) -> Option<&'static str> {
        let of = |version: &str| {
            self.ranges.iter().any(|(media, parameters)| {
                is_json(media)
                    && parameter(parameters, "as") == "APIGroupDiscoveryList"
                    && parameter(parameters, "g") == "apidiscovery.k8s.io"
                    && parameter(parameters, "v") == version
            })
        };
        ["v2", "v2beta1"].into_iter().find(|version| of(version))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn wanted(value: &str) -> Option<Wanted> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, value.parse().unwrap());
        accept(&headers).wanted().ok()
    }

    #[test]
    fn documents_are_data() {
        let takes = |value: &'static str| {
            accept(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(value))]))
                .takes_documents()
        };
        assert!(takes("*/*") && takes("text/html, application/json") && takes("application/*"));
        assert!(!takes("text/plain") && accept(&HeaderMap::new()).takes_documents());
    }

    #[test]
    fn the_first_shape_the_server_has_is_taken() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(wanted(table), Some(Wanted::Table));
        assert_eq!(wanted("application/vnd.kubernetes.protobuf, application/json"), Some(Wanted::Plain));
        assert_eq!(wanted("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(
            wanted("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Some(Wanted::Metadata)
        );
        assert_eq!(wanted("*/*"), Some(Wanted::Plain));
    }
}
