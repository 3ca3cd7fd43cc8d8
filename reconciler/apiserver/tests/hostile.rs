//! Hostile input: for any input there is no panic, no 5xx response, and time and memory are bounded.
//!
//! By default each target runs briefly and deterministically: the files in `hostile/corpus`, then inputs
//! mutated from them. `HOSTILE_SECONDS=3600` continues for an hour per target, `HOSTILE_SEED` sets another
//! seed.

#[path = "server/definition.rs"]
mod definition;
#[path = "hostile/fixture.rs"]
mod fixture;
#[path = "hostile/large.rs"]
mod large;
#[path = "hostile/mutate.rs"]
mod mutate;
#[path = "hostile/targets.rs"]
mod targets;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fixture::Fixture;
use mutate::Inputs;
use targets::{TARGETS, Target};

/// The number of inputs per target beyond those of the corpus.
const INPUTS: usize = 400;
/// The maximum time of one input, even on a slow machine; a few milliseconds are usual.
const PATIENCE: Duration = Duration::from_secs(300);

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("there is a corpus")
        .map(|file| file.expect("it can be read").path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| (file.display().to_string(), std::fs::read(file).expect("it can be read")))
        .collect()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Ends the process when an input takes too long: otherwise the input could not be identified.
struct Watch(mpsc::Sender<Option<String>>);

impl Watch {
    fn new(target: &'static str) -> Self {
        let (inputs, reported) = mpsc::channel::<Option<String>>();
        std::thread::spawn(move || {
            let mut now = None;
            loop {
                match (reported.recv_timeout(PATIENCE), &now) {
                    (Ok(next), _) => now = next,
                    (Err(mpsc::RecvTimeoutError::Timeout), Some(input)) => {
                        eprintln!("{target}: no end after {PATIENCE:?}: {input}");
                        std::process::abort();
                    }
                    (Err(mpsc::RecvTimeoutError::Timeout), None) => {}
                    (Err(mpsc::RecvTimeoutError::Disconnected), _) => return,
                }
            }
        });
        Self(inputs)
    }
}

fn run(name: &str) {
    let target: Target = *TARGETS.iter().find(|(found, _)| *found == name).expect("a target");
    let kept = corpus(name);
    let seed = variable("HOSTILE_SEED").unwrap_or(1);
    let until = variable("HOSTILE_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut inputs = Inputs::new(seed, kept.iter().map(|(_, input)| input.clone()).collect());
    let (mut fixture, watch) = (Fixture::new(), Watch::new(target.0));
    let mut slowest = (Duration::ZERO, String::new());
    let mut one = |reported: String, input: &[u8]| {
        let shown = format!("{reported}: {}", input.escape_ascii());
        // The receiver is gone only if the process is.
        let _ = watch.0.send(Some(shown.clone()));
        let begun = Instant::now();
        let fed = std::panic::catch_unwind(AssertUnwindSafe(|| targets::feed(target, &mut fixture, input)));
        if fed.is_err() {
            let kept = std::env::temp_dir().join(format!("hostile-{name}-{}", std::process::id()));
            std::fs::write(&kept, input).expect("it can be written");
            panic!("{name}, seed {seed}: kept as {}: {shown}", kept.display());
        }
        if begun.elapsed() > slowest.0 {
            slowest = (begun.elapsed(), shown);
        }
    };
    for (file, input) in &kept {
        one(file.clone(), input);
    }
    let mut count = 0;
    while until.map_or(count < INPUTS, |until| Instant::now() < until) {
        count += 1;
        one(format!("input {count}"), &inputs.next());
    }
    let (time, which) = slowest;
    eprintln!("{name}, seed {seed}: {} kept and {count} made; slowest, {time:.1?}: {which}", kept.len());
}

#[test]
fn no_body_is_too_strange() {
    run("bodies");
}

#[test]
fn no_patch_is_too_strange() {
    run("patches");
}

#[test]
fn no_selector_is_too_strange() {
    run("selectors");
}

#[test]
fn no_path_is_too_strange() {
    run("paths");
}

#[test]
fn no_rule_is_too_strange() {
    run("rules");
}

#[test]
fn no_definition_is_too_strange() {
    run("definitions");
}

#[test]
fn every_target_has_a_corpus_and_a_test() {
    let source = include_str!("hostile.rs");
    for (name, _) in TARGETS {
        assert!(corpus(name).len() >= 5, "{name}");
        assert!(source.contains(&format!("    run(\"{name}\");")), "{name}");
    }
}
