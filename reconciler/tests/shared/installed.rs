//! Control planes for tests that need hundreds of them: each is a copy of one in which the definitions were installed
//! once. Opening a copy takes a tenth of the time.

#[path = "template.rs"]
mod template;

use std::sync::Arc;

use berth_apiserver::{Server, ServerConfig};
use berth_engine::RuntimeClock;
use kube::Client;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::setup;
use template::Template;

/// The files of the original. It stays in memory, since the copies share the expressions that it has compiled.
static INSTALLED: OnceCell<(Template, Server)> = OnceCell::const_new();

/// A control plane with berth's definitions.
pub(crate) struct Copy {
    pub(crate) server: Server,
    /// A client of its administrator.
    pub(crate) admin: Client,
    /// The clock that all components share.
    pub(crate) clock: Arc<RuntimeClock>,
    /// Its database.
    pub(crate) folder: TempDir,
}

/// Opens the next copy.
pub(crate) async fn copy() -> Copy {
    let (original, _) = INSTALLED.get_or_init(make_original).await;
    let (folder, clock) = (template::folder(), setup::clock());
    original.write(folder.path());
    // Another seed than the installation's, whose first uids are taken.
    let config = ServerConfig { clock: clock.clone(), seed: Some(2), ..template::config(folder.path()) };
    let server = Server::open(config).await.expect("the copy opens");
    let admin = Client::new(server.service(), "default");
    Copy { server, admin, clock, folder }
}

async fn make_original() -> (Template, Server) {
    let folder = template::folder();
    let (server, _) = setup::install(template::config(folder.path())).await;
    server.shutdown().await;
    (Template::read(folder.path()), server)
}
