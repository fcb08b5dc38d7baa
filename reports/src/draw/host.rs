//! One host in full.
//!
//! What hangs on the CPUs is a tree: each GPU and NIC under its PCIe switch, each switch under
//! its CPU. Drawn as nested spans, every line of the tree is vertical and none crosses
//! another: a switch spans what hangs on it, and its line to the CPU runs down a gutter beside
//! its NICs. NVLink runs above the GPUs, so it cannot cross PCIe either.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use collcast_sim::ids::{HostId, VertexId};
use collcast_sim::topology::{LinkKind, Topology, VertexKind};

use super::canvas::{Anchor, Area, Canvas, Fill, Style, small_width};
use crate::machine::{
    Bundle, Bundles, add_link, bundles_between, bundles_from, gpus_text, kind_text, nics_text, rate_text, short_name,
};

/// More GPUs than this in one host are cut to [`SHOWN_GPUS`].
const MOST_GPUS: usize = 16;
const SHOWN_GPUS: usize = 8;

const COLUMN: i64 = 122;
const BOX: i64 = 108;
const BOX_HEIGHT: i64 = 66;
/// Beside the NICs of a switch: its line to the CPU, clear of the label of the last NIC.
const GUTTER: i64 = 104;
const STUB: i64 = 40;
/// The same where labels are a share each.
const SLIM: (i64, i64) = (60, 30);
const SWITCH_HEIGHT: i64 = 28;
const CPU_HEIGHT: i64 = 40;
/// Between rows; room for the labels of the lines.
const ROW_GAP: i64 = 44;
const PADDING: i64 = 20;
const HEADER: i64 = 46;
const ROOT_GAP: i64 = 26;
/// Between CPUs that a line joins; room for its label.
const CPU_GAP: i64 = 130;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeKind {
    Gpu,
    Nic,
    Switch,
    Cpu,
    More,
}

/// An element of the tree.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    /// The vertices it stands for: several for NICs drawn as one.
    pub(super) vertices: Vec<VertexId>,
    pub(super) words: Vec<String>,
    pub(super) management: bool,
    /// To its parent.
    pub(super) links: Vec<Bundle>,
    pub(super) children: Vec<usize>,
    parent: Option<usize>,
}

/// What is drawn of one host.
pub(super) struct HostTree {
    pub(super) name: String,
    pub(super) summary: String,
    pub(super) nodes: Vec<Node>,
    pub(super) roots: Vec<usize>,
    /// The NVSwitches as one; empty for none.
    pub(super) nvswitch: Vec<String>,
    /// The same for a box of one GPU's width.
    nvswitch_narrow: Vec<String>,
    nvswitch_shared: bool,
    nvswitches: BTreeSet<VertexId>,
    /// From a GPU to all NVSwitches together.
    pub(super) to_nvswitch: BTreeMap<usize, Bundle>,
    /// Between two nodes, and not of the tree: NVLink between GPUs, lines between CPUs.
    pub(super) across: Vec<(usize, usize, Bundle)>,
    /// Pairs that are joined but not drawn.
    not_drawn: usize,
}

fn in_tree(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Pcie | LinkKind::C2c)
}

impl HostTree {
    pub(super) fn new(topology: &Topology, host: usize) -> Self {
        let mut builder = Builder::new(topology, host);
        builder.parents();
        builder.finish(host)
    }

    /// Whether a vertex is one of those that a node stands for.
    fn holds(&self, node: usize) -> impl Fn(VertexId) -> bool + '_ {
        let vertices = &self.nodes[node].vertices;
        move |id| vertices.contains(&id)
    }

    pub(super) fn is_root(&self, node: usize) -> bool {
        self.nodes[node].parent.is_none()
    }
}

struct Builder<'a> {
    topology: &'a Topology,
    members: Vec<VertexId>,
    visible_gpus: BTreeSet<VertexId>,
    hidden_gpus: usize,
    parent: BTreeMap<VertexId, Option<VertexId>>,
    children: BTreeMap<VertexId, Vec<VertexId>>,
    roots: Vec<VertexId>,
    /// All vertices of the tree, parents first.
    reached: Vec<VertexId>,
}

impl<'a> Builder<'a> {
    fn new(topology: &'a Topology, host: usize) -> Self {
        let members =
            topology.vertices().filter(|(_, v)| v.host.map(HostId::index) == Some(host)).map(|(id, _)| id).collect();
        let gpus = &topology.hosts()[host].gpus;
        let shown = if gpus.len() > MOST_GPUS { SHOWN_GPUS } else { gpus.len() };
        Self {
            topology,
            members,
            visible_gpus: gpus.iter().copied().take(shown).collect(),
            hidden_gpus: gpus.len() - shown,
            parent: BTreeMap::new(),
            children: BTreeMap::new(),
            roots: Vec::new(),
            reached: Vec::new(),
        }
    }

    fn kind(&self, id: VertexId) -> &'a VertexKind {
        &self.topology.vertex(id).kind
    }

    /// Hangs everything under the nearest CPU; what no CPU reaches becomes a root itself.
    fn parents(&mut self) {
        let cpus: Vec<VertexId> = self.of(|k| matches!(k, VertexKind::Cpu { .. }));
        let switches = self.of(|k| matches!(k, VertexKind::PcieSwitch));
        let gpus: Vec<VertexId> = self.of(|k| matches!(k, VertexKind::Gpu(_)));
        let nics = self.of(|k| matches!(k, VertexKind::Nic(_)));
        self.grow(&cpus, false);
        for root in switches {
            self.grow(&[root], false);
        }
        for root in gpus {
            self.grow(&[root], true);
        }
        self.grow(&nics, false);
        for children in self.children.values_mut() {
            children.sort_unstable();
        }
    }

    fn of(&self, is: impl Fn(&VertexKind) -> bool) -> Vec<VertexId> {
        let members = self.members.iter().copied();
        members.filter(|&id| is(self.kind(id))).collect()
    }

    /// Breadth first, so that a switch hangs where it is nearest. GPUs and NICs end a branch,
    /// except that a NIC may hang on a GPU where `from` is one.
    fn grow(&mut self, from: &[VertexId], from_gpu: bool) {
        let mut queue = VecDeque::new();
        for &root in from {
            if let Entry::Vacant(free) = self.parent.entry(root) {
                free.insert(None);
                self.roots.push(root);
                self.reached.push(root);
                queue.push_back(root);
            } else if from_gpu {
                queue.push_back(root);
            }
        }
        while let Some(at) = queue.pop_front() {
            let ends = matches!(self.kind(at), VertexKind::Gpu(_) | VertexKind::Nic(_));
            for (_, next, link) in self.topology.links_from(at) {
                let fits = match self.kind(next) {
                    VertexKind::Nic(_) => !ends || from_gpu,
                    VertexKind::Gpu(_) | VertexKind::PcieSwitch => !ends,
                    _ => false,
                };
                let inside = self.topology.vertex(next).host == self.topology.vertex(at).host;
                if fits && inside && in_tree(link.kind) && !self.parent.contains_key(&next) {
                    self.parent.insert(next, Some(at));
                    self.children.entry(at).or_default().push(next);
                    self.reached.push(next);
                    queue.push_back(next);
                }
            }
        }
    }

    /// The vertices below which there are GPUs, and none that is shown.
    fn hidden(&self) -> BTreeSet<VertexId> {
        let mut gpus: BTreeMap<VertexId, (bool, bool)> = BTreeMap::new();
        // Children were reached after their parents.
        for &id in self.reached.iter().rev() {
            let mut own = gpus.get(&id).copied().unwrap_or_default();
            if matches!(self.kind(id), VertexKind::Gpu(_)) {
                own.0 = true;
                own.1 |= self.visible_gpus.contains(&id);
            }
            gpus.insert(id, own);
            if let Some(parent) = self.parent.get(&id).copied().flatten() {
                let sum = gpus.entry(parent).or_default();
                sum.0 |= own.0;
                sum.1 |= own.1;
            }
        }
        gpus.into_iter().filter(|(_, (any, shown))| *any && !shown).map(|(id, _)| id).collect()
    }

    fn finish(self, host: usize) -> HostTree {
        let topology = self.topology;
        let facts = &topology.hosts()[host];
        let mut summary = gpus_text(topology, &facts.gpus);
        if let Some(nics) = nics_text(topology, &facts.nics) {
            summary = format!("{summary} \u{b7} {nics}");
        }
        let mut tree = HostTree {
            name: facts.name.clone(),
            summary,
            nodes: Vec::new(),
            roots: Vec::new(),
            nvswitch: Vec::new(),
            nvswitch_narrow: Vec::new(),
            nvswitch_shared: false,
            nvswitches: BTreeSet::new(),
            to_nvswitch: BTreeMap::new(),
            across: Vec::new(),
            not_drawn: 0,
        };
        let mut stack: Vec<(VertexId, Option<usize>)> = self.roots.iter().rev().map(|&root| (root, None)).collect();
        let mut drawn: BTreeMap<VertexId, usize> = BTreeMap::new();
        let hidden = self.hidden();
        while let Some((id, parent)) = stack.pop() {
            if drawn.contains_key(&id) || hidden.contains(&id) {
                continue;
            }
            let same = self.merged_nics(id);
            let place = tree.nodes.len();
            let node = self.node(&same, parent.map(|p| tree.nodes[p].vertices[0]), parent);
            tree.nodes.push(node);
            for id in same {
                drawn.insert(id, place);
            }
            match parent {
                Some(parent) => tree.nodes[parent].children.push(place),
                None => tree.roots.push(place),
            }
            let children = self.children.get(&id).into_iter().flatten();
            stack.extend(children.rev().map(|&child| (child, Some(place))));
        }
        if self.hidden_gpus > 0 {
            tree.roots.push(tree.nodes.len());
            tree.nodes.push(Node {
                kind: NodeKind::More,
                vertices: Vec::new(),
                words: vec![format!("... {} more", self.hidden_gpus), "GPUs".to_owned()],
                management: false,
                links: Vec::new(),
                children: Vec::new(),
                parent: None,
            });
        }
        self.across(&mut tree, &drawn);
        tree
    }

    /// NICs that look the same under one parent are drawn as one where there are more of them
    /// than GPUs.
    fn merged_nics(&self, id: VertexId) -> Vec<VertexId> {
        let parent = self.parent.get(&id).copied().flatten();
        let (Some(nic), Some(parent)) = (self.topology.nic(id), parent) else {
            return vec![id];
        };
        let siblings = self.children.get(&parent).map_or(&[][..], Vec::as_slice);
        let gpus = siblings.iter().filter(|&&s| self.topology.gpu(s).is_some()).count();
        let nics: Vec<VertexId> = siblings.iter().copied().filter(|&s| self.topology.nic(s).is_some()).collect();
        if nics.len() <= gpus.max(1) {
            return vec![id];
        }
        nics.into_iter()
            .filter(|&other| {
                self.topology.nic(other).is_some_and(|o| {
                    (o.kind, o.rate, o.gpudirect, o.management) == (nic.kind, nic.rate, nic.gpudirect, nic.management)
                })
            })
            .collect()
    }

    fn node(&self, ids: &[VertexId], above: Option<VertexId>, parent: Option<usize>) -> Node {
        let topology = self.topology;
        let id = ids[0];
        let name = short_name(&topology.vertex(id).name).to_owned();
        let mut management = false;
        let (kind, words) = match self.kind(id) {
            VertexKind::Gpu(gpu) => {
                let mut words = vec![name, gpu.model.clone()];
                if let Some(rate) = gpu.memory_rate {
                    words.push(format!("mem {}", rate_text(rate.get())));
                }
                (NodeKind::Gpu, words)
            }
            VertexKind::Nic(nic) => {
                management = nic.management;
                (NodeKind::Nic, self.nic_words(ids, &name))
            }
            VertexKind::Cpu { vendor } => {
                let mut words = vec![name];
                if !vendor.is_empty() {
                    words.push(vendor.clone());
                }
                (NodeKind::Cpu, words)
            }
            _ => (NodeKind::Switch, vec![format!("PCIe switch {name}")]),
        };
        let mut links = Bundles::new();
        if let Some(above) = above {
            for &id in ids {
                for bundle in bundles_between(topology, id, above) {
                    let sum = links.entry(bundle.kind).or_insert(bundle);
                    if id != ids[0] && bundle.kind != LinkKind::Pcie {
                        sum.width += bundle.width;
                        sum.rate += bundle.rate;
                    }
                }
            }
        }
        Node {
            kind,
            vertices: ids.to_vec(),
            words: words.into_iter().filter(|w| !w.is_empty()).collect(),
            management,
            links: links.into_values().collect(),
            children: Vec::new(),
            parent,
        }
    }

    fn nic_words(&self, ids: &[VertexId], name: &str) -> Vec<String> {
        let topology = self.topology;
        let Some(nic) = topology.nic(ids[0]) else {
            return vec![name.to_owned()];
        };
        let rate = rate_text(nic.rate.get());
        let kind = kind_text(nic.kind).to_owned();
        let mut words = match (ids.len(), ids.last()) {
            (n @ 2.., Some(&last)) => {
                let last = short_name(&topology.vertex(last).name);
                vec![format!("{name}..{last}"), kind, format!("{n} x {rate}")]
            }
            _ => vec![name.to_owned(), kind, rate],
        };
        if nic.management {
            words.push("management".to_owned());
            return words;
        }
        let switches: BTreeSet<&str> = ids
            .iter()
            .flat_map(|&id| topology.links_from(id))
            .filter(|(_, to, _)| matches!(self.kind(*to), VertexKind::NetSwitch { .. }))
            .map(|(_, to, _)| short_name(&topology.vertex(to).name))
            .collect();
        let rails: BTreeSet<u32> = ids.iter().filter_map(|&id| topology.nic(id)).filter_map(|n| n.rail).collect();
        match (switches.first(), rails.first()) {
            (Some(switch), _) if switches.len() == 1 => words.push(format!("\u{2192} {switch}")),
            (Some(_), _) => words.push(format!("\u{2192} {} switches", switches.len())),
            (None, Some(rail)) if rails.len() == 1 => words.push(format!("rail {rail}")),
            _ => {}
        }
        words
    }

    /// Everything that is not of the tree.
    fn across(&self, tree: &mut HostTree, drawn: &BTreeMap<VertexId, usize>) {
        let topology = self.topology;
        let mut switches: BTreeSet<VertexId> = BTreeSet::new();
        let mut pairs: BTreeMap<(usize, usize), Bundles> = BTreeMap::new();
        for (&id, &place) in drawn {
            let mut up = Bundles::new();
            for (_, to, link) in topology.links_from(id) {
                if matches!(self.kind(to), VertexKind::NvSwitch) {
                    switches.insert(to);
                    add_link(&mut up, link);
                    continue;
                }
                let Some(&other) = drawn.get(&to) else {
                    continue; // To another host or the network, or to what is left out.
                };
                let nodes = (&tree.nodes[place], &tree.nodes[other]);
                let of_tree = nodes.0.parent == Some(other) || nodes.1.parent == Some(place);
                if place < other && !(of_tree && in_tree(link.kind)) {
                    add_link(pairs.entry((place, other)).or_default(), link);
                }
            }
            if let Some(&bundle) = up.values().next() {
                tree.to_nvswitch.insert(place, bundle);
            }
        }
        for ((a, b), bundles) in pairs {
            let kinds = (tree.nodes[a].kind, tree.nodes[b].kind);
            let roots = tree.is_root(a) && tree.is_root(b);
            for bundle in bundles.into_values() {
                match kinds {
                    (NodeKind::Gpu, NodeKind::Gpu) => tree.across.push((a, b, bundle)),
                    (NodeKind::Cpu, NodeKind::Cpu) if roots => tree.across.push((a, b, bundle)),
                    _ => tree.not_drawn += 1,
                }
            }
        }
        let hosts = |id: &VertexId| topology.links_from(*id).filter_map(|(_, to, _)| topology.vertex(to).host);
        let hosts: BTreeSet<HostId> = switches.iter().flat_map(hosts).collect();
        tree.nvswitch_shared = hosts.len() > 1;
        if let Some(&first) = switches.first() {
            let rate = bundles_from(topology, first);
            let name = short_name(&topology.vertex(first).name);
            let ports = rate.get(&LinkKind::Nvlink).map_or(0, |b| b.width);
            let (count, use_of) = match (switches.len(), tree.nvswitch_shared) {
                (1, false) => ("NVSwitch".to_owned(), format!("{ports} ports in use")),
                (n, false) => (format!("{n} NVSwitches"), String::new()),
                (1, true) => ("NVSwitch".to_owned(), "shared".to_owned()),
                (n, true) => (format!("{n} NVSwitches"), "shared".to_owned()),
            };
            let words = match (switches.len(), tree.nvswitch_shared) {
                (1, false) => format!("{count} {name} ({use_of})"),
                (1, true) => format!("{count} {name}, {use_of} with other hosts"),
                (_, true) => format!("{count}, {use_of} with other hosts"),
                (_, false) => count.clone(),
            };
            tree.nvswitch = vec![words];
            tree.nvswitch_narrow = [count, use_of].into_iter().filter(|line| !line.is_empty()).collect();
        }
        tree.nvswitches = switches;
    }
}

/// Where everything stands, from the upper left corner of the panel.
pub(super) struct Layout<'a> {
    tree: &'a HostTree,
    /// Beside the NICs of a switch, and what of it the switch takes.
    gutter: (i64, i64),
    areas: Vec<Area>,
    /// Where the line to the parent leaves.
    line_x: Vec<i64>,
    nvswitch: Option<Area>,
    /// Bend of the widest curve between GPUs; it rises three quarters of that.
    most_bend: i64,
    width: i64,
    height: i64,
    fits_bottom: i64,
}

impl<'a> Layout<'a> {
    /// - `slim`: with room for labels that are a share each.
    pub(super) fn new(tree: &'a HostTree, slim: bool) -> Self {
        let heights = Self::heights(tree);
        let deepest =
            tree.nodes.iter().zip(&heights).filter(|(n, _)| n.kind == NodeKind::Switch).map(|(_, &h)| h).max();
        let any = |kind: NodeKind| tree.nodes.iter().any(|n| n.kind == kind);

        let gpu_order: BTreeMap<usize, usize> = (tree.nodes.iter().enumerate())
            .filter(|(_, n)| n.kind == NodeKind::Gpu)
            .enumerate()
            .map(|(order, (place, _))| (place, order))
            .collect();
        let reach =
            tree.across.iter().filter_map(|(a, b, _)| Some(gpu_order.get(b)?.abs_diff(*gpu_order.get(a)?))).max();
        let most_bend = reach.map_or(0, |r| 30 + 12 * i64::try_from(r.min(12)).unwrap_or(12));

        // Rows, from above.
        let mut y = HEADER;
        let nvswitch_y = y;
        if !tree.nvswitch.is_empty() {
            y += 32 + ROW_GAP;
        }
        if most_bend > 0 {
            y += most_bend * 3 / 4 + 14; // The curve and a label on it.
        }
        let gpu_y = y;
        y += BOX_HEIGHT + ROW_GAP;
        let mut switch_y = Vec::new();
        let mut nic_y = y;
        let lowest = deepest.map_or(0, |d| d + 1);
        for height in 0..lowest.max(1) {
            if height < lowest {
                switch_y.push(y);
                y += SWITCH_HEIGHT + ROW_GAP;
            }
            if height == 0 {
                nic_y = y;
                if any(NodeKind::Nic) {
                    y += BOX_HEIGHT + ROW_GAP;
                }
            }
        }
        let cpu_y = y;
        if any(NodeKind::Cpu) {
            y += CPU_HEIGHT + ROW_GAP;
        }
        y -= ROW_GAP;

        let none = Area { x: 0, y: 0, w: 0, h: 0 };
        let mut layout = Self {
            tree,
            gutter: if slim { SLIM } else { (GUTTER, STUB) },
            areas: vec![none; tree.nodes.len()],
            line_x: vec![0; tree.nodes.len()],
            nvswitch: None,
            most_bend,
            width: 0,
            height: 0,
            fits_bottom: y,
        };
        let widths = layout.widths(&heights);
        let mut x = PADDING;
        let joined = (tree.across.iter()).any(|(a, _, _)| tree.nodes[*a].kind == NodeKind::Cpu);
        for (index, &root) in tree.roots.iter().enumerate() {
            if index > 0 {
                let both = [tree.roots[index - 1], root];
                let cpus = both.iter().all(|&r| tree.nodes[r].kind == NodeKind::Cpu);
                let singles = both.iter().all(|&r| tree.nodes[r].children.is_empty());
                x += match (cpus, singles) {
                    (true, _) if joined => CPU_GAP,
                    (false, true) => 0,
                    _ => ROOT_GAP,
                };
            }
            // Parents before children: the order in which nodes were made.
            let mut stack = vec![(root, x)];
            while let Some((place, x)) = stack.pop() {
                layout.place(
                    place,
                    x,
                    &widths,
                    &heights,
                    &mut stack,
                    &Rows { gpu: gpu_y, switch: &switch_y, nic: nic_y, cpu: cpu_y },
                );
            }
            x += widths[root];
        }
        layout.width = x + PADDING + 8;
        layout.nvswitch = layout.nvswitch_area(nvswitch_y);
        let under =
            tree.across.iter().any(|&(a, b, _)| tree.nodes[a].kind == NodeKind::Cpu && !layout.neighbours(a, b));
        layout.height = y + PADDING + if under { 44 } else { 0 };
        if tree.not_drawn > 0 {
            layout.height += 18;
        }
        let words = small_width(&tree.summary).max(small_width(&tree.name) * 7 / 6);
        layout.width = layout.width.max(words + 2 * PADDING);
        layout
    }

    /// 0 for a switch without switches below it, else one more than the highest of those.
    fn heights(tree: &HostTree) -> Vec<usize> {
        let mut heights = vec![0; tree.nodes.len()];
        // Children come after their parents, so backwards all children are known.
        for place in (0..tree.nodes.len()).rev() {
            heights[place] = tree.nodes[place]
                .children
                .iter()
                .filter(|&&c| tree.nodes[c].kind == NodeKind::Switch)
                .map(|&c| heights[c] + 1)
                .max()
                .unwrap_or(0);
        }
        heights
    }

    /// Whether it has its GPUs above and its NICs below, in shared columns.
    fn holds(&self, place: usize, heights: &[usize]) -> bool {
        let node = &self.tree.nodes[place];
        match node.kind {
            NodeKind::Switch => heights[place] == 0,
            NodeKind::Gpu => !node.children.is_empty(),
            _ => false,
        }
    }

    fn count(&self, place: usize, kind: NodeKind) -> i64 {
        let nodes = &self.tree.nodes;
        let children = nodes[place].children.iter();
        let same = children.filter(|&&c| nodes[c].kind == kind).count();
        i64::try_from(same).unwrap_or(0)
    }

    fn columns(&self, place: usize) -> i64 {
        self.count(place, NodeKind::Gpu).max(self.count(place, NodeKind::Nic)).max(1)
    }

    fn widths(&self, heights: &[usize]) -> Vec<i64> {
        let nodes = &self.tree.nodes;
        let mut widths = vec![0; nodes.len()];
        for place in (0..nodes.len()).rev() {
            let gutter = match (nodes[place].kind, nodes[place].parent) {
                (_, None) => 0,
                (NodeKind::Switch, _) => self.gutter.0,
                (NodeKind::Gpu, _) if !nodes[place].children.is_empty() => self.gutter.0,
                _ => 0,
            };
            let inner = if self.holds(place, heights) {
                // A GPU inside such a switch that has NICs of its own needs more than a column.
                let children = nodes[place].children.iter();
                let gpus = children.filter(|&&c| nodes[c].kind == NodeKind::Gpu);
                let gpus: i64 = gpus.map(|&c| widths[c]).sum();
                gpus.max(COLUMN * self.columns(place))
            } else {
                let children = nodes[place].children.iter();
                children.map(|&c| widths[c]).sum::<i64>().max(COLUMN)
            };
            widths[place] = inner + gutter;
        }
        widths
    }

    fn place(
        &mut self,
        place: usize,
        x: i64,
        widths: &[i64],
        heights: &[usize],
        stack: &mut Vec<(usize, i64)>,
        rows: &Rows<'_>,
    ) {
        let nodes = &self.tree.nodes;
        let node = &nodes[place];
        let holds = self.holds(place, heights);
        let gutter = if node.parent.is_some() && (holds || node.kind == NodeKind::Switch) { self.gutter.0 } else { 0 };
        let inner = widths[place] - gutter;
        let pad = (COLUMN - BOX) / 2;
        let (y, h) = match node.kind {
            NodeKind::Gpu | NodeKind::More => (rows.gpu, BOX_HEIGHT),
            NodeKind::Nic => (rows.nic, BOX_HEIGHT),
            NodeKind::Switch => (rows.switch.get(heights[place]).copied().unwrap_or(rows.nic), SWITCH_HEIGHT),
            NodeKind::Cpu => (rows.cpu, CPU_HEIGHT),
        };
        let stub = if gutter > 0 { self.gutter.1 } else { 0 };
        self.areas[place] = Area { x: x + pad, y, w: inner - 2 * pad + stub, h };
        self.line_x[place] = if gutter > 0 { x + inner - pad + stub - 8 } else { x + inner / 2 };
        if holds {
            for kind in [NodeKind::Gpu, NodeKind::Nic] {
                let same: Vec<usize> = (node.children.iter().copied()).filter(|&c| nodes[c].kind == kind).collect();
                let used: i64 = same.iter().map(|&c| widths[c]).sum();
                let count = i64::try_from(same.len()).unwrap_or(1).max(1);
                let extra = (inner - used).max(0) / count;
                let mut at = x + extra / 2;
                for child in same {
                    stack.push((child, at));
                    at += widths[child] + extra;
                }
            }
        } else {
            let mut at = x;
            for &child in &node.children {
                stack.push((child, at));
                at += widths[child];
            }
        }
    }

    fn nvswitch_area(&self, y: i64) -> Option<Area> {
        let gpus: Vec<Area> = (self.tree.to_nvswitch.keys()).map(|&place| self.areas[place]).collect();
        let left = gpus.iter().map(|a| a.x).min()?;
        let right = gpus.iter().map(|a| a.x + a.w).max()?;
        Some(Area { x: left, y, w: right - left, h: 32 })
    }

    /// Whether two roots stand side by side.
    fn neighbours(&self, a: usize, b: usize) -> bool {
        let roots = &self.tree.roots;
        let place = |n: usize| roots.iter().position(|&r| r == n);
        matches!((place(a), place(b)), (Some(a), Some(b)) if a.abs_diff(b) == 1)
    }

    pub(super) fn width(&self) -> i64 {
        self.width
    }

    /// Draws the panel with its corner at `left`, `top`; returns its lower end.
    pub(super) fn draw(&self, canvas: &mut Canvas<'_>, left: i64, top: i64, title: &str) -> i64 {
        let tree = self.tree;
        let at = |a: Area| Area { x: a.x + left, y: a.y + top, ..a };
        canvas.area(Area { x: left, y: top, w: self.width, h: self.height }, Fill::Panel);
        canvas.text(left + PADDING, top + 20, title, Style::Name, Anchor::Start);
        canvas.text(left + PADDING, top + 34, &tree.summary, Style::Small, Anchor::Start);

        if let Some(area) = self.nvswitch.map(at) {
            let fill = if tree.nvswitch_shared { Fill::Elided } else { Fill::NvSwitch };
            let fits = tree.nvswitch.iter().all(|line| small_width(line) < area.w * 6 / 7);
            canvas.labelled(area, fill, if fits { &tree.nvswitch } else { &tree.nvswitch_narrow });
            for (&place, bundle) in &tree.to_nvswitch {
                let gpu = at(self.areas[place]);
                let x = gpu.x + gpu.w / 2;
                let load = canvas.load(bundle.kind, tree.holds(place), |id| tree.nvswitches.contains(&id));
                canvas.line((x, area.y + area.h), (x, gpu.y), (bundle.kind, 3), load.as_ref());
                let middle = area.y + area.h + ROW_GAP / 2 + 4;
                canvas.label((x + 6, middle), &bundle.label(), Anchor::Start, load.as_ref());
            }
        }
        for (place, node) in tree.nodes.iter().enumerate() {
            let area = at(self.areas[place]);
            self.draw_links(canvas, place, left, top);
            let fill = match node.kind {
                NodeKind::Gpu => Fill::Gpu,
                NodeKind::Nic if node.management => Fill::Management,
                NodeKind::Nic => Fill::Nic,
                NodeKind::Switch => Fill::PcieSwitch,
                NodeKind::Cpu => Fill::Cpu,
                NodeKind::More => Fill::Elided,
            };
            canvas.labelled(area, fill, &node.words);
        }
        self.draw_across(canvas, left, top);
        if tree.not_drawn > 0 {
            let note = format!("{} more links inside the host are not drawn", tree.not_drawn);
            canvas.text(left + PADDING, top + self.height - 10, &note, Style::Small, Anchor::Start);
        }
        top + self.height
    }

    /// The lines to the parent, side by side where there are several kinds.
    fn draw_links(&self, canvas: &mut Canvas<'_>, place: usize, left: i64, top: i64) {
        let node = &self.tree.nodes[place];
        let Some(parent) = node.parent else {
            return;
        };
        let (own, above) = (self.areas[place], self.areas[parent]);
        let down = own.y < above.y;
        let (from, to) = if down { (own.y + own.h, above.y) } else { (own.y, above.y + above.h) };
        let count = i64::try_from(node.links.len()).unwrap_or(1);
        for (index, bundle) in (0..).zip(&node.links) {
            let x = left + self.line_x[place] + 8 * index - 4 * (count - 1);
            let load = canvas.load(bundle.kind, self.tree.holds(place), self.tree.holds(parent));
            canvas.line((x, top + from), (x, top + to), (bundle.kind, 2), load.as_ref());
            let y = if down { from + ROW_GAP / 2 + 4 } else { from - ROW_GAP / 2 + 4 };
            let label = match node.vertices.len() {
                2.. if bundle.kind == LinkKind::Pcie => format!("{} each", rate_text(bundle.rate)),
                _ => bundle.label(),
            };
            // The labels of several kinds stand above each other, right of the last line.
            let y = y + 12 * index - 6 * (count - 1);
            let x = left + self.line_x[place] + 4 * (count - 1) + 6;
            canvas.label((x, top + y), &label, Anchor::Start, load.as_ref());
        }
    }

    fn draw_across(&self, canvas: &mut Canvas<'_>, left: i64, top: i64) {
        let tree = self.tree;
        let arcs = |kind: NodeKind| {
            let of_kind = tree.across.iter();
            of_kind.filter(move |(a, _, _)| tree.nodes[*a].kind == kind)
        };
        let few = arcs(NodeKind::Gpu).count() <= 2;
        for &(a, b, bundle) in &tree.across {
            let load = canvas.load(bundle.kind, tree.holds(a), tree.holds(b));
            let load = load.as_ref();
            let (first, second) = if self.areas[a].x <= self.areas[b].x {
                (self.areas[a], self.areas[b])
            } else {
                (self.areas[b], self.areas[a])
            };
            if tree.nodes[a].kind == NodeKind::Gpu {
                let far = (second.x - first.x).max(1);
                let bend = 30 + (self.most_bend - 30) * far / self.width.max(1);
                let y = top + first.y;
                let (x1, x2) = (left + first.x + first.w * 2 / 3, left + second.x + second.w / 3);
                canvas.arc(((x1, y), (x2, y)), -bend, (bundle.kind, 2), load);
                if few {
                    let middle = (x1 + x2) / 2;
                    let y = y - bend * 3 / 4 - 5;
                    canvas.label((middle, y), &bundle.label(), Anchor::Middle, load);
                }
            } else if self.neighbours(a, b) {
                let y = top + first.y + first.h / 2;
                let (x1, x2) = (left + first.x + first.w, left + second.x);
                canvas.line((x1, y), (x2, y), (bundle.kind, 3), load);
                let middle = (x1 + x2) / 2;
                canvas.label((middle, y - 6), &bundle.label(), Anchor::Middle, load);
            } else {
                let y = top + self.fits_bottom;
                let (x1, x2) = (left + first.x + first.w / 2, left + second.x + second.w / 2);
                canvas.arc(((x1, y), (x2, y)), 44, (bundle.kind, 2), load);
            }
        }
    }
}

/// Upper ends of the rows.
struct Rows<'a> {
    gpu: i64,
    switch: &'a [i64],
    nic: i64,
    cpu: i64,
}
