//! What NCCL picks, and who decided: environment, tuner plugin, cost table.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::cost::{Cell, Cost, CostTable, Model, place};
use super::rules::Fallback;
use super::selection::{ALGORITHMS, Selection};
use super::settings::NcclSettings;
use super::tables::{RING, SIMPLE, TREE};
use super::tuner::{Advice, Tuner, TunerKind};
use crate::call::Call;
use crate::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};

/// Who decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Layer {
    /// NCCL has nothing to choose: one rank, or send and receive.
    Rule,
    /// `NCCL_ALGO` and `NCCL_PROTO` leave one pair.
    Environment,
    /// A tuner plugin.
    Tuner(TunerKind),
    /// The smallest time of the cost table.
    Table,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule => f.write_str("NCCL's rule"),
            Self::Environment => f.write_str("environment"),
            Self::Tuner(kind) => kind.fmt(f),
            Self::Table => f.write_str("cost table"),
        }
    }
}

/// A line of the table that a choice was made from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// Latency and bandwidth, or why it is closed.
    pub cell: Cell,
    /// NCCL's time of the call in microseconds, where the pair is open.
    pub time_us: Option<f32>,
    /// The tuner set its time to zero.
    pub tuned: bool,
}

/// A choice and how it came about.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// Channels, before the bytes are dealt to them.
    pub channels: u32,
    /// Whether a tuner set the channels.
    pub tuned_channels: bool,
    /// Who decided.
    pub layer: Layer,
    /// Every pair that NCCL has a kernel for, in its order.
    pub candidates: Vec<Candidate>,
    /// In words.
    pub why: String,
}

/// NCCL would fail the call: its settings leave nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct NothingLeft {
    /// Every pair that NCCL has a kernel for, and why it is closed.
    pub candidates: Vec<Candidate>,
}

impl Model<'_> {
    /// NCCL's choice for one call.
    ///
    /// # Errors
    /// Nothing is left by the settings, since 2.24; earlier versions fall back to ring.
    pub fn decide(&self, tuner: Option<&Tuner>, call: &Call) -> Result<Decision, NothingLeft> {
        self.decide_group(tuner, call, call.size().0, 1)
    }

    /// NCCL's choice for calls like `call` that share it and move `bytes` together, in a group of `calls` calls in all.
    ///
    /// # Errors
    /// As [`Model::decide`].
    pub fn decide_group(
        &self,
        tuner: Option<&Tuner>,
        call: &Call,
        bytes: u64,
        calls: u32,
    ) -> Result<Decision, NothingLeft> {
        if self.graphs.ranks <= 1 {
            return Ok(Decision {
                algorithm: Algorithm::Ring,
                protocol: Protocol::Simple,
                channels: 1,
                tuned_channels: false,
                layer: Layer::Rule,
                candidates: Vec::new(),
                why: "one rank copies".to_owned(),
            });
        }
        let table = self.with_fallback(self.table(call), call);
        let tuner = tuner.filter(|tuner| tuner.is_asked(self));
        let advice = tuner.map(|tuner| tuner.advice(self, &table, call, bytes, calls)).unwrap_or_default();
        let candidates = self.candidates(&table, &advice, call, bytes, calls);
        let mut best: Option<(&Candidate, f32)> = None;
        for candidate in &candidates {
            let time = if candidate.tuned { Some(0.0) } else { candidate.time_us };
            if let Some(time) = time
                && best.is_none_or(|(_, least)| time < least)
            {
                best = Some((candidate, time));
            }
        }
        let Some(&Candidate { algorithm, protocol, tuned, time_us, .. }) = best.map(|(candidate, _)| candidate) else {
            return Err(NothingLeft { candidates });
        };
        let open = candidates.iter().filter(|c| c.time_us.is_some()).count();
        let set = &self.settings;
        let (layer, why) = if open == 1 && (set.algorithms.says(call.collective) || set.protocols.says(call.collective))
        {
            (Layer::Environment, "the only pair that NCCL_ALGO and NCCL_PROTO leave".to_owned())
        } else if let Some(tuner) = tuner.filter(|_| tuned) {
            (Layer::Tuner(tuner.kind()), advice.why)
        } else {
            let time = time_us.unwrap_or_default();
            let mut why = format!("{time:.2} us is the least of {open} pairs");
            if !advice.why.is_empty() {
                why += &format!("; the tuner: {}", advice.why);
            }
            (Layer::Table, why)
        };
        Ok(Decision {
            algorithm,
            protocol,
            channels: advice.channels.unwrap_or_else(|| self.call_channels(algorithm, protocol, bytes)),
            tuned_channels: advice.channels.is_some(),
            layer,
            why,
            candidates,
        })
    }

    /// Versions up to 2.23 take rings where the settings leave nothing.
    fn with_fallback(&self, mut table: CostTable, call: &Call) -> CostTable {
        let fallback = self.rules.fallback;
        if fallback == Fallback::Refuse || table.iter().flatten().any(|cell| matches!(cell, Cell::On(_))) {
            return table;
        }
        let mut settings = self.settings;
        // Without switches in the network, a list that leaves no other algorithm leaves ring and tree, by its protocols.
        let leaves = |a: Algorithm| settings.algorithms.allows(call.collective, a) != Some(false);
        let several = self.graphs.hosts > 1;
        let switches = leaves(Algorithm::Nvls) && !several || leaves(Algorithm::NvlsTree);
        let rings = leaves(Algorithm::Ring) || leaves(Algorithm::Tree);
        let none = !(rings || switches && self.rules.version.since(18));
        settings.algorithms = Selection::default();
        if none && !self.graphs.collnet {
            let free = Model::new(self.graphs, self.rules.version, settings).table(call);
            (table[RING], table[TREE]) = (free[RING], free[TREE]);
            return table;
        }
        if fallback == Fallback::RingWithAnyProtocol {
            settings.protocols = Selection::default();
        }
        let free = Model::new(self.graphs, self.rules.version, settings);
        table[RING] = free.table(call)[RING];
        table
    }

    fn candidates(&self, table: &CostTable, advice: &Advice, call: &Call, bytes: u64, calls: u32) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (a, row) in table.iter().enumerate() {
            for (p, &cell) in row.iter().enumerate() {
                let (algorithm, protocol) = (ALGORITHMS[a], Protocol::ALL[p]);
                let time_us = match cell {
                    Cell::NoKernel => continue,
                    Cell::Off(_) => None,
                    Cell::On(cost) => Some(self.time_us(cost, call, (a, p), bytes, calls)),
                };
                let tuned = advice.pair == Some((algorithm, protocol));
                candidates.push(Candidate { algorithm, protocol, cell, time_us, tuned });
            }
        }
        candidates
    }

    /// NCCL's own forecast of a call with a given pair, in microseconds; `None` where it would
    /// not use the pair. Settings that exclude the pair do not matter.
    pub fn predicted_us(&self, call: &Call, algorithm: Algorithm, protocol: Protocol) -> Option<f32> {
        let (a, p) = place(algorithm, protocol)?;
        if self.graphs.ranks <= 1 {
            return ((a, p) == (RING, SIMPLE)).then_some(0.0);
        }
        let cost = self.cost(call, algorithm, protocol)?;
        Some(self.time_us(cost, call, (a, p), call.size().0, 1))
    }

    fn cost(&self, call: &Call, algorithm: Algorithm, protocol: Protocol) -> Option<Cost> {
        let settings =
            NcclSettings { algorithms: Selection::default(), protocols: Selection::only(protocol), ..self.settings };
        let (a, p) = place(algorithm, protocol)?;
        match Model::new(self.graphs, self.rules.version, settings).table(call)[a][p] {
            Cell::On(cost) => Some(cost),
            Cell::NoKernel | Cell::Off(_) => None,
        }
    }
}

/// Which calls of one group share a choice: those of one collective, type and operation whose
/// traffic is within a factor of four of the smallest.
///
/// Source: NCCL 2.30 `src/enqueue.cc`, which sorts by traffic before it bins.
pub fn shared_choices(calls: &[Call]) -> Vec<Vec<usize>> {
    let traffic = |call: &Call| call.size().0;
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|&index| (kind(&calls[index]), traffic(&calls[index]), index));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let joins = groups.last().is_some_and(|group| {
            let first = &calls[group[0]];
            kind(first) == kind(&calls[index]) && traffic(&calls[index]) < traffic(first).saturating_mul(4)
        });
        match groups.last_mut().filter(|_| joins) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

fn kind(call: &Call) -> (Collective, ReduceOp, DataType) {
    (call.collective, call.op, call.dtype)
}
