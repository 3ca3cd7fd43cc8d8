//! The firmware state of VMs on other hosts: the client's side, see [`berth_api::firmware_copy`].

use std::time::Duration;

use berth_api::firmware_copy::{FirmwareArchive, MAX_ARCHIVE, MAX_LINE, audience, path};
use berth_api::image_copy::query;
use berth_api::{ConditionType, Host, condition};
use berth_console_client::connect;
use berth_host::{RemoteError, SourceHost};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::timeout;

use super::{BUFFER, Copies, explained};
use crate::key::ObjectName;

/// The time for all of it. The other host reads it before it answers.
const LIMIT: Duration = Duration::from_secs(60);

impl Copies {
    /// Fetches the archive of the firmware state of a VM from the host that it has left.
    pub(crate) async fn firmware_state(
        &self,
        from: &str,
        vm: &ObjectName,
        instance: &str,
    ) -> Result<Vec<u8>, RemoteError> {
        let fetched = timeout(LIMIT, self.fetch_firmware_state(from, vm, instance)).await;
        let late = || Err(RemoteError::Unreachable(format!("host {from} does not answer in time")));
        fetched.unwrap_or_else(|_| late())
    }

    /// Whether nothing is on this host any more: it was declared lost, or is deleted.
    pub(crate) async fn is_gone(&self, host: &str) -> Result<bool, RemoteError> {
        Ok(self.host(host).await?.is_none_or(|host| host.spec.fenced))
    }

    async fn fetch_firmware_state(
        &self,
        from: &str,
        vm: &ObjectName,
        instance: &str,
    ) -> Result<Vec<u8>, RemoteError> {
        let none = || RemoteError::Unreachable(format!("host {from} reports no server that others reach"));
        let host = self.host(from).await?.ok_or_else(none)?;
        if is_silent(&host) {
            // Nothing is fetched from it: without the control plane it verifies no ticket. An attempt would keep a worker for the time of a connection.
            return Err(RemoteError::Unreachable(format!("host {from} does not report")));
        }
        let server = host.status.and_then(|status| status.server).ok_or_else(none)?;
        let audience = audience(&vm.namespace, &vm.name, instance);
        let ticket = self.ticket(&audience).await?;
        let at = SourceHost {
            name: from.to_owned(),
            address: server.address.clone(),
            certificate_sha256: server.certificate_sha256.clone(),
            path: path(&vm.namespace, &vm.name, instance),
            audience,
        };
        let path = format!("{}?{}", at.path, query(&self.own, 0));
        let connection = connect(&server, &path, &ticket).await.map_err(|error| explained(&at, error))?;
        read(&mut BufReader::with_capacity(BUFFER, connection)).await
    }
}

/// Whether the agent of a host has not renewed its lease.
fn is_silent(host: &Host) -> bool {
    let conditions = host.status.as_ref().map(|status| &status.conditions);
    let ready = conditions.and_then(|all| condition::find(all, ConditionType::Ready.as_str()));
    ready.is_some_and(|ready| ready.status == "Unknown")
}

/// Reads the line and the archive.
async fn read(from_host: &mut (impl AsyncBufRead + Unpin)) -> Result<Vec<u8>, RemoteError> {
    let broken = |why: &dyn std::fmt::Display| RemoteError::Unreachable(why.to_string());
    let refused = |why: &str| RemoteError::Refused(why.to_owned());
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    let mut limited = (&mut *from_host).take(most);
    if limited.read_until(b'\n', &mut line).await.map_err(|error| broken(&error))? == 0 {
        return Err(broken(&"the host closed the connection"));
    }
    let FirmwareArchive { length, sha256 } = serde_json::from_slice(&line)
        .map_err(|_| refused("the host sent a message that is not known: is it newer?"))?;
    if length > MAX_ARCHIVE {
        return Err(refused("the host has a firmware state of more than 16 MiB"));
    }
    let mut archive = vec![0; length];
    from_host.read_exact(&mut archive).await.map_err(|error| broken(&error))?;
    let found: String = Sha256::digest(&archive).iter().map(|byte| format!("{byte:02x}")).collect();
    match found == sha256 {
        true => Ok(archive),
        false => Err(broken(&"the firmware state has another checksum than it was sent with")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sent(length: usize, sha256: &str, archive: &[u8]) -> Vec<u8> {
        let line = FirmwareArchive { length, sha256: sha256.to_owned() };
        let mut bytes = serde_json::to_vec(&line).expect("JSON");
        bytes.push(b'\n');
        bytes.extend_from_slice(archive);
        bytes
    }

    #[test]
    fn a_host_whose_lease_is_not_renewed_is_not_asked() {
        let host = |ready: &str| -> Host {
            let condition = json!({"type": "Ready", "status": ready, "reason": "HostSilent", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            serde_json::from_value(json!({
                "metadata": {"name": "a"}, "spec": {}, "status": {"conditions": [condition]},
            }))
            .expect("a Host")
        };
        assert!(is_silent(&host("Unknown")) && !is_silent(&host("True")) && !is_silent(&host("False")));
    }

    #[tokio::test]
    async fn an_archive_counts_if_it_is_whole_and_has_its_checksum() {
        // printf abc | sha256sum
        let good = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(read(&mut sent(3, good, b"abc").as_slice()).await, Ok(b"abc".to_vec()));
        let broken = [sent(3, good, b"abd"), sent(3, good, b"ab"), Vec::new()];
        for bytes in broken {
            let read = read(&mut bytes.as_slice()).await;
            assert!(matches!(read, Err(RemoteError::Unreachable(_))), "it is fetched again: {read:?}");
        }
        for bytes in [sent(MAX_ARCHIVE + 1, good, b"abc"), b"{}\n".to_vec(), vec![b'x'; 2 * MAX_LINE]] {
            assert!(matches!(read(&mut bytes.as_slice()).await, Err(RemoteError::Refused(_))));
        }
    }
}
