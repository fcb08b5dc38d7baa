//! What the exchanges of a layout take on a machine: each call simulated alone with its siblings, then remembered.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use collcast_sim::call::Call;
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::compute::Compute;
use collcast_sim::ids::{HostId, Rank};
use collcast_sim::network::first_unlike;
use collcast_sim::predict::{Choice, PredictError, Predictor, Settings, Whole};
use collcast_sim::topology::Topology;
use collcast_sim::transfer::{self, Fleet, Load, Place, TransferError, ways};
use collcast_sim::units::{Bytes, SimDuration};
use collcast_sim::workload::Device;
use serde::{Deserialize, Serialize};

use crate::work::{Routing, TOKEN_BLOCKS};

/// Members of a group that are simulated at most. Of a larger group so many are, with what NCCL chooses for all of it, and
/// half as many: see [`Calls::cost`].
const MEMBERS: u64 = 64;
/// The same where many layouts are compared: most of a search is spent on simulating calls.
const FEW_MEMBERS: u64 = 16;

/// Where a group's members are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// How many there are.
    pub size: u64,
    /// Ranks from one to the next.
    pub stride: u64,
    /// GPUs that the job has of each NVLink domain of several hosts ([`Calls::share`]): where groups do not divide them, some
    /// lie in several domains, and these are meant. 0 where all groups of a size lie like the first one.
    pub share: u64,
}

impl Shape {
    /// So many members, so many ranks apart, of which all groups lie like the first one.
    pub fn new(size: u64, stride: u64) -> Self {
        Self { size, stride, share: 0 }
    }
}

/// What a group does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Exchange {
    /// A collective; its bytes are nccl-tests' size.
    Collective(Collective),
    /// Each member sends so many bytes to the next one, the last to the first.
    Shift,
    /// Each member has so many bytes, a token counted for each of its experts, which are spread evenly over the members. A token
    /// goes once to each host that has experts of it, to the member at the sender's place there, and on to the others.
    Tokens(Routing),
}

impl Exchange {
    /// The call that it is.
    pub fn collective(self) -> Collective {
        match self {
            Self::Collective(collective) => collective,
            Self::Shift => Collective::SendRecv,
            Self::Tokens(_) => Collective::AllToAll,
        }
    }
}

/// What an exchange takes, and what it and products take from each other.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds, with its siblings and without kernels beside it.
    pub seconds: f64,
    /// Ends of its 90% interval, of `seconds`.
    pub interval: (f64, f64),
    /// Part of their speed that products keep beside it.
    pub leaves: f64,
    /// The part that its blocks alone would leave them: the rest is what it sends.
    pub blocks_leave: f64,
    /// Part of its own speed that it keeps beside products.
    pub keeps: f64,
    /// What it runs as.
    pub algorithm: Algorithm,
    /// How it moves data.
    pub protocol: Protocol,
    /// Channels of each member.
    pub channels: u32,
}

/// What a larger group adds to an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Growth {
    /// Levels of a tree, or nothing: each member has all of the data.
    Levels,
    /// Steps, each with as many bytes.
    Steps,
    /// Steps among which each member's bytes are divided.
    Divided,
}

impl Growth {
    fn of(exchange: Exchange, algorithm: Algorithm) -> Self {
        match (exchange, algorithm) {
            (Exchange::Tokens(_) | Exchange::Shift, _) => Self::Divided,
            (Exchange::Collective(Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll), _)
            | (_, Algorithm::Ring | Algorithm::Pat | Algorithm::Direct) => Self::Steps,
            _ => Self::Levels,
        }
    }

    /// How many more there are in a group of `many` than of `few`.
    fn between(self, few: u64, many: u64) -> f64 {
        match self {
            Self::Levels => (many as f64 / few as f64).log2(),
            Self::Steps | Self::Divided => many.saturating_sub(few) as f64,
        }
    }

    /// How many times as many bytes a member has in a group of `many` as in a part of `few`.
    fn bytes(self, few: u64, many: u64) -> f64 {
        match self {
            Self::Steps => many.saturating_sub(1) as f64 / few.saturating_sub(1).max(1) as f64,
            Self::Levels | Self::Divided => 1.0,
        }
    }
}

/// An exchange, as times are remembered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
struct Asked {
    shape: Shape,
    exchange: Exchange,
    bytes: u64,
    /// Members that were simulated at most.
    members: u64,
}

/// An exchange and what it takes, to be remembered elsewhere.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct KnownCall {
    #[serde(flatten)]
    asked: Asked,
    cost: Cost,
}

/// Times of exchanges on a machine whose hosts are alike: each is simulated once, slice by slice, together with the
/// groups of its kind on the same hosts.
#[derive(Debug)]
pub struct Calls<'a> {
    predictor: Predictor<'a>,
    sms: u32,
    settings: Settings,
    host: u64,
    domain: u64,
    /// The first rank of a host that is unlike most, such as one with a slow NIC.
    unlike: Option<u64>,
    known: Mutex<BTreeMap<Asked, Cost>>,
}

/// GPUs of a machine's first NVLink domain: those of a host, or of a rack whose hosts share their NVLink.
pub fn domain(topology: &Topology) -> u64 {
    let first = topology.node_of(Rank(0));
    (0..topology.ranks()).take_while(|&r| topology.node_of(Rank(r)) == first).count() as u64
}

impl<'a> Calls<'a> {
    /// On a machine with what NCCL is told there.
    pub fn new(predictor: Predictor<'a>, device: Device, settings: Settings) -> Self {
        let topology = predictor.topology();
        let first = topology.host_of(Rank(0));
        let host = (0..topology.ranks()).take_while(|&r| topology.host_of(Rank(r)) == first).count() as u64;
        // A step starts each of its calls by itself, and never as a loop.
        let settings = Settings { cold: true, ..settings };
        let unlike = first_unlike(topology).map(|rank| rank.0.into());
        Self { predictor, sms: device.sms, settings, host, domain: domain(topology), unlike, known: Mutex::default() }
    }

    /// GPUs of a host.
    pub fn host(&self) -> u64 {
        self.host
    }

    /// GPUs of an NVLink domain: see [`domain`].
    pub fn domain(&self) -> u64 {
        self.domain
    }

    /// GPUs that a job of so many has of each NVLink domain of several hosts: it lies evenly on as few domains as can be, in
    /// whole hosts, so that 256 GPUs have 64 of each of four racks of 72, and 288 have all. All of a domain where there is no
    /// such number; 0 where each host is a domain.
    pub fn share(&self, gpus: u64) -> u64 {
        if self.domain == self.host {
            return 0;
        }
        let mut domains = gpus.div_ceil(self.domain).max(1)..=gpus / self.host;
        let even = domains.find(|domains| gpus.is_multiple_of(domains * self.host));
        even.map_or(self.domain, |domains| gpus / domains)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Asked, Cost>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was simulated so far.
    pub fn all_known(&self) -> Vec<KnownCall> {
        self.known().iter().map(|(&asked, &cost)| KnownCall { asked, cost }).collect()
    }

    /// Collectives that run as something else on another machine, such as `all_reduce of 8 ranks ring -> tree`.
    pub fn others(&self, elsewhere: &Self) -> BTreeSet<String> {
        let there = elsewhere.all_known();
        let known = self.known();
        let other = |KnownCall { asked, cost }: &KnownCall| {
            let Exchange::Collective(collective) = asked.exchange else { return None };
            let here = known.get(asked).filter(|here| here.algorithm != cost.algorithm)?;
            Some(format!("{collective} of {} ranks {} -> {}", asked.shape.size, here.algorithm, cost.algorithm))
        };
        there.iter().filter_map(other).collect()
    }

    /// Takes over what was simulated elsewhere, for the same machine, profile and settings.
    pub fn know(&self, known: impl IntoIterator<Item = KnownCall>) {
        self.known().extend(known.into_iter().map(|KnownCall { asked, cost }| (asked, cost)));
    }

    /// What an exchange takes; none in a group of one, or of no bytes. Of a large group some members are simulated, and what
    /// others add is extended from these: each step of a ring, and each level of a tree, does the same.
    ///
    /// # Errors
    /// A call that the machine cannot do.
    pub fn cost(&self, shape: Shape, exchange: Exchange, bytes: u64) -> Result<Option<Cost>, PredictError> {
        self.cost_of(shape, exchange, bytes, MEMBERS)
    }

    /// The same from a group of so many members at most.
    fn cost_of(&self, shape: Shape, exchange: Exchange, bytes: u64, most: u64) -> Result<Option<Cost>, PredictError> {
        if shape.size <= 1 || bytes == 0 {
            return Ok(None);
        }
        // Half of them are on several hosts, too.
        let together = if shape.share > 0 { 1 } else { self.together(shape) };
        let most = most.max(4 * together).min(shape.size);
        let asked = Asked { shape, exchange, bytes, members: most };
        if let Some(cost) = self.known().get(&asked) {
            return Ok(Some(*cost));
        }
        let cost = match shape.size <= most || exchange == Exchange::Shift {
            true => self.simulated(Shape { size: most, ..shape }, exchange, (bytes, shape.size))?.0,
            false => self.extended(shape, exchange, bytes, most)?,
        };
        self.known().insert(asked, cost);
        Ok(Some(cost))
    }

    /// The same between bytes of powers of two by a straight line, from fewer members: for comparing many layouts.
    ///
    /// # Errors
    /// As of [`Calls::cost`].
    pub fn rough(&self, shape: Shape, exchange: Exchange, bytes: u64) -> Result<Option<Cost>, PredictError> {
        let below = bytes.checked_ilog2().map_or(0, |log| 1 << log);
        let of = |bytes| self.cost_of(shape, exchange, bytes, FEW_MEMBERS);
        let Some(low) = of(below)? else { return Ok(None) };
        if below == bytes {
            return Ok(Some(low));
        }
        let Some(high) = of(below.saturating_mul(2))? else { return Ok(Some(low)) };
        let along = (bytes - below) as f64 / below as f64;
        let between = |a: f64, b: f64| a + (b - a) * along;
        Ok(Some(Cost {
            seconds: between(low.seconds, high.seconds),
            leaves: between(low.leaves, high.leaves),
            blocks_leave: between(low.blocks_leave, high.blocks_leave),
            keeps: between(low.keeps, high.keeps),
            ..high
        }))
    }

    /// In a group of more members than are simulated: some of them do what they do in all of it, half as many of them too. What
    /// the former take longer than the latter is added for each step or level more. A quarter of them say how steadily that
    /// grows. No resource can carry the bytes of all steps sooner than the busiest one that was simulated carries its own.
    fn extended(&self, shape: Shape, exchange: Exchange, bytes: u64, many: u64) -> Result<Cost, PredictError> {
        let of = |size: u64| self.simulated(Shape { size, ..shape }, exchange, (bytes.max(1), shape.size));
        let ((less, _), (more, busy)) = (of(many / 2)?, of(many)?);
        let growth = Growth::of(exchange, more.algorithm);
        let seconds_each = |less: f64, more: f64, at: u64| (more - less) / growth.between(at / 2, at);
        let each = seconds_each(less.seconds, more.seconds, many);
        let left = growth.between(many, shape.size);
        let least = busy * growth.bytes(many, shape.size);
        let seconds = (more.seconds + each.max(0.0) * left).max(least);
        // A search asks for no interval.
        let off = match many < MEMBERS {
            true => 0.0,
            false => (each - seconds_each(of(many / 4)?.0.seconds, less.seconds, many / 2)).abs() * left / seconds,
        };
        let interval = (more.interval.0 * (1.0 - off.min(1.0)), more.interval.1 * (1.0 + off));
        Ok(Cost { seconds, interval, ..more })
    }

    /// Part of the memory's rate that products need.
    pub(crate) fn gemm_memory(&self) -> f64 {
        self.predictor.profile().gemm_memory()
    }

    /// Members of a group in one host, or in one NVLink domain of several.
    pub(crate) fn together(&self, shape: Shape) -> u64 {
        let gpus = if shape.share > 0 { shape.share } else { self.domain };
        (gpus / shape.stride.max(1)).clamp(1, shape.size.max(1))
    }

    /// Part of their speed that products keep beside an exchange of tokens which takes no multiprocessor of theirs: what its
    /// power leaves.
    pub(crate) fn leaves_by_power(&self, cost: &Cost) -> f64 {
        let blocks = TOKEN_BLOCKS.min(self.sms - 1);
        (cost.leaves / self.predictor.profile().product_speed((self.sms - blocks, self.sms), 0.0)).min(1.0)
    }

    /// Seconds of so many bytes from each GPU of a host to its memory, all at once, and of the way back.
    ///
    /// # Errors
    /// Copies that are too long to be simulated.
    pub(crate) fn host_copies(&self, gpu: &Compute, bytes: u64) -> Result<[f64; 2], TransferError> {
        let mut fleet = Fleet::new(self.predictor.topology(), self.predictor.profile(), gpu, None);
        let mut all = |back: bool| -> Result<f64, TransferError> {
            let mut loads = Vec::new();
            for rank in 0..u32::try_from(self.host).unwrap_or(u32::MAX) {
                let (from, to) = (Place::Gpu(Rank(rank)), Place::Host(HostId(0)));
                let (from, to) = if back { (to, from) } else { (from, to) };
                let way = ways(&mut fleet, from, to).into_iter().next();
                loads.extend(way.map(|way| Load {
                    way,
                    bytes,
                    block: bytes.max(1),
                    register: false,
                    ready: Vec::new(),
                }));
            }
            let ends = transfer::run(&loads, self.predictor.profile().transfer_descriptor())?.ends;
            Ok(ends.into_iter().map(|end| SimDuration(end.0).as_us() * 1e-6).fold(0.0, f64::max))
        };
        Ok([all(false)?, all(true)?])
    }

    /// Of a group of so many members those that are simulated; and the seconds that the busiest resource works.
    fn simulated(
        &self,
        shape: Shape,
        exchange: Exchange,
        (bytes, of): (u64, u64),
    ) -> Result<(Cost, f64), PredictError> {
        let groups = self.groups(shape, of);
        let size = groups[0].len();
        let call = |ranks: u32| match exchange {
            Exchange::Collective(collective) => Call::of_size(collective, ranks, Bytes(bytes), DataType::Bfloat16),
            // Each rank sends to the next.
            Exchange::Shift => Call::of_size(Collective::SendRecv, ranks, Bytes(bytes), DataType::Uint8),
            Exchange::Tokens(routing) => {
                let domain = |rank: &Rank| self.predictor.topology().node_of(*rank);
                let domains: Vec<_> = groups[0].iter().map(domain).collect();
                tokens(&domains, of, bytes, &routing)
            }
        };
        let choice = match exchange {
            Exchange::Collective(_) => Choice::Auto,
            Exchange::Shift | Exchange::Tokens(_) => Choice::Forced(Algorithm::Direct),
        };
        let own = match exchange {
            Exchange::Tokens(_) => Settings { channels: Some(TOKEN_BLOCKS), spread: true, ..self.settings },
            Exchange::Collective(_) if of > size as u64 => {
                let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
                let hosts = of.div_ceil(self.together(Shape { size: of, ..shape }));
                Settings { whole: Some(Whole { ranks: count(of), hosts: count(hosts) }), ..self.settings }
            }
            Exchange::Collective(_) | Exchange::Shift => self.settings,
        };
        let profile = self.predictor.profile();
        let kept = profile.block_speed(profile.gemm_memory());
        let (alone, shares, slower) =
            self.predictor.predict_groups(&groups, &call, (choice, Choice::Auto), &own, Some(kept))?;
        let seconds = alone.kernel.as_us() * 1e-6;
        let of_alone = |time: SimDuration| time.as_us() / alone.time.as_us().max(1e-9);
        let slower = slower.map_or(alone.kernel, |s| s.kernel);
        let factor = match exchange {
            Exchange::Collective(collective) => collective.bus_factor(u32::try_from(size).unwrap_or(u32::MAX)),
            Exchange::Shift | Exchange::Tokens(_) => 1.0,
        };
        let blocks = alone.plan.channels.min(self.sms - 1);
        // Of the steps of all a part runs its own.
        let part = match Growth::of(exchange, alone.algorithm) {
            Growth::Steps => size as f64 / of as f64,
            Growth::Levels | Growth::Divided => 1.0,
        };
        let sent = bytes as f64 * part * factor / seconds.max(1e-12);
        let runs = seconds - profile.kernel(&alone.plan).as_us() * 1e-6;
        let busy = shares.iter().map(|share| share.1).fold(0.0, f64::max) * runs.max(0.0);
        let cost = Cost {
            seconds,
            interval: (of_alone(alone.low), of_alone(alone.high)),
            leaves: profile.product_speed((self.sms - blocks, self.sms), sent),
            blocks_leave: profile.product_speed((self.sms - blocks, self.sms), 0.0),
            keeps: (alone.kernel.as_us() / slower.as_us().max(1e-9)).min(1.0),
            algorithm: alone.algorithm,
            protocol: alone.protocol,
            channels: alone.plan.channels,
        };
        Ok((cost, busy))
    }

    /// A group of a shape, of the `whole` members that it has, and those of its kind on the same hosts: the first ones, or by
    /// [`Shape::share`] those that lie in several NVLink domains. Where a host is unlike most, it is those on that host: the others
    /// wait for them, or for what comes after them. Where the machine at hand is smaller
    /// than members are apart, they are as far apart as it allows. Where some groups lie on one host and others on
    /// several, all of them up to where that begins again: first one on most.
    fn groups(&self, shape: Shape, whole: u64) -> Vec<Vec<Rank>> {
        let ranks = u64::from(self.predictor.topology().ranks());
        let size = shape.size.min(ranks);
        let mut stride = shape.stride.max(1);
        if size > 1 && (size - 1) * stride + self.host.min(stride) > ranks {
            let most = (ranks - self.host.min(stride)) / (size - 1);
            stride = (most / self.host * self.host).max(most.min(self.host)).max(1);
        }
        let span = size * stride;
        let uneven = stride < self.host && !self.host.is_multiple_of(span) && !span.is_multiple_of(self.host);
        let blocks = if uneven {
            let again = (1..=self.host).find(|blocks| (blocks * span).is_multiple_of(self.host)).unwrap_or(1);
            again.min(ranks / span)
        } else {
            self.host / span
        }
        .max(1);
        let firsts = |start: u64| {
            (0..blocks).flat_map(move |block| (0..stride.min(self.host)).map(move |i| start + block * span + i))
        };
        // All are below `ranks`; another number is no rank, and never the first one.
        let rank = |at: u64| Rank(u32::try_from(at).unwrap_or(u32::MAX));
        let group = |first: u64| (0..size).map(|i| rank(first + i * stride)).collect();
        let from = |start: u64| firsts(start).map(group).collect::<Vec<Vec<Rank>>>();
        let one = whole.max(size) * stride;
        // Members in a row, of one group, from the start of a host on.
        let fits = |start: &u64| (start % one).is_multiple_of(stride) && start % one + span <= one;
        let mut starts = (0..=ranks.saturating_sub(blocks * span)).step_by(self.host as usize).filter(fits);
        let start = match self.unlike {
            // Those of two domains, as evenly as can be; of several the first.
            _ if !shape.share.is_multiple_of(one) => {
                starts.min_by_key(|&start| Reverse(self.least_outside(&group(start))))
            }
            Some(unlike) => starts.find(|start| (*start..start + blocks * span).contains(&unlike)),
            None => None,
        };
        let mut groups = from(start.unwrap_or(0));
        if uneven {
            let topology = self.predictor.topology();
            let crosses = |pair: &&[Rank]| topology.node_of(pair[0]) != topology.node_of(pair[1]);
            groups.sort_by_key(|group| Reverse(group.windows(2).filter(crosses).count()));
        }
        groups
    }

    /// How many of a group are in other NVLink domains than most of it.
    fn least_outside(&self, group: &[Rank]) -> usize {
        let mut inside = BTreeMap::new();
        group.iter().for_each(|&rank| *inside.entry(self.predictor.topology().node_of(rank)).or_insert(0) += 1);
        group.len() - inside.into_values().max().unwrap_or(0)
    }
}

/// Tokens of each rank to their experts, of which each of `all` ranks has as many: so many bytes, a token counted for each of
/// its experts. `domains` says where the ranks are, of which some may have more than others.
fn tokens<D: PartialEq>(domains: &[D], all: u64, bytes: u64, routing: &Routing) -> Call {
    let n = domains.len();
    let once = bytes as f64 / f64::from(routing.experts.max(1));
    let of_same = |rank: usize, among: &[D]| among.iter().filter(|domain| **domain == domains[rank]).count();
    // Ranks of each one's domain, its place among them, and how many such domains all would fill.
    let inside: Vec<usize> = (0..n).map(|rank| of_same(rank, domains)).collect();
    let place: Vec<usize> = (0..n).map(|rank| of_same(rank, &domains[..rank])).collect();
    let parts: Vec<f64> = inside.iter().map(|&inside| (all as f64 / inside as f64).max(1.0)).collect();
    let to_domain: Vec<f64> = parts.iter().map(|&parts| once * routing.reaches(parts)).collect();
    let to_rank = once * routing.reaches(all as f64);
    let bytes = |from: usize, to: usize| match (domains[from] == domains[to], place[from] % inside[to] == place[to]) {
        // Its own tokens, and those that came from its place in every other domain.
        (true, false) => to_rank * parts[to],
        (false, true) => to_domain[to],
        _ => 0.0,
    };
    let counts: Vec<u64> = (0..n * n).map(|i| bytes(i / n, i % n).round() as u64).collect();
    let most = counts.chunks(n).map(|row| row.iter().sum::<u64>()).max().unwrap_or(0);
    let ranks = u32::try_from(n).unwrap_or(u32::MAX);
    let mut call = Call::of_size(Collective::AllToAll, ranks, Bytes(most), DataType::Uint8);
    call.counts = Some(counts.into());
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::nccl::NcclSettings;
    use collcast_sim::profile::Profile;
    use collcast_topologies::load_any;
    use std::error::Error;

    fn on<T>(hosts: u32, answer: impl FnOnce(&Calls<'_>) -> T) -> T {
        on_machine("dgx-h100", hosts, answer)
    }

    fn on_machine<T>(name: &str, hosts: u32, answer: impl FnOnce(&Calls<'_>) -> T) -> T {
        let topology = load_any(name, Some(hosts), None).unwrap();
        let profile = Profile::builtin("prior").unwrap();
        let device = crate::device(&topology).unwrap();
        let settings = Settings { nccl: NcclSettings::default(), ..Settings::default() };
        answer(&Calls::new(Predictor::new(&topology, &profile), device, settings))
    }

    /// Goal: what a group too large to be simulated takes is what it would take if it were, to 3%.
    /// Method: 96 and 160 hosts, one rank of each, by both ways.
    #[test]
    fn large_groups_are_extended_by_their_steps() -> Result<(), Box<dyn Error>> {
        for hosts in [96, 160] {
            on(hosts, |calls| -> Result<(), Box<dyn Error>> {
                let shape = Shape::new(hosts.into(), 8);
                for (collective, bytes) in [
                    (Collective::AllGather, 192 << 20),
                    (Collective::AllGather, 24 << 20),
                    (Collective::ReduceScatter, 768 << 20),
                    (Collective::AllReduce, 430 << 20),
                    (Collective::AllReduce, 4 << 20),
                ] {
                    let exchange = Exchange::Collective(collective);
                    let extended = calls.cost(shape, exchange, bytes)?.ok_or("it takes time")?;
                    let simulated = calls.simulated(shape, exchange, (bytes, shape.size))?.0;
                    let off = (extended.seconds / simulated.seconds - 1.0).abs();
                    assert!(off < 0.03, "{hosts} {collective} {bytes}: {extended:?} {simulated:?}");
                    assert_eq!(extended.algorithm, simulated.algorithm, "{hosts} {collective} {bytes}");
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Goal: no call of a large group is faster than its NICs carry it, and none is much faster than that of a smaller group: NCCL
    /// takes another algorithm or protocol for some, which its own model says is faster.
    /// Method: groups of one rank a host, which has a NIC of 50 GB/s, of sizes between those that NCCL chooses alike.
    #[test]
    fn large_groups_keep_the_line_rate() -> Result<(), Box<dyn Error>> {
        on(64, |calls| -> Result<(), Box<dyn Error>> {
            for (collective, bytes) in [
                (Collective::AllGather, 218 << 20),
                (Collective::ReduceScatter, 430 << 20),
                (Collective::AllReduce, 430 << 20),
                (Collective::AllReduce, 4 << 20),
            ] {
                let mut before: Option<Cost> = None;
                for size in [96_u32, 128, 256, 512, 768, 2048] {
                    let shape = Shape::new(size.into(), 8);
                    let cost = calls.cost(shape, Exchange::Collective(collective), bytes)?;
                    let cost = cost.ok_or("it takes time")?;
                    let line = bytes as f64 * collective.bus_factor(size) / 50e9;
                    // Switches that reduce take each byte once.
                    let least = if collective == Collective::AllReduce { line / 2.0 } else { line };
                    assert!(cost.seconds > least, "{collective} {bytes} of {size}: {} s for {line}", cost.seconds);
                    let less = before.filter(|before| before.algorithm == cost.algorithm);
                    let falls = less.is_some_and(|before| cost.seconds < 0.9 * before.seconds);
                    assert!(!falls, "{collective} {bytes} of {size}: {cost:?} after {before:?}");
                    let (low, high) = cost.interval;
                    assert!(low > 0.0 && low < 1.0 && high > 1.0, "{cost:?}");
                    before = Some(cost);
                }
            }
            Ok(())
        })
    }

    /// Goal: groups are where ranks are so far apart, with those on the same hosts; none costs nothing.
    #[test]
    fn groups_have_their_siblings() {
        on(4, |calls| {
            let ranks = |size, stride| -> Vec<Vec<u32>> {
                let groups = calls.groups(Shape::new(size, stride), size);
                groups.iter().map(|group| group.iter().map(|r| r.0).collect()).collect()
            };
            assert_eq!(ranks(4, 1), [[0, 1, 2, 3], [4, 5, 6, 7]]);
            assert_eq!(ranks(2, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
            assert_eq!((ranks(4, 8).len(), &ranks(4, 8)[1]), (8, &vec![1, 9, 17, 25]));
            // Farther apart than the machine is large: as far as it goes, host by host.
            assert_eq!(ranks(2, 64)[0], [0, 24]);
            // Two of four lie on two hosts, which are the slower ones.
            assert_eq!(ranks(6, 1)[..2], [[6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]]);
            assert_eq!((ranks(6, 1).len(), ranks(3, 2).len(), ranks(12, 1).len()), (4, 8, 2));
            let none = Exchange::Collective(Collective::AllReduce);
            assert!(matches!(calls.cost(Shape::new(1, 1), none, 1 << 20), Ok(None)));
            assert!(matches!(calls.cost(Shape::new(8, 1), none, 0), Ok(None)));
        });
    }

    /// Goal: of groups that lie on one host or on two, the slowest sets the time; tokens reach all of both hosts.
    #[test]
    fn groups_that_hosts_do_not_divide_cross_them() {
        on(3, |calls| {
            let tokens = Exchange::Tokens(Routing { experts: 8, groups: 1, chosen: 1 });
            for exchange in [Exchange::Collective(Collective::AllReduce), tokens] {
                let shape = |size| Shape::new(size, 1);
                let [six, eight] = [6, 8].map(|size| calls.cost(shape(size), exchange, 64 << 20).unwrap().unwrap());
                assert!(six.seconds > eight.seconds, "{exchange:?}: {six:?} {eight:?}");
            }
        });
        // Hosts of a rack share their NVLink, so that racks are what groups cross.
        on_machine("gb200-nvl72", 36, |calls| {
            assert_eq!((calls.host(), calls.domain()), (4, 72));
            assert_eq!([72, 144, 256, 288, 1024, 63].map(|gpus| calls.share(gpus)), [72, 72, 64, 72, 64, 72]);
            let first = |size, stride, whole| -> Option<Vec<u32>> {
                let groups = calls.groups(Shape { share: 72, ..Shape::new(size, stride) }, whole);
                Some(groups.first()?.iter().map(|rank| rank.0).collect())
            };
            // Of nine groups of eight none lies in two racks; the fifth of sixteen does, and some of a group of 144.
            assert_eq!(first(8, 1, 8), Some((0..8).collect()));
            assert_eq!(first(16, 1, 16), Some((64..80).collect()));
            assert_eq!(first(16, 1, 72), Some((0..16).collect()));
            assert_eq!(first(16, 1, 144), Some((64..80).collect()));
            assert_eq!(first(4, 8, 4), Some(vec![64, 72, 80, 88]));
            assert_eq!(first(8, 4, 36), Some((0..8).map(|member| 56 + 4 * member).collect()));
            let shape = |size| Shape { share: 72, ..Shape::new(size, 1) };
            for exchange in [Exchange::Collective(Collective::AllReduce), Exchange::Shift] {
                let seconds = |size| Some(calls.cost(shape(size), exchange, 64 << 20).ok()??.seconds);
                assert!(seconds(16) > seconds(18), "{exchange:?}: {:?} {:?}", seconds(16), seconds(18));
            }
        });
        let call = tokens(&[0, 0, 1, 1, 1, 1], 6, 1 << 20, &Routing { experts: 1, groups: 1, chosen: 1 });
        let counts = call.counts.unwrap();
        let crossing: Vec<usize> = (0..36).filter(|at| (at / 6 < 2) != (at % 6 < 2) && counts[*at] > 0).collect();
        // From places 0 and 1 to 2 and 3, and back from four places to two.
        assert_eq!(crossing, [2, 9, 12, 19, 24, 31]);
    }

    /// Goal: tokens that go once to each host arrive no faster than published, and at 95% of the way back at least.
    /// Source: DeepEP V2's README, GPUs with 400 Gb/s each: 90 and 81 GB/s there and back over 2 hosts of 8, 61 and 61 over 4,
    /// of what each GPU has for a host, its own counted.
    #[test]
    fn tokens_cross_hosts_once() {
        for (hosts, published) in [(2_u32, [90.0, 81.0]), (4, [61.0, 61.0])] {
            let rate = on(hosts, |calls| {
                let once = 4096 * 7168 * 2;
                let shape = Shape::new(u64::from(8 * hosts), 1);
                let cost = calls
                    .cost(shape, Exchange::Tokens(Routing { experts: 8, groups: 1, chosen: 1 }), 8 * once)
                    .unwrap()
                    .unwrap();
                let has = 1.0 - (1.0 - 1.0 / f64::from(hosts)).powi(8);
                once as f64 * f64::from(hosts) * has / cost.seconds / 1e9
            });
            let [there, back] = published;
            assert!(rate < there && rate > back * 0.95, "{hosts} hosts: {rate:.1} GB/s for {published:?}");
        }
    }

    /// Goal: what a call takes does not depend on which were asked for before, though they share routes, graphs and connections.
    /// Method: groups with other members and sizes by other protocols, one after the other and each on its own.
    #[test]
    fn calls_do_not_depend_on_earlier_ones() {
        let asked = || {
            let shapes = [(8, 1), (4, 2), (2, 8), (4, 1), (4, 8), (8, 1)];
            let shapes = shapes.map(|(size, stride)| Shape::new(size, stride));
            let all = [Collective::AllReduce, Collective::AllGather].map(Exchange::Collective);
            shapes.into_iter().flat_map(move |shape| all.map(|exchange| (shape, exchange)))
        };
        on(4, |shared| {
            for bytes in [64 << 10, 2 << 20, 64 << 20] {
                for (shape, exchange) in asked() {
                    let alone = on(4, |calls| calls.cost(shape, exchange, bytes).unwrap());
                    assert_eq!(shared.cost(shape, exchange, bytes).unwrap(), alone, "{shape:?} {exchange:?} {bytes}");
                }
            }
        });
    }

    /// Goal: a call of a size between two powers of two lies between them.
    #[test]
    fn rough_times_are_between_their_neighbours() {
        on(1, |calls| {
            let shape = Shape::new(8, 1);
            let of = |bytes| {
                calls.rough(shape, Exchange::Collective(Collective::AllReduce), bytes).unwrap().unwrap().seconds
            };
            let [low, between, high] = [64 << 20, 96 << 20, 128 << 20].map(of);
            assert!(low < between && between < high && (between - (low + high) / 2.0).abs() < 1e-12);
        });
    }
}
