//! The control plane is ended and opened again at every request in turn, in every operation on every kind. The operations
//! themselves complete: one object each, no taint, an empty plan.

use std::sync::Arc;

use futures::future::join_all;
use kube::api::ListParams;
use serde_json::{Value as Json, json};
use tfplugin6::diagnostic;

use crate::{
    control_plane::{ControlPlane, Meeting},
    interruptions::{MOST_REQUESTS, Operation, Story, exists, host_story, named_objects, secrets, within},
    lifecycle::{stories, with},
    stage::{Stage, stage_alone, text_of},
};

/// A kind with the objects that the courses change. A course creates one object, deletes the one of the course before, and
/// updates and imports one that stays.
struct Resource {
    story: Story,
    created: Option<Stage>,
    updated: Stage,
    is_changed: bool,
    imported: String,
    /// The operations that make as many requests as the next course interrupts.
    operations: Vec<Operation>,
}

impl Resource {
    fn configuration(&self, name: &str, is_changed: bool) -> Json {
        let config = if is_changed { &self.story.changed } else { &self.story.config };
        let named = if config.get("name_prefix").is_some() {
            json!({"name_prefix": format!("g-{name}-")})
        } else {
            json!({"name": name})
        };
        within(&with(config.clone(), named), 20)
    }

    fn id(&self, name: &str) -> String {
        match self.story.kind {
            "Host" | "IPPool" | "StoragePool" => name.to_owned(),
            _ => format!("default/{name}"),
        }
    }

    async fn new(plane: &ControlPlane, story: Story) -> Result<Self, String> {
        let updated = stage_alone(&plane.client, story.type_name);
        let (created, imported, operations) = (None, String::new(), Vec::new());
        let mut resource = Self { story, created, updated, is_changed: false, imported, operations };
        resource.prepare(plane, "stays").await;
        let config = resource.configuration("stays", false);
        let made = resource.updated.apply(&config).await;
        if diagnostic::has_errors(&made.diagnostics) {
            return Err(made.text());
        }
        resource.imported = resource.updated.state.get("name").as_str().unwrap_or_default().to_owned();
        Ok(resource)
    }

    /// Makes the object that a create adopts.
    async fn prepare(&self, plane: &ControlPlane, name: &str) {
        if self.story.kind == "Host" {
            plane.host(name, json!({})).await;
        }
    }

    /// The import of one kind, interrupted by itself: its first read has seconds, which it would spend in waiting for the others.
    fn begin_import(&mut self) {
        self.operations = if self.story.kind == "IPPool" { vec![Operation::Import] } else { Vec::new() };
    }

    /// The operations whose requests are interrupted on this side of their effect.
    fn begin(&mut self, after: bool) {
        let has_own_steps = matches!(self.story.kind, "VM" | "Disk" | "HotswapDiskAttachment" | "Host");
        let is_generated = self.story.config.get("name_prefix").is_some();
        self.operations = match (is_generated, has_own_steps, after) {
            // Only the create differs from that of another Disk.
            (true, ..) => vec![Operation::Create],
            // The other kinds have no steps of their own: a write whose answer is lost is the harder half.
            (_, false, false) => Vec::new(),
            // An import only reads: a request without its effect and one without its answer are the same, and one kind shows it.
            (_, _, true) => vec![Operation::Create, Operation::Update, Operation::Delete],
            (_, true, false) => Operation::ALL.to_vec(),
        };
    }

    /// Plays one operation up to its end. Returns the resource after it, and whether it came to the request.
    async fn operate(
        &self,
        operation: Operation,
        name: &str,
        meeting: &Arc<Meeting>,
    ) -> Result<(Operation, Stage, bool), String> {
        let (client, participant) = meeting.join();
        let mut stage = stage_alone(&client, self.story.type_name);
        let found = match (operation, &self.created) {
            (Operation::Create, _) => stage.apply(&self.configuration(name, false)).await.diagnostics,
            (Operation::Update, _) => {
                stage = stage.with_state_of(&self.updated);
                stage.apply(&self.configuration("stays", !self.is_changed)).await.diagnostics
            }
            (Operation::Delete, None) => Vec::new(),
            (Operation::Delete, Some(created)) => {
                stage = stage.with_state_of(created);
                stage.destroy().await.diagnostics
            }
            (Operation::Import, _) => stage.import(&self.id(&self.imported)).await,
        };
        participant.leave();
        if diagnostic::has_errors(&found) {
            return Err(format!("{operation:?} of {}: {}", self.story.kind, text_of(&found)));
        }
        Ok((operation, stage, participant.has_arrived()))
    }

    /// Plays all operations, which the control plane's restart interrupts at the same request.
    async fn course(
        &mut self,
        plane: &ControlPlane,
        number: usize,
        meeting: &Arc<Meeting>,
    ) -> Result<(), String> {
        let name = format!("o-{number}");
        if self.operations.contains(&Operation::Delete) && self.created.is_none() {
            let name = format!("d-{number}");
            self.prepare(plane, &name).await;
            let mut stage = stage_alone(&plane.client, self.story.type_name);
            let made = stage.apply(&self.configuration(&name, false)).await;
            if diagnostic::has_errors(&made.diagnostics) {
                return Err(made.text());
            }
            self.created = Some(stage);
        }
        if self.operations.contains(&Operation::Create) {
            self.prepare(plane, &name).await;
        }
        let operations = self.operations.iter().map(|operation| self.operate(*operation, &name, meeting));
        let ended = join_all(operations).await;
        meeting.end().await;
        self.operations.clear();
        let mut created = None;
        for ended in ended {
            let (operation, stage, has_arrived) = ended?;
            self.check(plane, (operation, &stage), &name).await?;
            if has_arrived {
                self.operations.push(operation);
            }
            match operation {
                Operation::Create => created = Some(stage),
                Operation::Update => (self.updated, self.is_changed) = (stage, !self.is_changed),
                Operation::Delete => self.created = None,
                Operation::Import => {}
            }
        }
        // The next course deletes an object, and no course leaves one beside that.
        let is_needed = self.operations.contains(&Operation::Delete);
        for mut old in self.created.take().into_iter().chain(created.take_if(|_| !is_needed)) {
            let destroyed = old.destroy().await;
            if !destroyed.is_clean() {
                return Err(destroyed.text());
            }
        }
        self.created = created;
        Ok(())
    }

    /// Checks an operation that has ended: one object, the same as before, and nothing to plan.
    async fn check(
        &self,
        plane: &ControlPlane,
        (operation, stage): (Operation, &Stage),
        name: &str,
    ) -> Result<(), String> {
        let kind = self.story.kind;
        let uid = |stage: &Stage| stage.state.get("uid").as_str().map(str::to_owned);
        if matches!(operation, Operation::Update | Operation::Import) && uid(stage) != uid(&self.updated) {
            return Err(format!("{kind} is another object after {operation:?}"));
        }
        if operation == Operation::Delete {
            let old =
                self.created.as_ref().and_then(|old| old.state.get("name").as_str()).unwrap_or_default();
            // A Host is not deleted: what was declared for it is withdrawn.
            let is_kept = kind == "Host";
            let is_right = old.is_empty() || exists(plane, kind, old).await == is_kept;
            return if is_right { Ok(()) } else { Err(format!("{kind} {old} after its deletion")) };
        }
        if operation == Operation::Import {
            return Ok(());
        }
        let config = match operation {
            Operation::Create => self.configuration(name, false),
            _ => self.configuration("stays", !self.is_changed),
        };
        let mut next = stage_alone(&plane.client, self.story.type_name).with_state_of(stage);
        let read = next.read().await;
        if !read.is_empty() || !next.plan_is_empty(&config).await {
            return Err(format!("the plan after {operation:?} of {kind}: {}", text_of(&read)));
        }
        let made = stage.state.get("name").as_str().unwrap_or_default();
        if kind == "VM" && secrets(plane, made).await != 1 {
            return Err(format!("{} Secrets", secrets(plane, made).await));
        }
        if operation == Operation::Create {
            let objects = plane.objects(kind).list(&ListParams::default()).await;
            let objects = objects.map_err(|error| error.to_string())?.items.into_iter();
            let of_course = |found: &String| *found == name || found.starts_with(&format!("g-{name}-"));
            let found: Vec<String> =
                objects.filter_map(|object| object.metadata.name).filter(of_course).collect();
            if found.iter().filter(|found| found.starts_with("g-") == made.starts_with("g-")).ne([made]) {
                return Err(format!("{kind} {made}, and there are {found:?}"));
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_completes_although_the_control_plane_restarts_at_any_request() {
    let directory = tempfile::tempdir().expect("a new directory");
    let (plane, restart) = ControlPlane::restartable(directory.path()).await;
    named_objects(&plane).await;
    let mut stories: Vec<Story> = stories()
        .into_iter()
        .map(|(type_name, kind, config, changed)| Story { type_name, kind, config, changed })
        .collect();
    let disk = json!({"name_prefix": "g-", "size": "1Gi"});
    let (type_name, kind) = ("berth_disk", "Disk");
    stories.push(Story { type_name, kind, config: disk, changed: Json::Null });
    stories.push(host_story());
    for story in stories.iter_mut().filter(|story| story.kind == "Disk") {
        // It changes back in the next course, and no disk shrinks.
        story.changed = with(story.config.clone(), json!({"deletion_policy": "Retain"}));
    }
    let resources = join_all(stories.into_iter().map(|story| Resource::new(&plane, story))).await;
    let mut resources: Vec<Resource> =
        resources.into_iter().collect::<Result<_, _>>().expect("each is created");
    let (mut courses, mut interrupted) = (0, 0);
    for (after, is_import) in [(false, false), (true, false), (true, true)] {
        for resource in &mut resources {
            if is_import { resource.begin_import() } else { resource.begin(after) }
        }
        for at in 1.. {
            assert!(at < MOST_REQUESTS, "an operation makes more than {MOST_REQUESTS} requests");
            let operations = resources.iter().map(|resource| resource.operations.len()).sum();
            if operations == 0 {
                break;
            }
            let meeting = Meeting::new(&restart, operations, at, after);
            courses += 1;
            let played = resources.iter_mut().map(|resource| resource.course(&plane, courses, &meeting));
            let failures: Vec<String> = join_all(played).await.into_iter().filter_map(Result::err).collect();
            let side = if after { "after" } else { "before" };
            assert!(failures.is_empty(), "{side} request {at}:\n{}", failures.join("\n"));
            interrupted += meeting.arrived();
        }
    }
    // Each operation makes several requests.
    assert!(interrupted > 150, "{interrupted} requests in {courses} courses");
    restart.close().await;
}
