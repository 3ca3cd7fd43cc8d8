//! Cycles in a graph.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The edges of the graph.
pub(crate) type Graph<N> = BTreeMap<N, BTreeSet<N>>;

/// The strongly connected components with more than one node.
pub(crate) fn circles<N: Ord + Clone>(graph: &Graph<N>) -> BTreeSet<BTreeSet<N>> {
    let reach: BTreeMap<&N, BTreeSet<&N>> = graph.keys().map(|node| (node, reached(graph, node))).collect();
    let each_other = |node: &N| -> BTreeSet<N> {
        let back = |other: &&&N| reach.get(*other).is_some_and(|reach| reach.contains(node));
        reach[node].iter().filter(back).map(|other| (*other).clone()).collect()
    };
    graph.keys().map(each_other).filter(|members| members.len() > 1).collect()
}

/// The shortest path from a node back to itself.
pub(crate) fn around<N: Ord + Clone>(graph: &Graph<N>, start: &N) -> Vec<N> {
    let mut before = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        for next in graph.get(node).into_iter().flatten() {
            if next == start {
                let mut way = vec![start.clone(), node.clone()];
                let mut at = node;
                while at != start {
                    at = before[at];
                    way.push(at.clone());
                }
                way.reverse();
                return way;
            }
            if !before.contains_key(next) {
                before.insert(next, node);
                queue.push_back(next);
            }
        }
    }
    Vec::new()
}

fn reached<'a, N: Ord>(graph: &'a Graph<N>, start: &N) -> BTreeSet<&'a N> {
    let mut reached = BTreeSet::new();
    let mut queue: Vec<&N> = graph.get(start).into_iter().flatten().collect();
    while let Some(node) = queue.pop() {
        if reached.insert(node) {
            queue.extend(graph.get(node).into_iter().flatten());
        }
    }
    reached
}

#[test]
fn a_circle_is_found_with_its_shortest_way() {
    let arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "b"), ("c", "d"), ("d", "e")];
    let mut graph = Graph::new();
    for (from, to) in arrows {
        graph.entry(from).or_insert_with(BTreeSet::new).insert(to);
    }
    assert_eq!(circles(&graph), BTreeSet::from([BTreeSet::from(["a", "b", "c"])]));
    assert_eq!(around(&graph, &"a"), ["a", "b", "c", "a"]);
    assert_eq!(around(&graph, &"b"), ["b", "c", "b"]);
    assert!(around(&graph, &"d").is_empty());
}
