//! The whole server: with kube-rs in process and paused time, with HTTP clients, and on disk with restarts,
//! `kill -9`, TLS and the real `kubectl`.

#[path = "server/access.rs"]
mod access;
#[path = "server/audit.rs"]
mod audit;
#[path = "server/backups.rs"]
mod backups;
#[path = "server/bodies.rs"]
mod bodies;
#[path = "server/client.rs"]
mod client;
#[path = "server/crud.rs"]
mod crud;
#[path = "server/definition.rs"]
mod definition;
#[path = "server/history.rs"]
mod history;
#[path = "server/http.rs"]
mod http_behaviour;
#[path = "server/kube_rs.rs"]
mod kube_rs;
#[path = "server/kubectl.rs"]
mod kubectl;
#[path = "server/machinery.rs"]
mod machinery;
#[path = "server/restart.rs"]
mod restart;
#[path = "server/shares.rs"]
mod shares;
#[path = "server/sockets.rs"]
mod sockets;
#[path = "server/tokens.rs"]
mod tokens;
#[path = "server/toy.rs"]
mod toy;
#[path = "server/watching.rs"]
mod watching;
