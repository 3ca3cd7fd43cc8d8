//! The server as kube-rs sees it, in process, in one current-thread runtime with paused time.

#[path = "in_process/toy.rs"]
mod toy;

#[path = "in_process/crud.rs"]
mod crud;
#[path = "in_process/machinery.rs"]
mod machinery;
