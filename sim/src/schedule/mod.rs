//! Schedules: which chunk each worker sends, receives, reduces and copies, in which order.
//!
//! A worker is a (rank, channel, lane). Its program is a [`Template`] with parameters; its
//! connections are computed on demand. Nothing here grows with ranks times steps. An
//! algorithm is a generator in its own file (`ring.rs`, `tree.rs`, `pat.rs`, ...); whoever
//! consumes a [`Schedule`] cannot tell which one made it.

mod chain;
mod coll_tree;
pub mod dealing;
mod direct;
mod heads;
mod identity;
pub mod msccl;
mod old;
mod pat;
mod pattern;
pub mod plan;
pub mod program;
mod ring;
mod tree;
pub mod verify;
pub mod wiring;

use std::sync::Arc;

use thiserror::Error;

pub use pattern::Pattern;

use crate::collective::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use crate::ids::{ChannelId, Lane, Rank};
use crate::units::Bytes;
use plan::Plan;
use program::{Buffer, Template, Var};

/// Largest number of ranks of one schedule.
pub const MAX_RANKS: u32 = 131_072;
/// Largest number of channels: NCCL's `MAXCHANNELS` since 2.26.
pub const MAX_CHANNELS: u32 = 64;

/// One collective call: what is asked, without how.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Call {
    /// What.
    pub collective: Collective,
    /// How many ranks take part.
    pub ranks: u32,
    /// Elements: of the buffer of one rank for all-reduce, broadcast, reduce and send/recv; of
    /// the part of one rank for all-gather, reduce-scatter, gather, scatter and all-to-all.
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Reduction.
    pub op: ReduceOp,
    /// Root, for rooted collectives.
    pub root: Rank,
    /// Whether input and output share memory.
    pub in_place: bool,
    /// For all-to-all: `[ranks][ranks]` elements from row to column, in place of `count`.
    pub counts: Option<Arc<[u64]>>,
}

impl Call {
    /// A call of nccl-tests' size column: rounded down to whole elements per rank.
    pub fn of_size(collective: Collective, ranks: u32, size: Bytes, dtype: DataType) -> Self {
        let parts = if collective.size_is_total() { u64::from(ranks.max(1)) } else { 1 };
        Self {
            collective,
            ranks,
            count: size.0 / dtype.size() / parts,
            dtype,
            op: ReduceOp::Sum,
            root: Rank(0),
            in_place: false,
            counts: None,
        }
    }

    /// The call that nccl-tests makes of it: the part of every rank starts on 16 bytes (`src/all_gather.cu` and its
    /// like), but for parts smaller than that, of which it moves nothing.
    #[must_use]
    pub fn aligned(mut self) -> Self {
        let grain = 16 / self.dtype.size();
        if self.collective.size_is_total() && self.count > grain {
            self.count -= self.count % grain;
        }
        self
    }

    /// nccl-tests' size column of this call.
    pub fn size(&self) -> Bytes {
        let parts = if self.collective.size_is_total() { u64::from(self.ranks) } else { 1 };
        match &self.counts {
            Some(counts) => {
                let n = self.ranks as usize;
                let most = (0..n).map(|r| counts[r * n..(r + 1) * n].iter().sum::<u64>()).max();
                Bytes(most.unwrap_or(0).saturating_mul(self.dtype.size()))
            }
            None => Bytes(self.count.saturating_mul(parts).saturating_mul(self.dtype.size())),
        }
    }

    /// Elements that rank `from` sends to rank `to` in an all-to-all.
    pub fn pair_count(&self, from: Rank, to: Rank) -> u64 {
        match &self.counts {
            Some(counts) => counts[from.index() * self.ranks as usize + to.index()],
            None => self.count,
        }
    }

    /// Where in its input rank `from` keeps what it sends to `to` in an all-to-all.
    pub fn send_offset(&self, from: Rank, to: Rank) -> u64 {
        match &self.counts {
            Some(_) => (0..to.0).map(|r| self.pair_count(from, Rank(r))).sum(),
            None => self.count * u64::from(to.0),
        }
    }

    /// Where in its output rank `to` keeps what it gets from `from` in an all-to-all.
    pub fn recv_offset(&self, from: Rank, to: Rank) -> u64 {
        match &self.counts {
            Some(_) => (0..from.0).map(|r| self.pair_count(Rank(r), to)).sum(),
            None => self.count * u64::from(from.0),
        }
    }

    /// Elements in the input buffer of a rank.
    pub fn input_len(&self, rank: Rank) -> u64 {
        match self.collective {
            Collective::ReduceScatter => self.count * u64::from(self.ranks),
            Collective::Scatter if rank == self.root => self.count * u64::from(self.ranks),
            Collective::Scatter => 0,
            Collective::AllToAll => (0..self.ranks).map(|to| self.pair_count(rank, Rank(to))).sum(),
            _ => self.count,
        }
    }

    /// Elements in the output buffer of a rank.
    pub fn output_len(&self, rank: Rank) -> u64 {
        match self.collective {
            Collective::AllGather => self.count * u64::from(self.ranks),
            Collective::Gather if rank == self.root => self.count * u64::from(self.ranks),
            Collective::Gather => 0,
            Collective::AllToAll => (0..self.ranks).map(|from| self.pair_count(Rank(from), rank)).sum(),
            _ => self.count,
        }
    }

    /// Where in the shared memory of a rank a buffer starts, when in place.
    ///
    /// All-gather, and gather at the root: a rank's input is its part of the output.
    /// Reduce-scatter, and scatter at the root: its output is its part of the input. Otherwise
    /// both start together.
    pub fn in_place_offset(&self, rank: Rank, buffer: Buffer) -> u64 {
        match (self.collective, buffer) {
            (Collective::AllGather, Buffer::Input) | (Collective::ReduceScatter, Buffer::Output) => {
                self.count * u64::from(rank.0)
            }
            (Collective::Gather, Buffer::Input) | (Collective::Scatter, Buffer::Output) if rank == self.root => {
                self.count * u64::from(rank.0)
            }
            _ => 0,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ScheduleError> {
        if self.ranks == 0 || self.ranks > MAX_RANKS {
            return Err(ScheduleError::Ranks(self.ranks));
        }
        if self.collective.rooted() && self.root.0 >= self.ranks {
            return Err(ScheduleError::Root { root: self.root.0, ranks: self.ranks });
        }
        // 2^50 elements in all keep every offset far from overflow.
        let total = self.count.checked_mul(u64::from(self.ranks)).and_then(|t| t.checked_mul(self.dtype.size()));
        if total.is_none_or(|t| t > 1 << 50) {
            return Err(ScheduleError::TooLarge);
        }
        if self.in_place && matches!(self.collective, Collective::AllToAll | Collective::SendRecv) && self.ranks > 1 {
            return Err(ScheduleError::InPlace(self.collective));
        }
        if let Some(counts) = &self.counts {
            if self.collective != Collective::AllToAll || self.in_place {
                return Err(ScheduleError::CountsElsewhere);
            }
            let sum = counts.iter().try_fold(0_u64, |sum, &count| sum.checked_add(count));
            if counts.len() != (self.ranks as usize).pow(2) || sum.is_none_or(|s| s > 1 << 50) {
                return Err(ScheduleError::Counts { rows: counts.len(), ranks: self.ranks });
            }
        }
        Ok(())
    }
}

/// A call that has no schedule.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ScheduleError {
    /// No ranks, or too many.
    #[error("a collective needs 1 to {MAX_RANKS} ranks, not {0}")]
    Ranks(u32),
    /// No channels, or too many.
    #[error("a schedule needs 1 to {MAX_CHANNELS} channels, not {0}")]
    Channels(u32),
    /// A root outside the ranks.
    #[error("root {root} is not one of the {ranks} ranks 0..{ranks}")]
    Root {
        /// The root given.
        root: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// Buffers beyond 1 PiB.
    #[error("the buffers of all ranks together exceed 1 PiB; check the unit of the size")]
    TooLarge,
    /// A count matrix of the wrong shape or sum.
    #[error("a count matrix needs {ranks} x {ranks} numbers of at most 1 PiB in all, not {rows} numbers")]
    Counts {
        /// How many numbers were given.
        rows: usize,
        /// Number of ranks.
        ranks: u32,
    },
    /// A collective that would overwrite what it has yet to send.
    #[error("{0} has no in-place form: what arrives would overwrite what is still to be sent")]
    InPlace(Collective),
    /// A count matrix where it has no meaning.
    #[error("a count matrix belongs to an out-of-place all_to_all only")]
    CountsElsewhere,
    /// An algorithm that does not do this collective, or not yet.
    #[error("{algorithm} does not do {collective} here; {collective} can use: {valid}")]
    Unsupported {
        /// The algorithm asked for.
        algorithm: Algorithm,
        /// The collective asked for.
        collective: Collective,
        /// What would work.
        valid: String,
    },
    /// Ranks or hosts that the algorithm is not made for.
    #[error("{algorithm} needs {needs}; here {have}")]
    Shape {
        /// The algorithm.
        algorithm: Algorithm,
        /// What it needs.
        needs: &'static str,
        /// What there is.
        have: String,
    },
    /// A reduction that switches do not do.
    #[error("{algorithm} cannot do {op} of {dtype}: {able}")]
    InSwitch {
        /// The algorithm.
        algorithm: Algorithm,
        /// The reduction.
        op: ReduceOp,
        /// The element type.
        dtype: DataType,
        /// What the switches can.
        able: &'static str,
    },
    /// A protocol that the algorithm has no kernel for.
    #[error("{algorithm} has no {protocol} kernel; it has {}", protocol_names(*algorithm))]
    NoKernel {
        /// The algorithm.
        algorithm: Algorithm,
        /// The protocol.
        protocol: Protocol,
    },
}

/// Who is at one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum End {
    /// One worker, of this rank.
    One(Rank),
    /// All workers that list the connection, at least one; the number tells groups apart.
    Group(u32),
}

/// A one-way FIFO between workers.
///
/// Between two ranks it carries slices from one to the other. With a group at an end, a switch
/// does the rest: the slices of all senders are combined element by element, and every receiver
/// gets the result. A slot is full when all senders have posted it, and free again when all
/// receivers are done with it. So `Group -> One` is a reduction (`multimem.ld_reduce`, SHARP
/// reduce), `One -> Group` a multicast, `Group -> Group` an all-reduce of the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conn {
    /// Who sends.
    pub src: End,
    /// Who receives.
    pub dst: End,
    /// The channel of all.
    pub channel: ChannelId,
    /// Tells several connections of the same ends and channel apart.
    pub stream: u32,
}

impl Conn {
    /// From one rank to another.
    pub fn pair(src: Rank, dst: Rank, channel: ChannelId, stream: u32) -> Self {
        Self { src: End::One(src), dst: End::One(dst), channel, stream }
    }

    /// Both ranks, where no group is at an end.
    pub fn ranks(self) -> Option<(Rank, Rank)> {
        match (self.src, self.dst) {
            (End::One(src), End::One(dst)) => Some((src, dst)),
            _ => None,
        }
    }
}

/// A worker's part: its program, parameters and connections.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Index into [`Schedule::templates`].
    pub template: usize,
    /// Initial registers.
    pub parameters: Vec<(Var, i64)>,
    /// Connections behind the receive ports.
    pub recv: Vec<Conn>,
    /// Connections behind the send ports.
    pub send: Vec<Conn>,
    /// Lanes of the same rank that its instructions may wait for.
    pub tokens: Vec<(ChannelId, Lane)>,
    /// Threads of its block that move its data, or that of all lanes of its team.
    pub threads: u32,
    /// How many of those of a team belong to its other lanes: what they leave of the multiprocessor it may use, but it
    /// loads with its own threads alone.
    pub others: u32,
}

/// Makes the workers of a schedule on demand.
pub trait Generator: Send + Sync + std::fmt::Debug {
    /// The worker at a place, or `None` where nobody is needed. Costs no more than its ports.
    fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker>;

    /// The lane whose threads a lane uses: lanes with the same answer share them (and say the
    /// same number of threads), as when one group of warps serves several peers at once.
    fn team(&self, lane: Lane) -> Lane {
        lane
    }

    /// Messages between two ranks that go over the network as one.
    fn packed(&self, _src: Rank, _dst: Rank) -> u32 {
        1
    }

    /// Elements of scratch memory that a rank needs.
    fn scratch(&self, _rank: Rank) -> u64 {
        0
    }
}

/// A complete plan of one call: every worker, what it does, and over which FIFOs.
#[derive(Debug)]
pub struct Schedule {
    /// What is computed.
    pub call: Call,
    /// Channels, threads, chunks, slices and FIFOs.
    pub plan: Plan,
    /// Lanes of every block.
    pub lanes: u32,
    /// Programs by role.
    pub templates: Vec<Template>,
    /// NICs of each channel, reused cyclically; none where ranks take those next to them.
    pub rails: Vec<Arc<[Rail]>>,
    /// Place of each rank's host in [`Schedule::rails`].
    hosts: Arc<[u32]>,
    /// What it was generated with; none of a stranger's.
    order: Option<Arc<Order>>,
    generator: Box<dyn Generator>,
}

impl Schedule {
    /// Generates the schedule of a call.
    ///
    /// `order`: for each channel of a pattern the ranks in the order in which it visits them;
    /// channels beyond the list reuse it from the start. See [`Order`].
    ///
    /// # Errors
    /// See [`ScheduleError`].
    pub fn new(call: Call, plan: Plan, order: &Order) -> Result<Self, ScheduleError> {
        call.check()?;
        if plan.channels == 0 || plan.channels > MAX_CHANNELS {
            return Err(ScheduleError::Channels(plan.channels));
        }
        check_fits(&call, plan.algorithm, order)?;
        if !valid_protocols(plan.algorithm).contains(&plan.protocol) {
            return Err(ScheduleError::NoKernel { algorithm: plan.algorithm, protocol: plan.protocol });
        }
        let order = Arc::new(order.clone());
        let (lanes, templates, generator): (u32, Vec<Template>, Box<dyn Generator>) = match plan.algorithm {
            Algorithm::Tree => tree::generate(&call, &plan, &order),
            Algorithm::Direct => direct::generate(&call, &plan, &order),
            Algorithm::Pat if call.ranks > 1 => pat::generate(&call, &plan),
            Algorithm::CollTree if call.ranks > 1 => coll_tree::generate(&call, &plan, &order),
            Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetDirect => heads::generate(&call, &plan, &order),
            Algorithm::CollnetChain => chain::generate(&call, &plan, &order),
            _ => ring::generate(&call, &plan, &order),
        };
        let (rails, hosts) = match plan.algorithm {
            Algorithm::Tree => (tree::rails(&order), order.host_of_ranks(call.ranks)),
            Algorithm::Ring => (order.rails.clone(), order.host_of_ranks(call.ranks)),
            // Heads and peers take the NICs next to them.
            _ => (Vec::new(), Arc::default()),
        };
        Ok(Self { call, plan, lanes, templates, rails, hosts, order: Some(order), generator })
    }

    /// A schedule from a stranger's templates and generator: imported algorithms and tests.
    pub fn from_parts(
        call: Call,
        plan: Plan,
        lanes: u32,
        templates: Vec<Template>,
        generator: Box<dyn Generator>,
    ) -> Self {
        Self { call, plan, lanes, templates, rails: Vec::new(), hosts: Arc::default(), order: None, generator }
    }

    /// The NICs (by their numbers in host or NVLink domain) through which two ranks of different ones
    /// exchange a channel's data; `None` where the nearest will do.
    pub fn nics(&self, (src, dst): (Rank, Rank), channel: ChannelId) -> Option<(u32, u32)> {
        let rails = self.rails.get(channel.index() % self.rails.len().max(1))?;
        let nic = |rank: Rank| {
            let host = *self.hosts.get(rank.index())?;
            let rail = rails.get(host as usize)?;
            Some((host, if rail.first == rank.0 { rail.enter } else { rail.leave }))
        };
        let ((from, leave), (to, enter)) = nic(src).zip(nic(dst))?;
        (from != to).then_some((leave, enter))
    }

    /// The worker at a place.
    pub fn worker(&self, rank: Rank, channel: ChannelId, lane: Lane) -> Option<Worker> {
        self.generator.worker(rank, channel, lane)
    }

    /// The lane whose threads a lane uses: see [`Generator::team`].
    pub fn team(&self, lane: Lane) -> Lane {
        self.generator.team(lane)
    }

    /// Messages between two ranks that go over the network as one: see [`Generator::packed`].
    pub fn packed(&self, src: Rank, dst: Rank) -> u32 {
        self.generator.packed(src, dst)
    }

    /// All workers with their places, in order.
    pub fn workers(&self) -> impl Iterator<Item = (Rank, ChannelId, Lane, Worker)> {
        let (ranks, (first, end), lanes) = (self.call.ranks, self.plan.used(), self.lanes);
        (0..ranks)
            .flat_map(move |r| {
                (first..end).flat_map(move |c| (0..lanes).map(move |l| (Rank(r), ChannelId(c), Lane(l))))
            })
            .filter_map(|(r, c, l)| self.worker(r, c, l).map(|w| (r, c, l, w)))
    }

    /// Elements of a rank's scratch memory.
    pub fn scratch_len(&self, rank: Rank) -> u64 {
        self.generator.scratch(rank)
    }

    /// Bytes of one element.
    pub fn element_size(&self) -> u64 {
        self.call.dtype.size()
    }
}

/// Whether an algorithm has a generator for a collective.
///
/// # Errors
/// [`ScheduleError::Unsupported`], naming what would work.
pub fn check_supported(collective: Collective, algorithm: Algorithm) -> Result<(), ScheduleError> {
    let valid = valid_algorithms(collective);
    if valid.contains(&algorithm) {
        return Ok(());
    }
    let valid = valid.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ");
    let valid = if valid.is_empty() { "nothing yet".to_owned() } else { valid };
    Err(ScheduleError::Unsupported { algorithm, collective, valid })
}

/// Whether an algorithm has a schedule for a call on ranks that are on hosts like this: NCCL's
/// own limits (`src/graph/tuning.cc`, `src/init.cc`, `src/include/device.h`, restated).
///
/// # Errors
/// [`ScheduleError::Unsupported`], [`ScheduleError::Shape`] or [`ScheduleError::InSwitch`].
pub fn check_fits(call: &Call, algorithm: Algorithm, order: &Order) -> Result<(), ScheduleError> {
    check_supported(call.collective, algorithm)?;
    let nvls = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    let collnet = matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain);
    if !nvls && !collnet {
        return Ok(());
    }
    let sizes = || order.hosts.iter().map(Vec::len);
    let (hosts, fewest, most) = (order.hosts.len(), sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let all_reduce = call.collective == Collective::AllReduce;
    let needs = if nvls && most < 2 {
        Some("at least 2 ranks on a host")
    } else if algorithm != Algorithm::Nvls && hosts < 2 {
        Some("at least 2 hosts")
    } else if collnet && most > MAX_COLLNET_LOCAL {
        Some("at most 8 ranks on a host")
    } else if nvls && !all_reduce && most > MAX_NVLS_HEADS {
        Some("at most 32 ranks on a host for this collective")
    } else if !all_reduce && fewest != most {
        Some("equally many ranks on every host for this collective")
    } else if !all_reduce && hosts > MAX_GATHER_HOSTS {
        Some("at most 256 hosts for this collective")
    } else {
        None
    };
    if let Some(needs) = needs {
        let on = if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts, {fewest} to {most} on each") };
        let have = format!("{} ranks are on {on}", call.ranks);
        return Err(ScheduleError::Shape { algorithm, needs, have });
    }
    let (op, dtype) = (call.op, call.dtype);
    let able = match (op, dtype) {
        _ if !call.collective.reduces() => None,
        (ReduceOp::Prod | ReduceOp::Avg, _) => Some("switches do sum, min and max"),
        (_, DataType::Int8 | DataType::Uint8) if nvls => Some("NVSwitch has no 8-bit integers"),
        (ReduceOp::Min | ReduceOp::Max, DataType::Float32 | DataType::Float64) if nvls => {
            Some("NVSwitch only sums 32-bit and 64-bit floats")
        }
        _ => None,
    };
    able.map_or(Ok(()), |able| Err(ScheduleError::InSwitch { algorithm, op, dtype, able }))
}

/// NCCL's `NCCL_MAX_NVLS_ARITY`: most heads of a host.
const MAX_NVLS_HEADS: usize = 32;
/// NCCL's `NCCL_MAX_DIRECT_ARITY` and the rank itself.
const MAX_COLLNET_LOCAL: usize = 8;
/// All-gather and reduce-scatter have a connection from every host to all others: their number
/// grows with the square of the hosts.
const MAX_GATHER_HOSTS: usize = 256;

/// Algorithms that have a generator for a collective.
pub fn valid_algorithms(collective: Collective) -> &'static [Algorithm] {
    match collective {
        Collective::AllReduce => &[
            Algorithm::Ring,
            Algorithm::Tree,
            Algorithm::CollnetDirect,
            Algorithm::CollnetChain,
            Algorithm::Nvls,
            Algorithm::NvlsTree,
            Algorithm::CollTree,
        ],
        Collective::AllGather | Collective::ReduceScatter => {
            &[Algorithm::Ring, Algorithm::CollnetDirect, Algorithm::Nvls, Algorithm::Pat]
        }
        Collective::Broadcast | Collective::Reduce => &[Algorithm::Ring],
        Collective::AllToAll | Collective::SendRecv | Collective::Gather | Collective::Scatter => &[Algorithm::Direct],
    }
}

/// Protocols that an algorithm has a kernel for.
pub fn valid_protocols(algorithm: Algorithm) -> &'static [Protocol] {
    match algorithm {
        Algorithm::Ring | Algorithm::Tree | Algorithm::CollTree => &[Protocol::Ll, Protocol::Ll128, Protocol::Simple],
        Algorithm::Direct => &[Protocol::Ll, Protocol::Simple],
        _ => &[Protocol::Simple],
    }
}

fn protocol_names(algorithm: Algorithm) -> String {
    valid_protocols(algorithm).iter().map(|p| p.name()).collect::<Vec<_>>().join(", ")
}

/// By which NICs a channel enters and leaves a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rail {
    /// The rank next to the NIC by which it enters.
    pub first: u32,
    /// Number in the host or domain of the NIC of that rank.
    pub enter: u32,
    /// Number in the host or domain of the NIC of any other rank.
    pub leave: u32,
}

/// How trees run inside hosts and join them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chains {
    /// `[channel][host]`: the ranks of a host in the order of its chain; the first holds the parent
    /// host. Channels beyond the list reuse it from the start.
    pub ranks: Vec<Vec<Vec<u32>>>,
    /// Channels of the first tree; as many after them are of the second, and so on.
    pub of_a_tree: usize,
    /// Places in the chain to which the first and the second child host attach.
    pub children: [usize; 2],
    /// `[channel]`: NICs by host; empty where ranks take those next to them.
    pub rails: Vec<Arc<[Rail]>>,
}

/// In which order a pattern visits the ranks, and which ranks share a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// Orders by channel, reused cyclically: a permutation of the ranks each.
    pub rings: Vec<Arc<[u32]>>,
    /// Ranks of each host, in order.
    pub hosts: Vec<Vec<u32>>,
    /// NICs of rings by channel and host; empty where ranks take those next to them.
    pub rails: Vec<Arc<[Rail]>>,
    /// Trees; `None`: chains as in the rings, with all other hosts at their heads.
    pub chains: Option<Chains>,
    /// `[channel][host]`: chains of CollNet chain, their heads first; `None`: as in the rings.
    pub collnet: Option<Vec<Vec<Vec<u32>>>>,
}

impl Order {
    /// Rings without chosen NICs, and trees that follow them.
    pub fn of_rings(rings: Vec<Arc<[u32]>>, hosts: Vec<Vec<u32>>) -> Self {
        Self { rings, hosts, rails: Vec::new(), chains: None, collnet: None }
    }

    /// All ranks on one host, visited by number.
    pub fn one_host(ranks: u32) -> Self {
        Self::of_rings(vec![(0..ranks).collect()], vec![(0..ranks).collect()])
    }

    /// `hosts` hosts of `per_host` ranks each, visited by number.
    pub fn grid(hosts: u32, per_host: u32) -> Self {
        let ranks: Vec<u32> = (0..hosts * per_host).collect();
        let hosts = ranks.chunks(per_host.max(1) as usize).map(<[u32]>::to_vec).collect();
        Self::of_rings(vec![ranks.into()], hosts)
    }

    /// The order of a channel.
    pub fn ring(&self, channel: ChannelId) -> &Arc<[u32]> {
        &self.rings[channel.index() % self.rings.len()]
    }

    /// Place in [`Order::hosts`] of the host of each rank.
    pub fn host_of_ranks(&self, ranks: u32) -> Arc<[u32]> {
        let mut of = vec![0; ranks as usize];
        for (index, host) in (0..).zip(&self.hosts) {
            for &rank in host {
                if let Some(slot) = of.get_mut(rank as usize) {
                    *slot = index;
                }
            }
        }
        of.into()
    }
}
