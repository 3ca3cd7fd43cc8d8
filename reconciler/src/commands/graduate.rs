//! `berth graduate`: moves this site to a Kubernetes cluster, or back.

use std::sync::Arc;

use anyhow::{Context, bail};
use berth_engine::{Identities, SystemClock};
use kube::Config;

use crate::{
    cli::{Connection, GraduateOptions},
    graduate::{self, Destination, Graduation},
    one_connection::client_of,
};

use super::{connect, token};

pub(super) async fn run(options: GraduateOptions) -> anyhow::Result<()> {
    let here = connect::admin(&options.connection, &options.state.state_dir).await?;
    let Some(path) = options.to.clone() else {
        if options.abort && !options.back {
            graduate::abort_source(&client_of(here)?).await?;
            notice!("The move is given up: this control plane is in charge, and takes writes again.");
            notice!("The copied objects are still on the other one, inactive: --to removes them.");
            return Ok(());
        }
        bail!("--to KUBECONFIG: the cluster's administrator's kubeconfig");
    };
    let there = Connection { kubeconfig: Some(path), context: options.to_context.clone() };
    let there = connect::config(&there).await?;
    let (source, target) = if options.back { (there, here) } else { (here, there) };
    let graduation = Graduation {
        from: address(&source),
        to: Destination {
            server: token::server(&target, options.server.as_deref()).await?,
            ca: token::ca(&target),
        },
        masters: client_of(as_master(&target))?,
        source: client_of(source)?,
        target: client_of(target)?,
        back: options.back,
        wait: options.wait.0,
        identities: Identities::random(),
        clock: Arc::new(SystemClock),
    };
    if options.abort {
        Box::pin(graduation.abort()).await?;
        notice!("The move is given up: everything is as before.");
        return Ok(());
    }
    show(&Box::pin(graduation.plan()).await?);
    if options.dry_run {
        return Ok(());
    }
    let done = Box::pin(graduation.run(&mut |step| notice!("- {step}"))).await.context(
        "the move is not done: run it again to go on, or with --abort to give it up (as long as the source has not handed over)",
    )?;
    report(&graduation, &done, &options)
}

fn show(text: &str) {
    text.lines().for_each(|line| notice!("{line}"));
}

fn report(
    graduation: &Graduation,
    done: &graduate::Outcome,
    options: &GraduateOptions,
) -> anyhow::Result<()> {
    show(&graduate::hosts_of(done));
    notice!("The site is on {}.", graduation.to.server);
    if !options.back {
        notice!(
            "Run `berth controllers` there. Use its kubeconfig from now on, in Terraform's provider too. `berth up` on this \
             machine goes on as an agent, and shows hosts that come late the way."
        );
    }
    if done.missing.is_empty() {
        Ok(())
    } else {
        bail!("not every host has followed; run it again to wait for them")
    }
}

/// The same configuration as a member of `system:masters`: a cluster's administrator may impersonate one.
fn as_master(config: &Config) -> Config {
    let mut config = config.clone();
    config.auth_info.impersonate = Some("berth-graduate".to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    config
}

fn address(config: &Config) -> String {
    config.cluster_url.to_string().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::Cli;

    #[test]
    fn what_goes_together_is_said_by_the_command_line() {
        let parses = |arguments: &[&str]| {
            Cli::try_parse_from(["berth", "graduate"].iter().chain(arguments))
                .map_err(|error| error.to_string())
        };
        assert!(parses(&["--to", "k"]).is_ok() && parses(&["--abort"]).is_ok());
        for wrong in [&["--abort", "--dry-run"][..], &["--to-context", "c"]] {
            assert!(parses(wrong).is_err(), "{wrong:?}");
        }
    }
}
