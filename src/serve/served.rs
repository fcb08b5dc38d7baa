//! A fleet as a simulation asks it: what a step, a hand-off and a fetch take.

use collcast_scenarios::serving::{Batch, Machine, Steps, Taken};

use super::hand_off::{HandOff, HandOffs};

/// Workers of a fleet as a simulation asks them.
pub(super) struct Served<'a> {
    /// By group: up to which worker, and what its steps take.
    pub(super) steps: Vec<(usize, Steps<'a>)>,
    /// By group: the ways from host memory and from drives.
    pub(super) tiers: Vec<Vec<Option<HandOff>>>,
    pub(super) hand_offs: Option<HandOffs<'a>>,
}

impl Machine for Served<'_> {
    fn step(&mut self, worker: usize, batch: &Batch<'_>) -> Taken {
        let group = self.steps.iter_mut().find(|(end, _)| worker < *end);
        group.map_or(Taken::default(), |(_, steps)| steps.taken(batch))
    }

    fn hand_off(&mut self, from: usize, to: usize, tokens: u64) -> f64 {
        self.hand_offs.as_mut().map_or(0.0, |hand_offs| hand_offs.between(from, to, |way| way.seconds(tokens)))
    }

    fn last_layer(&mut self, from: usize, to: usize, tokens: u64) -> f64 {
        self.hand_offs.as_mut().map_or(0.0, |hand_offs| hand_offs.between(from, to, |way| way.last_layer(tokens)))
    }

    fn fetch(&mut self, worker: usize, tier: usize, tokens: u64) -> f64 {
        let group = self.steps.iter().position(|(end, _)| worker < *end);
        let tiers = group.and_then(|group| self.tiers.get_mut(group));
        let way = tiers.and_then(|tiers| tiers.get_mut(tier.checked_sub(1)?)?.as_mut());
        way.map_or(f64::INFINITY, |way| way.seconds(tokens))
    }
}
