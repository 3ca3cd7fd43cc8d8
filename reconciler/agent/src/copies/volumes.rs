//! The files of volumes on other hosts: the client's side of a copy, see [`berth_api::volume_copy`].

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::Host;
use berth_api::image_copy::query;
use berth_api::volume_copy::{MAX_LINE, VolumeFile, VolumeMessage, audience, path};
use berth_console_client::connect;
use berth_host::{
    CopiedFile, CopiedPart, RemoteError, RemoteParts, RemoteVolume, RemoteVolumeFile, SourceHost,
};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::timeout;

use super::{BUFFER, Copies, explained};
use crate::typed_api::TypedApi;

/// The time for the next line, and again for the bytes that follow it: 4 MiB at most.
const STALLED: Duration = Duration::from_secs(60);

/// The volume of a Disk on another host.
#[derive(Clone, Debug)]
pub(crate) struct VolumeAt {
    pub(crate) host: String,
    pub(crate) namespace: String,
    pub(crate) disk: String,
    pub(crate) volume: String,
}

/// The file of a volume on another host.
#[derive(Debug)]
pub(crate) struct CopiedVolume {
    copies: Copies,
    at: VolumeAt,
}

impl Copies {
    /// Returns the file of this volume.
    pub(crate) fn volume(&self, at: &VolumeAt) -> CopiedVolume {
        CopiedVolume { copies: self.clone(), at: at.clone() }
    }

    /// Returns the server of a host as it is now: it may have another address since the copy began.
    async fn server(&self, at: &VolumeAt) -> Result<SourceHost, RemoteError> {
        let hosts: TypedApi<Host> = TypedApi::all(self.client.clone());
        let host = hosts.get_opt(&at.host).await;
        let host =
            host.map_err(|error| RemoteError::Unreachable(format!("read host {}: {error}", at.host)))?;
        let server = host.and_then(|host| host.status).and_then(|status| status.server);
        let none =
            || RemoteError::Unreachable(format!("host {} reports no server that others reach", at.host));
        let server = server.ok_or_else(none)?;
        Ok(SourceHost {
            name: at.host.clone(),
            address: server.address,
            certificate_sha256: server.certificate_sha256,
            path: path(&at.namespace, &at.disk, &at.volume),
            audience: audience(&at.namespace, &at.disk, &at.volume),
        })
    }
}

#[async_trait]
impl RemoteVolume for CopiedVolume {
    async fn open(&self, offset: u64) -> Result<RemoteVolumeFile, RemoteError> {
        let server = self.copies.server(&self.at).await?;
        let ticket = self.copies.ticket(&server.audience).await?;
        let address = berth_api::vm::ConsoleAddress {
            address: server.address.clone(),
            certificate_sha256: server.certificate_sha256.clone(),
        };
        let path = format!("{}?{}", server.path, query(&self.copies.own, offset));
        let connection =
            connect(&address, &path, &ticket).await.map_err(|error| explained(&server, error))?;
        let mut stream = BufReader::with_capacity(BUFFER, connection);
        let VolumeMessage::File(VolumeFile { length, taken, base, tag }) = message(&mut stream).await? else {
            return Err(unknown());
        };
        let about = CopiedFile { length, taken, base, tag };
        Ok(RemoteVolumeFile { about, parts: Box::new(Parts { stream, at: offset, length }) })
    }
}

/// The parts that follow on a connection.
struct Parts<S> {
    stream: S,
    /// The end of the part before.
    at: u64,
    /// The length of the file.
    length: u64,
}

impl<S> fmt::Debug for Parts<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("at", &self.at).finish_non_exhaustive()
    }
}

#[async_trait]
impl<S: AsyncBufRead + Send + Unpin> RemoteParts for Parts<S> {
    async fn next(&mut self) -> Result<Option<CopiedPart>, RemoteError> {
        let part = match message(&mut self.stream).await? {
            VolumeMessage::End => return Ok(None),
            VolumeMessage::Part(part) if part.is_within(self.at, self.length) => part,
            VolumeMessage::Part(_) | VolumeMessage::File(_) => return Err(unknown()),
        };
        let mut bytes = vec![0; usize::try_from(part.length).unwrap_or_default()];
        let read = timeout(STALLED, self.stream.read_exact(&mut bytes)).await;
        read.map_err(|_| cut("nothing came in time"))?.map_err(|error| cut(&error.to_string()))?;
        let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if found != part.sha256 {
            return Err(cut("a part has another checksum than it was sent with"));
        }
        self.at = part.offset.saturating_add(u64::from(part.length));
        Ok(Some(CopiedPart { offset: part.offset, bytes }))
    }
}

/// Reads a line.
async fn message(from_host: &mut (impl AsyncBufRead + Unpin)) -> Result<VolumeMessage, RemoteError> {
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    let read = timeout(STALLED, from_host.take(most).read_until(b'\n', &mut line)).await;
    match read {
        Err(_) => return Err(cut("nothing came in time")),
        Ok(Err(error)) => return Err(cut(&error.to_string())),
        Ok(Ok(0)) => return Err(cut("the host closed the connection")),
        Ok(Ok(_)) => {}
    }
    match serde_json::from_slice(&line) {
        Ok(message) => Ok(message),
        Err(_) if !line.ends_with(b"\n") && line.len() < MAX_LINE => {
            Err(cut("the host closed the connection"))
        }
        Err(_) => Err(unknown()),
    }
}

fn cut(why: &str) -> RemoteError {
    RemoteError::Unreachable(why.to_owned())
}

fn unknown() -> RemoteError {
    RemoteError::Refused("the host sent a message that is not known: is it newer?".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(parts: &[(u64, &[u8], &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (offset, data, sha256) in parts {
            let line = format!(
                "{{\"part\":{{\"offset\":{offset},\"length\":{},\"sha256\":\"{sha256}\"}}}}\n",
                data.len()
            );
            bytes.extend(line.bytes());
            bytes.extend(*data);
        }
        bytes
    }

    fn sha256(data: &[u8]) -> String {
        Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn parts_are_verified_and_a_copy_without_an_end_is_not_whole() {
        let right = sha256(b"abc");
        let mut all = sent(&[(0, b"abc", &right), (5, b"abc", &right)]);
        all.extend(b"\"end\"\n");
        let mut parts = Parts { stream: all.as_slice(), at: 0, length: 8 };
        for offset in [0, 5] {
            let part = CopiedPart { offset, bytes: b"abc".to_vec() };
            assert_eq!(parts.next().await, Ok(Some(part)));
        }
        assert_eq!(parts.next().await, Ok(None));
        assert_eq!(parts.next().await, Err(cut("the host closed the connection")));
        for (wrong, is_final) in [
            (sent(&[(0, b"abc", "ab")]), false),
            (sent(&[(6, b"abc", &right)]), true),
            (b"{}\n".to_vec(), true),
            (b"{\"part\":".to_vec(), false),
            (vec![b'x'; 2 * MAX_LINE], true),
        ] {
            let mut parts = Parts { stream: wrong.as_slice(), at: 0, length: 8 };
            let error = parts.next().await.expect_err("refused");
            assert_eq!(matches!(error, RemoteError::Refused(_)), is_final, "{error:?}");
        }
        let (near, _far) = tokio::io::duplex(64);
        let mut silent = Parts { stream: BufReader::new(near), at: 0, length: 8 };
        assert_eq!(silent.next().await, Err(cut("nothing came in time")));
    }
}
