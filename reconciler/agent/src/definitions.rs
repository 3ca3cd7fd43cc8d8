//! Whether the control plane knows every field this agent reports: one whose definitions are older drops some of them.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

/// What was found of the control plane's definitions.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    older: AtomicBool,
}

impl Definitions {
    /// Whether the answer to a write lacks something of what was written.
    pub(crate) fn are_older<S: Serialize>(&self, written: &S, answered: Option<&S>) -> bool {
        let value = |status: &S| serde_json::to_value(status).ok();
        let older = value(written) != answered.and_then(value);
        if older && !self.older.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                version = env!("CARGO_PKG_VERSION"),
                "the control plane's definitions are older than this agent: apply `berth crds` of this version"
            );
        }
        older
    }

    /// Whether that was ever seen.
    pub(crate) fn were_older(&self) -> bool {
        self.older.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_the_control_plane_drops_is_noticed() {
        let definitions = Definitions::default();
        let sent = json!({"a": 1, "new": 2});
        assert!(!definitions.are_older(&sent, Some(&sent)));
        assert!(!definitions.were_older());
        assert!(definitions.are_older(&sent, Some(&json!({"a": 1}))));
        assert!(definitions.were_older());
    }
}
