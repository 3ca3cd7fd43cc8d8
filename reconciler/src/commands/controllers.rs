//! `berth controllers`: the controllers on a Kubernetes control plane, one leader at a time.

use std::sync::Arc;

use anyhow::Context;
use berth_controllers as controllers;
use tokio::net::TcpListener;

use crate::{
    cli::ControllersOptions,
    controllers_metrics,
    health::{self, Health},
    install, leader, site,
};

use super::{connect, signals};

pub(super) async fn run(options: ControllersOptions) -> anyhow::Result<()> {
    let cancel = signals::cancel_on_signal()?;
    let tenants = options.tenants.networks()?;
    let health = Arc::new(Health::default());
    if let Some(at) = options.health {
        let listener = TcpListener::bind(at).await;
        let listener = listener.with_context(|| format!("listening for probes on {at} (--health)"))?;
        tokio::spawn(health::serve(listener, health::probes(health.clone())));
    }
    let metrics = controllers::Metrics::default();
    if let Some(at) = options.metrics {
        let listener = TcpListener::bind(at).await;
        let listener = listener.with_context(|| format!("listening for metrics on {at} (--metrics)"))?;
        tokio::spawn(health::serve(listener, controllers_metrics::answers(metrics.clone())));
    }
    let client = connect::client(&options.connection, &options.api.limits()).await?;
    if let Some(public) = options.public_cidr {
        install::defaults(&client, &public.to_string()).await?;
    }
    let config = controllers::Config {
        placement: options.placement.placement.into(),
        tenants,
        metrics: metrics.clone(),
        ..controllers::Config::new()
    };
    let identity = format!("{}-{}", nix::unistd::gethostname()?.to_string_lossy(), config.identities.hex(8));
    let clock = config.clock.clone();
    Box::pin(leader::run(client.clone(), &identity, clock, cancel, &health, |leading| {
        let shown = metrics.leading();
        let decide = |leading| controllers::run(client.clone(), config.clone(), leading);
        let in_charge = site::while_in_charge(client.clone(), || None, leading, decide);
        async move {
            let _shown = shown;
            Box::pin(in_charge).await;
        }
    }))
    .await;
    Ok(())
}
