//! The compiled expressions in use, by source and variables.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use super::Compiled;

/// The number of sources above which those that are no longer in use are removed.
const MANY: usize = 1_024;

/// An expression with its variables.
type Entry = (Vec<String>, Weak<Compiled>);

struct InUse {
    /// By source.
    entries: HashMap<String, Vec<Entry>>,
    /// The number of sources at which unused ones are removed next.
    limit: usize,
}

static IN_USE: LazyLock<Mutex<InUse>> =
    LazyLock::new(|| Mutex::new(InUse { entries: HashMap::new(), limit: MANY }));

fn in_use() -> MutexGuard<'static, InUse> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The expression that was compiled from this source for these variables, if it is in use.
pub(super) fn find(source: &str, roots: &[&str]) -> Option<Arc<Compiled>> {
    let in_use = in_use();
    let (_, compiled) = in_use.entries.get(source)?.iter().find(|(variables, _)| variables == roots)?;
    compiled.upgrade()
}

/// Makes an expression available as long as it is in use.
pub(super) fn insert(source: &str, roots: &[&str], compiled: &Arc<Compiled>) {
    let mut in_use = in_use();
    let of_source = in_use.entries.entry(source.to_owned()).or_default();
    of_source.retain(|(variables, compiled)| variables != roots && compiled.strong_count() > 0);
    of_source.push((roots.iter().map(|root| (*root).to_owned()).collect(), Arc::downgrade(compiled)));
    if in_use.entries.len() > in_use.limit {
        in_use.entries.retain(|_, of_source| {
            of_source.retain(|(_, compiled)| compiled.strong_count() > 0);
            !of_source.is_empty()
        });
        in_use.limit = MANY.max(2 * in_use.entries.len());
    }
}
