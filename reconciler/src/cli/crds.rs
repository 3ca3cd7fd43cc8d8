//! The options of `berth crds`.

use clap::Args;
use ipnet::Ipv4Net;

use super::service::variable;

/// `berth crds`
#[derive(Args, Debug)]
pub struct CrdsOptions {
    /// Adds the StoragePool `default`, and the IPPool `default` with this range.
    #[arg(long, value_name = "PUBLIC_CIDR")]
    pub defaults: Option<Ipv4Net>,
    /// Adds a Deployment of `berth controllers` in the namespace berth-system, with its ServiceAccount and that account's binding to
    /// the ClusterRole berth-operator. The image's entry point is `berth`.
    #[arg(long, value_name = "IMAGE")]
    pub controllers: Option<String>,
    /// How many controllers there are, 1 to 9: one of them decides, and another one takes over when it ends. Default: 2.
    #[arg(long, requires = "controllers", value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub replicas: Option<u8>,
    /// A variable of their environment: `--env HTTPS_PROXY=http://proxy:3128`. Can be given several times. Every reader of the Deployment
    /// sees it: give no secret.
    #[arg(long = "env", requires = "controllers", value_name = "NAME=VALUE", value_parser = variable)]
    pub environment: Vec<(String, String)>,
    /// A label of the nodes that they run on: `--node-selector kubernetes.io/arch=amd64`. Can be given several times.
    #[arg(long = "node-selector", requires = "controllers", value_name = "KEY=VALUE", value_parser = super::agent::label)]
    pub node_selector: Vec<(String, String)>,
    /// A taint of nodes that they may run on all the same: `--toleration node-role.kubernetes.io/control-plane`. Can be given several
    /// times.
    #[arg(long = "toleration", requires = "controllers", value_name = "KEY[=VALUE][:EFFECT]", value_parser = toleration)]
    pub tolerations: Vec<Toleration>,
    /// Resources that the node keeps for each of them: `--request cpu=100m,memory=256Mi`. Default: cpu=100m,memory=128Mi.
    #[arg(
        long = "request",
        requires = "controllers",
        value_name = "RESOURCE=QUANTITY",
        value_delimiter = ',',
        value_parser = resource
    )]
    pub requests: Vec<(String, String)>,
    /// Resources that each of them may use at most: `--limit memory=1Gi`. Default: none.
    #[arg(
        long = "limit",
        requires = "controllers",
        value_name = "RESOURCE=QUANTITY",
        value_delimiter = ',',
        value_parser = resource
    )]
    pub limits: Vec<(String, String)>,
    /// The Secret in berth-system with the credentials of the image's registry. Can be given several times.
    #[arg(long = "image-pull-secret", requires = "controllers", value_name = "SECRET")]
    pub pull_secrets: Vec<String>,
    /// Options of `berth controllers`, after `--`: `berth crds --controllers IMAGE -- --placement pack`.
    #[arg(last = true, requires = "controllers", value_name = "OPTION")]
    pub arguments: Vec<String>,
}

/// A taint that is tolerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    pub key: String,
    /// None: any value.
    pub value: Option<String>,
    /// None: every effect.
    pub effect: Option<String>,
}

/// The effects of taints.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// The resources of a container that can be requested and limited here.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

fn toleration(text: &str) -> Result<Toleration, String> {
    let (taint, effect) = match text.split_once(':') {
        Some((taint, effect)) => (taint, Some(effect.to_owned())),
        None => (text, None),
    };
    if let Some(effect) = effect.as_deref().filter(|effect| !EFFECTS.contains(effect)) {
        return Err(format!("{effect:?} is no effect of a taint: one of {}", EFFECTS.join(", ")));
    }
    let (key, value) = match taint.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (taint, None),
    };
    if key.is_empty() {
        return Err(format!("{text:?} names no taint: write KEY, KEY=VALUE or KEY:EFFECT"));
    }
    Ok(Toleration { key: key.to_owned(), value, effect })
}

fn resource(text: &str) -> Result<(String, String), String> {
    let (name, quantity) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not RESOURCE=QUANTITY"))?;
    if !RESOURCES.contains(&name) {
        return Err(format!("{name:?} is no resource: one of {}", RESOURCES.join(", ")));
    }
    let is_quantity = quantity.len() <= 32
        && quantity.starts_with(|first: char| first.is_ascii_digit())
        && quantity.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
    if !is_quantity {
        return Err(format!("{quantity:?} is no quantity, such as 100m or 256Mi"));
    }
    Ok((name.to_owned(), quantity.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_has_a_key_and_may_have_value_and_effect() {
        let read = |text: &str| toleration(text).map(|read| (read.key, read.value, read.effect));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read("a.b/c"), Ok(("a.b/c".to_owned(), None, None)));
        assert_eq!(read("a=b:NoSchedule"), Ok(("a".to_owned(), some("b"), some("NoSchedule"))));
        assert_eq!(read("a=:NoExecute"), Ok(("a".to_owned(), some(""), some("NoExecute"))));
        for wrong in ["", "=b", ":NoSchedule", "a:Never"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_resource_has_a_known_name_and_a_quantity() {
        assert_eq!(resource("cpu=100m"), Ok(("cpu".to_owned(), "100m".to_owned())));
        assert!(resource("memory=1.5Gi").is_ok());
        for wrong in ["cpu", "gpu=1", "memory=", "memory=much", "memory=1 Gi", "memory=-1"] {
            assert!(resource(wrong).is_err(), "{wrong}");
        }
    }
}
