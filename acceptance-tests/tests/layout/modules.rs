//! The modules of one crate, and the dependencies between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    circles::Graph,
    source::{Import, Scope, parse},
};

/// The path of a module in its crate: `["store", "log"]`. The root is empty.
pub(crate) type Place = Vec<String>;

/// The modules that a path refers to.
type Named = BTreeSet<Place>;

/// The maximum length of a chain of imports; a longer one is a cycle.
const LONGEST: usize = 32;

/// All modules of one crate except those for tests.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    modules: BTreeMap<Place, Module>,
}

#[derive(Debug)]
struct Module {
    file: PathBuf,
    imports: Vec<Import>,
    paths: Vec<Vec<String>>,
}

impl Modules {
    /// Reads a crate, starting at its root (`lib.rs`, `main.rs`).
    pub(crate) fn read(root: &Path) -> Self {
        let mut all = Self::default();
        let folder = root.parent().expect("a root is in a folder");
        all.read_file(Place::new(), root, folder);
        all
    }

    /// A crate of one file.
    fn of(source: &str) -> Self {
        let mut all = Self::default();
        all.add(Place::new(), parse(source), Path::new("lib.rs"), Path::new(""));
        all
    }

    fn read_file(&mut self, place: Place, file: &Path, folder: &Path) {
        let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(place, parse(&source), file, folder);
    }

    fn add(&mut self, place: Place, scope: Scope, file: &Path, folder: &Path) {
        for name in scope.declared {
            let (flat, nested) = (folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs"));
            let file = if nested.exists() { nested } else { flat };
            self.read_file(below(&place, &name), &file, &folder.join(&name));
        }
        for (name, scope) in scope.inline {
            self.add(below(&place, &name), scope, file, &folder.join(&name));
        }
        let module = Module { file: file.to_owned(), imports: scope.imports, paths: scope.paths };
        self.modules.insert(place, module);
    }

    /// The source file of a module.
    pub(crate) fn file(&self, place: &Place) -> &Path {
        &self.modules[place].file
    }

    /// Every module with the modules it refers to, itself excluded.
    pub(crate) fn arrows(&self) -> Graph<Place> {
        let named = |(place, module): (&Place, &Module)| {
            let imported = module.imports.iter().map(|import| &import.path);
            let mut named = Named::new();
            for path in imported.chain(&module.paths) {
                self.follow(place, path, 0, &mut named);
            }
            named.remove(place);
            (place.clone(), named)
        };
        self.modules.iter().map(named).collect()
    }

    /// Adds the modules that a path refers to: the written one and, where that imports the name from another, the other too.
    /// Returns the module the path leads to; none where it leads to an item in a module, or to another crate.
    fn follow(&self, from: &Place, path: &[String], depth: usize, named: &mut Named) -> Option<Place> {
        let (begin, rest) = self.begin(from, path)?;
        let (at, rest) = self.descend(begin, rest);
        // A first segment that is not a module of ours is ignored.
        if rest.len() < path.len() {
            named.insert(at.clone());
        }
        let Some((name, rest)) = rest.split_first() else { return Some(at) };
        let import = self.modules[&at].imports.iter().find(|import| import.name == *name)?;
        if depth == LONGEST || import.path == path {
            return None;
        }
        let source = self.follow(&at, &import.path, depth + 1, named)?;
        let (at, rest) = self.descend(source, rest);
        named.insert(at.clone());
        rest.is_empty().then_some(at)
    }

    /// Descends from a module as far as the segments are modules; returns the rest.
    fn descend<'a>(&self, mut at: Place, mut path: &'a [String]) -> (Place, &'a [String]) {
        while let Some((name, rest)) = path.split_first() {
            let child = below(&at, name);
            if !self.modules.contains_key(&child) {
                break;
            }
            (at, path) = (child, rest);
        }
        (at, path)
    }

    /// The module a path begins at, and the rest of the path.
    fn begin<'a>(&self, from: &Place, path: &'a [String]) -> Option<(Place, &'a [String])> {
        match path.first()?.as_str() {
            "crate" => Some((Place::new(), &path[1..])),
            "self" => Some((from.clone(), &path[1..])),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                Some((from[..from.len().checked_sub(ups)?].to_vec(), &path[ups..]))
            }
            _ => Some((from.clone(), path)),
        }
    }
}

fn below(place: &[String], name: &str) -> Place {
    let mut place = place.to_vec();
    place.push(name.to_owned());
    place
}

#[test]
fn a_path_leads_through_imports_to_where_its_name_is_from() {
    let crate_ = Modules::of(
        "pub use c::Deep;
         mod a { use crate::{b::Name, Deep}; mod part { use super::super::b; fn f() { b::deep::g() } } }
         mod b { pub use super::c::Name; pub mod deep { fn g() { super::super::a::f() } } }
         mod c { use serde::Name; use self::own; use http::a; }",
    );
    let arrows = crate_.arrows();
    let named = |place: &str| {
        let place: Place = place.split("::").map(str::to_owned).collect();
        arrows[&place].iter().map(|named| named.join("::")).collect::<Vec<_>>()
    };
    // The empty one is the root, which gets `Deep` from `c`.
    assert_eq!(named("a"), ["", "b", "c"]);
    assert_eq!(named("a::part"), ["b", "b::deep"]);
    assert_eq!(named("b"), ["c"]);
    assert_eq!(named("b::deep"), ["a"]);
    assert!(named("c").is_empty());
}

#[test]
fn imports_that_lead_in_a_circle_end() {
    let crate_ = Modules::of(
        "mod a { pub use crate::b::X; } mod b { pub use crate::a::X; use y::y; fn f() { y::z() } }",
    );
    assert_eq!(crate_.arrows()[&vec!["a".to_owned()]], BTreeSet::from([vec!["b".to_owned()]]));
}
