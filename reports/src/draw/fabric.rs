//! The hosts of a cluster as boxes, the switches of the network above them, NVLink domains of
//! several hosts below.

use std::collections::{BTreeMap, BTreeSet};

use collcast_sim::ids::VertexId;
use collcast_sim::topology::{Topology, VertexKind};

use super::canvas::{Anchor, Area, Canvas, Fill, Style, small_width};
use crate::machine::{Bundle, Bundles, add_link, gpus_text, kind_text, level_text, nics_text, short_name};

/// Longer rows of hosts are cut.
const MOST_HOSTS: usize = 8;
/// Longer rows of switches are cut.
const MOST_SWITCHES: usize = 10;

const HOST: (i64, i64) = (150, 56);
const SWITCH: (i64, i64) = (112, 34);
const GAP: i64 = 26;
const ROW_GAP: i64 = 96;
/// On the left, for the names of the rows and the rates between them.
const LABELS: i64 = 190;

/// A box of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A host or a switch, by its index in its row.
    One(usize),
    /// So many that are left out.
    More(usize),
}

/// Hosts or the switches of one level.
pub(super) struct Tier {
    pub(super) title: String,
    /// Words of every box, drawn or not.
    pub(super) words: Vec<Vec<String>>,
    /// What is drawn.
    pub(super) items: Vec<Item>,
    size: (i64, i64),
}

/// NVSwitches outside of the hosts, and who is on them.
pub(super) struct Domain {
    pub(super) name: String,
    /// Links of each host to it.
    pub(super) hosts: BTreeMap<usize, Bundles>,
}

/// Row and place in it; row 0 are the hosts.
type Spot = (usize, usize);

/// What a line between two boxes stands for, and between what it runs; none for what is left out.
type Drawn = Option<(Bundle, Spot, Spot)>;

/// The cluster around the hosts.
pub(super) struct Fabric {
    pub(super) rows: Vec<Tier>,
    /// Lines between boxes, each pair in one direction.
    pub(super) edges: BTreeMap<(Spot, Spot), Bundles>,
    pub(super) domains: Vec<Domain>,
    /// By vertex: where it is drawn.
    spots: Vec<Option<Spot>>,
    first: usize,
}

/// What is drawn of `count` boxes: all, or the first and last ones with a count between.
fn elide(count: usize, most: usize) -> Vec<Item> {
    if count <= most {
        return (0..count).map(Item::One).collect();
    }
    let head = most / 2;
    let tail = most - 1 - head;
    let mut items: Vec<Item> = (0..head).map(Item::One).collect();
    items.push(Item::More(count - head - tail));
    items.extend((count - tail..count).map(Item::One));
    items
}

impl Fabric {
    /// None for a single host without a network.
    ///
    /// - `first`: the host that is drawn in full.
    pub(super) fn new(topology: &Topology, first: usize) -> Option<Self> {
        let hosts = topology.hosts();
        let mut levels: BTreeMap<u32, Vec<VertexId>> = BTreeMap::new();
        let mut nvswitches = Vec::new();
        for (id, vertex) in topology.vertices() {
            match vertex.kind {
                VertexKind::NetSwitch { level } => levels.entry(level).or_default().push(id),
                VertexKind::NvSwitch if vertex.host.is_none() => nvswitches.push(id),
                _ => {}
            }
        }
        if hosts.len() < 2 && levels.is_empty() && nvswitches.is_empty() {
            return None;
        }
        let mut rows = vec![Tier {
            title: "hosts".to_owned(),
            words: hosts
                .iter()
                .map(|host| {
                    let mut words = vec![host.name.clone(), gpus_text(topology, &host.gpus)];
                    words.extend(nics_text(topology, &host.nics));
                    words
                })
                .collect(),
            items: elide(hosts.len(), MOST_HOSTS),
            size: HOST,
        }];
        let mut spots: BTreeMap<VertexId, Spot> = BTreeMap::new();
        for (level, switches) in &levels {
            for (place, &id) in switches.iter().enumerate() {
                spots.insert(id, (rows.len(), place));
            }
            rows.push(Tier {
                title: level_text(*level),
                words: switches.iter().map(|&id| vec![short_name(&topology.vertex(id).name).to_owned()]).collect(),
                items: elide(switches.len(), MOST_SWITCHES),
                size: SWITCH,
            });
        }
        let spot = |id: VertexId| {
            let host = topology.vertex(id).host.map(|h| (0, h.index()));
            host.or_else(|| spots.get(&id).copied())
        };
        let mut edges: BTreeMap<(Spot, Spot), Bundles> = BTreeMap::new();
        let mut on_nvswitch: BTreeMap<VertexId, BTreeMap<usize, Bundles>> = BTreeMap::new();
        for (_, from, to, link) in topology.links() {
            if let (Some(a), Some(b)) = (spot(from), spot(to)) {
                if a < b {
                    add_link(edges.entry((a, b)).or_default(), link);
                }
            } else if let (Some((0, host)), None) = (spot(from), spot(to)) {
                let hosts = on_nvswitch.entry(to).or_default();
                add_link(hosts.entry(host).or_default(), link);
            }
        }
        let spots = topology.vertices().map(|(id, _)| spot(id)).collect();
        Some(Self { rows, edges, domains: domains(topology, &nvswitches, &on_nvswitch), spots, first })
    }

    /// Whether a vertex is drawn at a spot.
    fn is_at(&self, id: VertexId, spot: Option<Spot>) -> bool {
        self.spots.get(id.index()).is_some_and(|at| *at == spot)
    }

    fn row_width(&self, row: usize) -> i64 {
        let row = &self.rows[row];
        let count = i64::try_from(row.items.len()).unwrap_or(0);
        count * (row.size.0 + GAP) - GAP
    }

    pub(super) fn width(&self) -> i64 {
        let rows = (0..self.rows.len()).map(|r| self.row_width(r));
        rows.max().unwrap_or(0) + LABELS
    }

    /// Draws all rows in `width` from `left`, `top`; returns the lower end.
    pub(super) fn draw(&self, canvas: &mut Canvas<'_>, left: i64, top: i64, width: i64) -> i64 {
        let areas = self.areas(left, top, width);
        self.draw_edges(canvas, &areas);
        for (index, row) in self.rows.iter().enumerate() {
            for (item, &area) in row.items.iter().zip(&areas[index]) {
                match *item {
                    Item::One(place) => {
                        let fill = match index {
                            0 if place == self.first => Fill::FirstHost,
                            0 => Fill::Host,
                            _ => Fill::NetSwitch,
                        };
                        canvas.labelled(area, fill, &row.words[place]);
                    }
                    Item::More(count) => {
                        canvas.labelled(area, Fill::Elided, &[format!("... {count} more")]);
                    }
                }
            }
            if let Some(area) = areas[index].first() {
                let count = row.words.len();
                let title = match (index, count) {
                    (0, 1) => "1 host".to_owned(),
                    (0, n) => format!("{n} hosts"),
                    (_, 1) => format!("1 {} switch", row.title),
                    (_, n) => format!("{n} {} switches", row.title),
                };
                let y = area.y + area.h / 2 + 4;
                canvas.text(left, y, &title, Style::Name, Anchor::Start);
            }
        }
        self.label_layers(canvas, left, &areas);
        let bottom = areas[0].first().map_or(top, |a| a.y + a.h);
        let bottom = self.draw_domains(canvas, left, bottom, &areas[0]);
        let first = self.rows[0].items.iter().zip(&areas[0]);
        for (_, area) in first.filter(|(item, _)| **item == Item::One(self.first)) {
            // The panel below shows this one: say so where no NVLink domain stands between.
            if self.domains.is_empty() {
                canvas.dashed((area.x + 8, area.y + area.h), (area.x + 8, bottom + 34));
                canvas.dashed((area.x + area.w - 8, area.y + area.h), (area.x + area.w - 8, bottom + 34));
                let x = area.x + area.w / 2;
                canvas.text(x, bottom + 20, "shown below", Style::Small, Anchor::Middle);
            }
        }
        bottom
    }

    fn areas(&self, left: i64, top: i64, width: i64) -> Vec<Vec<Area>> {
        let mut y = top;
        let mut areas = vec![Vec::new(); self.rows.len()];
        for index in (0..self.rows.len()).rev() {
            let row = &self.rows[index];
            if self.curved(index) {
                y += 40; // Room for lines between neighbours.
            }
            let room = width - LABELS;
            let mut x = left + LABELS + (room - self.row_width(index)) / 2;
            for _ in &row.items {
                areas[index].push(Area { x, y, w: row.size.0, h: row.size.1 });
                x += row.size.0 + GAP;
            }
            y += row.size.1 + ROW_GAP;
        }
        areas
    }

    /// Whether a row has lines inside of it.
    fn curved(&self, row: usize) -> bool {
        self.edges.keys().any(|(a, b)| a.0 == row && b.0 == row)
    }

    /// The box that stands for a spot, and whether it is that of what is left out.
    fn item(&self, spot: Spot) -> Option<(usize, bool)> {
        let items = &self.rows[spot.0].items;
        items.iter().position(|i| *i == Item::One(spot.1)).map(|place| (place, false)).or_else(|| {
            let more = |i: &Item| matches!(i, Item::More(_));
            items.iter().position(more).map(|place| (place, true))
        })
    }

    fn draw_edges(&self, canvas: &mut Canvas<'_>, areas: &[Vec<Area>]) {
        // Lines between the same two boxes fall into one; what is left out is dashed.
        let mut lines: BTreeMap<(Spot, Spot), Drawn> = BTreeMap::new();
        for (&(a, b), bundles) in &self.edges {
            let (Some(from), Some(to)) = (self.item(a), self.item(b)) else {
                continue;
            };
            let key = ((a.0, from.0), (b.0, to.0));
            let solid = bundles.values().next().map(|&bundle| (bundle, a, b));
            lines.insert(key, solid.filter(|_| !from.1 && !to.1));
        }
        // Where lines meet a box they stand apart, in the order of their other ends.
        let mut above: BTreeMap<Spot, Vec<Spot>> = BTreeMap::new();
        let mut below: BTreeMap<Spot, Vec<Spot>> = BTreeMap::new();
        for &(a, b) in lines.keys().filter(|(a, b)| a.0 != b.0) {
            above.entry(a).or_default().push(b);
            below.entry(b).or_default().push(a);
        }
        let centre = |spot: &Spot| areas[spot.0][spot.1].x + areas[spot.0][spot.1].w / 2;
        for ends in above.values_mut().chain(below.values_mut()) {
            ends.sort_by_key(|s| (centre(s), *s));
        }
        let port = |ends: &BTreeMap<Spot, Vec<Spot>>, at: Spot, other: Spot| {
            let area = areas[at.0][at.1];
            let ends = ends.get(&at).map_or(&[][..], Vec::as_slice);
            let place = ends.iter().position(|&e| e == other).unwrap_or(0);
            let (place, count) = (i64::try_from(place).unwrap_or(0), i64::try_from(ends.len()).unwrap_or(1).max(1));
            area.x + area.w * (2 * place + 1) / (2 * count)
        };
        let load = |canvas: &Canvas<'_>, bundle: Bundle, a: Spot, b: Spot| {
            canvas.load(bundle.kind, |id| self.is_at(id, Some(a)), |id| self.is_at(id, Some(b)))
        };
        for (&(a, b), bundle) in &lines {
            let (from, to) = (areas[a.0][a.1], areas[b.0][b.1]);
            if a.0 == b.0 {
                if let Some((bundle, one, other)) = bundle.filter(|_| a != b) {
                    let load = load(canvas, bundle, one, other);
                    let far = (to.x - from.x) / (from.w + GAP);
                    let bend = -(14 + 6 * far.min(5));
                    let ends = ((from.x + from.w * 2 / 3, from.y), (to.x + to.w / 3, to.y));
                    canvas.arc(ends, bend, (bundle.kind, 1), load.as_ref());
                }
                continue;
            }
            let from = (port(&above, a, b), from.y);
            let to = (port(&below, b, a), to.y + to.h);
            match *bundle {
                Some((bundle, one, other)) => {
                    let load = load(canvas, bundle, one, other);
                    canvas.line(from, to, (bundle.kind, 1), load.as_ref());
                }
                None => canvas.dashed(from, to),
            }
        }
    }

    /// What one line between two rows carries, on the left.
    fn label_layers(&self, canvas: &mut Canvas<'_>, left: i64, areas: &[Vec<Area>]) {
        let mut layers: BTreeMap<(usize, usize), BTreeSet<Bundle>> = BTreeMap::new();
        for ((a, b), bundles) in &self.edges {
            layers.entry((a.0, b.0)).or_default().extend(bundles.values().copied());
        }
        let mut used: BTreeMap<usize, i64> = BTreeMap::new();
        for ((from, to), bundles) in layers {
            let Some(area) = areas[from].first() else {
                continue;
            };
            let line = used.entry(from).or_insert(0);
            let mut y = area.y - 56 + 15 * *line;
            if from == to {
                y = area.y - 18;
            }
            let texts: Vec<String> = bundles.iter().map(|b| b.label()).collect();
            let kinds: BTreeSet<_> = bundles.iter().map(|b| kind_text(b.kind)).collect();
            let kinds: Vec<&str> = kinds.into_iter().collect();
            let text = match &texts[..] {
                [one] => format!("each line {one}"),
                [one, two] => format!("lines {one} or {two}"),
                more => format!("lines of {} rates", more.len()),
            };
            canvas.text(left, y, &kinds.join(", "), Style::Small, Anchor::Start);
            y += 13;
            canvas.text(left, y, &text, Style::Small, Anchor::Start);
            *line += 2;
        }
    }

    fn draw_domains(&self, canvas: &mut Canvas<'_>, left: i64, top: i64, hosts: &[Area]) -> i64 {
        let (y, height) = (top + 44, 32);
        let mut drawn = false;
        for domain in &self.domains {
            let members: Vec<(Area, usize, &Bundles)> = self.rows[0]
                .items
                .iter()
                .zip(hosts)
                .filter_map(|(item, &area)| match item {
                    Item::One(place) => Some((area, *place, domain.hosts.get(place)?)),
                    Item::More(_) => None,
                })
                .collect();
            let (Some(first), Some(last)) = (members.first(), members.last()) else {
                continue;
            };
            drawn = true;
            let area = Area { x: first.0.x, y, w: last.0.x + last.0.w - first.0.x, h: height };
            canvas.labelled(area, Fill::NvSwitch, std::slice::from_ref(&domain.name));
            for (host, place, bundles) in members {
                let Some(bundle) = bundles.values().next() else {
                    continue;
                };
                let x = host.x + host.w / 2 - small_width(&bundle.label()) / 2;
                let load = canvas.load(bundle.kind, |id| self.is_at(id, Some((0, place))), |id| self.is_at(id, None));
                canvas.line((x, top), (x, y), (bundle.kind, 3), load.as_ref());
                canvas.label((x + 6, top + 26), &bundle.label(), Anchor::Start, load.as_ref());
            }
        }
        if !drawn {
            return top;
        }
        let count = self.domains.len();
        let title = match count {
            1 => "1 NVLink domain".to_owned(),
            n => format!("{n} NVLink domains"),
        };
        canvas.text(left, y + 20, &title, Style::Name, Anchor::Start);
        y + height
    }
}

/// NVSwitches that the same hosts are on are one domain.
fn domains(
    topology: &Topology,
    nvswitches: &[VertexId],
    links: &BTreeMap<VertexId, BTreeMap<usize, Bundles>>,
) -> Vec<Domain> {
    let mut groups: BTreeMap<Vec<usize>, Vec<VertexId>> = BTreeMap::new();
    for id in nvswitches {
        if let Some(hosts) = links.get(id) {
            groups.entry(hosts.keys().copied().collect()).or_default().push(*id);
        }
    }
    groups
        .into_values()
        .map(|switches| {
            let mut hosts: BTreeMap<usize, Bundles> = BTreeMap::new();
            for (host, bundles) in switches.iter().filter_map(|id| links.get(id)).flatten() {
                let sums = hosts.entry(*host).or_default();
                for bundle in bundles.values() {
                    let sum = sums.entry(bundle.kind).or_insert(Bundle { width: 0, rate: 0, ..*bundle });
                    sum.width = sum.width.saturating_add(bundle.width);
                    sum.rate = sum.rate.saturating_add(bundle.rate);
                }
            }
            let name = match &switches[..] {
                [one] => short_name(&topology.vertex(*one).name).to_owned(),
                more => format!("{} NVSwitches", more.len()),
            };
            // One host's box is narrow, and the row is named beside it.
            let name = if hosts.len() > 1 { format!("NVLink domain of {} hosts: {name}", hosts.len()) } else { name };
            Domain { name, hosts }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is drawn and what is counted add up, at and around the limit.
    #[test]
    fn nothing_is_lost_when_a_row_is_cut() {
        for count in [0, 1, 7, 8, 9, 35, 1000] {
            let items = elide(count, 8);
            let total: usize = items
                .iter()
                .map(|i| match i {
                    Item::One(_) => 1,
                    Item::More(n) => *n,
                })
                .sum();
            assert_eq!(total, count);
            assert!(items.len() <= 8);
        }
        assert_eq!(elide(35, 8)[4], Item::More(28));
    }
}
