//! The other hosts that have the file of an image with a URL, from which it is copied too: those of the same zone, if the host has one.
//!
//! *Guarantees:* the host of the image is always tried in the end, and a copy that has begun continues from there. Images that were made or
//! uploaded come from their host only. A ticket for one of these hosts is of no use at another one, that of the image included: a host says
//! itself which files it has.

use berth_api::console::{further_copy_audience, of_copy_path};
use berth_api::{ConditionType, Host, Image, condition};
use berth_host::SourceHost;
use kube::ResourceExt;
use kube::api::ListParams;
use sha2::{Digest, Sha256};

use super::Copies;
use crate::typed_api::TypedApi;

/// The label of a host with its zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The most hosts that are tried before the host of the image.
const MOST_TRIED: usize = 3;
/// The most hosts that are looked at.
const MOST_LISTED: u32 = 500;

impl Copies {
    /// Returns hosts to try before the host of the image. None if they cannot be read: that host has the file.
    pub(super) async fn nearer(&self, at: &SourceHost) -> Vec<SourceHost> {
        match self.read_nearer(at).await {
            Ok(found) => found,
            Err(error) => {
                tracing::info!(path = at.path, %error, "the hosts that have an image are not read");
                Vec::new()
            }
        }
    }

    async fn read_nearer(&self, at: &SourceHost) -> kube::Result<Vec<SourceHost>> {
        let Some((namespace, name)) = of_copy_path(&at.path) else { return Ok(Vec::new()) };
        let images: TypedApi<Image> = TypedApi::namespaced(self.client.clone(), namespace);
        let image = images.get_opt(name).await?.filter(|image| !image.is_local());
        let having = image.and_then(|image| image.status).map(|status| status.hosts).unwrap_or_default();
        if !having.iter().any(|host| *host != at.name && *host != self.own) {
            return Ok(Vec::new());
        }
        let hosts: TypedApi<Host> = TypedApi::all(self.client.clone());
        let own = hosts.get_opt(&self.own).await?;
        let near = ListParams::default().limit(MOST_LISTED);
        let near = match own.as_ref().and_then(|own| own.labels().get(ZONE)) {
            Some(zone) => near.labels(&format!("{ZONE}={zone}")),
            None => near,
        };
        Ok(chosen(&self.own, at, &having, &hosts.list(&near).await?.items))
    }
}

/// Chooses among the near hosts those that have the file and serve it: up to the host of the image, which is tried in any case. Each host
/// that copies has another order, so that none of them serves all.
fn chosen(own: &str, at: &SourceHost, having: &[String], near: &[Host]) -> Vec<SourceHost> {
    let serves = |host: &Host| -> Option<SourceHost> {
        let name = host.name_any();
        let status = host.status.as_ref()?;
        let is_usable = condition::is_true(&status.conditions, ConditionType::Ready) && !host.spec.fenced;
        if name == own || !having.contains(&name) || !is_usable {
            return None;
        }
        let server = status.server.clone()?;
        Some(SourceHost {
            audience: further_copy_audience(&at.audience, &name),
            name,
            address: server.address,
            certificate_sha256: server.certificate_sha256,
            path: at.path.clone(),
        })
    };
    let mut found: Vec<SourceHost> = near.iter().filter_map(serves).collect();
    found.sort_by_cached_key(|host| Sha256::digest(format!("{own} {} {}", host.name, at.path)).to_vec());
    if let Some(place) = found.iter().position(|host| host.name == at.name) {
        found.truncate(place);
    }
    found.truncate(MOST_TRIED);
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn host(name: &str, ready: &str, server: &Value) -> Host {
        let ready = json!({"type": "Ready", "status": ready, "reason": "Ready", "message": "",
            "lastTransitionTime": "2024-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {},
            "status": {"observedGeneration": 1, "vms": 0, "conditions": [ready], "server": server},
        }))
        .expect("a Host")
    }

    fn serving(name: &str) -> Host {
        host(name, "True", &json!({"address": format!("{name}:7444"), "certificateSha256": "ab"}))
    }

    fn at() -> SourceHost {
        SourceHost {
            name: "origin".to_owned(),
            address: "origin:7444".to_owned(),
            certificate_sha256: "cd".to_owned(),
            path: "/images/ns/debian".to_owned(),
            audience: "a".to_owned(),
        }
    }

    fn names(own: &str, having: &[&str], near: &[Host]) -> Vec<String> {
        let having: Vec<String> = having.iter().map(|name| (*name).to_owned()).collect();
        chosen(own, &at(), &having, near).into_iter().map(|host| host.name).collect()
    }

    #[test]
    fn a_host_is_tried_that_has_the_file_serves_it_and_answers() {
        let near = [
            serving("own"),
            serving("a"),
            serving("without-the-file"),
            host("silent", "Unknown", &json!({"address": "s:7444", "certificateSha256": "ab"})),
            host("older", "True", &Value::Null),
        ];
        let having = ["own", "origin", "a", "silent", "older", "of-another-zone"];
        assert_eq!(names("own", &having, &near), ["a"]);
        let found = chosen("own", &at(), &["a".to_owned()], &near);
        let audience = "a/a".to_owned();
        let expected = SourceHost { name: "a".to_owned(), address: "a:7444".to_owned(), audience, ..at() };
        assert_eq!(found, [SourceHost { certificate_sha256: "ab".to_owned(), ..expected }]);
    }

    #[test]
    fn hosts_that_copy_use_different_ones_and_the_host_of_the_image_among_them() {
        let near = ["a", "b", "c", "d", "e", "origin"].map(serving);
        let having = ["a", "b", "c", "d", "e", "origin"];
        let firsts: std::collections::BTreeSet<Option<String>> =
            (0..100).map(|n| names(&format!("h{n}"), &having, &near).into_iter().next()).collect();
        assert_eq!(firsts.len(), 6, "each of five, and at first the host of the image: {firsts:?}");
        for n in 0..100 {
            let found = names(&format!("h{n}"), &having, &near);
            assert!(found.len() <= MOST_TRIED && !found.contains(&"origin".to_owned()), "{found:?}");
            assert_eq!(found, names(&format!("h{n}"), &having, &near), "the order is always the same");
        }
    }
}
