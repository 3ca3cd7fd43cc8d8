//! The example provider's binary, which the tests start.

use std::{env, path::PathBuf, process::Command, sync::OnceLock};

/// `cargo test` builds examples beside the tests, unless only one test is selected: then it is built here.
pub(crate) fn toy() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let toy = BUILT.get_or_init(|| {
        let test = env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let toy = profile.join("examples/toy");
        if !toy.exists() {
            // Of the whole workspace: with the features of this package alone, a hundred crates would be compiled again.
            let built = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--workspace", "--example", "toy", "--target-dir"])
                .arg(profile.parent().unwrap())
                .args(profile.ends_with("release").then_some("--release"))
                .status();
            assert!(built.unwrap().success());
        }
        toy
    });
    toy.clone()
}
