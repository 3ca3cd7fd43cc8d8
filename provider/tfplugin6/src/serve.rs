//! The plugin process: from the handshake with Terraform to the exit.
//!
//! ```text
//! environment ─▶ certificate ─▶ listen ─▶ one line on stdout ─▶ serve ─▶ Shutdown ─▶ drain ─▶ exit
//! ```
//!
//! Only that one line is written to stdout: Terraform reads it.

mod handshake;
mod hclog;
mod incoming;
mod listen;
mod plugin;
mod tls;

use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::{
    proto::{
        health::health_server::HealthServer,
        plugin::{
            grpc_broker_server::GrpcBrokerServer, grpc_controller_server::GrpcControllerServer,
            grpc_stdio_server::GrpcStdioServer,
        },
        tfplugin6::provider_server::ProviderServer as ProviderService,
    },
    provider::Provider,
    server::ProviderServer,
};
use handshake::{Handshake, HandshakeError};
use listen::Listener;

/// The largest message in either direction. Terraform's own limit.
const MAX_MESSAGE: usize = 256 << 20;
/// The time requests in progress have after Terraform's Shutdown. Terraform kills a process that is still alive after two
/// seconds.
const DRAIN: Duration = Duration::from_millis(500);
/// The interval at which the process checks whether Terraform still runs.
const PARENT_CHECK: Duration = Duration::from_secs(5);

/// Options of `serve`.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The provider's address: `berth-vms/berth`, as in `required_providers`.
    pub address: String,
    /// Serves without Terraform having started this process: prints the value for `TF_REATTACH_PROVIDERS` and runs until
    /// Ctrl-C. For debuggers.
    pub debug: bool,
}

impl ServeOptions {
    /// Serves the Terraform that started this process.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), debug: false }
    }

    /// Serves without Terraform having started this process: see [`Self::debug`].
    #[must_use]
    pub const fn debug(mut self, debug: bool) -> Self {
        self.debug = debug;
        self
    }

    /// The module name in logs: `terraform-provider-berth`.
    fn module(&self) -> String {
        format!("terraform-provider-{}", self.address.rsplit('/').next().unwrap_or_default())
    }
}

/// The reason the process could not serve.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("cannot make a certificate")]
    Certificate(#[from] tls::CertificateError),
    #[error("cannot listen")]
    Listen(#[source] io::Error),
    #[error("cannot start")]
    Start(#[source] io::Error),
    #[error("cannot print the address for Terraform")]
    Announce(#[source] io::Error),
    #[error("cannot serve")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves a provider until Terraform ends it: the whole of a provider's `main`.
///
/// The provider is created after Terraform has received the address to connect to, so that its construction overlaps with the
/// connection.
///
/// Installs the process's `tracing` subscriber (the log goes to Terraform, at the level of `TF_LOG_PROVIDER` or `TF_LOG`) and
/// its panic hook. Runs the provider on one thread: blocking work belongs in `tokio::task::spawn_blocking`.
pub fn serve<P: Provider>(provider: impl FnOnce() -> P, options: ServeOptions) -> ExitCode {
    hclog::install(&options.module(), |name| std::env::var(name).ok());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&ServeError::Start(error)),
    };
    let served = runtime.block_on(run(provider, &options));
    // A blocking task of the provider must not delay the exit.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &ServeError) -> ExitCode {
    let mut chain = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        chain.push_str(&format!(": {error}"));
        source = error.source();
    }
    // If stderr is closed, there is nowhere to report the error.
    let _ = writeln!(io::stderr(), "{chain}");
    ExitCode::FAILURE
}

async fn run<P: Provider>(provider: impl FnOnce() -> P, options: &ServeOptions) -> Result<(), ServeError> {
    let environment = |name: &str| std::env::var(name).ok();
    let handshake = if options.debug {
        Handshake::for_debugging(environment)
    } else {
        Handshake::from_environment(environment)?
    };
    let identity = handshake.client_certificate.as_deref().map(tls::Identity::for_client).transpose()?;
    let listener = Listener::bind(&handshake).await.map_err(ServeError::Listen)?;
    let shutdown = CancellationToken::new();
    end_with_terraform(options.debug, shutdown.clone());

    let line = if options.debug {
        reattach_instructions(&options.address, &listener)
    } else {
        handshake::line(
            listener.network(),
            listener.address(),
            identity.as_ref().map(tls::Identity::certificate),
        )
    };
    announce(&line).map_err(ServeError::Announce)?;

    let acceptor = identity.map(tls::Identity::into_acceptor);
    let connections = incoming::connections(listener, acceptor, shutdown.clone());
    let serving = router(Arc::new(provider()), &shutdown)
        .serve_with_incoming_shutdown(connections, shutdown.clone().cancelled_owned());
    let overtime = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = overtime => Ok(()),
    }
}

fn router(provider: Arc<dyn Provider>, shutdown: &CancellationToken) -> tonic::transport::server::Router {
    let service = ProviderService::new(ProviderServer::new(provider))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    // With the default windows, a large state takes a round trip per 64 KiB.
    Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .add_service(service)
        .add_service(HealthServer::new(plugin::Health))
        .add_service(GrpcControllerServer::new(plugin::Controller::new(shutdown.clone())))
        .add_service(GrpcStdioServer::new(plugin::Stdio::new(shutdown.clone())))
        .add_service(GrpcBrokerServer::new(plugin::Broker::new(shutdown.clone())))
}

#[allow(clippy::print_stdout, reason = "the one line Terraform waits for on stdout")]
fn announce(line: &str) -> io::Result<()> {
    // In one write: the reader may close the pipe once it has the line.
    let mut stdout = io::stdout().lock();
    stdout.write_all(format!("{line}\n").as_bytes())?;
    stdout.flush()
}

/// The instructions for the user of a debugger.
fn reattach_instructions(address: &str, listener: &Listener) -> String {
    let reattach = serde_json::json!({
        address: {
            "Protocol": "grpc",
            "ProtocolVersion": handshake::PROTOCOL,
            "Pid": std::process::id(),
            "Test": true,
            "Addr": { "Network": listener.network(), "String": listener.address() },
        }
    });
    format!(
        "Provider started. To use it, set this in the environment of Terraform:\n\n\tTF_REATTACH_PROVIDERS='{reattach}'\n"
    )
}

/// Cancels `shutdown` when Terraform has gone away.
///
/// Ctrl-C reaches the whole foreground process group: Terraform decides how to handle it and sends StopProvider, so this
/// process ignores it, except in debug mode. A Terraform that was killed sends nothing: then the parent of this process has
/// changed.
fn end_with_terraform(debug: bool, shutdown: CancellationToken) {
    tokio::spawn(async move {
        let parent = parent();
        let mut interval = tokio::time::interval(PARENT_CHECK);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                interrupted = tokio::signal::ctrl_c() => {
                    if debug || interrupted.is_err() {
                        shutdown.cancel();
                    }
                }
                _ = interval.tick() => {
                    if !debug && self::parent() != parent {
                        tracing::warn!("terraform is gone");
                        shutdown.cancel();
                    }
                }
            }
        }
    });
}

#[cfg(unix)]
fn parent() -> u32 {
    std::os::unix::process::parent_id()
}

#[cfg(not(unix))]
fn parent() -> u32 {
    0
}
