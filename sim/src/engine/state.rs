//! Where a run stands: its lanes, kernels, connections and tasks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use smallvec::SmallVec;

use super::flows::{Flows, Use};
use super::instance::{Instance, Outcome};
use super::observe::Observer;
use super::steady::Steady;
use crate::schedule::wiring::SliceCursor;
use crate::units::SimTime;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Needs data or credit, or has just woken.
    Ready,
    /// Busy with slot synchronisation until a wake-up.
    Syncing,
    /// Its flow is under way.
    Flowing,
    /// Its flow has ended, the last line it receives has not arrived.
    Tailing,
    /// The program is over, for this round or for good.
    Done,
}

pub(super) struct KernelRun {
    /// Lanes that start a round.
    pub(super) first: Vec<u32>,
    /// All its lanes.
    pub(super) lanes: usize,
    pub(super) running: usize,
    /// When the last lane that is through ended.
    pub(super) end: SimTime,
    pub(super) round: u32,
    /// The task that starts it; [`UNUSED`] where it starts by itself.
    pub(super) task: u32,
}

/// The lanes of a block that have one turn.
#[derive(Default)]
pub(super) struct TurnRun {
    pub(super) lanes: Vec<u32>,
    pub(super) running: usize,
    /// Whose turn is next; [`UNUSED`] where the block is through.
    pub(super) next: u32,
}

pub(super) struct LaneRun {
    pub(super) cursor: SliceCursor,
    /// Elements of the slice at hand, for timing.
    pub(super) slice: Option<u64>,
    pub(super) phase: Phase,
    /// The only wake-up that counts; others are stale.
    pub(super) wake_at: u64,
    pub(super) began: u64,
    /// End of the slot synchronisation.
    pub(super) synced: u64,
    /// Earliest start of the next slice.
    pub(super) occupied: u64,
    /// By port, which end of its connection it is.
    pub(super) recv: SmallVec<[u32; 2]>,
    pub(super) send: SmallVec<[u32; 2]>,
    /// Instructions that have signalled, and lanes that wait for more.
    pub(super) signals: u64,
    pub(super) waiters: SmallVec<[u32; 2]>,
    /// Its turn; [`UNUSED`] where no lane waits for another.
    pub(super) turn: u32,
}

pub(super) const UNKNOWN: u64 = u64::MAX;

/// A port at a connection.
pub(super) struct End {
    pub(super) lane: u32,
    /// Slices it has started to send, or is done with receiving.
    pub(super) count: u64,
    pub(super) waits: bool,
}

/// A place in a FIFO: the latest time of all ends, and how many of them have said theirs.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    /// First line there.
    pub(super) head: u64,
    /// Last line there.
    pub(super) tail: u64,
    /// Free again, at the receivers' end.
    pub(super) credit: u64,
    /// Proxy: free again at the senders' end; bytes of the slice.
    pub(super) acked: u64,
    pub(super) bytes: u64,
    pub(super) heads: u32,
    pub(super) tails: u32,
    pub(super) credits: u32,
}

/// Adds what one end says to the latest time of all; whether all `ends` have spoken.
pub(super) fn merge(time: &mut u64, said: &mut u32, ends: usize, at: u64) -> bool {
    *time = if *said == 0 { at } else { at.max(*time) };
    *said += 1;
    let all = *said as usize >= ends;
    if all {
        *said = 0;
    }
    all
}

/// A slice that a proxy is to send.
#[derive(Clone, Copy)]
pub(super) struct Handed {
    pub(super) bytes: u64,
    pub(super) since: u64,
    /// Checks that are to be over before.
    pub(super) checks: u64,
    /// When the proxy was done with its work on it; [`UNKNOWN`] before.
    pub(super) posted: u64,
}

/// A slice that has arrived, and has not been handed over.
#[derive(Clone, Copy)]
pub(super) struct Landed {
    pub(super) bytes: u64,
    /// When the senders had all of it.
    pub(super) since: u64,
    /// Since when the receiver's proxy has it, or is done with its work on it; what that is behind for the transfer.
    pub(super) at: u64,
    pub(super) behind: u64,
}

#[derive(Default)]
pub(super) struct ConnRun {
    /// Slices of which all senders have announced the first line, and the last; slices that all
    /// receivers are done with.
    pub(super) produced: u64,
    pub(super) ended: u64,
    pub(super) freed: u64,
    /// Places of the FIFO.
    pub(super) depth: u64,
    /// Those that were ever used: many FIFOs hold more than a call sends.
    pub(super) slots: SmallVec<[Slot; 8]>,
    pub(super) senders: SmallVec<[End; 1]>,
    pub(super) receivers: SmallVec<[End; 1]>,
    /// Where data goes to its place: how often receivers have begun a round, and when senders know of the last time.
    pub(super) opened: u64,
    pub(super) opened_at: u64,
    /// Proxy: slices handed over and not yet sent, how many of them are posted, whether it is posting, since when
    /// it is sending the first of them, and whether all of that is there.
    pub(super) queue: VecDeque<Handed>,
    pub(super) posted: usize,
    pub(super) posting: bool,
    pub(super) sending: Option<u64>,
    pub(super) carried: bool,
    /// Slices that have arrived; those of them that are not handed over, how many of these the receiver's proxy is done
    /// with, and whether it works on the next.
    pub(super) arrived: u64,
    pub(super) landed: VecDeque<Landed>,
    pub(super) taken: usize,
    pub(super) taking: bool,
    /// Slices that are to be checked, as soon as their lane writes them: how many so far, what those take whose
    /// check has not begun, whether one is under way, and how many are over.
    pub(super) checks: u64,
    pub(super) unchecked: VecDeque<u64>,
    pub(super) checking: bool,
    pub(super) checked: u64,
    /// Its only wake-up that counts; others are stale.
    pub(super) wake_at: u64,
}

impl ConnRun {
    pub(super) fn slot(&mut self, slice: u64) -> &mut Slot {
        // Most depths are powers of two, and divisions are slow.
        let place = if self.depth.is_power_of_two() { slice & (self.depth - 1) } else { slice % self.depth };
        let place = usize::try_from(place).unwrap_or(0);
        if place >= self.slots.len() {
            self.slots.resize(place + 1, Slot::default());
        }
        &mut self.slots[place]
    }

    /// One sender's first line is there at a time.
    pub(super) fn begins(&mut self, slice: u64, at: u64) -> bool {
        let ends = self.senders.len();
        let slot = self.slot(slice);
        let all = merge(&mut slot.head, &mut slot.heads, ends, at);
        self.produced += u64::from(all);
        all
    }

    /// One sender's last line is there at a time.
    pub(super) fn ends(&mut self, slice: u64, at: u64) -> bool {
        let ends = self.senders.len();
        let slot = self.slot(slice);
        let all = merge(&mut slot.tail, &mut slot.tails, ends, at);
        self.ended += u64::from(all);
        all
    }

    /// One receiver is done with a slice; its sender knows at a time.
    pub(super) fn frees(&mut self, slice: u64, at: u64) -> bool {
        let ends = self.receivers.len();
        let slot = self.slot(slice);
        let all = merge(&mut slot.credit, &mut slot.credits, ends, at);
        self.freed += u64::from(all);
        all
    }

    /// When the receivers have a place for a slice; `None` when nobody knows yet.
    pub(super) fn credit(&mut self, slice: u64) -> Option<u64> {
        let depth = self.depth;
        if slice < depth {
            return Some(0);
        }
        (self.freed > slice - depth).then(|| self.slot(slice).credit)
    }

    /// One receiver begins a round, in which its output may be written; its sender knows at a time.
    pub(super) fn opens(&mut self, at: u64) {
        self.opened += 1;
        self.opened_at = self.opened_at.max(at);
    }

    /// When senders know that all receivers have begun a round; `None` when nobody knows yet.
    pub(super) fn is_open(&self, round: u64) -> Option<u64> {
        let all = |rounds: u64| self.opened >= rounds * self.receivers.len() as u64;
        // They are ahead of the round only once its data has come.
        if all(round + 2) { Some(0) } else { all(round + 1).then_some(self.opened_at) }
    }

    /// The proxy is through with its work on the next slice.
    pub(super) fn is_posted(&mut self, at: u64) {
        self.queue[self.posted].posted = at;
        self.posted += 1;
    }

    /// When the senders have a place for a slice that a proxy is to transfer.
    pub(super) fn acked(&mut self, slice: u64) -> Option<u64> {
        let depth = self.depth;
        if slice < depth {
            return Some(0);
        }
        (self.arrived > slice - depth).then(|| self.slot(slice).acked)
    }
}

pub(super) fn wake_all(ends: &mut [End], ready: &mut Vec<u32>) {
    for end in ends {
        if std::mem::take(&mut end.waits) {
            ready.push(end.lane);
        }
    }
}

/// Owners of flows and wake-ups: lanes, connections' proxies (transfers, and work before
/// and after them), tasks, kernels.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    Lane(u32),
    Proxy(u32),
    Task(u32),
    Kernel(u32),
    Post(u32),
    Check(u32),
    Take(u32),
}

pub(super) const KIND_SHIFT: u32 = 29;

impl Owner {
    pub(super) fn tag(self) -> u32 {
        match self {
            Self::Lane(i) => i,
            Self::Proxy(i) => i | 1 << KIND_SHIFT,
            Self::Task(i) => i | 2 << KIND_SHIFT,
            Self::Kernel(i) => i | 3 << KIND_SHIFT,
            Self::Post(i) => i | 4 << KIND_SHIFT,
            Self::Check(i) => i | 5 << KIND_SHIFT,
            Self::Take(i) => i | 6 << KIND_SHIFT,
        }
    }

    pub(super) fn of(tag: u32) -> Self {
        let index = tag & ((1 << KIND_SHIFT) - 1);
        match tag >> KIND_SHIFT {
            0 => Self::Lane(index),
            1 => Self::Proxy(index),
            2 => Self::Task(index),
            3 => Self::Kernel(index),
            4 => Self::Post(index),
            5 => Self::Check(index),
            _ => Self::Take(index),
        }
    }
}

pub(super) struct Simulation<'a, 'o, O: Observer> {
    pub(super) instance: &'a Instance<'a>,
    pub(super) observer: &'o mut O,
    pub(super) now: u64,
    pub(super) lanes: Vec<LaneRun>,
    pub(super) kernels: Vec<KernelRun>,
    pub(super) turns: Vec<TurnRun>,
    pub(super) conns: Vec<ConnRun>,
    pub(super) tasks: Vec<TaskRun>,
    pub(super) gates: Vec<GateRun>,
    pub(super) ready_tasks: Vec<u32>,
    pub(super) flows: Flows,
    /// Room for what a slice takes.
    pub(super) uses: Vec<Use>,
    /// When who wakes: time, tag of the owner.
    pub(super) wakes: BinaryHeap<Reverse<(u64, u32)>>,
    pub(super) ready: Vec<u32>,
    /// Where rounds may be left out.
    pub(super) steady: Option<Steady>,
    pub(super) outcome: Outcome,
    pub(super) done: usize,
    /// Work at which it says next how far it is.
    pub(super) said_next: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Waits for tasks, then for a wake-up.
    Waiting,
    /// Its fixed time runs.
    Lasting,
    /// Its flow is under way.
    Flowing,
    /// Its kernels run.
    Running,
    Over,
}

pub(super) struct TaskRun {
    pub(super) stage: Stage,
    pub(super) missing: usize,
    pub(super) ready_at: u64,
    pub(super) cause: u32,
    /// Tasks that wait for this one, with their lags.
    pub(super) next: SmallVec<[(u32, u64); 2]>,
    /// Tasks whose holds end with this one.
    pub(super) releases: SmallVec<[u32; 1]>,
    pub(super) kernels: usize,
}

#[derive(Default)]
pub(super) struct GateRun {
    /// Waves that run, by the room that they leave, and kernels that have begun and are not over.
    pub(super) waves: SmallVec<[u32; 2]>,
    pub(super) kernels: u32,
    /// Who left last, and when: of several the first task.
    pub(super) left: u32,
    pub(super) left_at: u64,
    /// Who waits to enter, and who to occupy.
    pub(super) enter: Vec<u32>,
    pub(super) occupy: Vec<u32>,
}
