//! The collectives of a step: who calls what, how often, and the step with other choices for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use collcast_sim::collective::Collective;
use collcast_sim::ids::Rank;
use collcast_sim::nccl::{CsvTuner, FUNCTIONS, Tuner};
use collcast_sim::predict::{Choice, Settings};
use collcast_sim::schedule::Call;
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::{Communicate, Mechanisms, What, fold::fold};

use super::loaded::{Loaded, Machine, failed};
use super::request::Request;
use crate::error::Error;
use crate::site::{Site, Told};

/// Communicators of a step that do the same, one for all.
#[derive(Clone, PartialEq, Debug)]
pub struct Role {
    /// What it is for, such as `data-parallel`.
    pub name: String,
    /// Its ranks.
    pub ranks: Vec<Rank>,
    /// The others of the role.
    pub others: Vec<Vec<Rank>>,
    /// Each call that NCCL chooses an algorithm for, and how often a rank makes it.
    pub calls: Vec<(Call, u64)>,
}

/// A step, its machine and its collectives.
#[derive(Clone, Debug)]
pub struct Collectives {
    request: Request,
    /// The machine, as the step's calls see it.
    pub site: Site,
    /// Who calls what, in the order of the ranks.
    pub roles: Vec<Role>,
}

impl Collectives {
    /// Reads a step.
    ///
    /// # Errors
    /// A scenario or machine that cannot be read, a layout that does not fit, or a step without a choice for NCCL.
    pub fn of(request: &Request) -> Result<Self, Error> {
        let loaded = Loaded::new(&request.text, "", request)?;
        let graph = loaded.graph();
        let classes = fold(&graph, &loaded.machine.topology).map_err(failed)?;
        let mut roles: Vec<Role> = Vec::new();
        for &group in &classes.groups {
            let class = classes.group[group];
            let members = &graph.groups[group];
            let Some(spec) = members.first().map(|rank| &graph.ranks[rank.index()]) else { continue };
            let (mut name, mut calls) = (None, BTreeMap::<(Collective, Bytes), (Call, u64)>::new());
            for op in &graph.programs[spec.program].ops {
                let What::Collective(c) = &op.what else { continue };
                let own = spec.groups.get(c.group) == Some(&group);
                if !own || !is_free(c) || !FUNCTIONS.iter().any(|(_, known)| *known == c.collective) {
                    continue;
                }
                name.get_or_insert_with(|| op.kind.split(' ').next().unwrap_or_default().to_owned());
                let ranks = u32::try_from(members.len()).unwrap_or(u32::MAX);
                let call = Call { in_place: c.in_place, ..Call::of_size(c.collective, ranks, c.bytes, c.dtype) };
                calls.entry((c.collective, c.bytes)).or_insert((call, 0)).1 += 1;
            }
            let Some(name) = name else { continue };
            let alike = |index: &usize| *index != group && classes.group[*index] == class;
            let others = (0..graph.groups.len()).filter(alike).map(|index| graph.groups[index].clone()).collect();
            roles.push(Role { name, ranks: members.clone(), others, calls: calls.into_values().collect() });
        }
        if roles.is_empty() {
            return Err(Error::usage(
                format!("the step of {} has no collective that NCCL chooses an algorithm for", request.name),
                "leave algorithm, protocol and channels out of its [communication]",
            ));
        }
        // As the step simulates them: one call after other work, not a loop of them.
        let Machine { site, topology, settings, .. } = loaded.machine;
        let settings = Settings { cold: true, ..settings };
        let site = Site { topology, told: Told { settings, ..site.told }, ..site };
        Ok(Self { request: request.clone(), site, roles })
    }

    /// The time of the step, by the choices of a tuner's table where one is given.
    ///
    /// # Errors
    /// As of [`Collectives::of`].
    pub fn time(&self, table: Option<&str>) -> Result<SimDuration, Error> {
        let mut loaded = Loaded::new(&self.request.text, "", &self.request)?;
        if let Some(text) = table {
            loaded.machine.site.told.tuner = Some(Tuner::Csv(Arc::new(CsvTuner::parse(text))));
        }
        let (graph, simulator) = (loaded.graph(), loaded.machine.simulator());
        let step = simulator.run(&graph, Mechanisms::default(), self.request.level).map_err(failed)?;
        Ok(step.time)
    }
}

/// Whether NCCL chooses.
fn is_free(call: &Communicate) -> bool {
    call.algorithm == Choice::Auto && call.protocol == Choice::Auto && call.channels.is_none()
}
