//! A schedule laid out with dense numbers: what verifier, engine and executors all start from.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thiserror::Error;

use super::program::{State, Step, Template};
use super::{Conn, End, Schedule};
use crate::ids::{ChannelId, Lane, Rank};

/// Stands for a port that is never used (a rank's connection to itself).
pub const UNUSED: u32 = u32::MAX;

/// Connections or workers by port. Most workers have few: those take no memory of their own.
pub type Ends = SmallVec<[u32; 4]>;

/// A worker with its connections numbered.
#[derive(Clone, Debug)]
pub struct Wired {
    /// Rank.
    pub rank: Rank,
    /// Channel.
    pub channel: ChannelId,
    /// Lane.
    pub lane: Lane,
    /// Index of its template.
    pub template: usize,
    /// Where it starts.
    pub start: State,
    /// Connections behind its receive ports.
    pub recv: Ends,
    /// Connections behind its send ports.
    pub send: Ends,
    /// Lanes of its rank that it may wait for, as indices of workers; [`UNUSED`] where nobody is.
    pub tokens: Ends,
    /// Threads that move its data.
    pub threads: u32,
    /// The lane of its block whose threads these are.
    pub team: Lane,
    /// Those that are other lanes': see [`Lane`].
    pub others: u32,
}

/// A connection with its workers.
#[derive(Clone, Debug)]
pub struct WiredConn {
    /// The connection.
    pub conn: Conn,
    /// Indices of the workers that send, in order: one, or a group.
    pub senders: SmallVec<[u32; 1]>,
    /// Indices of the workers that receive, in order: one, or a group.
    pub receivers: SmallVec<[u32; 1]>,
}

/// The place of a worker among the ends of a connection.
pub fn end_of(ends: &[u32], worker: u32) -> usize {
    ends.binary_search(&worker).unwrap_or(0)
}

/// Connections that are laid out of a schedule, and workers, at most: one takes up to 1.2 KB, so 2 GiB hold them.
/// An all-to-all of 1,096 ranks has as many connections.
pub const MOST_CONNS: usize = 1_200_000;
/// See [`MOST_CONNS`].
pub const MOST_WORKERS: usize = 3_000_000;

/// All workers and connections of a schedule.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// Workers in order of rank, channel, lane.
    pub workers: Vec<Wired>,
    /// Connections in order of their first sender.
    pub conns: Vec<WiredConn>,
}

/// A connection without two ends.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum WiringError {
    /// Two workers at the end of one, or one worker twice in a group.
    #[error("{conn:?} has two {end}s where one may be: worker {first} and worker {second}")]
    TwoEnds {
        /// The connection.
        conn: Conn,
        /// `sender` or `receiver`.
        end: &'static str,
        /// Worker.
        first: u32,
        /// Worker.
        second: u32,
    },
    /// More than are laid out.
    #[error(
        "the call over {ranks} ranks needs more than {most} {of}, the most that are simulated (in about 2 GiB); \
         take fewer ranks, or a collective with fewer peers"
    )]
    TooLarge {
        /// Ranks of the call.
        ranks: u32,
        /// `connections`, or `workers`.
        of: &'static str,
        /// How many are allowed.
        most: usize,
    },
    /// Nobody sends, or nobody receives.
    #[error("{conn:?} has no {end}")]
    OneEnd {
        /// The connection.
        conn: Conn,
        /// `sender` or `receiver`.
        end: &'static str,
    },
}

impl Wiring {
    /// Numbers the workers and connections of a schedule.
    ///
    /// # Errors
    /// A connection without sender or receiver, or with several where one rank is meant.
    pub fn new(schedule: &Schedule) -> Result<Self, WiringError> {
        Self::of(schedule, (0..schedule.call.ranks).map(Rank), None)
    }

    /// Those of some ranks, ascending. `stands_for` names the connection that stands for one and all that are like it:
    /// several of a worker may be one then.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(
        schedule: &Schedule,
        ranks: impl Iterator<Item = Rank>,
        stands_for: Option<&dyn Fn(&Conn) -> Conn>,
    ) -> Result<Self, WiringError> {
        let mut wiring = Self { workers: Vec::new(), conns: Vec::new() };
        let mut numbers: FxHashMap<Conn, u32> = FxHashMap::default();
        let mut waits: Vec<(u32, Vec<(ChannelId, Lane)>)> = Vec::new();
        for (rank, channel, lane, worker) in ranks.flat_map(|rank| schedule.workers_of(rank)) {
            for (count, of, most) in
                [(wiring.conns.len(), "connections", MOST_CONNS), (wiring.workers.len(), "workers", MOST_WORKERS)]
            {
                if count > most {
                    return Err(WiringError::TooLarge { ranks: schedule.call.ranks, of, most });
                }
            }
            let index = u32::try_from(wiring.workers.len()).unwrap_or(UNUSED);
            let mut number = |conn: &Conn, sends: bool| {
                if conn.ranks().is_some_and(|(src, dst)| src == dst) {
                    return Ok(UNUSED);
                }
                let next = u32::try_from(wiring.conns.len()).unwrap_or(UNUSED);
                let conn = stands_for.map_or(*conn, |stands_for| stands_for(conn));
                let id = *numbers.entry(conn).or_insert(next);
                if id == next {
                    let (senders, receivers) = (SmallVec::new(), SmallVec::new());
                    wiring.conns.push(WiredConn { conn, senders, receivers });
                }
                let wired = &mut wiring.conns[id as usize];
                let (workers, end, name) = if sends {
                    (&mut wired.senders, conn.src, "sender")
                } else {
                    (&mut wired.receivers, conn.dst, "receiver")
                };
                let one = matches!(end, End::One(_));
                if let Some(&first) = workers.last().filter(|&&last| stands_for.is_none() && (one || last == index)) {
                    return Err(WiringError::TwoEnds { conn, end: name, first, second: index });
                }
                workers.push(index);
                Ok(id)
            };
            let recv = worker.recv.iter().map(|c| number(c, false)).collect::<Result<Ends, _>>()?;
            let send = worker.send.iter().map(|c| number(c, true)).collect::<Result<Ends, _>>()?;
            let start = schedule.templates[worker.template].start(&worker.parameters);
            if !worker.tokens.is_empty() {
                waits.push((index, worker.tokens));
            }
            wiring.workers.push(Wired {
                rank,
                channel,
                lane,
                template: worker.template,
                start,
                recv,
                send,
                tokens: Ends::new(),
                threads: worker.threads,
                team: schedule.team(lane),
                others: worker.others,
            });
        }
        for (index, tokens) in waits {
            let rank = wiring.workers[index as usize].rank;
            let find = |&(channel, lane): &(ChannelId, Lane)| {
                let place =
                    wiring.workers.binary_search_by_key(&(rank, channel, lane), |w| (w.rank, w.channel, w.lane));
                place.map_or(UNUSED, |w| u32::try_from(w).unwrap_or(UNUSED))
            };
            wiring.workers[index as usize].tokens = tokens.iter().map(find).collect();
        }
        for wired in &wiring.conns {
            for (workers, name) in [(&wired.senders, "sender"), (&wired.receivers, "receiver")] {
                if workers.is_empty() {
                    return Err(WiringError::OneEnd { conn: wired.conn, end: name });
                }
            }
        }
        Ok(wiring)
    }
}

/// Pulls one worker's program apart into slices, the unit that FIFOs carry.
#[derive(Clone, Debug)]
pub struct SliceCursor {
    /// Where the worker is in its program.
    pub state: State,
    /// The instruction being worked on.
    pub step: Step,
    slice: u32,
    live: bool,
}

/// One slice of an instruction: exact elements and elements for timing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// First element, relative to the instruction's offsets.
    pub from: u64,
    /// Exact number of elements; may be 0.
    pub count: u64,
    /// Number of elements for timing.
    pub span: u64,
}

impl SliceCursor {
    /// At the start of a worker's program.
    pub fn new(worker: &Wired) -> Self {
        Self::at(&worker.start)
    }

    /// At a state of a program.
    pub fn at(state: &State) -> Self {
        Self { state: state.clone(), step: Step::default(), slice: 0, live: false }
    }

    /// Whether the slice at hand is the first of its instruction.
    pub fn at_first_slice(&self) -> bool {
        self.slice == 1
    }

    /// Whether the slice at hand is the last of its instruction.
    pub fn at_last_slice(&self, schedule: &Schedule) -> bool {
        self.slice == schedule.plan.slices
    }

    /// Whether it is before the first slice of the program.
    pub fn is_at_start(&self) -> bool {
        !self.live
    }

    /// The next slice; its instruction is in `self.step`. `None` at the end of the program.
    pub fn next(&mut self, schedule: &Schedule, template: usize) -> Option<Slice> {
        let (from, to) = self.advance(schedule, template, Template::next)?;
        let end = to.min(self.step.count);
        Some(Slice { from, count: end.saturating_sub(from), span: to - from })
    }

    /// [`Self::next`] for timing: the number of elements, and an instruction as [`Template::next_timed`] has it.
    pub fn next_timed(&mut self, schedule: &Schedule, template: usize) -> Option<u64> {
        let (from, to) = self.advance(schedule, template, Template::next_timed)?;
        Some(to - from)
    }

    #[inline]
    fn advance(
        &mut self,
        schedule: &Schedule,
        template: usize,
        next: impl Fn(&Template, &mut State, &mut Step) -> bool,
    ) -> Option<(u64, u64)> {
        if !self.live || self.slice == schedule.plan.slices {
            if !next(&schedule.templates[template], &mut self.state, &mut self.step) {
                return None;
            }
            self.live = true;
            self.slice = 0;
        }
        self.slice += 1;
        Some(schedule.plan.slice_of(self.step.span, self.slice - 1))
    }
}
