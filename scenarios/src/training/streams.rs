//! Kernels and calls of one rank beside each other: who waits for whom, and what they take from each other.
//!
//! Items of a stream run one after another, and wait for those that they come after. While calls run, kernels have fewer
//! SMs and less power; while kernels run, calls move less; calls of several streams over the same links share them.
//! These are the shares that [`super::calls::Cost`] has from the engine, so that a step of hundreds of layers takes
//! microseconds.

use super::calls::{Cost, Exchange, Shape};
use super::kind::Kind;

/// Which links a call shares with those of other streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Links {
    /// None.
    Own,
    /// Those of an NVLink domain.
    Domain,
    /// The network between domains.
    Network,
}

/// A call of a rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Call {
    /// What it moves.
    pub name: &'static str,
    /// Whom it joins.
    pub kind: Kind,
    /// Its group.
    pub shape: Shape,
    /// What the group does.
    pub exchange: Exchange,
    /// Its bytes, as nccl-tests counts them.
    pub bytes: u64,
    /// What it takes.
    pub cost: Cost,
    pub(super) links: Links,
}

/// What an item is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum What {
    /// Kernels of the model.
    Kernels,
    /// Nothing: the stream is not needed for so long.
    Idle,
    /// Calls over the network that kernels wait for, and that were counted as exposed for as long as they take alone.
    Network,
    /// A call, which leaves a part of their speed to kernels and keeps a part of its own beside them.
    Call(Call),
}

impl What {
    fn call(&self) -> Option<&Call> {
        if let Self::Call(call) = self { Some(call) } else { None }
    }

    fn links(&self) -> Option<Links> {
        match self {
            Self::Call(call) => Some(call.links),
            Self::Network => Some(Links::Network),
            Self::Kernels | Self::Idle => None,
        }
    }
}

/// Something that a stream does.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Item {
    /// On which stream; kernels are on 0.
    pub(crate) stream: usize,
    /// What it is.
    pub(crate) what: What,
    /// Seconds that it takes alone.
    pub(crate) seconds: f64,
    /// Items before it in the list that it waits for, besides its stream's.
    pub(crate) after: Vec<usize>,
}

impl Item {
    /// A call that waits for items.
    pub(super) fn call(stream: usize, call: Call, after: Vec<usize>) -> Self {
        Self { stream, what: What::Call(call), seconds: call.cost.seconds, after }
    }
}

/// How it went.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Ran {
    /// When each item ended, in seconds.
    pub(crate) ends: Vec<f64>,
    /// Of each call the seconds in which the stream of kernels had nothing to do, or waited longer for other calls because
    /// of it.
    pub(crate) exposed: Vec<f64>,
    /// Seconds that kernels took longer than alone.
    pub(crate) slowed: f64,
}

impl Ran {
    /// When the last item ended.
    pub(crate) fn end(&self) -> f64 {
        self.ends.iter().copied().fold(0.0, f64::max)
    }

    /// The calls of the items that were run, each with what of it was exposed.
    pub(super) fn calls<'i>(&'i self, items: &'i [Item]) -> impl Iterator<Item = (&'i Call, f64)> {
        items.iter().zip(&self.exposed).filter_map(|(item, exposed)| Some((item.what.call()?, *exposed)))
    }
}

/// Runs items.
pub(crate) fn run(items: &[Item]) -> Ran {
    let streams = items.iter().map(|item| item.stream + 1).max().unwrap_or(0);
    let mut queues: Vec<std::collections::VecDeque<usize>> = vec![std::collections::VecDeque::new(); streams];
    for (index, item) in items.iter().enumerate() {
        queues[item.stream].push_back(index);
    }
    let mut left: Vec<f64> = items.iter().map(|item| item.seconds).collect();
    let mut ran = Ran { ends: vec![f64::NAN; items.len()], exposed: vec![0.0; items.len()], slowed: 0.0 };
    let mut now = 0.0;
    loop {
        let ready = |&index: &usize| items[index].after.iter().all(|&before| !ran.ends[before].is_nan());
        let heads: Vec<usize> = queues.iter().filter_map(|q| q.front().copied()).filter(ready).collect();
        if heads.is_empty() {
            // Items wait for earlier ones only, so that nothing is left.
            return ran;
        }
        let kernels = heads.iter().any(|&h| matches!(items[h].what, What::Kernels));
        let hidden = heads.iter().any(|&h| items[h].stream == 0);
        let speeds: Vec<f64> = heads.iter().map(|&h| speed(items, h, &heads, kernels)).collect();
        let until = heads.iter().zip(&speeds).map(|(&h, speed)| left[h] / speed).fold(f64::INFINITY, f64::min);
        // Of calls at once each has its part of what is waited for.
        let calls = heads.iter().filter(|&&h| items[h].what.call().is_some()).count().max(1) as f64;
        let mut waits = if hidden { 0.0 } else { until };
        for (&head, speed) in heads.iter().zip(&speeds) {
            match items[head].what {
                What::Kernels => ran.slowed += until * (1.0 - speed),
                What::Network => waits += until * (1.0 - speed),
                What::Call(_) | What::Idle => {}
            }
            left[head] -= until * speed;
        }
        for &head in heads.iter().filter(|&&h| items[h].what.call().is_some()) {
            ran.exposed[head] += waits / calls;
        }
        now += until;
        for (&head, speed) in heads.iter().zip(&speeds) {
            // What is left of rounding ends too.
            if left[head] <= 1e-15 * items[head].seconds.max(1e-6) || left[head] / speed <= 0.0 {
                ran.ends[head] = now;
                queues[items[head].stream].pop_front();
            }
        }
    }
}

fn speed(items: &[Item], index: usize, heads: &[usize], kernels: bool) -> f64 {
    // Of calls over the same links each has its part of them.
    let share = |own: Links| {
        let shares = |&&h: &&usize| items[h].what.links() == Some(own);
        let sharing = if own == Links::Own { 1 } else { heads.iter().filter(shares).count() };
        1.0 / sharing.max(1) as f64
    };
    match &items[index].what {
        What::Kernels => {
            // All of a call's blocks are there, however little it sends.
            let leaves = |call: &Call| {
                let by_traffic = call.cost.leaves / call.cost.blocks_leave;
                call.cost.blocks_leave * (1.0 - (1.0 - by_traffic) * share(call.links))
            };
            heads.iter().filter_map(|&h| items[h].what.call()).map(leaves).product::<f64>().max(0.05)
        }
        What::Idle => 1.0,
        What::Network => share(Links::Network),
        What::Call(call) => (if kernels { call.cost.keeps } else { 1.0 } * share(call.links)).max(1e-6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::collective::{Algorithm, Protocol};

    const CALL: What = call([0.8, 0.5], Links::Network);

    const fn call([leaves, keeps]: [f64; 2], links: Links) -> What {
        let (algorithm, protocol) = (Algorithm::Ring, Protocol::Simple);
        let (seconds, interval, blocks_leave) = (1.0, (1.0, 1.0), 0.9);
        let cost = Cost { seconds, interval, leaves, blocks_leave, keeps, algorithm, protocol, channels: 1 };
        let shape = Shape { size: 2, stride: 1, share: 0 };
        let (kind, exchange) = (Kind::Data, Exchange::Shift);
        What::Call(Call { name: "gradients", kind, shape, exchange, bytes: 1, cost, links })
    }

    fn item(stream: usize, what: What, seconds: f64, after: &[usize]) -> Item {
        Item { stream, what, seconds, after: after.to_vec() }
    }

    /// Goal: what is hidden costs its interference, what is not is exposed, in closed form.
    #[test]
    fn kernels_and_calls_take_from_each_other() {
        // A call that kernels do not wait for: they run at 0.8 for as long as it lasts, 2 s at half its speed.
        let ran = run(&[item(1, CALL, 1.0, &[]), item(0, What::Kernels, 10.0, &[])]);
        assert!((ran.ends[0] - 2.0).abs() < 1e-9 && (ran.end() - 10.4).abs() < 1e-9, "{ran:?}");
        assert!((ran.slowed - 0.4).abs() < 1e-9 && ran.exposed[0] == 0.0);
        // One that they wait for.
        let ran = run(&[item(0, What::Kernels, 1.0, &[]), item(1, CALL, 1.0, &[0]), item(0, What::Kernels, 1.0, &[1])]);
        assert!((ran.end() - 3.0).abs() < 1e-9 && (ran.exposed[1] - 1.0).abs() < 1e-9);
        // Two over the same links take twice as long together, others do not.
        let end = |links: [Links; 2]| {
            let call = |links| call([1.0; 2], links);
            run(&[item(1, call(links[0]), 1.0, &[]), item(2, call(links[1]), 1.0, &[])]).end()
        };
        use Links::{Domain, Network, Own};
        for (links, seconds) in
            [([Network; 2], 2.0), ([Domain; 2], 2.0), ([Network, Domain], 1.0), ([Network, Own], 1.0), ([Own; 2], 1.0)]
        {
            assert!((end(links) - seconds).abs() < 1e-9, "{links:?}");
        }
    }

    /// Goal: two calls that share links take the SMs of both, and of power and memory what one takes that has them alone.
    #[test]
    fn calls_that_share_links_send_as_much_as_one() {
        let call = |stream| item(stream, call([0.72, 1.0], Links::Network), 100.0, &[]);
        let speed = |others: &[Item]| 1.0 / run(&[&[item(0, What::Kernels, 1.0, &[])], others].concat()).ends[0];
        assert!((speed(&[call(1)]) - 0.72).abs() < 1e-9);
        assert!((speed(&[call(1), call(2)]) - (0.9 * 0.9_f64).powi(2)).abs() < 1e-9);
    }

    /// Goal: a call beside one that kernels wait for shares its links, and what both take longer is exposed once.
    #[test]
    fn calls_beside_exposed_ones_take_their_part_of_links() {
        let run = |what: What, seconds: f64| {
            let ran = run(&[item(0, What::Network, 2.0, &[]), item(1, what, seconds, &[])]);
            (ran.ends, ran.exposed, ran.slowed)
        };
        assert_eq!(run(call([0.8, 0.5], Links::Domain), 1.0), (vec![2.0, 1.0], vec![0.0, 0.0], 0.0));
        assert_eq!(run(CALL, 1.0), (vec![3.0, 2.0], vec![0.0, 1.0], 0.0));
        // It takes the other's 2 s, and then goes on alone.
        assert_eq!(run(CALL, 3.0), (vec![4.0, 5.0], vec![0.0, 3.0], 0.0));
    }

    /// Goal: nothing is an item of no time, and an empty list ends at once.
    #[test]
    fn items_of_no_time_end() {
        let ran = run(&[item(0, What::Idle, 0.0, &[]), item(0, What::Kernels, 0.0, &[0])]);
        assert_eq!(ran.end(), 0.0);
        assert_eq!(run(&[]).end(), 0.0);
    }
}
