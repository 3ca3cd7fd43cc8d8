//! The registry pages in the repository are those the provider generates.

use std::path::Path;

#[test]
fn the_committed_pages_are_the_generated_ones() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for (path, text) in terraform_provider_berth::docs::pages() {
        let committed = std::fs::read_to_string(docs.join(&path)).unwrap_or_default();
        assert!(
            committed == text,
            "docs/{path} is not up to date: run cargo run -p terraform-provider-berth -- docs docs"
        );
    }
}
