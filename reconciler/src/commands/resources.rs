//! Resolves kinds from the names that users type, and sends plain requests on their objects.

use anyhow::{Context, bail};
use kube::Client;
use serde_json::Value;

pub(super) use crate::requests::{encoded, get, has_code, list};

/// A kind the control plane serves.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    /// `/apis/berth.dev/v1alpha1`
    prefix: String,
    pub(super) plural: String,
    pub(super) singular: String,
    short: Vec<String>,
    pub(super) namespaced: bool,
}

impl Resource {
    /// Returns the path of its objects, in a namespace or in all.
    pub(super) fn path(&self, namespace: Option<&str>) -> String {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.prefix, self.plural),
            None => format!("{}/{}", self.prefix, self.plural),
        }
    }

    /// Whether the name is the kind's: `vm`, `vms` or `vms.berth.dev`.
    pub(super) fn is(&self, name: &str) -> bool {
        let name = match name.split_once('.') {
            Some((name, group)) if self.prefix.starts_with(&format!("/apis/{group}/")) => name,
            Some(_) => return false,
            None => name,
        };
        self.plural == name || self.singular == name || self.short.iter().any(|short| short == name)
    }
}

/// Splits `vm/web` into kind and name.
pub(super) fn split(object: &str) -> (String, Option<&str>) {
    match object.split_once('/') {
        Some((kind, name)) => (kind.to_lowercase(), Some(name)),
        None => (object.to_lowercase(), None),
    }
}

/// Splits `vm/web` into kind and name, which must be there.
pub(super) fn kind_and_name(object: &str) -> anyhow::Result<(String, &str)> {
    let (kind, Some(name)) = split(object) else {
        bail!("{object:?} does not have the form KIND/NAME: write for example vm/web")
    };
    Ok((kind, checked(name)?))
}

/// Returns the name if it is safe in a path.
pub(super) fn checked(name: &str) -> anyhow::Result<&str> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':');
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(fine) {
        bail!("{name:?} is not the name of an object: use letters, digits, \"-\", \".\" and \":\"");
    }
    Ok(name)
}

/// Returns berth's own kinds.
pub(super) async fn ours(client: &Client) -> anyhow::Result<Vec<Resource>> {
    served(client, &format!("/apis/{}/{}", berth_api::GROUP, berth_api::VERSION)).await
}

/// Returns the kind of that name, `role` or `roles.rbac.authorization.k8s.io`: berth's own come first, then those
/// of the core group, then those of the other groups in the server's order.
pub(super) async fn named(client: &Client, name: &str) -> anyhow::Result<Resource> {
    let mut all = ours(client).await?;
    all.extend(served(client, "/api/v1").await?);
    if let Some(found) = all.iter().find(|resource| resource.is(name)) {
        return Ok(found.clone());
    }
    let groups = get(client, "/apis").await.context("asking which groups there are")?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        if group["name"] == berth_api::GROUP {
            continue;
        }
        if let Some(version) = group["preferredVersion"]["groupVersion"].as_str() {
            let kinds = served(client, &format!("/apis/{version}")).await?;
            if let Some(found) = kinds.iter().find(|resource| resource.is(name)) {
                return Ok(found.clone());
            }
            all.extend(kinds);
        }
    }
    let known: Vec<&str> = all.iter().map(|resource| &*resource.singular).collect();
    bail!("there is no kind {name:?}; the kinds are: {}", known.join(", "))
}

async fn served(client: &Client, prefix: &str) -> anyhow::Result<Vec<Resource>> {
    let list = get(client, prefix).await.with_context(|| format!("asking what {prefix} serves"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = list["resources"].as_array().into_iter().flatten();
    let objects = all.filter(|one| !text(&one["name"]).contains('/'));
    let found = objects.map(|one| Resource {
        prefix: prefix.to_owned(),
        plural: text(&one["name"]),
        singular: match text(&one["singularName"]) {
            none if none.is_empty() => text(&one["kind"]).to_lowercase(),
            given => given,
        },
        short: one["shortNames"].as_array().into_iter().flatten().map(text).collect(),
        namespaced: one["namespaced"] == true,
    });
    Ok(found.collect())
}

/// Formats a value on one line of bounded length.
pub(super) fn short(value: Option<&Value>) -> String {
    const WIDTH: usize = 160;
    let text = value.map_or_else(|| "(none)".to_owned(), Value::to_string);
    match text.char_indices().nth(WIDTH) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_may_be_named_with_its_group() {
        let role = Resource {
            prefix: "/apis/rbac.authorization.k8s.io/v1".into(),
            plural: "roles".into(),
            singular: "role".into(),
            short: Vec::new(),
            namespaced: true,
        };
        assert!(role.is("role") && role.is("roles.rbac.authorization.k8s.io"));
        assert!(!role.is("roles.berth.dev") && !role.is("roles."));
    }

    #[tokio::test]
    async fn a_kind_of_any_group_is_found() {
        let server = berth_apiserver::Server::open(berth_apiserver::ServerConfig::in_memory())
            .await
            .expect("it opens");
        let client = Client::new(server.service(), "default");
        let crds: kube::Api<
            k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        > = kube::Api::all(client.clone());
        for crd in berth_api::manifests::crds() {
            let crd = serde_json::from_value(crd).expect("a definition");
            crds.create(&Default::default(), &crd).await.expect("it is created");
        }
        for (name, path) in [
            ("vm", "/apis/berth.dev/v1alpha1/namespaces/x/vms"),
            ("cm", "/api/v1/namespaces/x/configmaps"),
            ("clusterrole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
            ("leases.coordination.k8s.io", "/apis/coordination.k8s.io/v1/namespaces/x/leases"),
            ("crd", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
        ] {
            assert_eq!(named(&client, name).await.expect(name).path(Some("x")), path);
        }
        assert!(named(&client, "submarine").await.is_err());
    }

    #[test]
    fn objects_are_named_as_people_do() {
        assert_eq!(split("VM/web"), ("vm".into(), Some("web")));
        assert_eq!(split("disks"), ("disks".into(), None));
        assert!(checked("web-1.example").is_ok() && checked("../x").is_err() && checked("a/b").is_err());
        assert_eq!(encoded("2026-01-02T03:04:05+01:00"), "2026-01-02T03%3A04%3A05%2B01%3A00");
        assert_eq!(short(Some(&"é".repeat(200).into())).chars().count(), 161);
    }
}
