//! The registry pages in the repository are those the provider generates.

use std::path::Path;

#[test]
fn the_committed_pages_are_the_generated_ones() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for (path, text) in terraform_provider_berth::docs::pages() {
        let committed = std::fs::read_to_string(docs.join(&path)).unwrap_or_default();
        assert!(committed == text, "docs/{path} is not up to date: run cargo run --example docs -- docs");
    }
}

#[test]
fn every_resource_has_its_examples_in_the_registrys_layout() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/resources");
    for resource in terraform_provider_berth::BerthProvider::default().kinds() {
        let name = resource.info().type_name;
        let page = format!("resources/{}.md", name.trim_start_matches("berth_"));
        let (_, page) = terraform_provider_berth::docs::pages()
            .into_iter()
            .find(|(path, _)| *path == page)
            .expect("every resource has a page");
        for file in ["resource.tf", "import.sh"] {
            let text = std::fs::read_to_string(examples.join(name).join(file)).unwrap_or_default();
            assert!(
                !text.is_empty() && page.contains(&text),
                "examples/resources/{name}/{file} is not what the page shows"
            );
        }
    }
}
