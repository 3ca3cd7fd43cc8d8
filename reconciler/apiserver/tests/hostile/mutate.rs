//! Inputs mutated from the corpus by a seed: cut, joined, repeated, and with meaningful words inserted.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// The maximum length of an input in bytes.
const LONGEST: usize = 64 << 10;

/// Words that an attacker with knowledge of the code would try.
const WORDS: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "9223372036854775807",
    "18446744073709551616",
    "1.5",
    "\"\"",
    "{}",
    "[]",
    "{\"\":",
    "[[",
    "]]",
    "}}",
    "metadata",
    "spec",
    "status",
    "apiVersion",
    "kind",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "uid",
    "resourceVersion",
    "managedFields",
    "fieldsV1",
    "generateName",
    "deletionTimestamp",
    "creationTimestamp",
    "generation",
    "$patch",
    "replace",
    "delete",
    "$deleteFromPrimitiveList/",
    "/spec",
    "/-",
    "~0",
    "~1",
    "add",
    "remove",
    "copy",
    "move",
    "test",
    "op",
    "path",
    "from",
    "value",
    "type",
    "object",
    "array",
    "string",
    "integer",
    "number",
    "boolean",
    "properties",
    "items",
    "additionalProperties",
    "required",
    "enum",
    "default",
    "pattern",
    "format",
    "date-time",
    "nullable",
    "maxLength",
    "minimum",
    "allOf",
    "anyOf",
    "not",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "map",
    "set",
    "atomic",
    "x-kubernetes-validations",
    "x-kubernetes-int-or-string",
    "x-kubernetes-embedded-resource",
    "rule",
    "message",
    "messageExpression",
    "oldSelf",
    "self",
    "has(",
    ".all(x, ",
    ".map(x, ",
    ".filter(x, ",
    ".exists_one(x, ",
    "size(",
    ".matches('",
    "'(a*)*'",
    ".replace('', '",
    ".split('",
    ".join('",
    ".format([",
    "lists.range(",
    "int(",
    "duration('",
    "timestamp('",
    "quantity('",
    "semver('",
    "url('",
    "ip('",
    "cidr('",
    "optional.of(",
    ".?",
    "[?",
    "variables.v0",
    "object",
    "oldObject",
    "request",
    "namespaceObject",
    "params",
    "\\\"",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "é",
    "\0",
    "\n---\n",
    "\n",
    "&a ",
    "*a",
    "<<: ",
    "!!binary ",
    "? ",
    "- ",
    ": ",
    "|\n",
    ">-\n",
    "%",
    "%2F",
    "%00",
    "%GG",
    "/..",
    "//",
    "?watch=1",
    "&limit=",
    "&continue=",
    "&resourceVersion=",
    "&timeoutSeconds=",
    "&sendInitialEvents=1",
    "&resourceVersionMatch=Exact",
    " in (",
    " notin (",
    ")",
    "!",
    "!=",
    "==",
    ">",
    "<",
    ",",
    "metadata.name=",
    "spec.harbour=",
    "\\,",
    "@.",
    "[*]",
    "..",
    "[-1:]",
    "[0:9:2]",
    "[?(@.a==1)]",
    "{.",
    "k8s\0",
];

/// An endless sequence of inputs; the same for the same seed.
pub(crate) struct Inputs {
    random: StdRng,
    kept: Vec<Vec<u8>>,
}

impl Inputs {
    pub(crate) fn new(seed: u64, kept: Vec<Vec<u8>>) -> Self {
        assert!(!kept.is_empty(), "there is something to begin with");
        Self { random: StdRng::seed_from_u64(seed), kept }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.random_range(0..limit.max(1))
    }

    fn any(&mut self) -> Vec<u8> {
        let at = self.below(self.kept.len());
        self.kept[at].clone()
    }

    /// Returns the bounds of a piece of an input.
    fn piece(&mut self, of: &[u8], longest: usize) -> (usize, usize) {
        let from = self.below(of.len());
        (from, from + self.below((of.len() - from).min(longest) + 1))
    }

    pub(crate) fn next(&mut self) -> Vec<u8> {
        let mut input = self.any();
        for _ in 0..=self.below(6) {
            self.change(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(9) {
            0 => {
                let word = WORDS[self.below(WORDS.len())];
                input.splice(at..at, word.bytes());
            }
            1 => {
                let (from, to) = self.piece(input, 16);
                let word = WORDS[self.below(WORDS.len())];
                input.splice(from..to, word.bytes());
            }
            2 => {
                let (from, to) = self.piece(input, 32);
                input.drain(from..to);
            }
            3 => {
                let other = self.any();
                let (from, to) = self.piece(&other, other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
            4 => {
                let (from, to) = self.piece(input, 64);
                let piece = input[from..to].to_vec();
                let times = 1 << self.below(10);
                input.splice(at..at, piece.repeat(times).into_iter().take(LONGEST));
            }
            5 => {
                let byte = self.random.random();
                input.insert(at, byte);
            }
            6 if at < input.len() => input[at] ^= 1 << self.below(8),
            7 => {
                let (from, to) = self.piece(input, 128);
                let piece = input[from..to].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            _ if at < input.len() => {
                let number = [b'0', b'9', b'"', b'{', b'[', b'.', b'-'][self.below(7)];
                input[at] = number;
            }
            _ => {}
        }
    }
}
