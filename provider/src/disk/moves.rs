//! A change of the pool of a disk that stays in its pool: one that several VMs write to, or that is a block device.

use tfplugin6::{AttributePath, Diagnostic};

use crate::change::PlannedChange;

const POOL: &str = "pool";

/// Plans another disk where the pool changes. A plan that does not know the pool yet shows no replacement: its apply is refused if the pool
/// differs, because no update moves the disk.
pub(super) fn refine(change: &mut PlannedChange<'_>) {
    let is_shared = change.planned.get("access").as_str() == Some("ReadWriteMany");
    let is_device = !change.planned.get("source").get("device").is_null();
    if change.is_create() || !(is_shared || is_device) {
        return;
    }
    let kind = if is_shared { "A ReadWriteMany disk" } else { "A disk that is a block device of its host" };
    let was = change.prior.get(POOL).as_str().unwrap_or_default();
    let path = AttributePath::root(POOL);
    match change.planned.get(POOL).as_str() {
        None if change.planned.get(POOL).is_unknown() && !change.is_applied => {
            let detail = format!(
                "pool: it is not known before the apply, which fails if it is another one than {was:?}: {kind} stays in its pool. Write \
                 the name of the StoragePool, so that the plan shows whether the disk is replaced.",
                kind = lower(kind)
            );
            change.diagnostics.push(Diagnostic::warning("The pool is not known yet", detail).at(path));
        }
        Some(is) if is != was && change.is_applied => {
            let detail = format!(
                "pool: {kind} stays in its pool, and this one is in {was:?}, not in {is:?}. Keep pool = {was:?}, or plan again: another \
                 disk is made then, without the data of this one.",
                kind = lower(kind)
            );
            change.refuse(format!("{kind} does not move to another pool"), detail, path);
        }
        Some(is) if is != was => change.replace.push(path),
        _ => {}
    }
}

fn lower(kind: &str) -> String {
    kind.replacen('A', "a", 1)
}

#[cfg(test)]
mod tests {
    use tfplugin6::Value;

    use super::super::Disk;
    use super::*;
    use crate::{kind::ResourceKind, private::Private};

    fn disk(access: &str, pool: Value) -> Value {
        let text = |text: &str| Value::from(text);
        Value::object([("name", text("d")), ("size", text("1Gi")), ("access", text(access)), ("pool", pool)])
    }

    /// The number of replacements, warnings and refusals of a change of the pool.
    fn refined(access: &str, pool: Value, is_applied: bool) -> (usize, usize, usize) {
        let fields = Disk.fields();
        let (prior, config) = (disk(access, Value::from("slow")), disk(access, pool));
        let mut change = PlannedChange::new(&fields, &prior, &config, config.clone(), Private::default());
        change.is_applied = is_applied;
        Disk.refine(&mut change);
        let at_pool = |found: &Diagnostic| found.attribute == Some(AttributePath::root(POOL));
        assert!(change.diagnostics.iter().chain(&change.refusals).all(at_pool), "{change:?}");
        (change.replace.len(), change.diagnostics.len(), change.refusals.len())
    }

    #[test]
    fn the_pool_of_a_disk_that_several_vms_write_to_changes_with_another_disk_only() {
        let (shared, own) = ("ReadWriteMany", "ReadWriteOnce");
        let fast = || Value::from("fast");
        assert_eq!(refined(shared, Value::from("slow"), false), (0, 0, 0));
        assert_eq!(refined(shared, fast(), false), (1, 0, 0));
        assert_eq!(refined(shared, Value::UNKNOWN, false), (0, 1, 0), "the apply may be refused");
        assert_eq!(refined(shared, fast(), true), (0, 0, 1), "the plan has shown no replacement");
        assert_eq!(refined(shared, Value::from("slow"), true), (0, 0, 0));
        for is_applied in [false, true] {
            assert_eq!(refined(own, fast(), is_applied), (0, 0, 0), "it is moved");
        }
    }
}
