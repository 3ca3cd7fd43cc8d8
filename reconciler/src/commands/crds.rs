//! `berth crds`: prints the objects that a Kubernetes control plane needs to serve berth's kinds, and the Deployment of the controllers.

use std::{ffi::OsString, io::Write};

use anyhow::Context;
use berth_api::manifests;
use clap::Parser as _;

use crate::{
    cli::{Cli, CrdsOptions},
    deployment::{Deployment, objects},
};

use super::service::options_of_variables;

/// One that decides, and one that takes over.
const REPLICAS: u8 = 2;
/// The resources that a node keeps for each of them.
const REQUESTS: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "128Mi")];

pub(super) fn run(options: &CrdsOptions) -> anyhow::Result<()> {
    let mut all = manifests::all();
    if let Some(public) = options.defaults {
        all.extend(manifests::defaults(&public.to_string()));
    }
    if let Some(image) = &options.controllers {
        all.extend(objects(&deployment(image, options)?)?);
    }
    let mut out = std::io::stdout().lock();
    for object in all {
        let text = serde_saphyr::to_string(&object).context("writing YAML")?;
        writeln!(out, "---\n{}", text.trim_end()).context("printing")?;
    }
    Ok(())
}

/// Returns the Deployment for these options.
///
/// *Errors:* the controllers would refuse theirs.
fn deployment(image: &str, options: &CrdsOptions) -> anyhow::Result<Deployment> {
    let (arguments, environment) = (options.arguments.clone(), options.environment.clone());
    let mut command: Vec<OsString> = vec!["berth".into(), "controllers".into()];
    command.extend(arguments.iter().map(OsString::from));
    let variables = options_of_variables("controllers", &environment, &command)?;
    command.extend(variables.into_iter().map(OsString::from));
    // An error is shown now, and not only in the log of a pod that does not start.
    Cli::try_parse_from(command).context("the options of `berth controllers`")?;
    let mut requests = options.requests.clone();
    if requests.is_empty() {
        requests = REQUESTS.map(|(name, quantity)| (name.to_owned(), quantity.to_owned())).into();
    }
    Ok(Deployment {
        image: image.to_owned(),
        replicas: options.replicas.unwrap_or(REPLICAS),
        arguments,
        environment,
        node_selector: options.node_selector.clone(),
        tolerations: options.tolerations.clone(),
        requests,
        limits: options.limits.clone(),
        pull_secrets: options.pull_secrets.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;

    fn of(arguments: &[&str]) -> Result<Deployment, String> {
        let line = ["berth", "crds"].iter().chain(arguments);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Crds(options) = cli.command else { return Err("another command".to_owned()) };
        let image = options.controllers.clone().ok_or("no image")?;
        deployment(&image, &options).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn options_of_the_deployment_have_defaults_and_need_an_image() {
        let plain = of(&["--controllers", "a/berth:1"]).expect("valid");
        assert_eq!((plain.replicas, plain.requests.len(), plain.limits.len()), (2, 2, 0));
        let other = of(&[
            "--controllers=a/berth:1",
            "--replicas=3",
            "--request=cpu=1,memory=1Gi",
            "--env=BERTH_API_QPS=50",
            "--",
            "--placement",
            "pack",
        ])
        .expect("valid");
        assert_eq!((other.replicas, other.requests.len(), other.arguments.len()), (3, 2, 2));
        assert!(of(&["--replicas=3"]).expect_err("refused").contains("--controllers"));
    }

    #[test]
    fn options_that_the_controllers_do_not_take_are_refused() {
        let image = "--controllers=a/berth:1";
        for (arguments, expected) in [
            (vec![image, "--", "--listen", "0.0.0.0:1"], "the options of `berth controllers`"),
            (vec![image, "--env=BERTH_API_QPS=many"], "--api-qps"),
            (vec![image, "--env=BERTH_JOIN=x"], "has no option with this variable"),
            (vec![image, "--request=gpu=1"], "is no resource"),
        ] {
            let refused = of(&arguments).expect_err(expected);
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
