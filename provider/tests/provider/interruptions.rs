//! The provider is killed, and its connection is cut, at every request in turn, in every operation on every kind. The next
//! apply must complete: one object, no replacement of what works, an empty plan, nothing left after a destroy.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use kube::{Api, api::ListParams};
use serde_json::{Value as Json, json};
use tfplugin6::diagnostic;

use crate::{
    control_plane::{ControlPlane, Interruption},
    lifecycle::{stories, with},
    stage::{Stage, provider, text_of},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Import,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Delete, Self::Import];
}

/// A kind with a configuration and an update of it.
pub(crate) struct Story {
    pub(crate) type_name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) config: Json,
    pub(crate) changed: Json,
}

/// More requests than any operation makes.
pub(crate) const MOST_REQUESTS: usize = 40;
/// The number of courses that are played at once. They share two processors, and the first read of each has 4.5 s.
const AT_ONCE: usize = 24;

/// A configuration with timeouts, in seconds. Reads keep a long one: an apply after the interruption must not miss it.
pub(crate) fn within(config: &Json, seconds: u32) -> Json {
    let seconds = format!("{seconds}s");
    with(
        config.clone(),
        json!({"timeouts": {"create": seconds, "update": seconds, "delete": seconds, "read": "20s"}}),
    )
}

/// The objects that the configurations name.
pub(crate) async fn named_objects(plane: &ControlPlane) {
    plane.declare_as("others", "VMClass", "small", json!({"cpus": 1, "memory": "512Mi"})).await;
    let image = json!({"source": {"url": "https://a.example/x", "sha256": "0".repeat(64)}});
    plane.declare_as("others", "Image", "debian-12", image).await;
    plane.declare_as("others", "PlacementGroup", "web", json!({})).await;
    plane.declare_as("others", "PublicIP", "web", json!({})).await;
    for disk in ["web-root", "web-data"] {
        plane.declare_as("others", "Disk", disk, json!({"size": "1Gi"})).await;
    }
}

/// The Host itself is made by its agent.
pub(crate) fn host_story() -> Story {
    Story {
        type_name: "berth_host",
        kind: "Host",
        config: json!({"labels": {"disk": "ssd"}, "cordoned": true}),
        changed: json!({"labels": {"disk": "nvme"}, "cordoned": false}),
    }
}

pub(crate) async fn secrets(plane: &ControlPlane, vm: &str) -> usize {
    let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(plane.client.clone(), "default");
    let secrets = api.list(&ListParams::default()).await.expect("a list").items;
    let prefix = format!("{vm}-");
    secrets
        .iter()
        .filter(|secret| secret.metadata.name.as_ref().is_some_and(|n| n.starts_with(&prefix)))
        .count()
}

pub(crate) async fn exists(plane: &ControlPlane, kind: &str, name: &str) -> bool {
    plane.objects(kind).get_opt(name).await.expect("an answer").is_some()
}

/// Plays one operation that is interrupted at one request, and the apply after it. False: the operation makes fewer requests.
async fn course(
    plane: &ControlPlane,
    story: &Story,
    name: &str,
    operation: Operation,
    by: Interruption,
    at: usize,
) -> Result<bool, String> {
    let named = |config: &Json| with(config.clone(), json!({"name": name}));
    let (config, changed) = (named(&story.config), named(&story.changed));
    let id = if matches!(story.kind, "Host" | "IPPool" | "StoragePool") {
        name.to_owned()
    } else {
        format!("default/{name}")
    };
    let ours = provider(&plane.client, "default");
    let mut before = Stage::new(&ours, story.type_name);
    if story.kind == "Host" {
        plane.host(name, json!({})).await;
    }
    if operation != Operation::Create {
        let made = before.apply(&within(&config, 20)).await;
        if diagnostic::has_errors(&made.diagnostics) {
            return Err(made.text());
        }
    }

    let (client, line) = plane.interrupted(at, by);
    let interrupted = provider(&client, "default");
    let mut stage = Stage::new(&interrupted, story.type_name);
    if operation != Operation::Import {
        (stage.state, stage.private) = (before.state.clone(), before.private.clone());
    }
    let played = async {
        match operation {
            Operation::Create => stage.apply(&within(&config, 1)).await.tainted,
            Operation::Update => stage.apply(&within(&changed, 1)).await.tainted,
            Operation::Delete => stage.destroy().await.tainted,
            Operation::Import => {
                stage.import(&id).await;
                false
            }
        }
    };
    let tainted = tokio::select! {
        tainted = played => tainted,
        () = line.killed() => false,
    };
    let reached = line.is_reached();
    if tainted {
        return Err("the next apply would replace it".into());
    }

    let mut after = Stage::new(&ours, story.type_name);
    (after.state, after.private) = (stage.state, stage.private);
    if operation == Operation::Import {
        let imported = after.import(&id).await;
        if diagnostic::has_errors(&imported) {
            return Err(text_of(&imported));
        }
    } else if !after.state.is_null() {
        let read = after.read().await;
        if diagnostic::has_errors(&read) {
            return Err(text_of(&read));
        }
    }
    if operation != Operation::Delete {
        let last = within(if operation == Operation::Update { &changed } else { &config }, 20);
        let completed = after.apply(&last).await;
        if diagnostic::has_errors(&completed.diagnostics) {
            return Err(completed.text());
        }
        if !after.plan_is_empty(&last).await {
            return Err("the plan after it is not empty".into());
        }
        if operation != Operation::Create && after.state.get("uid") != before.state.get("uid") {
            return Err("it is another object".into());
        }
        if story.kind == "VM" && secrets(plane, name).await != 1 {
            return Err(format!("{} Secrets", secrets(plane, name).await));
        }
    }
    if !after.state.is_null() {
        // By another run: within one, an object that a create has adopted is not destroyed.
        let mut last = Stage::new(&provider(&plane.client, "default"), story.type_name).with_state_of(&after);
        let destroyed = last.destroy().await;
        if diagnostic::has_errors(&destroyed.diagnostics) {
            return Err(destroyed.text());
        }
    }
    if story.kind != "Host" && exists(plane, story.kind, name).await {
        return Err("the object is left".into());
    }
    // The Secret is collected after its VM.
    let collected = async {
        while secrets(plane, name).await != 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if story.kind == "VM" && tokio::time::timeout(Duration::from_secs(60), collected).await.is_err() {
        return Err("a Secret is left".into());
    }
    Ok(reached)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_is_interrupted_at_any_request_is_completed_by_the_next_apply() {
    let plane = ControlPlane::in_memory().await;
    named_objects(&plane).await;
    let mut stories: Vec<Story> = stories()
        .into_iter()
        .map(|(type_name, kind, config, changed)| Story { type_name, kind, config, changed })
        .collect();
    stories.push(host_story());
    let runs: Vec<_> = stories
        .iter()
        .flat_map(|story| {
            let own_steps = matches!(story.kind, "VM" | "Disk" | "HotswapDiskAttachment" | "Host");
            // The other kinds have no steps of their own: of these two all operations, of the rest the two that write most.
            let is_example = matches!(story.kind, "VMClass" | "IPPool");
            Operation::ALL.into_iter().flat_map(move |operation| {
                let interruptions: &[Interruption] = match operation {
                    // It only reads: the end of the process and of the connection differ in nothing.
                    Operation::Import => &[Interruption::KilledBefore],
                    _ if own_steps => &Interruption::ALL,
                    _ if is_example => &[Interruption::KilledAfter, Interruption::CutAfter],
                    Operation::Create | Operation::Delete => &[Interruption::KilledAfter],
                    Operation::Update => &[],
                };
                interruptions.iter().map(move |by| (story, operation, *by))
            })
        })
        .collect();
    let least = runs.len();
    let names = AtomicUsize::new(0);
    let (plane_, names) = (&plane, &names);
    let failures: Vec<String> = stream::iter(runs)
        .map(|(story, operation, by)| async move {
            for at in 1..=MOST_REQUESTS {
                let name = format!("o-{}", names.fetch_add(1, Ordering::SeqCst));
                match course(plane_, story, &name, operation, by, at).await {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => {
                        return Some(format!(
                            "{operation:?} of {}, {by:?} request {at}: {error}",
                            story.kind
                        ));
                    }
                }
            }
            Some(format!("{operation:?} of {}: more than {MOST_REQUESTS} requests", story.kind))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    let courses = names.load(Ordering::SeqCst);
    assert!(failures.is_empty(), "{} of {courses} courses:\n{}", failures.len(), failures.join("\n"));
    // Each operation makes at least one request, and the last course of a run has none to interrupt.
    assert!(courses >= least * 2, "{courses} courses of {least} runs");
    plane.close().await;
}
