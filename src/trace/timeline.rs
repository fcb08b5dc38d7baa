//! Where the time of one GPU goes: each instant is computation, exposed communication or idle.

use collcast_hwbackend::trace::{Activity, Kernels};

use super::outcome::{GAPS, GapRow, RankRow};

/// Longest name of a kernel that is shown.
const NAME_MAX: usize = 60;

/// A kernel of NCCL, with nanoseconds of its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    /// The step that launched it; 0 where none are marked.
    pub(super) step: u32,
    /// Index of its call.
    pub(super) call: Option<u32>,
    /// Its time.
    pub(super) length: i64,
    /// Of that, beside computation.
    pub(super) beside: i64,
    /// Of that, with nothing else; of several that are exposed at once, an even share.
    pub(super) exposed: i64,
}

/// A launch gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    step: Option<u32>,
    /// From the beginning of the window.
    at: i64,
    length: i64,
    /// The kernel behind it.
    name: u32,
}

impl Gap {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a recording")]
    pub(super) fn row(self, rank: u32, kernels: &Kernels) -> GapRow {
        let name = kernels.names.get(self.name as usize).map_or("", String::as_str);
        let mut before: String = name.chars().take(NAME_MAX).collect();
        if before.len() < name.len() {
            before.push_str("...");
        }
        GapRow { rank, step: self.step, at_ms: self.at as f64 / 1e6, length_us: self.length as f64 / 1e3, before }
    }
}

/// One GPU over the steps that were recorded whole. All times are nanoseconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Lane {
    /// Whether steps are marked.
    pub(super) marked: bool,
    steps: u32,
    window: i64,
    compute: i64,
    exposed: i64,
    hidden: i64,
    starved: i64,
    queued: i64,
    /// Kernels of NCCL that the steps launched, in the order of their beginnings.
    pub(super) spans: Vec<Span>,
    /// The longest launch gaps.
    pub(super) gaps: Vec<Gap>,
}

/// The steps of a trace, by when the host launched.
struct Steps<'k>(&'k [(u32, i64, i64)]);

impl Steps<'_> {
    /// The step that launched an activity.
    fn of(&self, activity: &Activity) -> Option<u32> {
        let launched = activity.launched?;
        let at = self.0.partition_point(|(_, begin, _)| *begin <= launched);
        let (number, _, end) = self.0.get(at.checked_sub(1)?)?;
        (launched <= *end).then_some(*number)
    }
}

impl Lane {
    /// Walks through a trace; none where it has no kernel.
    pub(super) fn of(kernels: &Kernels) -> Option<Self> {
        let mut by_begin = kernels.steps.clone();
        by_begin.sort_unstable_by_key(|step| step.1);
        let steps = Steps(&by_begin);
        let of_steps: Vec<Option<u32>> = kernels.activities.iter().map(|a| steps.of(a)).collect();
        let marked = of_steps.iter().any(Option::is_some);
        let within = |at: usize| !marked || of_steps[at].is_some();
        // A step's kernels run later than the host launches them. Its first computation begins it on the GPU.
        let mine =
            || kernels.activities.iter().enumerate().filter(|(at, a)| within(*at) && a.end > a.begin).map(|(_, a)| a);
        let begin = mine().filter(|a| !a.nccl).map(|a| a.begin).min().or_else(|| mine().map(|a| a.begin).min())?;
        let end = mine().map(|a| a.end).max()?;
        let mut launching: Vec<u32> = of_steps.iter().flatten().copied().collect();
        launching.sort_unstable();
        launching.dedup();
        let mut lane = Self {
            marked,
            steps: u32::try_from(launching.len()).unwrap_or(u32::MAX).max(1),
            window: end - begin,
            ..Self::default()
        };
        let mut spans = vec![None; kernels.activities.len()];
        for (at, activity) in kernels.activities.iter().enumerate().filter(|(at, a)| a.nccl && within(*at)) {
            let step = of_steps[at].unwrap_or(0);
            let length = activity.end - activity.begin;
            spans[at] = Some(Span { step, call: activity.call, length, beside: 0, exposed: 0 });
        }
        lane.walk(&kernels.activities, &of_steps, &mut spans, (begin, end));
        lane.spans = spans.into_iter().flatten().collect();
        lane.gaps.sort_by_key(|gap| std::cmp::Reverse(gap.length));
        lane.gaps.truncate(GAPS);
        Some(lane)
    }

    /// Goes from one beginning or end to the next.
    fn walk(&mut self, all: &[Activity], steps: &[Option<u32>], spans: &mut [Option<Span>], window: (i64, i64)) {
        let mut edges: Vec<(i64, bool, usize)> = Vec::with_capacity(2 * all.len());
        for (at, activity) in all.iter().enumerate().filter(|(_, a)| a.end > a.begin) {
            edges.push((activity.begin, true, at));
            edges.push((activity.end, false, at));
        }
        // Ends before beginnings of the same instant: what follows at once leaves no gap.
        edges.sort_unstable();
        let (mut computing, mut calls) = (0_u32, Vec::<usize>::new());
        let mut now = window.0;
        for (edge, begins, at) in edges {
            let until = edge.clamp(window.0, window.1);
            let length = until - now;
            if length > 0 {
                match (computing, calls.is_empty()) {
                    (0, true) => self.idle((now - window.0, length), now, &all[at], steps[at]),
                    (0, false) => self.expose(length, &calls, spans),
                    (_, false) => {
                        self.compute += length;
                        self.hidden += length;
                        for &at in &calls {
                            if let Some(span) = &mut spans[at] {
                                span.beside += length;
                            }
                        }
                    }
                    (_, true) => self.compute += length,
                }
                now = until;
            }
            match (all[at].nccl, begins) {
                (false, true) => computing += 1,
                (false, false) => computing -= 1,
                (true, true) => calls.push(at),
                (true, false) => calls.retain(|&other| other != at),
            }
        }
    }

    fn expose(&mut self, length: i64, calls: &[usize], spans: &mut [Option<Span>]) {
        self.exposed += length;
        let many = i64::try_from(calls.len()).unwrap_or(i64::MAX);
        for (i, &at) in (0..many).zip(calls) {
            // What does not divide goes to the first.
            let share = length / many + i64::from(i < length % many);
            if let Some(span) = &mut spans[at] {
                span.exposed += share;
            }
        }
    }

    /// Idle until `next` begins: for want of a launch, or though it was launched.
    fn idle(&mut self, (at, length): (i64, i64), from: i64, next: &Activity, step: Option<u32>) {
        let starved = next.launched.map_or(0, |launched| (launched - from).clamp(0, length));
        self.starved += starved;
        self.queued += length - starved;
        if starved > 0 {
            self.gaps.push(Gap { step, at, length: starved, name: next.name });
            if self.gaps.len() >= 64 * GAPS {
                self.gaps.sort_by_key(|gap| std::cmp::Reverse(gap.length));
                self.gaps.truncate(GAPS);
            }
        }
    }

    /// As a row, with times of a step.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a recording")]
    pub(super) fn row(&self, rank: u32) -> RankRow {
        let ms = |ns: i64| ns as f64 / 1e6 / f64::from(self.steps);
        RankRow {
            rank,
            steps: self.steps,
            step_ms: ms(self.window),
            compute_ms: ms(self.compute),
            exposed_ms: ms(self.exposed),
            hidden_ms: ms(self.hidden),
            starved_ms: ms(self.starved),
            queued_ms: ms(self.queued),
            late_ms: None,
            last: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kernel(begin: i64, end: i64, nccl: bool, launched: i64) -> Activity {
        Activity { begin, end, launched: Some(launched), name: 0, call: nccl.then_some(0), nccl }
    }

    /// Goal: by hand. Computation from 0 to 10 and 30 to 40, a call from 5 to 25, then idle from 25 to 30, of which the host
    /// had launched nothing until 28.
    #[test]
    fn a_small_step_comes_apart_as_by_hand() {
        let activities = vec![kernel(0, 10, false, -5), kernel(5, 25, true, -4), kernel(30, 40, false, 28)];
        let lane = Lane::of(&Kernels { activities, ..Kernels::default() }).unwrap();
        assert_eq!((lane.window, lane.compute, lane.exposed, lane.hidden), (40, 20, 15, 5));
        assert_eq!((lane.starved, lane.queued), (3, 2));
        assert_eq!(lane.spans, [Span { step: 0, call: Some(0), length: 20, beside: 5, exposed: 15 }]);
        assert_eq!(lane.gaps, [Gap { step: None, at: 25, length: 3, name: 0 }]);
    }

    /// Goal: what was launched before the first step does not count, and the window begins with the first step's computation.
    #[test]
    fn only_what_the_steps_launched_counts() {
        let activities = vec![
            kernel(0, 20, false, -100),
            kernel(20, 30, true, -90),
            kernel(30, 50, false, 1),
            kernel(50, 60, true, 2),
            kernel(60, 80, false, 11),
        ];
        let steps = vec![(7, 0, 10), (8, 10, 20)];
        let lane = Lane::of(&Kernels { activities, steps, ..Kernels::default() }).unwrap();
        assert_eq!((lane.steps, lane.window, lane.compute, lane.exposed), (2, 50, 40, 10));
        assert_eq!(lane.spans.iter().map(|span| span.step).collect::<Vec<_>>(), [7]);
    }

    proptest! {
        /// Goal: the parts of a window add up to it, and the exposed time of calls to that of the rank.
        #[test]
        fn parts_add_up(kernels in prop::collection::vec((0..500_i64, 0..60_i64, any::<bool>(), -50..600_i64), 1..40)) {
            let mut activities: Vec<Activity> =
                kernels.iter().map(|&(begin, length, nccl, launched)| kernel(begin, begin + length, nccl, launched)).collect();
            activities.sort_by_key(|a| (a.begin, a.end));
            let lane = Lane::of(&Kernels { activities, ..Kernels::default() }).unwrap();
            prop_assert_eq!(lane.compute + lane.exposed + lane.starved + lane.queued, lane.window);
            // Calls before the window's first computation are cut.
            prop_assert_eq!(lane.spans.iter().map(|span| span.exposed).sum::<i64>(), lane.exposed);
            for span in &lane.spans {
                prop_assert!(span.beside + span.exposed <= span.length);
            }
        }
    }
}
