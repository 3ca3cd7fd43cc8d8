//! The connection over which a running guest goes to another host, see [`berth_api::live_move`].

use berth_api::Host;
use berth_api::image_copy::query;
use berth_api::live_move::{audience, path};
use berth_console_client::{Connection, connect};
use berth_host::{RemoteError, SourceHost};

use super::{Copies, explained};
use crate::key::ObjectName;
use crate::typed_api::TypedApi;

impl Copies {
    /// Connects to the host that a VM moves to. `id`: of the attempt.
    pub(crate) async fn live_move(
        &self,
        to: &str,
        vm: &ObjectName,
        id: &str,
    ) -> Result<Connection, RemoteError> {
        let none = || RemoteError::Unreachable(format!("host {to} reports no server that others reach"));
        let host = self.host(to).await?.ok_or_else(none)?;
        let server = host.status.and_then(|status| status.server).ok_or_else(none)?;
        let audience = audience(&vm.namespace, &vm.name, id);
        let ticket = self.ticket(&audience).await?;
        let at = SourceHost {
            name: to.to_owned(),
            address: server.address.clone(),
            certificate_sha256: server.certificate_sha256.clone(),
            path: path(&vm.namespace, &vm.name, id),
            audience,
        };
        let path = format!("{}?{}", at.path, query(&self.own, 0));
        connect(&server, &path, &ticket).await.map_err(|error| explained(&at, error))
    }

    /// Whether an administrator has declared this host lost: nothing runs there any more.
    pub(crate) async fn is_lost(&self, host: &str) -> bool {
        matches!(self.host(host).await, Ok(Some(host)) if host.spec.fenced)
    }

    pub(super) async fn host(&self, name: &str) -> Result<Option<Host>, RemoteError> {
        let hosts: TypedApi<Host> = TypedApi::all(self.client.clone());
        let unreachable = |error| RemoteError::Unreachable(format!("read host {name}: {error}"));
        hosts.get_opt(name).await.map_err(unreachable)
    }
}
