//! `source.file` of an image: its checksum in plan and state, and files that are not there. The control plane of these tests has a
//! verified image at once: the upload itself is a case of the acceptance tests.

use std::{fs, path::Path};

use serde_json::{Value as Json, json};
use tfplugin6::diagnostic;

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn image(file: &Path) -> Json {
    json!({"name": "built", "source": {"file": file.display().to_string()}})
}

#[tokio::test]
async fn the_checksum_of_a_file_is_planned_and_other_content_replaces_the_image() {
    let plane = ControlPlane::in_memory().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("disk.qcow2");
    fs::write(&file, "abc").expect("a file");
    let mut stage = Stage::new(&provider(&plane.client, "default"), "berth_image");
    let made = stage.apply(&image(&file)).await;
    assert!(made.is_clean(), "{}", made.text());
    let source = stage.state.get("source");
    assert_eq!(
        (source.get("sha256").as_str(), source.get("upload").get("size").as_i64()),
        (Some(ABC), Some(3))
    );
    let declared = plane.object("Image", "built").await["spec"]["source"].clone();
    assert_eq!(declared, json!({"sha256": ABC, "upload": {"size": 3}}));
    assert!(stage.plan_is_empty(&image(&file)).await);
    assert_eq!(text_of(&stage.read().await), "");
    assert!(stage.plan_is_empty(&image(&file)).await);

    // The same content elsewhere.
    let copy = folder.path().join("copy.qcow2");
    fs::copy(&file, &copy).expect("copied");
    let moved = stage.plan(&image(&copy)).await;
    assert!(
        moved.requires_replace.is_empty() && moved.diagnostics.is_empty(),
        "{}",
        text_of(&moved.diagnostics)
    );

    fs::write(&file, "abcd").expect("changed");
    let plan = stage.plan(&image(&file)).await;
    let replaced: Vec<String> = plan.requires_replace.iter().map(ToString::to_string).collect();
    assert!(replaced.contains(&"source.sha256".to_owned()), "{replaced:?}");
    let applied = stage.apply(&image(&file)).await;
    assert!(!diagnostic::has_errors(&applied.diagnostics), "{}", applied.text());
    assert_ne!(stage.state.get("source").get("sha256").as_str(), Some(ABC));
    plane.close().await;
}

#[tokio::test]
async fn a_file_is_needed_only_for_an_image_that_does_not_exist_or_is_replaced() {
    let plane = ControlPlane::in_memory().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("disk.qcow2");
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_image");
    let plan = stage.plan(&image(&file)).await;
    let text = text_of(&plan.diagnostics);
    assert!(text.starts_with("Warning") && text.contains("disk.qcow2 does not exist"), "{text}");
    let refused = stage.apply_plan(plan, &image(&file)).await;
    assert!(diagnostic::has_errors(&refused.diagnostics), "{}", refused.text());
    assert!(refused.text().contains("does not exist") && stage.state.is_null(), "{}", refused.text());
    assert_eq!(plane.count("Image").await, 0, "nothing was created");
    fs::write(&file, "").expect("a file");
    assert!(text_of(&stage.plan(&image(&file)).await.diagnostics).contains("disk.qcow2 is empty"));
    assert!(text_of(&stage.plan(&image(folder.path())).await.diagnostics).contains("is not a regular file"));

    fs::write(&file, "abc").expect("a file");
    let made = stage.apply(&image(&file)).await;
    assert!(made.is_clean(), "{}", made.text());
    fs::remove_file(&file).expect("removed");
    assert!(stage.plan_is_empty(&image(&file)).await, "the image has its content");
    assert_eq!(text_of(&stage.read().await), "");
    let elsewhere = stage.plan(&image(&folder.path().join("elsewhere.qcow2"))).await;
    let text = text_of(&elsewhere.diagnostics);
    assert!(
        elsewhere.requires_replace.is_empty() && text.starts_with("Warning: The file is not on this"),
        "{text}"
    );
    let destroyed = stage.destroy().await;
    assert!(destroyed.is_clean(), "{}", destroyed.text());
    plane.close().await;
}

#[tokio::test]
async fn a_file_that_changes_after_the_plan_or_has_another_declared_checksum_is_refused() {
    let plane = ControlPlane::in_memory().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("disk.qcow2");
    fs::write(&file, "abc").expect("a file");
    let mut stage = Stage::new(&provider(&plane.client, "default"), "berth_image");
    let plan = stage.plan(&image(&file)).await;
    fs::write(&file, "abcd").expect("changed");
    let refused = stage.apply_plan(plan, &image(&file)).await;
    assert!(refused.text().contains("other content than at the plan"), "{}", refused.text());
    assert_eq!(plane.count("Image").await, 0, "nothing was created");
    let mut declared = image(&file);
    declared["source"]["sha256"] = ABC.into();
    let plan = stage.plan(&declared).await;
    assert!(
        text_of(&plan.diagnostics).contains("The file has another checksum"),
        "{}",
        text_of(&plan.diagnostics)
    );
    let unknown = json!({"name": "built", "source": {"file": "<unknown>"}});
    let plan = stage.plan(&unknown).await;
    assert!(plan.planned.get("source").get("sha256").is_unknown() && plan.diagnostics.is_empty());
    plane.close().await;
}
