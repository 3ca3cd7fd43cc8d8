//! Serves a state directory over TLS on loopback, to try `kubectl` by hand:
//!
//! ```text
//! cargo run -p berth-apiserver --example serve -- /tmp/control 6443
//! kubectl --kubeconfig /tmp/control/kubeconfig get namespaces
//! ```

use std::path::PathBuf;

use berth_apiserver::{Listener, Server, ServerConfig};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "berth-control".into()));
    let port: u16 = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let server = Server::open(ServerConfig::in_directory(&directory)).await?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let kubeconfig = directory.join("kubeconfig");
    server.write_kubeconfig(&kubeconfig, &format!("https://{}", listener.local_addr()?))?;
    eprintln!("serving; kubeconfig: {}", kubeconfig.display());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        // Without the ability to wait for the signal, the server continues to serve.
        if tokio::signal::ctrl_c().await.is_ok() {
            stopped.cancel();
        }
    });
    server.serve(Listener::Tls(listener), stop).await?;
    server.shutdown().await;
    Ok(())
}
