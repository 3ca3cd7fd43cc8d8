//! The rules of `x-kubernetes-validations` of a schema node, as declared and compiled.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::ErrorKind;
use super::expression::{Expression, Reads, try_on_big_stack};

/// The maximum number of remembered evaluations of one schema node.
const MAX_HELD: usize = 16 * 1024;

/// A rule as declared.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) path: String,
    pub(super) source: String,
    pub(super) message: Option<String>,
    pub(super) message_source: Option<String>,
    pub(super) reason: Option<ErrorKind>,
    pub(super) field_path: Option<String>,
    pub(super) optional_old_self: bool,
}

/// The rules of a node. They are compiled at their first use: a site writes few of the kinds that it serves, and the rules of all
/// of them take much of the time of a start and of the memory of an idle server.
#[derive(Debug, Default)]
pub struct Rules {
    pub(super) declared: Vec<Rule>,
    compiled: OnceLock<Box<CompiledRules>>,
}

impl Rules {
    pub(super) fn new(declared: Vec<Rule>) -> Self {
        Self { declared, compiled: OnceLock::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.declared.is_empty()
    }

    /// The compiled rules, in the order of the declared ones.
    ///
    /// # Errors
    /// No thread can be started to compile them.
    pub(super) fn compiled(&self) -> io::Result<&CompiledRules> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(compiled);
        }
        let compiled = try_on_big_stack(|| Box::new(CompiledRules::new(&self.declared)))?;
        // Those of a request that was faster are as good.
        Ok(self.compiled.get_or_init(|| compiled))
    }

    /// Like [`Self::compiled`], for a caller that is inside [`on_big_stack`](super::expression::on_big_stack).
    pub(super) fn compiled_here(&self) -> &CompiledRules {
        self.compiled.get_or_init(|| Box::new(CompiledRules::new(&self.declared)))
    }
}

/// The compiled rules of a node.
#[derive(Debug)]
pub(super) struct CompiledRules {
    pub(super) programs: Vec<Programs>,
    /// The part of the node's value that the rules read.
    pub(super) reads: Reads,
    pub(super) held: Held,
}

/// The programs of a rule, or why one does not compile.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) rule: Result<Expression, String>,
    pub(super) message: Option<Result<Expression, String>>,
}

impl Programs {
    pub(super) fn uses_old_self(&self) -> bool {
        self.rule.as_ref().is_ok_and(|program| program.uses("oldSelf"))
    }
}

impl CompiledRules {
    fn new(declared: &[Rule]) -> Self {
        const ROOTS: [&str; 2] = ["self", "oldSelf"];
        let compile = |source: &str| Expression::compile(source, &ROOTS);
        let of_rule = |rule: &Rule| Programs {
            rule: compile(&rule.source),
            message: rule.message_source.as_deref().map(compile),
        };
        let programs: Vec<Programs> = declared.iter().map(of_rule).collect();
        let mut reads = Reads::default();
        for program in programs.iter().flat_map(|of| of.message.iter().chain([&of.rule])).flatten() {
            ROOTS.iter().filter_map(|name| program.reads(name)).for_each(|read| reads.extend(read));
        }
        Self { programs, reads, held: Held::default() }
    }
}

/// The values that the rules of a node were found to hold for, as digests under a secret key, and the part of the
/// budget that it took. A rule is a function of what it reads, and most writes change something else.
#[derive(Debug, Default)]
pub(crate) struct Held {
    key: RandomState,
    turns: Mutex<HashMap<u64, i64>>,
}

impl Held {
    pub(super) fn digest(&self, hash: impl FnOnce(&mut dyn Hasher)) -> u64 {
        let mut hasher = self.key.build_hasher();
        hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn turns(&self, digest: u64) -> Option<usize> {
        self.lock().get(&digest).and_then(|turns| usize::try_from(*turns).ok())
    }

    pub(super) fn insert(&self, digest: u64, turns: i64) {
        let mut all = self.lock();
        if all.len() >= MAX_HELD {
            all.clear();
        }
        all.insert(digest, turns);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, i64>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
