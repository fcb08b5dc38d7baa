//! Folding: what is interchangeable is simulated once.
//!
//! Colours of lanes, connections and resources are refined until they tell nothing new (an
//! equitable partition: Berkholz, Bonsma and Grohe, "Tight lower and upper bounds for the
//! complexity of canonical colour refinement", 2017). One lane of each colour then runs for
//! all; a flow takes of a resource what all equal flows there take together. Because the
//! solver works with summed weights, the run is the unfolded one, bit for bit.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};

use super::instance::{ConnSpec, Instance};
use super::mix::{Mixer, mix};
use super::refine::{Graph, coarsest};
use super::uses::{Section, Uses};
use crate::schedule::program::{Ports, Template};
use crate::schedule::wiring::UNUSED;

/// A folded instance and what became of everything.
#[derive(Clone, Debug)]
pub struct Folded<'a> {
    /// What to run.
    pub instance: Instance<'a>,
    /// For each original resource, its place in the folded instance.
    pub resource: Vec<u32>,
    /// For each folded lane, the original lane it was made from.
    pub lane: Vec<u32>,
    /// For each folded connection, the original it was made from.
    pub conn: Vec<u32>,
}

/// For each template of a schedule, of its receive ports and of its send ports the first that is alike.
type Alike = Vec<[Ports; 2]>;

/// Those of all schedules: of each template as many ports as any of its lanes has.
fn alike_ports(instance: &Instance<'_>) -> Vec<Alike> {
    let mut counts: Vec<Vec<[usize; 2]>> = instance.schedules.iter().map(|s| vec![[0; 2]; s.templates.len()]).collect();
    for lane in &instance.lanes {
        let [recv, send] = &mut counts[lane.job as usize][lane.template];
        (*recv, *send) = (lane.recv.len().max(*recv), lane.send.len().max(*send));
    }
    let of_template = |(template, &[recv, send]): (&Template, &[usize; 2])| {
        [template.ports_alike(recv, false), template.ports_alike(send, true)]
    };
    let schedules = instance.schedules.iter().zip(&counts);
    schedules.map(|(schedule, counts)| schedule.templates.iter().zip(counts).map(of_template).collect()).collect()
}

struct Colours {
    lanes: Vec<u64>,
    conns: Vec<u64>,
    resources: Vec<u64>,
    kernels: Vec<u64>,
}

/// How instances fold whose lanes have the same ports and connections, by what tells lanes apart at first: calls that
/// differ in size alone fold alike, and are looked at once.
#[derive(Debug, Default)]
pub struct Folds(Mutex<FxHashMap<u64, Option<Arc<Partition>>>>);

/// Folds an instance as far as its symmetry goes; without any it comes back as it is.
/// Where tasks start kernels each GPU has its own story, and lanes that take turns each their own: nothing is folded.
pub fn fold<'a>(instance: &Instance<'a>) -> Folded<'a> {
    fold_known(instance, &Folds::default())
}

/// As [`fold`], for one of several instances that agree in the ports, connections and tokens of lanes, in the resources
/// that they use, and in the programs of their schedules.
pub fn fold_known<'a>(instance: &Instance<'a>, known: &Folds) -> Folded<'a> {
    let turns = instance.lanes.iter().any(|lane| lane.turn > 0);
    if turns || instance.tasks.iter().any(|task| !task.kernels.is_empty()) {
        return identity(instance);
    }
    let initial = initial(instance);
    // Refinement depends on which colours are the same and not on what they are.
    let [lanes, kernels] = [&initial.lanes, &initial.kernels].map(|colours| classes_of(colours).0);
    let key = of(&(lanes, &initial.conns, &initial.resources, kernels));
    let found = known.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    let partition = found.unwrap_or_else(|| {
        let made = stable(instance, &initial).map(|colours| Arc::new(Partition::of(instance, &colours)));
        known.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
        made
    });
    partition.map_or_else(|| identity(instance), |partition| partition.quotient(instance))
}

/// The part of lanes that may be told apart, beyond which nothing is folded. The trees of one NIC have two channels each that run
/// alike, where all hosts differ: 54% of lanes.
const LEFT: (usize, usize) = (3, 4);

/// Colours that tell nothing new when they are refined; `None` where they leave too little to fold.
fn stable(instance: &Instance<'_>, initial: &Colours) -> Option<Colours> {
    let alike = alike_ports(instance);
    let kinds = [&initial.lanes, &initial.conns, &initial.resources, &initial.kernels];
    let [lanes, conns, resources, kernels] = kinds.map(Vec::len);
    let [of_conns, of_resources, of_kernels] = [lanes, lanes + conns, lanes + conns + resources];
    // Both ways, but for tokens.
    let graph = Graph::new(of_kernels + kernels, |edge| {
        for (lane, spec) in instance.lanes.iter().enumerate() {
            let alike = &alike[spec.job as usize][spec.template];
            // Which port it is tells them apart, but for those that are alike.
            for (side, ports) in [&spec.recv, &spec.send].into_iter().enumerate() {
                for (&port, &conn) in alike[side].iter().zip(ports).filter(|(_, c)| **c != UNUSED) {
                    let label = labelled(if side == 0 { Role::Receives } else { Role::Sends }, port as u64);
                    edge(lane, of_conns + conn as usize, label);
                    edge(of_conns + conn as usize, lane, label);
                }
            }
            let own = spec.own.map(|own| (of_resources + own.0 as usize, Role::Own));
            let issue = (of_resources + spec.issue.0 as usize, Role::Issue);
            let kernel = (of_kernels + spec.kernel as usize, Role::Kernel);
            for (other, role) in [issue, kernel].into_iter().chain(own) {
                edge(lane, other, labelled(role, 0));
                edge(other, lane, labelled(role, 0));
            }
            for (place, &other) in (0..).zip(&spec.tokens).filter(|(_, other)| (**other as usize) < lanes) {
                edge(other as usize, lane, labelled(Role::Token, place));
            }
        }
        for (conn, spec) in instance.conns.iter().enumerate() {
            for (section, (resource, weight)) in spec.uses.iter() {
                let label = mix(labelled(Role::Uses, section as u64), weight);
                edge(of_conns + conn, of_resources + resource as usize, label);
                edge(of_resources + resource as usize, of_conns + conn, label);
            }
        }
    });
    let mut numbers = FxHashMap::default();
    let kinds_and_colours = (0_u8..).zip(kinds).flat_map(|(kind, colours)| colours.iter().map(move |&c| (kind, c)));
    let classes = kinds_and_colours
        .map(|colour| {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            *numbers.entry(colour).or_insert(next)
        })
        .collect();
    // Where nearly all lanes differ already, running them all costs no more than telling more.
    let enough = |classes: &[u32]| {
        let told = || classes[..lanes].iter().collect::<FxHashSet<_>>().len();
        lanes > 8 && told() * LEFT.1 > lanes * LEFT.0
    };
    let classes = coarsest(&graph, classes, enough)?;
    let part = |range: std::ops::Range<usize>| classes[range].iter().map(|&class| class.into()).collect();
    Some(Colours {
        lanes: part(0..of_conns),
        conns: part(of_conns..of_resources),
        resources: part(of_resources..of_kernels),
        kernels: part(of_kernels..of_kernels + kernels),
    })
}

/// What one thing is to another.
#[derive(Clone, Copy)]
enum Role {
    Receives,
    Sends,
    Own,
    Issue,
    Kernel,
    Token,
    Uses,
}

/// A role with what tells several of it apart.
fn labelled(role: Role, which: u64) -> u64 {
    mix(role as u64, which)
}

fn all(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0x5eed, mix)
}

fn of(costs: &impl Hash) -> u64 {
    let mut mixer = Mixer::default();
    costs.hash(&mut mixer);
    mixer.finish()
}

fn initial(instance: &Instance<'_>) -> Colours {
    let lanes = instance
        .lanes
        .iter()
        .map(|lane| {
            let template = &instance.schedules[lane.job as usize].templates[lane.template];
            let registers = template.timing_registers(&lane.start);
            of(&(lane.job, lane.template, registers, lane.costs()))
        })
        .collect();
    let conns = instance.conns.iter().map(|conn| of(&conn.costs())).collect();
    let mut resources: Vec<u64> = instance.resources.iter().map(|&capacity| all([capacity])).collect();
    // Tasks are few and not folded: each resource of one is told apart from all others.
    for (index, task) in (0..).zip(&instance.tasks) {
        for (place, &(resource, weight)) in (0..).zip(task.uses.iter().chain(&task.holds)) {
            resources[resource as usize] = all([resources[resource as usize], index, place, weight]);
        }
    }
    let kernels = instance.kernels.iter().map(|k| all([u64::from(k.rounds), k.gap.0])).collect();
    Colours { lanes, conns, resources, kernels }
}

fn classes_of(colours: &[u64]) -> (Vec<u32>, Vec<u32>) {
    let mut numbers = FxHashMap::default();
    let mut first = Vec::new();
    let class = (0..)
        .zip(colours)
        .map(|(index, &colour)| {
            *numbers.entry(colour).or_insert_with(|| {
                first.push(index);
                u32::try_from(first.len() - 1).unwrap_or(UNUSED)
            })
        })
        .collect();
    (class, first)
}

fn identity<'a>(instance: &Instance<'a>) -> Folded<'a> {
    let numbers = |n: usize| (0..u32::try_from(n).unwrap_or(UNUSED)).collect();
    Folded {
        instance: instance.clone(),
        resource: numbers(instance.resources.len()),
        lane: numbers(instance.lanes.len()),
        conn: numbers(instance.conns.len()),
    }
}

/// What is interchangeable: all but what lanes cost.
#[derive(Debug)]
struct Partition {
    /// By lane, its class, and by class the first of its lanes.
    lane_class: Vec<u32>,
    lanes: Vec<u32>,
    /// By class of lanes: how many are in the block of the first.
    in_block: Vec<u64>,
    conn_class: Vec<u32>,
    conns: Vec<u32>,
    /// By class of connections: what stands for it.
    folded_conns: Arc<Vec<ConnSpec>>,
    resource_class: Vec<u32>,
    resources: Vec<u32>,
    kernel_class: Vec<u32>,
    kernels: Vec<u32>,
}

impl Partition {
    fn of(instance: &Instance<'_>, colours: &Colours) -> Self {
        let (lane_class, lanes) = classes_of(&colours.lanes);
        let (conn_class, conns) = classes_of(&colours.conns);
        let (resource_class, resources) = classes_of(&colours.resources);
        let (kernel_class, kernels) = classes_of(&colours.kernels);
        let is_first = |resource: u32| resources[resource_class[resource as usize] as usize] == resource;

        // What all connections of a class take together of one resource of a class, by section.
        let mut together: FxHashMap<(u32, Section, u32), u64> = FxHashMap::default();
        for (conn, &class) in instance.conns.iter().zip(&conn_class) {
            for (section, (resource, weight)) in conn.uses.iter().filter(|(_, u)| is_first(u.0)) {
                *together.entry((class, section, resource_class[resource as usize])).or_default() += weight;
            }
        }
        let folded_conns = (0..)
            .zip(&conns)
            .map(|(class, &first)| {
                let original = &instance.conns[first as usize];
                let mut conn = original.clone();
                conn.uses = Uses::default();
                for (section, (resource, _)) in original.uses.iter() {
                    let resource = resource_class[resource as usize];
                    if conn.uses.of(section).iter().all(|known| known.0 != resource) {
                        let weight = together.get(&(class, section, resource)).copied().unwrap_or(0);
                        conn.uses.push(section, (resource, weight));
                    }
                }
                conn
            })
            .collect();
        let mut in_block = vec![0_u64; lanes.len()];
        for (lane, &class) in instance.lanes.iter().zip(&lane_class) {
            in_block[class as usize] += u64::from(is_first(lane.issue.0));
        }
        Self {
            lane_class,
            lanes,
            in_block,
            conn_class,
            conns,
            folded_conns: Arc::new(folded_conns),
            resource_class,
            resources,
            kernel_class,
            kernels,
        }
    }

    fn quotient<'a>(&self, instance: &Instance<'a>) -> Folded<'a> {
        let mut members = vec![0_u64; self.lanes.len()];
        for (lane, &class) in instance.lanes.iter().zip(&self.lane_class) {
            members[class as usize] += lane.multiplicity;
        }
        let port = |&conn: &u32| {
            if conn == UNUSED { UNUSED } else { self.conn_class[conn as usize] }
        };
        let class_of = |&lane: &u32| self.lane_class.get(lane as usize).copied().unwrap_or(UNUSED);
        let resource_class = &self.resource_class;
        let folded_lanes = (self.lanes.iter().zip(&self.in_block).zip(members))
            .map(|((&first, in_block), members)| {
                let lane = &instance.lanes[first as usize];
                let mut folded = lane.clone();
                folded.recv = lane.recv.iter().map(port).collect();
                folded.send = lane.send.iter().map(port).collect();
                folded.tokens = lane.tokens.iter().map(class_of).collect();
                folded.issue = (resource_class[lane.issue.0 as usize], lane.issue.1 * in_block);
                folded.own = lane.own.map(|own| (resource_class[own.0 as usize], own.1));
                folded.kernel = self.kernel_class[lane.kernel as usize];
                folded.multiplicity = members;
                folded
            })
            .collect();
        let mut tasks = instance.tasks.clone();
        for task in &mut tasks {
            for use_ in task.uses.iter_mut().chain(&mut task.holds) {
                use_.0 = resource_class[use_.0 as usize];
            }
        }
        Folded {
            instance: Instance {
                resources: self.resources.iter().map(|&r| instance.resources[r as usize]).collect(),
                conns: self.folded_conns.clone(),
                lanes: folded_lanes,
                kernels: self.kernels.iter().map(|&k| instance.kernels[k as usize]).collect(),
                schedules: instance.schedules.clone(),
                tasks,
            },
            resource: self.resource_class.clone(),
            lane: self.lanes.clone(),
            conn: self.conns.clone(),
        }
    }
}
