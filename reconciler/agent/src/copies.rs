//! The files of images, and of volumes, on other hosts: the client's side of a copy, see [`berth_api::image_copy`].
//!
//! ```text
//!  ticket of this host's account ─▶ the other host's server, by its certificate ─▶ the size of the file ─▶ its bytes
//! ```
//!
//! A ticket opens one connection: each attempt has its own.

mod firmware_state;
mod holders;
mod live_moves;
mod volumes;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::SYSTEM_NAMESPACE;
use berth_api::console::COPY_ACCOUNT;
use berth_api::image_copy::{CopyMessage, MAX_LINE, query};
use berth_api::manifests::access::account_name;
use berth_api::vm::ConsoleAddress;
use berth_console_client::{ConnectError, connect};
use berth_host::{ImageFile, RemoteError, RemoteImage, SourceHost};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::timeout;

pub(crate) use volumes::VolumeAt;

/// The shortest lifetime in seconds that Kubernetes gives a token. Hosts accept a ticket for one minute only.
const TICKET_SECONDS: i64 = 600;
/// The time for the other host's first line.
const ANSWER: Duration = Duration::from_secs(30);
/// The bytes that are read from the connection at a time.
const BUFFER: usize = 256 << 10;

/// Opens files of images on other hosts.
#[derive(Clone)]
pub(crate) struct Copies {
    client: Client,
    /// The name of this host.
    own: String,
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Copies {
    pub(crate) fn new(client: Client, own: &str) -> Self {
        Self { client, own: own.to_owned() }
    }

    /// Returns the file that this source names.
    pub(crate) fn file(&self, at: &SourceHost) -> CopiedFile {
        CopiedFile { copies: self.clone(), at: at.clone() }
    }

    /// Opens the file on this host.
    async fn open(&self, at: &SourceHost, offset: u64) -> Result<ImageFile, RemoteError> {
        let ticket = self.ticket(&at.audience).await?;
        let server =
            ConsoleAddress { address: at.address.clone(), certificate_sha256: at.certificate_sha256.clone() };
        let path = format!("{}?{}", at.path, query(&self.own, offset));
        let connection = connect(&server, &path, &ticket).await.map_err(|error| explained(at, error))?;
        let mut bytes = BufReader::with_capacity(BUFFER, connection);
        let size = size(&mut bytes).await?;
        Ok(ImageFile { size, bytes: Box::new(bytes) })
    }

    /// Requests a ticket: a token of this host's own account, or of the one for hosts that have none.
    async fn ticket(&self, audience: &str) -> Result<String, RemoteError> {
        let own = account_name(&self.own);
        let token = match self.token(&own, audience).await {
            Err(kube::Error::Api(status)) if status.code == 404 => self.token(COPY_ACCOUNT, audience).await,
            other => other,
        };
        let refused = |why: &dyn fmt::Display| {
            RemoteError::Refused(format!("the control plane gives this host no ticket for it: {why}"))
        };
        token.map_err(|error| refused(&error))?.ok_or_else(|| refused(&"the answer has no token"))
    }

    async fn token(&self, account: &str, audience: &str) -> kube::Result<Option<String>> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let spec = TokenRequestSpec {
            audiences: Some(vec![audience.to_owned()]),
            expiration_seconds: Some(TICKET_SECONDS),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        Ok(made.status.and_then(|status| status.token).filter(|token| !token.is_empty()))
    }
}

/// The file of an image on another host.
#[derive(Debug)]
pub(crate) struct CopiedFile {
    copies: Copies,
    at: SourceHost,
}

#[async_trait]
impl RemoteImage for CopiedFile {
    async fn open(&self, offset: u64) -> Result<ImageFile, RemoteError> {
        // One that ended early continues from the host of the image: the other one may end it again.
        let nearer = if offset == 0 { self.copies.nearer(&self.at).await } else { Vec::new() };
        for at in nearer {
            match self.copies.open(&at, offset).await {
                Ok(file) => {
                    tracing::info!(
                        host = at.name,
                        path = at.path,
                        "an image is copied from another host that has it"
                    );
                    return Ok(file);
                }
                Err(error) => {
                    tracing::info!(
                        host = at.name,
                        path = at.path,
                        ?error,
                        "an image is not copied from this host"
                    );
                }
            }
        }
        self.copies.open(&self.at, offset).await
    }
}

/// Names the host and its address, and what a person can do.
fn explained(at: &SourceHost, error: ConnectError) -> RemoteError {
    let SourceHost { name, address, .. } = at;
    match error {
        ConnectError::Refused { .. } => RemoteError::Refused(format!("host {name} at {address}: {error}")),
        ConnectError::Down(why) => RemoteError::Unreachable(format!(
            "host {name} does not answer at {address} ({why}): start its agent, and open this TCP port between the hosts"
        )),
        ConnectError::Broken(_) => RemoteError::Unreachable(format!(
            "host {name} at {address}: {error}: the agent of the host has to be what answers there"
        )),
    }
}

/// Reads the line with the number of bytes of the file.
async fn size(from_host: &mut (impl AsyncBufRead + Unpin)) -> Result<u64, RemoteError> {
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    let read = timeout(ANSWER, from_host.take(most).read_until(b'\n', &mut line)).await;
    let unreachable = |why: &str| RemoteError::Unreachable(why.to_owned());
    match read {
        Err(_) => return Err(unreachable("the host does not answer in time")),
        Ok(Err(error)) => return Err(unreachable(&error.to_string())),
        Ok(Ok(0)) => return Err(unreachable("the host closed the connection")),
        Ok(Ok(_)) => {}
    }
    match serde_json::from_slice(&line) {
        Ok(CopyMessage::Size(size)) => Ok(size),
        Err(_) => {
            Err(RemoteError::Refused("the host sent a message that is not known: is it newer?".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_fails_names_the_host_and_its_address_and_what_to_do() {
        let at = SourceHost {
            name: "h1".to_owned(),
            address: "192.0.2.1:7444".to_owned(),
            certificate_sha256: "ab".to_owned(),
            path: String::new(),
            audience: String::new(),
        };
        let RemoteError::Unreachable(text) = explained(&at, ConnectError::Down("no route".to_owned())) else {
            panic!("it is tried again")
        };
        assert_eq!(
            text,
            "host h1 does not answer at 192.0.2.1:7444 (no route): start its agent, and open this TCP port between the hosts"
        );
        let refused = ConnectError::Refused { code: 403, text: "not needed".to_owned() };
        let refused = explained(&at, refused);
        assert_eq!(
            refused,
            RemoteError::Refused("host h1 at 192.0.2.1:7444: refused (403): not needed".to_owned())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_size_comes_in_time_as_one_short_line() {
        let mut good = b"{\"size\":7}\nabc".as_slice();
        assert_eq!(size(&mut good).await, Ok(7));
        assert_eq!(good, b"abc");
        let endless = vec![b'x'; 2 * MAX_LINE];
        assert!(matches!(size(&mut endless.as_slice()).await, Err(RemoteError::Refused(_))));
        assert!(matches!(size(&mut b"{}\n".as_slice()).await, Err(RemoteError::Refused(_))));
        assert!(matches!(size(&mut b"".as_slice()).await, Err(RemoteError::Unreachable(_))));
        let (near, _far) = tokio::io::duplex(64);
        let silent = size(&mut BufReader::new(near)).await;
        assert_eq!(silent, Err(RemoteError::Unreachable("the host does not answer in time".to_owned())));
    }
}
