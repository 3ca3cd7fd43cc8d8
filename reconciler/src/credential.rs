//! A joined host's own credential: got with a join string, kept in its state directory, renewed before it runs out.

use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use berth_api::{SYSTEM_NAMESPACE, manifests::access};
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
    config::{KubeConfigOptions, Kubeconfig},
};
use tracing::{info, warn};

use crate::join::{self, Join, TokenTimes};

/// The kubeconfig of a joined host, in its state directory.
pub const KUBECONFIG: &str = "host.kubeconfig";
/// The token it names; the other one while a host goes from one control plane to another, so that it has a whole
/// credential at every moment.
pub const TOKEN: &str = "host.token";
const OTHER_TOKEN: &str = "host-2.token";
/// How long a host's own token is asked to last: a host that was off for a holiday comes back by itself.
const LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the control plane may take to answer while joining.
const ANSWER: Duration = Duration::from_secs(20);
/// How soon a failed renewal is tried again.
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
    /// The one kept in the directory, if a host has joined with it.
    ///
    /// *Errors:* it is there and cannot be read.
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

    /// Gets a credential with a join string, and keeps it.
    ///
    /// *Errors:* in words for the person who joins the host.
    pub async fn join(directory: &Path, join: &Join) -> anyhow::Result<Self> {
        let known = Self::find(directory)?;
        if let Some(known) = &known
            && known.host != join.host
        {
            bail!(
                "{} belongs to host {}, and the join string is for host {}: a state directory is one host's; \
                 choose another with --state-dir, or ask for a join string for {}",
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

    /// The configuration to talk to the control plane with.
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

    /// Asks once whether the credential still counts, so that one that was revoked is told at the start.
    ///
    /// *Errors:* it does not, in words for people. A control plane that does not answer is no error: it is waited for.
    pub async fn check(&self, client: &Client) -> anyhow::Result<()> {
        let asked = tokio::time::timeout(ANSWER, request(client, &self.host, LIFE)).await;
        match asked {
            Ok(Ok(token)) => write_private(&self.directory.join(self.token), token.as_bytes()),
            Ok(Err(error)) if is_final(&error) => {
                let token = std::fs::read_to_string(self.directory.join(self.token)).unwrap_or_default();
                bail!(explain(&error, "the control plane", &self.host, Some(&token)))
            }
            Ok(Err(error)) => {
                warn!(error = %chain(&error), "the control plane does not answer yet");
                Ok(())
            }
            Err(_) => {
                warn!("the control plane does not answer yet");
                Ok(())
            }
        }
    }

    /// Renews the token at half its life, for ever. What a client reads the token from is replaced in one step.
    pub async fn keep(&self, client: &Client) {
        loop {
            tokio::time::sleep(self.wait()).await;
            match request(client, &self.host, LIFE).await {
                Ok(token) => match write_private(&self.directory.join(self.token), token.as_bytes()) {
                    Ok(()) => info!("renewed this host's token"),
                    Err(error) => warn!(error = format!("{error:#}"), "this host's token could not be kept"),
                },
                Err(error) => warn!(error = %chain(&error), "this host's token could not be renewed yet"),
            }
        }
    }

    fn wait(&self) -> Duration {
        let token = std::fs::read_to_string(self.directory.join(self.token)).unwrap_or_default();
        let Some(times) = TokenTimes::of(&token) else { return TRY_AGAIN };
        let left = times.renew_at().duration_since(Timestamp::now());
        // In pieces of a day at most: clocks jump, and a suspended machine sleeps longer than it thinks.
        let piece = left.clamp(SignedDuration::from_secs(60), SignedDuration::from_hours(24));
        Duration::try_from(piece).unwrap_or(TRY_AGAIN)
    }
}

async fn config_of(join: &Join) -> anyhow::Result<Config> {
    let mut text: serde_json::Value =
        serde_saphyr::from_str(&join::kubeconfig(join, TOKEN)).context("the join string")?;
    text["users"][0]["user"] = serde_json::json!({"token": join.token});
    let kubeconfig: Kubeconfig = serde_json::from_value(text).context("the join string")?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.context("using the join string")
}

/// A new token for the host, asked for with `client`'s credential.
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
    let made = accounts.create_token_request(&name, &PostParams::default(), &request).await?;
    Ok(made.status.and_then(|status| status.token).unwrap_or_default())
}

fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
}

/// The error with all its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// What went wrong, and what to do about it.
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
    let text = chain(error);
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

/// Writes a file only its owner can read, replacing it in one step.
fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let staged = path.with_extension(format!("{}.new", std::process::id()));
        // Left over from a crash; it may have other permissions.
        let _ = std::fs::remove_file(&staged);
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&staged)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&staged, path)
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
        let told = |code, token: &str| explain(&api(code), "https://s", "h2", Some(token));
        let body = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(r#"{"iat":1,"exp":2}"#);
        assert!(told(401, &format!("h.{body}.s")).contains("has run out"));
        assert!(told(401, "x").contains("revoked"));
        assert!(told(403, "x").contains("berth token create h2"));
        assert!(is_final(&api(401)) && !is_final(&api(503)));
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
