//! The tags of a repository in an OCI registry: `oci://REGISTRY/REPOSITORY`, as in the OCI Distribution Specification.

use http::{
    HeaderValue, StatusCode, Uri,
    header::{LINK, WWW_AUTHENTICATE},
};
use serde_json::Value as Json;

use super::{
    Login, MOST_IMAGES, RemoteImage,
    client::{Answer, Client, encoded, is_loopback, is_same_server, joined},
};

/// The maximum size of a page of tags, in bytes.
const MAX_PAGE: usize = 4 << 20;
const MAX_TOKEN: usize = 1 << 20;
/// The largest number of pages.
const MOST_PAGES: usize = 100;
/// The number of tags that are asked for at a time.
const PAGE: usize = 1000;

/// A repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repository {
    /// `https://REGISTRY`, or `http://` on a loopback address.
    registry: String,
    /// The registry as it is written.
    authority: String,
    name: String,
}

impl Repository {
    /// Reads an `oci://` URL.
    ///
    /// *Errors:* it has another form, or a tag.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let wrong = || "write oci://REGISTRY/REPOSITORY, without a tag or a digest".to_owned();
        let (authority, name) =
            url.strip_prefix("oci://").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
        let is_part = |part: &str| {
            !matches!(part, "" | "." | "..")
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if name.len() > 255 || !name.split('/').all(is_part) {
            return Err(wrong());
        }
        let uri: Uri = format!("https://{authority}/").parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        // Where hosts look for images of this name.
        let server = if host == "docker.io" { "registry-1.docker.io" } else { authority };
        let scheme = if is_loopback(host) { "http" } else { "https" };
        Ok(Self {
            registry: format!("{scheme}://{server}"),
            authority: authority.to_owned(),
            name: name.to_owned(),
        })
    }

    fn tags(&self) -> Result<Uri, String> {
        let url = format!("{}/v2/{}/tags/list?n={PAGE}", self.registry, self.name);
        url.parse().map_err(|_| "its name is not valid in an address".to_owned())
    }
}

/// Returns the images of the repository, one a tag, sorted by tag.
///
/// *Errors:* no such repository, or no right to read it.
pub(super) async fn list(
    client: &Client,
    repository: &Repository,
    login: Option<&Login>,
) -> Result<Vec<RemoteImage>, String> {
    let first = repository.tags()?;
    let mut authorization = None;
    let mut answer = client.get(&first, None, MAX_PAGE).await?;
    if answer.status == StatusCode::UNAUTHORIZED {
        let granted = authorize(client, repository, &answer, login).await?;
        answer = client.get(&first, Some(&granted), MAX_PAGE).await?;
        authorization = Some(granted);
    }
    let (mut tags, mut at) = (Vec::new(), first.clone());
    for _ in 0..MOST_PAGES {
        add(&answer, &mut tags)?;
        let Some(next) = next(&at, &answer)? else {
            tags.sort_unstable();
            tags.dedup();
            return Ok(tags.into_iter().map(|tag| image(repository, tag)).collect());
        };
        if !is_same_server(&first, &next) {
            return Err("its next page of tags is on another server".to_owned());
        }
        answer = client.get(&next, authorization.as_ref(), MAX_PAGE).await?;
        at = next;
    }
    Err(format!("it has more than {MOST_PAGES} pages of tags"))
}

fn image(repository: &Repository, tag: String) -> RemoteImage {
    let url = format!("oci://{}/{}:{tag}", repository.authority, repository.name);
    RemoteImage { name: tag, url, ..RemoteImage::default() }
}

/// Adds the tags of a page.
fn add(page: &Answer, tags: &mut Vec<String>) -> Result<(), String> {
    match page.status {
        StatusCode::OK => {}
        // Registries answer the same for a repository that is private and for one that does not exist.
        status @ (StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(format!("HTTP {status}: no such repository, or it is private"));
        }
        status => return Err(format!("HTTP {status}")),
    }
    let page: Json =
        serde_json::from_slice(&page.body).map_err(|_| "its list of tags is not JSON".to_owned())?;
    let found = page.get("tags").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
    for tag in found.filter(|tag| is_tag(tag)) {
        if tags.len() >= MOST_IMAGES {
            return Err(format!("it has more than {MOST_IMAGES} tags"));
        }
        tags.push(tag.to_owned());
    }
    Ok(())
}

fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The address of the next page, among the links of this one: `Link: </v2/…>; rel="next"`.
///
/// *Errors:* a link that cannot be read: without the next page the list would seem to be whole.
fn next(at: &Uri, page: &Answer) -> Result<Option<Uri>, String> {
    let wrong = || "the address of its next page of tags cannot be read".to_owned();
    for links in page.headers.get_all(LINK) {
        let mut links = links.to_str().map_err(|_| wrong())?;
        while let Some((_, link)) = links.split_once('<') {
            let (reference, rest) = link.split_once('>').ok_or_else(wrong)?;
            // The parameters of a link end where another link begins.
            if rest.split('<').next().is_some_and(|parameters| parameters.contains("next")) {
                return joined(at, reference).map(Some).ok_or_else(wrong);
            }
            links = rest;
        }
    }
    Ok(None)
}

/// Returns the credentials that the registry asks for.
async fn authorize(
    client: &Client,
    repository: &Repository,
    refusal: &Answer,
    login: Option<&Login>,
) -> Result<HeaderValue, String> {
    let challenges = refusal.headers.get_all(WWW_AUTHENTICATE).iter();
    let mut challenges = challenges.filter_map(|value| value.to_str().ok()?.split_once(' '));
    let is_known = |(scheme, _): &(&str, &str)| {
        scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("basic")
    };
    match challenges.find(is_known) {
        Some((scheme, fields)) if scheme.eq_ignore_ascii_case("bearer") => {
            token(client, repository, fields, login).await
        }
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("basic") => {
            login.map(Login::basic).ok_or("the registry asks for username and password")?
        }
        _ => Err("the registry requires a kind of authentication that is not supported".to_owned()),
    }
}

async fn token(
    client: &Client,
    repository: &Repository,
    challenge: &str,
    login: Option<&Login>,
) -> Result<HeaderValue, String> {
    let realm = field(challenge, "realm").ok_or("the registry names no address for its tokens")?;
    if repository.registry.starts_with("https:") && !realm.starts_with("https://") {
        return Err("the registry's tokens are at an address without HTTPS".to_owned());
    }
    let scope = encoded(&format!("repository:{}:pull", repository.name));
    let mut url = format!("{realm}{}scope={scope}", if realm.contains('?') { '&' } else { '?' });
    if let Some(service) = field(challenge, "service") {
        url = format!("{url}&service={}", encoded(service));
    }
    let url: Uri =
        url.parse().map_err(|_| "the registry names an invalid address for its tokens".to_owned())?;
    let basic = login.map(Login::basic).transpose()?;
    let answer = client.get(&url, basic.as_ref(), MAX_TOKEN).await?;
    if answer.status != StatusCode::OK {
        return Err(format!("the registry gives no token: HTTP {}", answer.status));
    }
    let answer: Json =
        serde_json::from_slice(&answer.body).map_err(|_| "the registry's token is not JSON".to_owned())?;
    let token = answer.get("token").or_else(|| answer.get("access_token")).and_then(Json::as_str);
    let token = token.ok_or("the registry's answer has no token")?;
    let unusable = |_| "the registry's token is not usable".to_owned();
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(unusable)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns a field of a challenge such as `realm="https://auth.example/token",service="registry"`.
fn field<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let value = challenge.split([',', ' ']).find_map(|part| {
        let (key, value) = part.trim().split_once('=')?;
        key.eq_ignore_ascii_case(name).then_some(value)
    })?;
    Some(value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    #[test]
    fn the_next_page_is_found_among_links_and_one_that_cannot_be_read_is_an_error() {
        let at: Uri = "https://r.example/v2/a/tags/list?n=2".parse().expect("an address");
        let of = |links: &str| {
            let value = HeaderValue::from_bytes(links.as_bytes()).expect("a value");
            let headers = HeaderMap::from_iter([(LINK, value)]);
            next(&at, &Answer { status: StatusCode::OK, headers, body: Vec::new() })
        };
        let page: Uri = "https://r.example/v2/a/tags/list?last=b".parse().expect("an address");
        assert_eq!(of("</v2/a/tags/list?last=b>; rel=\"next\""), Ok(Some(page.clone())));
        assert_eq!(of("</v2/x>; rel=\"prev\", <?last=b>; rel=next"), Ok(Some(page)));
        assert_eq!(of("</v2/x>; rel=\"prev\""), Ok(None));
        for wrong in ["</v2/x", "<ht tp>; rel=next", "</ü>; rel=next"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_repository_has_a_registry_and_a_name() {
        let read = |url: &str| Repository::parse(url).map(|read| (read.registry, read.name));
        let pair = |registry: &str, name: &str| Ok((registry.to_owned(), name.to_owned()));
        assert_eq!(read("oci://r.example:5000/a/b"), pair("https://r.example:5000", "a/b"));
        assert_eq!(read("oci://127.0.0.1:5000/a"), pair("http://127.0.0.1:5000", "a"));
        assert_eq!(read("oci://docker.io/library/a"), pair("https://registry-1.docker.io", "library/a"));
        for wrong in [
            "oci://r.example",
            "oci://r.example/",
            "oci://r.example/a:1",
            "oci://r.example/a/../b",
            "oci:///a",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tag_has_letters_digits_and_few_signs() {
        for good in ["1.0", "v1_2-x", "A"] {
            assert!(is_tag(good), "{good}");
        }
        for wrong in ["", ".a", "-a", "a b", "a/b", "a".repeat(129).as_str()] {
            assert!(!is_tag(wrong), "{wrong}");
        }
    }
}
