//! A joined host's own credential: obtained with a join string, kept in its state directory, renewed before it
//! expires.

use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose};
use berth_api::{SYSTEM_NAMESPACE, manifests::access};
use berth_engine::ErrorChain;
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::ServiceAccount,
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{
        self, AuthInfo, Cluster, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
    },
};
use tracing::{info, warn};

use crate::join::{self, Join, TokenTimes};

/// The kubeconfig of a joined host, in its state directory.
pub const KUBECONFIG: &str = "host.kubeconfig";
/// The token it names; the other one while a host moves from one control plane to another, so that it has a
/// complete credential at every moment.
pub const TOKEN: &str = "host.token";
const OTHER_TOKEN: &str = "host-2.token";
/// The requested lifetime of a host's own token: a host that was off for a few weeks reconnects by itself.
const LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the control plane may take to respond while joining.
const ANSWER: Duration = Duration::from_secs(20);
/// The delay before a failed renewal is retried.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// The credential in a state directory.
#[derive(Clone, Debug)]
pub struct Credential {
    directory: PathBuf,
    token: &'static str,
    /// The host it is for.
    pub host: String,
}

impl Credential {
    /// Reads the credential kept in the directory, if a host has joined with it.
    ///
    /// *Errors:* it exists and cannot be read.
    pub fn find(directory: &Path) -> anyhow::Result<Option<Self>> {
        let path = directory.join(KUBECONFIG);
        if !path.exists() {
            return Ok(None);
        }
        let config = Kubeconfig::read_from(&path).with_context(|| format!("reading {}", path.display()))?;
        let user = config.auth_infos.first();
        let host = user.map(|user| user.name.clone());
        let host = host.with_context(|| format!("{} names no host: join again", path.display()))?;
        let file = user.and_then(|user| user.auth_info.as_ref()?.token_file.clone()).unwrap_or_default();
        let token = if Path::new(&file).ends_with(OTHER_TOKEN) { OTHER_TOKEN } else { TOKEN };
        Ok(Some(Self { directory: directory.to_owned(), token, host }))
    }

    /// Obtains a credential with a join string, and saves it.
    ///
    /// *Errors:* messages for the administrator that joins the host.
    pub async fn join(directory: &Path, join: &Join) -> anyhow::Result<Self> {
        let known = Self::find(directory)?;
        if let Some(known) = &known
            && known.host != join.host
        {
            bail!(
                "{} belongs to host {}, and the join string is for host {}: a state directory belongs to one host: \
                 choose another one with --state-dir, or ask for a join string for {}",
                directory.display(),
                known.host,
                join.host,
                known.host
            );
        }
        let client = Client::try_from(config_of(join).await?).context("making a client")?;
        let asked = tokio::time::timeout(ANSWER, request(&client, &join.host, LIFE)).await;
        let token = match asked {
            Ok(Ok(token)) => token,
            Ok(Err(error)) => bail!(explain(&error, &join.server, &join.host, Some(&join.token))),
            Err(_) => bail!("{} did not answer within {} seconds", join.server, ANSWER.as_secs()),
        };
        let file = if known.is_some_and(|known| known.token == TOKEN) { OTHER_TOKEN } else { TOKEN };
        write_private(&directory.join(file), token.as_bytes())?;
        write_private(&directory.join(KUBECONFIG), join::kubeconfig(join, file).as_bytes())?;
        let before = if file == TOKEN { OTHER_TOKEN } else { TOKEN };
        let _ = std::fs::remove_file(directory.join(before));
        info!(host = join.host, server = join.server, "joined");
        Ok(Self { directory: directory.to_owned(), token: file, host: join.host.clone() })
    }

    /// Whether it is for the control plane that a join string leads to.
    pub fn is_for(&self, join: &Join) -> bool {
        let known = Kubeconfig::read_from(self.directory.join(KUBECONFIG));
        let cluster = known.ok().and_then(|known| known.clusters.into_iter().next()?.cluster);
        cluster.and_then(|cluster| cluster.server).as_ref() == Some(&join.server)
    }

    /// Returns the client configuration for the control plane.
    ///
    /// *Errors:* the files cannot be used.
    pub async fn config(&self) -> anyhow::Result<Config> {
        let path = self.directory.join(KUBECONFIG);
        let kubeconfig =
            Kubeconfig::read_from(&path).with_context(|| format!("reading {}", path.display()))?;
        let options = KubeConfigOptions::default();
        Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(|| format!("using {}", path.display()))
    }

    /// Checks once whether the credential is still valid, so that a revoked one is reported at the start.
    ///
    /// *Errors:* it is not valid; the message is for the user. A control plane that does not respond is no error:
    /// the host waits for it.
    pub async fn check(&self, client: &Client) -> anyhow::Result<()> {
        let asked = tokio::time::timeout(ANSWER, request(client, &self.host, LIFE)).await;
        match asked {
            Ok(Ok(token)) => write_private(&self.directory.join(self.token), token.as_bytes()),
            Ok(Err(error)) if is_final(&error) => {
                let token = std::fs::read_to_string(self.directory.join(self.token)).unwrap_or_default();
                bail!(explain(&error, "the control plane", &self.host, Some(&token)))
            }
            Ok(Err(error)) => {
                warn!(error = %ErrorChain(&error), "the control plane does not answer yet");
                Ok(())
            }
            Err(_) => {
                warn!("the control plane does not answer yet");
                Ok(())
            }
        }
    }

    /// Renews the token at half its lifetime, forever. The file a client reads the token from is replaced
    /// atomically.
    pub async fn keep(&self, client: &Client) {
        loop {
            tokio::time::sleep(self.wait()).await;
            match request(client, &self.host, LIFE).await {
                Ok(token) => match write_private(&self.directory.join(self.token), token.as_bytes()) {
                    Ok(()) => info!("renewed this host's token"),
                    Err(error) => warn!(error = format!("{error:#}"), "this host's token could not be kept"),
                },
                Err(error) => {
                    warn!(error = %ErrorChain(&error), "this host's token could not be renewed yet")
                }
            }
        }
    }

    fn wait(&self) -> Duration {
        let token = std::fs::read_to_string(self.directory.join(self.token)).unwrap_or_default();
        let Some(times) = TokenTimes::of(&token) else { return TRY_AGAIN };
        let left = times.renew_at().duration_since(Timestamp::now());
        // In steps of a day at most: clocks jump, and a suspended machine's timers do not count the suspension.
        let piece = left.clamp(SignedDuration::from_secs(60), SignedDuration::from_hours(24));
        Duration::try_from(piece).unwrap_or(TRY_AGAIN)
    }
}

/// A kubeconfig with one cluster and one user.
fn kubeconfig_of(cluster: Cluster, user: AuthInfo) -> Kubeconfig {
    let name = || "berth".to_owned();
    let context = config::Context { cluster: name(), user: Some(name()), ..config::Context::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { name: name(), cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo { name: name(), auth_info: Some(user), ..NamedAuthInfo::default() }],
        contexts: vec![NamedContext { name: name(), context: Some(context), ..NamedContext::default() }],
        current_context: Some(name()),
        ..Kubeconfig::default()
    }
}

async fn config_of(join: &Join) -> anyhow::Result<Config> {
    let cluster = Cluster {
        server: Some(join.server.clone()),
        certificate_authority_data: join.ca.as_ref().map(|ca| general_purpose::STANDARD.encode(ca)),
        ..Cluster::default()
    };
    let user = AuthInfo { token: Some(join.token.clone().into()), ..AuthInfo::default() };
    // Not from JSON: the code that reads a kubeconfig from it would be another copy of kube's, which reads it from YAML.
    let options = KubeConfigOptions::default();
    let kubeconfig = kubeconfig_of(cluster, user);
    Config::from_custom_kubeconfig(kubeconfig, &options).await.context("using the join string")
}

/// Requests a new token for the host with `client`'s credential.
///
/// *Errors:* the control plane's.
pub async fn request(client: &Client, host: &str, life: Duration) -> kube::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(i64::try_from(life.as_secs()).unwrap_or(i64::MAX)),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let name = access::account_name(host);
    token_in(accounts.create_token_request(&name, &PostParams::default(), &request).await?)
}

/// *Errors:* the answer has no token: an empty one would take the place of one that is valid.
fn token_in(made: TokenRequest) -> kube::Result<String> {
    let token = made.status.and_then(|status| status.token).filter(|token| !token.is_empty());
    token.ok_or_else(|| kube::Error::Service("the control plane answered without a token".into()))
}

fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
}

/// Explains an error and its remedy.
fn explain(error: &kube::Error, server: &str, host: &str, token: Option<&str>) -> String {
    let again = format!("ask for a new join string (`berth token create {host}`) and join again");
    if let kube::Error::Api(status) = error {
        let over = token.and_then(TokenTimes::of).map(|times| times.expires);
        return match (status.code, over) {
            (401, Some(at)) if at <= Timestamp::now() => {
                format!("the token of host {host} has run out ({at}): {again}")
            }
            (401, _) => format!(
                "{server} does not accept the token of host {host}: it was revoked, or is another control plane's; {again}"
            ),
            (403 | 404, _) => format!(
                "{server} does not let host {host} have a token of its own ({}): {again}",
                status.message
            ),
            _ => format!("{server} refused: {}", status.message),
        };
    }
    let text = ErrorChain(error).to_string();
    if text.contains("UnknownIssuer") || text.contains("BadSignature") {
        return format!(
            "{server} is not the control plane the join string is from: its certificate is of another authority; {again}"
        );
    }
    if text.contains("NotValidForName") {
        return format!(
            "the certificate of {server} is not valid for that name: start `berth up` with --tls-san for it, \
             or make the join string with --server: {text}"
        );
    }
    format!(
        "{server} cannot be reached: {text}. Is it up, does it listen on an address this machine reaches \
         (`berth up --listen 0.0.0.0:7443`), does a firewall let it through?"
    )
}

/// Writes a file that only its owner can read, replacing it atomically.
fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let staged = path.with_extension(format!("{}.new", std::process::id()));
        // Left over from a crash; it may have other permissions.
        let _ = std::fs::remove_file(&staged);
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&staged)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&staged, path)?;
        // The new name is durable only after its directory is synced.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(kube::core::Status { code, message: "no".into(), ..Default::default() }.into())
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        use base64::Engine;
        let explanation = |code, token: &str| explain(&api(code), "https://s", "h2", Some(token));
        let body = general_purpose::URL_SAFE_NO_PAD.encode(r#"{"iat":1,"exp":2}"#);
        assert!(explanation(401, &format!("h.{body}.s")).contains("has run out"));
        assert!(explanation(401, "x").contains("revoked"));
        assert!(explanation(403, "x").contains("berth token create h2"));
        assert!(is_final(&api(401)) && !is_final(&api(503)));
    }

    #[test]
    fn an_answer_without_a_token_takes_the_place_of_none() {
        let answer = |token: &str| -> TokenRequest {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []},
                "status": {"token": token, "expirationTimestamp": "2026-01-01T00:00:00Z"},
            }))
            .expect("an answer")
        };
        assert_eq!(token_in(answer("t")).expect("a token"), "t");
        assert!(token_in(answer("")).is_err() && token_in(TokenRequest::default()).is_err());
    }

    #[test]
    fn a_state_directory_nobody_joined_with_has_no_credential() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(Credential::find(directory.path()).expect("readable").is_none());
    }

    #[test]
    fn a_credential_says_for_which_control_plane_it_is_and_which_token_is_its() {
        let directory = tempfile::tempdir().expect("a directory");
        let join = Join { server: "https://a:1".into(), ca: None, token: "t".into(), host: "h2".into() };
        for token in [TOKEN, OTHER_TOKEN] {
            let config = join::kubeconfig(&join, token);
            std::fs::write(directory.path().join(KUBECONFIG), config).expect("written");
            let found = Credential::find(directory.path()).expect("readable").expect("it is there");
            assert_eq!(found.token, token);
            assert!(found.is_for(&join));
            assert!(!found.is_for(&Join { server: "https://b:1".into(), ..join.clone() }));
        }
    }
}
