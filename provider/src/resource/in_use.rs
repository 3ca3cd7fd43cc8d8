//! A deletion that is refused because the object is in use: worth asking again, or for a person to decide.

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::Diagnostic;
use tokio::time::Instant;

use super::{KindResource, is_terminating, text};
use crate::api::{Address, Api, ApiError, Patience};

/// How long a user may stay before that is final: what is destroyed with it by the same command, without a reference
/// between them, may be asked for a moment later.
const STAYS: Duration = Duration::from_secs(2);

/// What is known of an object's users while its deletion is asked for again and again.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// Since when somebody stays.
    stays_since: Option<Instant>,
    /// Who is going, in words.
    going: Vec<String>,
}

/// One of an object's users.
struct User<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl InUse {
    /// What was waited for when the time ran out.
    pub(super) fn timed_out(&self, title: &str) -> Option<Diagnostic> {
        let going = (!self.going.is_empty()).then(|| self.going.join(", "))?;
        let detail = format!(
            "It waits for {going}, which is being deleted and not gone yet. Destroy again later, or allow more time with \
             timeouts.delete."
        );
        Some(Diagnostic::error(format!("{title} is still in use"), detail))
    }
}

impl KindResource {
    /// Ok when it is worth asking again: who uses it is on its way out, or has let go already.
    pub(super) async fn wait_for_user(
        &self,
        api: &Api,
        at: &Address,
        error: &ApiError,
        known: &mut InUse,
        patience: &Patience,
    ) -> Result<(), Vec<Diagnostic>> {
        let refused = |error: &ApiError| self.refused(error, at);
        let Some(object) = api.get(at, patience).await.map_err(|error| refused(&error))? else {
            return Ok(());
        };
        let users =
            object.pointer("/status/usedBy").and_then(Json::as_array).filter(|users| !users.is_empty());
        let Some(users) = users else {
            // Nobody uses it: either somebody just let go, or this user may not delete at all.
            return if error.to_string().contains("in use") { Ok(()) } else { Err(refused(error)) };
        };
        known.going.clear();
        for user in users {
            let stays = self.still_uses(api, at, user, patience).await.map_err(|error| refused(&error))?;
            let user = user_of(user, at);
            if !stays {
                known.going.push(format!("{} {}/{}", user.kind, user.namespace, user.name));
            } else if known.stays_since.get_or_insert_with(Instant::now).elapsed() >= STAYS {
                let detail = format!(
                    "{error}. To replace it, give the new one another name, so that its users can change over first."
                );
                return Err(vec![Diagnostic::error(format!("{} is in use", self.title(at)), detail)]);
            }
        }
        tracing::info!(object = %self.title(at), waits_for = %known.going.join(", "), "in use: the deletion waits");
        Ok(())
    }

    async fn still_uses(
        &self,
        api: &Api,
        at: &Address,
        user: &Json,
        patience: &Patience,
    ) -> Result<bool, ApiError> {
        let attachment = text(user, "/attachment");
        let stays = |object: &Option<Json>| object.as_ref().is_some_and(|object| !is_terminating(object));
        if !attachment.is_empty() {
            let attachment = api.get(&at.beside("hotswapdiskattachments", attachment), patience).await?;
            if !stays(&attachment) {
                return Ok(false);
            }
        }
        let User { kind, namespace, name } = user_of(user, at);
        let object = api.get(&Address::berth(plural(kind), namespace, name), patience).await?;
        if !stays(&object) {
            return Ok(false);
        }
        // One that was changed to no longer name it lets go in a moment.
        let spec = object.as_ref().and_then(|object| object.get("spec")).unwrap_or(&Json::Null);
        Ok(!attachment.is_empty() || names(spec, self.facts.kind, &at.name))
    }
}

/// A Disk and a PublicIP list the VM alone, in their own namespace.
fn user_of<'a>(user: &'a Json, at: &'a Address) -> User<'a> {
    match text(user, "/kind") {
        "" => User { kind: "VM", namespace: &at.namespace, name: text(user, "/vm") },
        kind => User { kind, namespace: text(user, "/namespace"), name: text(user, "/name") },
    }
}

fn plural(kind: &str) -> &'static str {
    match kind {
        "Disk" => "disks",
        "PublicIP" => "publicips",
        "HotswapDiskAttachment" => "hotswapdiskattachments",
        _ => "vms",
    }
}

/// Whether what is declared names the object of this kind and name.
fn names(spec: &Json, kind: &str, name: &str) -> bool {
    let is = |value: Option<&Json>| value.and_then(Json::as_str) == Some(name);
    let in_list = |list: &str, key: &str| {
        let items = spec.get(list).and_then(Json::as_array).into_iter().flatten();
        items.into_iter().any(|item| is(item.get(key)))
    };
    match kind {
        "Disk" => in_list("disks", "name"),
        "PublicIP" => in_list("networkInterfaces", "publicIP"),
        "VMClass" => is(spec.get("class")),
        "PlacementGroup" => is(spec.pointer("/placement/group")),
        "Image" => is(spec.get("image")),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_a_user_declares_is_found_and_one_that_changed_over_is_not() {
        let vm = json!({"class": "small", "disks": [{"name": "root"}], "placement": {"group": "web"},
            "networkInterfaces": [{"name": "nic0", "publicIP": "web"}]});
        let cases = [("VMClass", "small"), ("Disk", "root"), ("PlacementGroup", "web"), ("PublicIP", "web")];
        for (kind, name) in cases {
            assert!(names(&vm, kind, name), "{kind}");
            assert!(!names(&vm, kind, "other"), "{kind}");
        }
        assert!(names(&json!({"image": "debian"}), "Image", "debian"));
        assert!(!names(&json!({"size": "1Gi"}), "Image", "debian"));
    }
}
