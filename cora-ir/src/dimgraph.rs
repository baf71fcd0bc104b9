//! Dimension graphs: which dimensions' sizes depend on which other dimensions' indices.
//!
//! An edge d1 -> d2 says that the extent of d2 is a function of the index in d1 (paper section 5.2).
//! Offsets are computed from its components: see `docs/ir.md`.

use crate::env::Env;
use crate::expr::{Expr, ExprPool};
use crate::graph::Graph;
use crate::ids::{EntityId, ExprId, TensorId};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use std::fmt::Write;

/// The dependences between the sizes of some dimensions, numbered from the outermost.
#[derive(Clone, Debug, Default)]
pub struct DimGraph {
    graph: DiGraph<String, ()>,
}

impl DimGraph {
    /// The graph of dimensions called `names`, the extent of the j-th being `extents[j]` over
    /// `Arg(0..j)`. Arguments that are no dimension of the list are ignored.
    pub fn of_extents(pool: &ExprPool, names: &[&str], extents: &[ExprId]) -> Self {
        let mut g = Self::with_names(names.iter().copied());
        for (d, &extent) in extents.iter().enumerate() {
            let mut used = Vec::new();
            pool.walk(extent, &mut |_, n| {
                if let Expr::Arg(a) = n {
                    used.push(*a as usize);
                }
            });
            used.sort_unstable();
            used.into_iter().for_each(|p| g.edge(p, d));
        }
        g
    }

    /// The graph of a tensor's dimensions, by their storage extents if `storage`.
    pub fn of_tensor(env: &Env, tensor: TensorId, storage: bool) -> Self {
        let dims = &env.tensors[tensor].dims;
        let names: Vec<&str> = dims.iter().map(|d| d.name.as_str()).collect();
        let extents: Vec<ExprId> = dims.iter().map(|d| if storage { d.storage } else { d.extent }).collect();
        Self::of_extents(&env.pool, &names, &extents)
    }

    /// The graph of all named dimensions of a program; nodes are numbered as the ids.
    pub fn of_graph(g: &Graph) -> Self {
        let env = &g.env;
        let mut out = Self::with_names(env.dims.iter().map(|(_, d)| d.name.as_str()));
        for (id, d) in env.dims.iter() {
            let used = env.pool.vars_of(d.extent);
            for (parent, p) in env.dims.iter() {
                if used.contains(&p.var) {
                    out.edge(parent.index(), id.index());
                }
            }
        }
        out
    }

    fn with_names<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut graph = DiGraph::new();
        for name in names {
            graph.add_node(name.to_owned());
        }
        Self { graph }
    }

    fn edge(&mut self, from: usize, to: usize) {
        if from < self.len() && to < self.len() {
            self.graph.update_edge(NodeIndex::new(from), NodeIndex::new(to), ());
        }
    }

    /// The number of dimensions.
    pub fn len(&self) -> usize {
        self.graph.node_count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of dimension `d`; empty if there is none.
    pub fn name(&self, d: usize) -> &str {
        self.graph.node_weight(NodeIndex::new(d)).map_or("", String::as_str)
    }

    /// The dimensions on whose index the size of `d` depends, in ascending order.
    pub fn parents(&self, d: usize) -> Vec<usize> {
        self.neighbours(d, Direction::Incoming)
    }

    /// The dimensions whose size depends on the index in `d`, in ascending order.
    pub fn children(&self, d: usize) -> Vec<usize> {
        self.neighbours(d, Direction::Outgoing)
    }

    fn neighbours(&self, d: usize, direction: Direction) -> Vec<usize> {
        if d >= self.len() {
            return Vec::new();
        }
        let mut out: Vec<usize> =
            self.graph.neighbors_directed(NodeIndex::new(d), direction).map(NodeIndex::index).collect();
        out.sort_unstable();
        out
    }

    /// The connected components, regardless of direction, of the graph restricted to `dims`: each in
    /// ascending order, ordered by their smallest dimension. The volume of all `dims` at given outer
    /// indices is the product of the components' volumes.
    pub fn components(&self, dims: &[usize]) -> Vec<Vec<usize>> {
        let mut left: Vec<usize> = dims.iter().copied().filter(|&d| d < self.len()).collect();
        left.sort_unstable();
        left.dedup();
        let mut out = Vec::new();
        while let Some(&first) = left.first() {
            let mut component = vec![first];
            left.remove(0);
            let mut next = 0;
            while let Some(&d) = component.get(next) {
                next += 1;
                for n in self.parents(d).into_iter().chain(self.children(d)) {
                    if let Some(at) = left.iter().position(|&l| l == n) {
                        component.push(left.remove(at));
                    }
                }
            }
            component.sort_unstable();
            out.push(component);
        }
        out
    }

    /// Every edge, by its ends.
    fn edges(&self) -> Vec<(usize, usize)> {
        (0..self.len()).flat_map(|d| self.children(d).into_iter().map(move |c| (d, c))).collect()
    }

    /// Graphviz text.
    pub fn to_dot(&self) -> String {
        let mut out = String::from("digraph dims {\n  node [shape=box];\n");
        for d in 0..self.len() {
            let name = self.name(d).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(out, "  d{d} [label=\"{name}\"];");
        }
        for (from, to) in self.edges() {
            let _ = writeln!(out, "  d{from} -> d{to};");
        }
        out.push_str("}\n");
        out
    }

    /// A drawing: dimensions of constant size on top, each other one below all that it depends on.
    pub fn to_svg(&self) -> String {
        let layers = self.layers();
        let widths: Vec<usize> = (0..self.len()).map(|d| box_width(self.name(d))).collect();
        let mut place = vec![(0, 0); self.len()];
        let mut total = 2 * MARGIN;
        for (l, layer) in layers.iter().enumerate() {
            let mut x = MARGIN;
            for &d in layer {
                place[d] = (x, MARGIN + l * LAYER);
                x += widths[d] + GAP;
            }
            total = total.max(x - GAP.min(x) + MARGIN);
        }
        let height = 2 * MARGIN + layers.len().saturating_sub(1) * LAYER + BOX;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{total}\" height=\"{height}\" \
             font-family=\"monospace\" font-size=\"14\">\n<defs><marker id=\"arrow\" viewBox=\"0 0 10 10\" \
             refX=\"9\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">\
             <path d=\"M0 0L10 5L0 10z\"/></marker></defs>\n"
        );
        for (from, to) in self.edges() {
            let (x1, y1) = (place[from].0 + widths[from] / 2, place[from].1 + BOX);
            let (x2, y2) = (place[to].0 + widths[to] / 2, place[to].1);
            let (c1, c2) = (y1 + LAYER / 3, y2.saturating_sub(LAYER / 3));
            let _ = writeln!(
                out,
                "<path d=\"M{x1} {y1}C{x1} {c1} {x2} {c2} {x2} {y2}\" fill=\"none\" stroke=\"black\" \
                 marker-end=\"url(#arrow)\"/>"
            );
        }
        for (d, &(x, y)) in place.iter().enumerate() {
            let (w, tx, ty) = (widths[d], x + widths[d] / 2, y + BOX / 2 + 5);
            let name = escape(self.name(d));
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{BOX}\" rx=\"4\" fill=\"white\" \
                 stroke=\"black\"/>\n<text x=\"{tx}\" y=\"{ty}\" text-anchor=\"middle\">{name}</text>"
            );
        }
        out.push_str("</svg>\n");
        out
    }

    /// Dimensions by the length of the longest path to them.
    fn layers(&self) -> Vec<Vec<usize>> {
        let n = self.len();
        let mut rank = vec![0; n];
        // Longest paths settle after n rounds; a cycle, which a verified graph has not, stops there.
        for _ in 0..n {
            for (from, to) in self.edges() {
                rank[to] = rank[to].max(rank[from] + 1).min(n);
            }
        }
        let mut layers = vec![Vec::new(); rank.iter().max().map_or(0, |m| m + 1)];
        for (d, r) in rank.into_iter().enumerate() {
            layers[r].push(d);
        }
        layers.retain(|l| !l.is_empty());
        layers
    }
}

const MARGIN: usize = 12;
const GAP: usize = 24;
const BOX: usize = 28;
const LAYER: usize = 72;

fn box_width(name: &str) -> usize {
    20 + 9 * name.chars().count().max(1)
}

/// Text as XML character data; characters that XML cannot hold become U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if (c < ' ' && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                out.push('\u{fffd}');
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{parse_graph, parse_loops};

    const TENSOR: &str = "loop.module @m {
        param M in 0..=9
        uf @lens($0 < M) = extent in 0..=9
        uf @words($0 < M, $1 < @lens($0)) = extent in 0..=9
        tensor @A[b: M, s: @lens($0), h: 8, w: @words($0, $1), t: @lens($0) pad 16] : f32 input
    }";

    fn tensor(storage: bool) -> DimGraph {
        let m = parse_loops(TENSOR).unwrap_or_else(|e| panic!("{e}"));
        let a = m.env.tensor_named("A").expect("declared");
        DimGraph::of_tensor(&m.env, a, storage)
    }

    #[test]
    fn edges_follow_arguments() {
        let g = tensor(false);
        assert_eq!((g.len(), g.name(3)), (5, "w"));
        assert_eq!(g.children(0), [1, 3, 4]);
        assert_eq!(g.parents(3), [0, 1]);
        assert_eq!((g.parents(0), g.children(4), g.parents(9)), (vec![], vec![], vec![]));
    }

    #[test]
    fn storage_padding_can_cut_an_edge() {
        assert_eq!(tensor(true).children(0), [1, 3]);
    }

    #[test]
    fn components_of_suffixes() {
        let g = tensor(false);
        assert_eq!(g.components(&[0, 1, 2, 3, 4]), [vec![0, 1, 3, 4], vec![2]]);
        assert_eq!(g.components(&[1, 2, 3, 4]), [vec![1, 3], vec![2], vec![4]]);
        assert_eq!(g.components(&[4, 3, 2]), [[2], [3], [4]]);
        assert_eq!(g.components(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(g.components(&[7]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn a_graphs_named_dimensions() {
        let text = "graph.module @m { param M in 0..=9 uf @lens($0 < M) = extent in 0..=9
            dim %b = M dim %q = @lens(%b) dim %k as \"k<&>\" = min(%q + 1, @lens(%b)) dim %h = 8 }";
        let g = parse_graph(text).unwrap_or_else(|e| panic!("{e}"));
        let d = DimGraph::of_graph(&g);
        assert_eq!((d.parents(2), d.children(0)), (vec![0, 1], vec![1, 2]));
        assert!(d.to_dot().contains("d0 -> d1;") && d.to_dot().contains("label=\"k<&>\""));
        let svg = d.to_svg();
        assert!(svg.contains(">k&lt;&amp;&gt;</text>"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 4);
        assert_eq!(svg.matches("marker-end").count(), 3);
        well_formed(&svg);
    }

    #[test]
    fn drawings_of_nothing_and_of_a_cycle() {
        well_formed(&DimGraph::default().to_svg());
        let mut g = DimGraph::with_names(["a", "b\u{1}\"\\"].into_iter());
        g.edge(0, 1);
        g.edge(1, 0);
        well_formed(&g.to_svg());
        assert!(g.to_dot().contains("\\\"\\\\"));
    }

    /// Every tag closes in order, and no bare `&` or `<` stands in text.
    fn well_formed(xml: &str) {
        let mut open = Vec::new();
        let mut rest = xml;
        while let Some((text, tail)) = rest.split_once('<') {
            assert!(!text.contains('>'), "stray `>` in {text:?}");
            for entity in text.split('&').skip(1) {
                assert!(entity.split_once(';').is_some_and(|(n, _)| ["amp", "lt", "gt", "quot", "apos"].contains(&n)));
            }
            let (tag, after) = tail.split_once('>').expect("tag ends");
            rest = after;
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().expect("tag has a name"));
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty());
    }
}
