//! The coarsest equitable partition of a graph: all members of a class have as many neighbours of each class.
//!
//! Each vertex has a sum over its neighbours' classes. Members of a class whose sums differ are told apart. Then only the sums of
//! those change that they are neighbours of, so that the work goes with what is told apart, and not with rounds times the graph.
//!
//! Source: Cardon and Crochemore, "Partitioning a graph in O(|A| log2 |V|)", 1982. Other than there, members that nothing changed
//! for keep their class, whichever part is larger.

use super::mix::mix;

/// Edges between numbered vertices, each with a label.
#[derive(Debug)]
pub(super) struct Graph {
    /// By vertex, where its edges begin; one more at the end.
    begins: Vec<u32>,
    /// Where each edge leads, and its label.
    edges: Vec<(u32, u64)>,
}

impl Graph {
    /// A graph of so many vertices, with the edges that `visit` tells: from, to, label.
    pub(super) fn new(vertices: usize, visit: impl Fn(&mut dyn FnMut(usize, usize, u64))) -> Self {
        let mut begins = vec![0_u32; vertices + 1];
        visit(&mut |from, _, _| begins[from + 1] += 1);
        for vertex in 0..vertices {
            begins[vertex + 1] += begins[vertex];
        }
        let mut next = begins.clone();
        let mut edges = vec![(0, 0); begins[vertices] as usize];
        visit(&mut |from, to, label| {
            edges[next[from] as usize] = (u32::try_from(to).unwrap_or(u32::MAX), label);
            next[from] += 1;
        });
        Self { begins, edges }
    }

    fn edges(&self, from: u32) -> &[(u32, u64)] {
        &self.edges[self.begins[from as usize] as usize..self.begins[from as usize + 1] as usize]
    }
}

/// A class of vertices.
#[derive(Clone, Copy)]
struct Class {
    /// What its members count for in the sums of their neighbours.
    tint: u64,
    members: u32,
    /// Sum of those that nothing changed for since they were last compared.
    common: u64,
}

impl Class {
    fn new(number: usize, members: u32, common: u64) -> Self {
        Self { tint: mix(0x5eed, number as u64), members, common }
    }
}

/// By vertex, its class in the coarsest partition that tells apart what `of` does, and in which as many edges of each label lead
/// from each class to each member of a class. `None` as soon as `enough` says so, which sees the classes after each round.
pub(super) fn coarsest(graph: &Graph, mut of: Vec<u32>, mut enough: impl FnMut(&[u32]) -> bool) -> Option<Vec<u32>> {
    let count = of.iter().max().map_or(0, |&last| last as usize + 1);
    let mut classes: Vec<Class> = (0..count).map(|number| Class::new(number, 0, 0)).collect();
    of.iter().for_each(|&class| classes[class as usize].members += 1);
    let vertices = u32::try_from(of.len()).unwrap_or(u32::MAX);
    let mut sums = vec![0_u64; of.len()];
    for from in 0..vertices {
        let tint = classes[of[from as usize] as usize].tint;
        for &(to, label) in graph.edges(from) {
            sums[to as usize] = sums[to as usize].wrapping_add(mix(tint, label));
        }
    }
    let mut changed: Vec<u32> = (0..vertices).collect();
    let mut is_changed = vec![true; of.len()];
    // Vertices that leave their class, with the tint that they had.
    let mut moved: Vec<(u32, u64)> = Vec::new();
    while !changed.is_empty() {
        changed.sort_unstable_by_key(|&vertex| (of[vertex as usize], sums[vertex as usize], vertex));
        for group in changed.chunk_by(|&a, &b| of[a as usize] == of[b as usize]) {
            let number = of[group[0] as usize] as usize;
            let Class { tint, members, common } = classes[number];
            // Whoever nothing changed for keeps the class, or else the most.
            let kept = if members as usize > group.len() {
                common
            } else {
                let parts = group.chunk_by(|&a, &b| sums[a as usize] == sums[b as usize]);
                parts.max_by_key(|part| part.len()).map_or(0, |part| sums[part[0] as usize])
            };
            classes[number].common = kept;
            for part in group.chunk_by(|&a, &b| sums[a as usize] == sums[b as usize]) {
                let sum = sums[part[0] as usize];
                if sum != kept {
                    let size = u32::try_from(part.len()).unwrap_or(u32::MAX);
                    classes[number].members -= size;
                    moved.extend(part.iter().map(|&vertex| (vertex, tint)));
                    classes.push(Class::new(classes.len(), size, sum));
                }
            }
        }
        changed.iter().for_each(|&vertex| is_changed[vertex as usize] = false);
        changed.clear();
        // Parts were listed in the order of their classes.
        let mut number = classes.len();
        let mut left = 0;
        for &(vertex, _) in moved.iter().rev() {
            if left == 0 {
                number -= 1;
                left = classes[number].members;
            }
            of[vertex as usize] = u32::try_from(number).unwrap_or(u32::MAX);
            left -= 1;
        }
        for &(vertex, before) in &moved {
            let tint = classes[of[vertex as usize] as usize].tint;
            for &(to, label) in graph.edges(vertex) {
                let to_sum = &mut sums[to as usize];
                *to_sum = to_sum.wrapping_add(mix(tint, label)).wrapping_sub(mix(before, label));
                if !std::mem::replace(&mut is_changed[to as usize], true) {
                    changed.push(to);
                }
            }
        }
        moved.clear();
        if !changed.is_empty() && enough(&of) {
            return None;
        }
    }
    Some(of)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The same by rounds over the whole graph, each vertex by the sorted list of what leads to it.
    fn slowly(vertices: usize, edges: &[(usize, usize, u64)], mut of: Vec<u32>) -> Vec<u32> {
        loop {
            let mut leads: Vec<Vec<(u32, u64)>> = vec![Vec::new(); vertices];
            edges.iter().for_each(|&(from, to, label)| leads[to].push((of[from], label)));
            leads.iter_mut().for_each(|list| list.sort_unstable());
            let mut numbers = HashMap::new();
            let mut next = Vec::new();
            for (&own, list) in of.iter().zip(&leads) {
                let new = numbers.len() as u32;
                next.push(*numbers.entry((own, list.clone())).or_insert(new));
            }
            if numbers.len() == of.iter().collect::<std::collections::HashSet<_>>().len() {
                return next;
            }
            of = next;
        }
    }

    /// Numbers by first appearance.
    fn named(of: &[u32]) -> Vec<usize> {
        let mut numbers = HashMap::new();
        of.iter()
            .map(|class| {
                let new = numbers.len();
                *numbers.entry(*class).or_insert(new)
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Goal: the partition is that of a slow reference, for graphs with few labels and few initial classes.
        #[test]
        fn partitions_are_those_of_rounds(
            vertices in 1_usize..40,
            edges in proptest::collection::vec((0_usize..40, 0_usize..40, 0_u64..3), 0..120),
            initial in proptest::collection::vec(0_u32..3, 40),
        ) {
            let edges: Vec<_> = edges.into_iter().map(|(a, b, l)| (a % vertices, b % vertices, l)).collect();
            let initial = initial[..vertices].to_vec();
            let graph = Graph::new(vertices, |edge| edges.iter().for_each(|&(a, b, l)| edge(a, b, l)));
            let fast = coarsest(&graph, initial.clone(), |_| false).unwrap();
            prop_assert_eq!(named(&fast), named(&slowly(vertices, &edges, initial)));
        }

        /// Goal: a long ring with a few marked vertices is told apart as far as news goes.
        #[test]
        fn rings_are_told_apart(vertices in 2_usize..300, marks in proptest::collection::vec(0_usize..300, 0..3)) {
            let edges: Vec<_> = (0..vertices).flat_map(|v| [(v, (v + 1) % vertices, 0), ((v + 1) % vertices, v, 1)]).collect();
            let mut initial = vec![0; vertices];
            marks.iter().for_each(|mark| initial[mark % vertices] = 1);
            let graph = Graph::new(vertices, |edge| edges.iter().for_each(|&(a, b, l)| edge(a, b, l)));
            let fast = coarsest(&graph, initial.clone(), |_| false).unwrap();
            prop_assert_eq!(named(&fast), named(&slowly(vertices, &edges, initial)));
        }
    }
}
