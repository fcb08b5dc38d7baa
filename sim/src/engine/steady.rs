//! What a run knows of its rounds: when each lane began them, so that [`leap`](super::leap) can tell where they repeat.

use super::instance::Instance;
use crate::schedule::program::{Level, State, Template};

/// Rounds of the shortest window, by level: more than slices fit into a FIFO, or one whose own steps are as many; and for a
/// ring's steps as many as fit into most of them, and GPUs into most hosts.
pub(super) const WINDOWS: [usize; 2] = [12, 8];
/// Windows that a lane has begun before two of them are compared: the first fills FIFOs.
const SEEN: usize = 3;
/// Loops of so many times as many rounds are worth their while.
const WORTHWHILE: usize = 2;

/// What a run knows of its rounds.
pub(super) struct Steady {
    pub(super) tracks: [Track; 2],
    /// By lane: which part it is in. Connections join lanes; parts share links, or one waits for signals of another, which may
    /// be any number of rounds ahead.
    pub(super) part: Vec<u32>,
    /// Time of what was left out so far, in ps.
    pub(super) left_out: u64,
    /// By part, how much more time it has left out, as it leaves out whole windows of its own.
    pub(super) ahead: Vec<i64>,
    /// Lanes that have begun and are not through.
    pub(super) running: usize,
    /// Kernels that wait for their next round.
    pub(super) pauses: usize,
}

/// Rounds of a level.
pub(super) struct Track {
    level: Level,
    /// Rounds of the windows that are compared next; 0 where none are.
    pub(super) window: usize,
    /// The longest cycle of lanes: what holds one up comes round to it again in as many rounds at most, so that one of
    /// the windows is as long.
    turn: usize,
    /// By lane: when it began each round, in ps.
    pub(super) marks: Vec<Vec<u64>>,
    /// Lanes that have begun enough of them.
    pub(super) reached: usize,
    /// The lane that asks whether all are steady: the first after whose note all had begun enough.
    pub(super) asks: Option<u32>,
    /// Whether it has just asked.
    pub(super) due: bool,
    /// When the run ends by the windows before.
    pub(super) before: Option<f64>,
}

impl Steady {
    /// For an instance some of whose loops are long; with `running` lanes to begin with.
    pub(super) fn of(instance: &Instance<'_>, running: usize) -> Option<Self> {
        let most = |level| {
            let rounds = instance
                .lanes
                .iter()
                .map(|lane| template(instance, lane.job, lane.template).rounds(&lane.start, level));
            rounds.max().unwrap_or(0)
        };
        let each_inside = instance
            .lanes
            .iter()
            .map(|lane| template(instance, lane.job, lane.template).rounds(&lane.start, Level::Inside));
        // One round of large rings has more steps than slices fit into a FIFO.
        let large = each_inside.min().is_some_and(|inside| inside >= WINDOWS[Level::First as usize] as i64);
        let window = |level: Level| {
            let window = if large && level == Level::First { 1 } else { WINDOWS[level as usize] };
            let worthwhile = most(level) > (SEEN * window * WORTHWHILE) as i64;
            if worthwhile && instance.tasks.is_empty() { window } else { 0 }
        };
        let windows = Level::ALL.map(window);
        if windows == [0; 2] {
            return None;
        }
        let part = parts(instance);
        let mut sizes = vec![0; part.len()];
        part.iter().for_each(|&part| sizes[part as usize] += 1);
        let turn = sizes.into_iter().max().unwrap_or(0);
        let tracks = Level::ALL.map(|level| Track {
            level,
            window: windows[level as usize],
            turn,
            marks: vec![Vec::new(); instance.lanes.len()],
            reached: 0,
            asks: None,
            due: false,
            before: None,
        });
        let ahead = vec![0; part.len()];
        Some(Self { tracks, part, left_out: 0, ahead, running, pauses: 0 })
    }

    /// The time of a lane, with what was left out.
    pub(super) fn time(&self, lane: u32, now: u64) -> u64 {
        now.saturating_add(self.left_out).saturating_add_signed(self.ahead[self.part[lane as usize] as usize])
    }

    /// A lane begins a slice.
    pub(super) fn note(&mut self, lane: u32, state: &State, now: u64) {
        let (all, now) = (self.pauses == 0, self.time(lane, now));
        for track in self.tracks.iter_mut().filter(|track| track.window > 0) {
            track.note(lane, state.begun(track.level) as usize, now);
            track.due |= all && track.reached >= self.running && track.asks.is_none_or(|asks| asks == lane);
            if track.due {
                track.asks = Some(lane);
            }
        }
    }

    /// A lane is through.
    pub(super) fn ended(&mut self, lane: u32) {
        self.running -= 1;
        for track in self.tracks.iter_mut().filter(|track| track.window > 0) {
            track.forget(lane);
            track.asks = track.asks.filter(|&asks| asks != lane);
        }
    }
}

impl Track {
    /// Marks that are needed to compare windows.
    pub(super) fn needed(&self) -> usize {
        SEEN * self.window + 1
    }

    fn note(&mut self, lane: u32, begun: usize, at: u64) {
        if begun == 1 {
            self.forget(lane);
        }
        let (needed, marks) = (self.needed(), &mut self.marks[lane as usize]);
        if begun > marks.len() {
            marks.push(at);
            self.reached += usize::from(marks.len() == needed);
        }
    }

    fn forget(&mut self, lane: u32) {
        let needed = self.needed();
        let marks = &mut self.marks[lane as usize];
        self.reached -= usize::from(marks.len() >= needed);
        marks.clear();
    }

    /// Compares longer windows next, where the rounds that are `left` have room for them.
    pub(super) fn widen(&mut self, left: i64) {
        // Patterns of three rounds are as common as those of two.
        let next = if self.window == WINDOWS[Level::Inside as usize] { 3 * self.window / 2 } else { 2 * self.window };
        self.window = if (self.window + 1..next).contains(&self.turn) { self.turn } else { next };
        self.asks = None;
        if left < self.needed() as i64 / 2 {
            (self.window, self.marks, self.reached) = (0, Vec::new(), 0);
            return;
        }
        let needed = self.needed();
        self.reached = self.marks.iter().filter(|marks| marks.len() >= needed).count();
    }
}

/// The template of a lane.
pub(super) fn template<'i>(instance: &Instance<'i>, job: u32, template: usize) -> &'i Template {
    &instance.schedules[job as usize].templates[template]
}

/// By lane, one of the lanes that connections join it to.
fn parts(instance: &Instance<'_>) -> Vec<u32> {
    let mut lanes: Vec<u32> = (0..).zip(&instance.lanes).map(|(index, _)| index).collect();
    let root = |lanes: &mut Vec<u32>, mut lane: u32| {
        while lanes[lane as usize] != lane {
            lanes[lane as usize] = lanes[lanes[lane as usize] as usize];
            lane = lanes[lane as usize];
        }
        lane
    };
    let mut end: Vec<Option<u32>> = vec![None; instance.conns.len()];
    for (index, lane) in (0..).zip(&instance.lanes) {
        let ends = lane.recv.iter().chain(&lane.send);
        let others = ends.filter_map(|&conn| Some(*end.get_mut(conn as usize)?.get_or_insert(index)));
        let others: Vec<u32> = others.collect();
        for other in others {
            let (a, b) = (root(&mut lanes, index), root(&mut lanes, other));
            lanes[a as usize] = b;
        }
    }
    (0..).zip(&instance.lanes).map(|(lane, _)| root(&mut lanes, lane)).collect()
}
