//! The image that VMs use, and hosts in memory that can download it.

use std::sync::Arc;

use berth_engine::RuntimeClock;
use berth_host::fake::{FakeSource, FakeSystem};
use berth_qemu::machine::Format;
use serde_json::{Value, json};

const URL: &str = "https://images.example/debian.qcow2";

fn sha256() -> String {
    "a".repeat(64)
}

/// The spec of the Image.
pub(crate) fn spec() -> Value {
    json!({"source": {"url": URL, "sha256": sha256()}})
}

/// A host that can download it: a GiB.
pub(crate) fn host(clock: &Arc<RuntimeClock>) -> Arc<FakeSystem> {
    let system = Arc::new(FakeSystem::new(clock.clone()));
    let source = FakeSource {
        sha256: sha256(),
        format: Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1 << 20,
        refused: None,
    };
    system.add_source(URL, source);
    system
}
