//! Credentials for the sources of images and for repositories of backups, from Secrets.
//!
//! ```text
//!  username, password | token | headers | ca.crt     of any source
//!  .dockerconfigjson                                 of a registry: the entry for its host
//!  accessKeyID, secretAccessKey, ca.crt              of a repository in an object store
//!  password                                          of a repository
//! ```

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use berth_api::{BackupRepository, Readiness, Reason};
use berth_host::{Credentials, RepositoryAccess, RepositoryPlace, S3Access};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Client, ResourceExt};
use serde::Deserialize;

use crate::details::Details;
use crate::typed_api::TypedApi;

const DOCKER_CONFIG: &str = ".dockerconfigjson";
const MAX_HEADERS: usize = 32;
/// Headers that belong to the transfer itself.
const OWN_HEADERS: [&str; 8] =
    ["accept", "connection", "content-length", "host", "if-range", "range", "te", "transfer-encoding"];
/// Docker Hub has other names in a configuration of Docker than in URLs of images.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// A repository of backups, and the names of the Secrets that open it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Repository {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) place: RepositoryPlace,
    pub(crate) password_secret: String,
    pub(crate) credentials_secret: Option<String>,
    /// The identity that it had when it was first opened.
    pub(crate) id: Details<Option<String>>,
}

impl Repository {
    /// Returns None if no place is declared.
    pub(crate) fn of(object: &BackupRepository) -> Option<Self> {
        let (namespace, name) = (object.namespace()?, object.name_any());
        let place = match (&object.spec.s3, &object.spec.folder) {
            (Some(s3), _) => RepositoryPlace::S3 {
                endpoint: s3.endpoint.clone(),
                region: s3.region.clone(),
                bucket: s3.bucket.clone(),
                prefix: s3.prefix.clone(),
            },
            (None, Some(folder)) => RepositoryPlace::Folder {
                name: folder.clone(),
                namespace: namespace.clone(),
                repository: name.clone(),
            },
            (None, None) => return None,
        };
        Some(Self {
            place,
            password_secret: object.spec.password_secret_name.to_string(),
            credentials_secret: object.spec.credentials_secret_name.as_ref().map(ToString::to_string),
            id: Details(object.status.as_ref().and_then(|status| status.repository_id.clone())),
            namespace,
            name,
        })
    }
}

/// Why an entry of a Secret is not known.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It was not read, and may be there.
    Waits(Readiness),
    /// There is no such Secret, or it has no such entry; for people.
    Gone(String),
}

/// Reads Secrets from the control plane.
pub(crate) struct Secrets(Client);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    /// Reads the credentials for a URL from a Secret.
    ///
    /// *Errors:* for the object that needs the image. Only an error that is not `Stalled` can pass by itself.
    pub(crate) async fn credentials(
        &self,
        namespace: &str,
        name: &str,
        url: &str,
    ) -> Result<Credentials, Readiness> {
        let secret = self.read(namespace, name).await?;
        credentials(&secret, url).map_err(|problem| unusable(name, &problem))
    }

    /// Reads what opens a repository from its Secrets.
    ///
    /// *Errors:* for the object that needs the repository. Only an error that is not `Stalled` can pass by itself.
    pub(crate) async fn repository(&self, repository: &Repository) -> Result<RepositoryAccess, Readiness> {
        let namespace = repository.namespace.as_str();
        let name = repository.password_secret.as_str();
        let password = self.read(namespace, name).await?;
        let password = value(&password, "password").map_err(|problem| unusable(name, &problem))?;
        let s3 = match &repository.credentials_secret {
            Some(name) => {
                let secret = self.read(namespace, name).await?;
                Some(s3_access(&secret).map_err(|problem| unusable(name, &problem))?)
            }
            None => None,
        };
        Ok(RepositoryAccess {
            shown: format!("BackupRepository {}", repository.name),
            place: repository.place.clone(),
            password: password.into(),
            s3,
            id: repository.id.0.clone(),
        })
    }

    /// Reads one entry of a Secret as text.
    pub(crate) async fn entry(&self, namespace: &str, name: &str, key: &str) -> Result<String, Unread> {
        let found = self.find(namespace, name).await.map_err(Unread::Waits)?;
        let gone = |problem: String| Unread::Gone(format!("Secret {namespace}/{name}: {problem}"));
        let secret = found.ok_or_else(|| gone("it does not exist".to_owned()))?;
        value(&secret, key).map_err(gone)
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Secret, Readiness> {
        let missing =
            || Readiness::Reconciling(Reason::WaitingForSecret, format!("Secret {name} does not exist"));
        self.find(namespace, name).await?.ok_or_else(missing)
    }

    async fn find(&self, namespace: &str, name: &str) -> Result<Option<Secret>, Readiness> {
        let secrets: TypedApi<Secret> = TypedApi::namespaced(self.0.clone(), namespace);
        let waits = |text: String| Readiness::Reconciling(Reason::WaitingForSecret, text);
        match secrets.get_opt(name).await {
            Ok(found) => Ok(found),
            // The controllers permit it once they know that this host needs it.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                Err(waits(format!("this host may not read Secret {name} yet")))
            }
            Err(error) => Err(waits(format!("Secret {name} cannot be read: {error}"))),
        }
    }
}

fn unusable(secret: &str, problem: &str) -> Readiness {
    Readiness::Stalled(Reason::InvalidSpec, format!("Secret {secret}: {problem}"))
}

/// Returns a value of a Secret as text, without line ends after it, or what is wrong with it.
fn text(secret: &Secret, key: &str) -> Result<Option<String>, String> {
    match secret.data.as_ref().and_then(|data| data.get(key)) {
        None => Ok(None),
        Some(ByteString(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
            Err(_) => Err(format!("{key} is no text")),
        },
    }
}

fn value(secret: &Secret, key: &str) -> Result<String, String> {
    let found = text(secret, key)?.filter(|value| !value.is_empty());
    found.ok_or_else(|| format!("it has no {key}, or an empty one"))
}

fn s3_access(secret: &Secret) -> Result<S3Access, String> {
    let (key_id, key) = (value(secret, "accessKeyID")?, value(secret, "secretAccessKey")?);
    Ok(S3Access { key_id, secret: key.into(), ca: text(secret, "ca.crt")? })
}

/// Returns the credentials in a Secret for a URL, or what is wrong with them, without any of its values.
fn credentials(secret: &Secret, url: &str) -> Result<Credentials, String> {
    let text = |key: &str| text(secret, key);
    let (user, password, token) = (text("username")?, text("password")?, text("token")?);
    let headers = text("headers")?.map_or(Ok(Vec::new()), |lines| headers(&lines))?;
    let (ca, docker) = (text("ca.crt")?, text(DOCKER_CONFIG)?);
    if password.is_some() && user.is_none() {
        return Err("it has a password and no username".to_owned());
    }
    let given = [user.is_some(), token.is_some(), !headers.is_empty(), ca.is_some(), docker.is_some()];
    if !given.contains(&true) {
        return Err(format!("it has none of username, token, headers, ca.crt and {DOCKER_CONFIG}"));
    }
    let ways = [user.is_some(), token.is_some(), docker.is_some()];
    if ways.iter().filter(|way| **way).count() > 1 {
        return Err(format!("username, token and {DOCKER_CONFIG} exclude each other"));
    }
    let basic = match docker {
        Some(config) => Some(of_docker(&config, url)?),
        None => user.map(|user| (user, password.unwrap_or_default())),
    };
    Ok(Credentials { basic, token, headers, ca })
}

fn headers(lines: &str) -> Result<Vec<(String, String)>, String> {
    let mut headers = Vec::new();
    for (number, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| format!("line {} of headers is not `Name: value`", number + 1))?;
        let name = name.trim();
        if OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own)) {
            return Err(format!("the header {name} belongs to the transfer and cannot be set"));
        }
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    match headers.len() <= MAX_HEADERS {
        true => Ok(headers),
        false => Err(format!("headers has more than {MAX_HEADERS} lines")),
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Returns user and password for the registry of an `oci://` URL from a configuration of Docker.
fn of_docker(config: &str, url: &str) -> Result<(String, String), String> {
    let registry = url.strip_prefix("oci://").and_then(|rest| rest.split('/').next());
    let registry = registry.ok_or_else(|| format!("{DOCKER_CONFIG} is for oci:// only"))?;
    let config: DockerConfig =
        serde_json::from_str(config).map_err(|_| format!("{DOCKER_CONFIG} is no configuration of Docker"))?;
    let is_for = |entry: &str| {
        let host =
            entry.rsplit_once("://").map_or(entry, |(_, rest)| rest).split('/').next().unwrap_or_default();
        let hub = |name: &str| DOCKER_HUB.contains(&name);
        host == registry || (hub(host) && hub(registry))
    };
    let found = config.auths.iter().find(|(entry, _)| is_for(entry));
    let (_, auth) = found.ok_or_else(|| format!("{DOCKER_CONFIG} has no entry for {registry}"))?;
    if !auth.username.is_empty() {
        return Ok((auth.username.clone(), auth.password.clone()));
    }
    let decoded = BASE64.decode(&auth.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
    let (user, password) =
        pair.ok_or_else(|| format!("the entry for {registry} of {DOCKER_CONFIG} has no user and password"))?;
    Ok((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://images.example/a.qcow2";

    fn secret(entries: &[(&str, &str)]) -> Secret {
        let data =
            entries.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
        Secret { data: Some(data.collect()), ..Secret::default() }
    }

    fn of(entries: &[(&str, &str)], url: &str) -> Result<Credentials, String> {
        credentials(&secret(entries), url)
    }

    #[test]
    fn a_secret_has_a_user_a_token_headers_or_certificates() {
        let user = of(&[("username", "me"), ("password", "canary\n")], URL).expect("usable");
        assert_eq!(user.basic, Some(("me".to_owned(), "canary".to_owned())));
        let token = of(&[("token", "canary"), ("ca.crt", "pem")], URL).expect("usable");
        assert_eq!((token.token.as_deref(), token.ca.as_deref()), (Some("canary"), Some("pem")));
        let headers = of(&[("headers", "X-Key: canary:1\n\nX-Other:b\n")], URL).expect("usable").headers;
        let owned = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(headers, [owned("X-Key", "canary:1"), owned("X-Other", "b")]);
        assert!(!format!("{token:?}").contains("canary"));
    }

    #[test]
    fn a_secret_for_an_object_store_has_both_keys() {
        let both = [("accessKeyID", "me\n"), ("secretAccessKey", "canary"), ("ca.crt", "pem")];
        let access = s3_access(&secret(&both)).expect("usable");
        assert_eq!((access.key_id.as_str(), access.ca.as_deref()), ("me", Some("pem")));
        assert!(!format!("{access:?}").contains("canary"));
        for (entries, words) in [(&both[..1], "no secretAccessKey"), (&both[1..], "no accessKeyID")] {
            let error = s3_access(&secret(entries)).expect_err(words);
            assert!(error.contains(words) && !error.contains("canary"), "{error}");
        }
        assert!(value(&secret(&[("password", "\n")]), "password").is_err_and(|e| e.contains("empty")));
    }

    #[test]
    fn what_cannot_be_used_is_named_without_its_values() {
        for (entries, words) in [
            (&[][..], "none of username"),
            (&[("password", "canary")], "no username"),
            (&[("username", "canary"), ("token", "canary")], "exclude each other"),
            (&[("headers", "canary")], "line 1 of headers"),
            (&[("headers", "Host: canary")], "the header Host belongs to the transfer"),
            (&[("other", "canary")], "none of username"),
            (&[(DOCKER_CONFIG, "{}")], "for oci:// only"),
        ] {
            let error = of(entries, URL).expect_err(words);
            assert!(error.contains(words) && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn the_entry_for_the_registry_is_taken_from_a_configuration_of_docker() {
        // printf 'me:se:cret' | base64
        let config = r#"{"auths": {"quay.io": {"auth": "bWU6c2U6Y3JldA=="}, "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
            "empty.example": {}}}"#;
        let basic = |url: &str| of(&[(DOCKER_CONFIG, config)], url).map(|found| found.basic);
        let owned = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        assert_eq!(basic("oci://quay.io/a/b:1"), owned("me", "se:cret"));
        assert_eq!(basic("oci://docker.io/library/x"), owned("hub", "p"));
        assert!(basic("oci://other.example/a").is_err_and(|e| e.contains("no entry for other.example")));
        assert!(basic("oci://empty.example/a").is_err_and(|e| e.contains("no user and password")));
    }
}
