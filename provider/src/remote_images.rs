//! `berth_remote_images`: the images that a server or a registry has, as its file of checksums or its tags name them.
//!
//! The provider itself reads them, on the machine that runs Terraform; the control plane and the hosts take no part. Everything that a
//! server sends is bounded: redirects, sizes, pages, entries, and the time of all of it.

mod checksums;
mod client;
mod registry;

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::redacted_url;
use http::{HeaderValue, Uri};
use tfplugin6::{
    Attribute, DataSource, Diagnostic, Schema, Value,
    data_source::{ReadDataRequest, ReadDataResponse},
    resource::ValidateRequest,
    schema::Nesting,
};
use tokio::time::timeout;

use crate::connection;
use client::Client;
use registry::Repository;

/// The time limit for one read.
const LIMIT: Duration = Duration::from_secs(60);
/// The largest number of images that a server may name.
const MOST_IMAGES: usize = 10_000;
/// The length of the longest filter.
const LONGEST_FILTER: usize = 256;

/// An image of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RemoteImage {
    name: String,
    url: String,
    sha256: Option<String>,
    sha512: Option<String>,
}

/// User name and password. Never printed.
struct Login {
    username: String,
    password: String,
}

impl Login {
    fn of(config: &Value) -> Option<Self> {
        let username = config.get("username").as_str()?.to_owned();
        Some(Self { username, password: config.get("password").as_str().unwrap_or_default().to_owned() })
    }

    fn basic(&self) -> Result<HeaderValue, String> {
        let text = STANDARD.encode(format!("{}:{}", self.username, self.password));
        let mut value =
            HeaderValue::from_str(&format!("Basic {text}")).map_err(|_| "unusable credentials".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Where images are listed.
enum Place {
    Checksums(Uri),
    Tags(Repository),
}

impl Place {
    fn parse(url: &str) -> Result<Self, String> {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        if rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) {
            return Err("it has a user name, which the plan would show: set username and password".to_owned());
        }
        if url.starts_with("oci://") {
            return Repository::parse(url).map(Self::Tags);
        }
        let form = "write oci://REGISTRY/REPOSITORY, or the https:// address of a file of checksums";
        let uri: Uri = url.parse().map_err(|_| form.to_owned())?;
        client::check_scheme(&uri).map_err(|why| format!("{why}: {form}"))?;
        Ok(Self::Checksums(uri))
    }
}

/// Whether a text has the form of a pattern, in which `*` stands for any text and `?` for one character.
fn is_match(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The last `*`, and the place in the text up to which it stands.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(one) if *one == '?' || *one == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, upto)) = star else { return false };
                star = Some((at, upto + 1));
                p = at + 1;
                t = upto + 1;
            }
        }
    }
    pattern[p..].iter().all(|rest| *rest == '*')
}

/// The data source `berth_remote_images`.
#[derive(Debug, Default)]
pub struct RemoteImages;

impl RemoteImages {
    /// The HCL example of its documentation.
    pub const EXAMPLE: &'static str =
        include_str!("../../examples/data-sources/berth_remote_images/data-source.tf");
}

async fn list(config: &Value) -> Result<Vec<RemoteImage>, Box<Diagnostic>> {
    let url = config.get("url").as_str().unwrap_or_default();
    let place = Place::parse(url).map_err(|why| Box::new(invalid_url(url, &why)))?;
    let authority = config.get("ca_certificate").as_str().map(str::to_owned);
    let http = connection::client_of_others(authority).await.map_err(|why| {
        Box::new(Diagnostic::error("The certificates cannot be used", why).at("ca_certificate"))
    })?;
    let (client, login) = (Client::new(http), Login::of(config));
    let failed = |why: String| {
        let shown = redacted_url(url);
        let detail = format!("{shown}: {why}. It is read on the machine that runs Terraform, not on a host.");
        Box::new(Diagnostic::error("The images cannot be listed", detail).at("url"))
    };
    let listed = async {
        match &place {
            Place::Checksums(uri) => {
                let basic = login.as_ref().map(Login::basic).transpose()?;
                checksums::list(&client, uri, basic.as_ref()).await
            }
            Place::Tags(repository) => registry::list(&client, repository, login.as_ref()).await,
        }
    };
    match timeout(LIMIT, listed).await {
        Ok(listed) => listed.map_err(failed),
        Err(_) => Err(failed(format!("no answer within {} seconds", LIMIT.as_secs()))),
    }
}

fn invalid_url(url: &str, why: &str) -> Diagnostic {
    // A password is not repeated, nor a signature.
    let shown = if url.contains(['@', '?']) { "The url".to_owned() } else { format!("{url:?}") };
    Diagnostic::error("Invalid url", format!("{shown}: {why}.")).at("url")
}

#[async_trait]
impl DataSource for RemoteImages {
    fn type_name(&self) -> &str {
        "berth_remote_images"
    }

    fn schema(&self) -> Schema {
        let image = vec![
            Attribute::string("name")
                .computed()
                .description("The tag, or the name in the file of checksums."),
            Attribute::string("url").computed().description(
                "The address of the image, for `source.url` of a `berth_image`: that of the tag, or that of \
                 the file, which is relative to the checksum file.",
            ),
            Attribute::string("sha256").computed().description("Its SHA-256; null without one."),
            Attribute::string("sha512").computed().description("Its SHA-512; null without one."),
        ];
        let attributes = vec![
            Attribute::string("url").required().description(
                "`oci://REGISTRY/REPOSITORY` for the tags of a repository in a container registry, or the `https://` address of a file of \
                 checksums (`SHA256SUMS`, `SHA512SUMS`; GNU or BSD format, at most 1 MiB). `http://` only on a loopback address.",
            ),
            Attribute::string("name_filter").optional().description(
                "A pattern of at most 256 characters for the names of the images: `*` stands for any text, `?` for one character. Examples: \
                 `*.iso`, `debian-13-generic-*.qcow2`. Default: all.",
            ),
            Attribute::string("username").optional().description("User name for the server."),
            Attribute::string("password").optional().sensitive().description(
                "Password for the server, or a token in its place. It is sent to the server of `url` and to \
                 the token server of the registry only. Like every argument of a data source, it is in the \
                 state.",
            ),
            Attribute::string("ca_certificate").optional().description(
                "PEM certificates, or the path of some, of the authorities that are trusted instead of those of the system.",
            ),
            Attribute::nested("images", Nesting::List, image)
                .computed()
                .description("The images, sorted by name; at most 10,000 without the filter."),
        ];
        Schema::new(attributes).description(
            "Lists images for the `source` of `berth_image`: the files in a checksum file of a server, or \
             the tags of a repository in a container registry.\n\nThe provider reads the list on the \
             machine that runs Terraform, in each plan and refresh. It connects without a proxy, follows at \
             most five redirects, and fails after 60 seconds. Hosts download the images themselves, from \
             the addresses and with the credentials that they are allowed. If the server lists more files \
             later, a `for_each` over the list creates more images: limit it with `name_filter`.",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let mut found = Vec::new();
        if let Some(url) = config.get("url").as_str()
            && let Err(why) = Place::parse(url)
        {
            found.push(invalid_url(url, &why));
        }
        if config.get("name_filter").as_str().is_some_and(|filter| filter.chars().count() > LONGEST_FILTER) {
            let detail = format!("A filter has at most {LONGEST_FILTER} characters.");
            found.push(Diagnostic::error("Invalid name_filter", detail).at("name_filter"));
        }
        if config.get("password").is_set() && config.get("username").is_null() {
            let detail = "A password goes with a username.";
            found.push(Diagnostic::error("password without username", detail).at("password"));
        }
        if config.get("username").as_str().is_some_and(|name| name.contains(':')) {
            let detail = "A user name has no colon: HTTP separates the password with it.";
            found.push(Diagnostic::error("Invalid username", detail).at("username"));
        }
        found
    }

    async fn read(&self, request: ReadDataRequest) -> ReadDataResponse {
        let config = &request.config;
        let listed = tokio::select! {
            listed = list(config) => listed,
            () = request.cancel.cancelled() => {
                return Diagnostic::error("Stopped listing images", "Terraform was interrupted.").into();
            }
        };
        let images = match listed {
            Ok(images) => images,
            Err(problem) => return (*problem).into(),
        };
        let filter = config.get("name_filter").as_str().unwrap_or("*");
        let value = |image: RemoteImage| {
            Value::object([
                ("name", Value::from(image.name)),
                ("url", Value::from(image.url)),
                ("sha256", Value::from(image.sha256)),
                ("sha512", Value::from(image.sha512)),
            ])
        };
        let chosen = images.into_iter().filter(|image| is_match(filter, &image.name));
        let mut state = config.clone();
        state.set("images", Value::List(chosen.map(value).collect()));
        ReadDataResponse::new(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_stars_and_question_marks() {
        for (pattern, text) in [
            ("*", ""),
            ("*.iso", "a.iso"),
            ("a*b*c", "axxbyybzc"),
            ("?.iso", "ü.iso"),
            ("a", "a"),
            ("**", "x"),
            ("*.iso", "sub/a.iso"),
        ] {
            assert!(is_match(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("*.iso", "a.iso.sig"), ("a?", "a"), ("a*b", "ac"), ("A", "a")] {
            assert!(!is_match(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        let url = "https://me:canary@a.example/SHA256SUMS";
        let why = Place::parse(url).err().expect("refused");
        let problem = invalid_url(url, &why);
        assert!(problem.detail.contains("username") && !problem.detail.contains("canary"), "{problem:?}");
    }
}
