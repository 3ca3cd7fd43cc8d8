//! Facts of the fake host.

use async_trait::async_trait;
use berth_qemu::hypervisor::ProcessIdentity;
use serde_json::Value;

use crate::{ForeignKind, ForeignObject, HostFacts, HostInfo, HostUse, Result};

use super::FakeSystem;

impl FakeSystem {
    fn facts_now(&self) -> HostFacts {
        let boot_id = self.hypervisor().boot_id();
        let running = self.hypervisor.instances();
        let state = self.state();
        let mut facts = HostFacts { boot_id, ..state.facts.clone() };
        facts.dedicated.free = state.free_cpus(|instance: &String| running.contains(instance));
        facts
    }
}

#[async_trait]
impl HostInfo for FakeSystem {
    async fn facts(&self) -> Result<HostFacts> {
        self.call("facts", async { Ok(self.facts_now()) }).await
    }

    async fn machine_facts(&self) -> Result<HostFacts> {
        self.call("machine_facts", async { Ok(self.facts_now()) }).await
    }

    async fn overhead(&self, _: &ProcessIdentity, _: u64) -> Result<Option<u64>> {
        // A fake QEMU uses none of the host's memory.
        Ok(None)
    }

    async fn host_use(&self) -> Result<HostUse> {
        let state = self.state();
        let (cpus, memory_bytes) = (state.facts.cpus, state.facts.memory_bytes);
        let huge_page_bytes = state.facts.huge_pages.iter().map(|pages| pages.total * pages.page_bytes).sum();
        let memory_available_bytes = state.available_memory.unwrap_or(memory_bytes);
        Ok(HostUse { cpus, memory_bytes, memory_available_bytes, huge_page_bytes, ..HostUse::default() })
    }

    async fn foreign(&self) -> Result<Vec<ForeignObject>> {
        let work = async {
            let stranger = |(pid, name): (i32, String)| ForeignObject {
                kind: ForeignKind::Process,
                name: format!("{pid} {name}"),
                detail: "a QEMU that berth did not start".to_owned(),
            };
            Ok(self.hypervisor.foreign().into_iter().map(stranger).collect())
        };
        self.call("foreign", work).await
    }

    async fn read_site(&self) -> Result<Option<Value>> {
        self.call("read_site", async { Ok(self.state().site.clone()) }).await
    }

    async fn write_site(&self, record: &Value) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let term = |record: &Value| record["term"].as_u64();
            let (kept, term) = (state.site.as_ref().and_then(term), term(record));
            if kept > term {
                state.violations.push(format!("term {term:?} kept after {kept:?}"));
            }
            state.site = Some(record.clone());
            Ok(())
        };
        self.call("write_site", work).await
    }
}
