//! The targets of `tests/hostile.rs`, fed by libFuzzer, which looks at what the code does with each input. See `run`.
#![no_main]

#[path = "../../tests/server/definition.rs"]
mod definition;
#[path = "../../tests/hostile/targets.rs"]
mod targets;
#[path = "../../tests/hostile/world.rs"]
mod world;

use std::cell::RefCell;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};
use world::World;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("TARGET").unwrap_or_default();
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    *found.unwrap_or_else(|| panic!("TARGET is one of {}", names.join(", ")))
});

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

fuzz_target!(|input: &[u8]| {
    WORLD.with_borrow_mut(|world| targets::feed(*TARGET, world, input));
});
