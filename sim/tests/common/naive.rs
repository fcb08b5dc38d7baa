//! An engine that is simple and slow, from the engine's documentation alone: at every instant
//! it polls every task and lane until nothing moves, and computes all rates afresh. It keeps the
//! whole history of every connection and shares no code with the engine but the programs' cursor.

use std::collections::BTreeSet;

use collcast_sim::engine::flows::{Use, WEIGHT_ONE};
use collcast_sim::engine::{ConnSpec, Gate, Instance, Observer, Section, TaskSpec};
use collcast_sim::schedule::wiring::{Slice, SliceCursor, UNUSED};
use collcast_sim::units::{Bandwidth, Bytes, SimTime};

/// What happened in a run, in an order that does not depend on who tells it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Log {
    /// Lane, instruction, bytes, from, to.
    pub(crate) slices: Vec<(u32, usize, u64, u64, u64)>,
    /// Connection, bytes, from, to.
    pub(crate) messages: Vec<(u32, u64, u64, u64)>,
}

impl Log {
    pub(crate) fn sorted(mut self) -> Self {
        self.slices.sort_unstable();
        self.messages.sort_unstable();
        self
    }
}

impl Observer for Log {
    fn slice(&mut self, lane: u32, instruction: usize, bytes: u64, from: SimTime, to: SimTime) {
        self.slices.push((lane, instruction, bytes, from.0, to.0));
    }
    fn message(&mut self, conn: u32, bytes: u64, from: SimTime, to: SimTime) {
        self.messages.push((conn, bytes, from.0, to.0));
    }
}

/// End of everything, of every job, of every task; and what happened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) end: u64,
    pub(crate) job_ends: Vec<u64>,
    pub(crate) task_starts: Vec<u64>,
    pub(crate) task_ends: Vec<u64>,
    /// By task: which other one let it start.
    pub(crate) task_causes: Vec<u32>,
    /// Something waits for ever.
    pub(crate) stuck: bool,
    pub(crate) round_ends: Vec<u64>,
    pub(crate) load: Vec<u128>,
    pub(crate) log: Log,
}

/// Textbook progressive filling over all flows at once, with the documented floors.
pub(crate) fn rates(capacities: &[u64], flows: &[&[Use]]) -> Vec<u64> {
    let one = u128::from(WEIGHT_ONE);
    let mut left: Vec<u128> = capacities.iter().map(|&c| u128::from(c.max(1))).collect();
    let mut rates = vec![None; flows.len()];
    // What some flows weigh on each resource.
    let weights = |chosen: &dyn Fn(usize) -> bool| -> Vec<u128> {
        let mut weights = vec![0; capacities.len()];
        for &(r, weight) in (0..flows.len()).filter(|&f| chosen(f)).flat_map(|f| flows[f]) {
            weights[r as usize] += u128::from(weight);
        }
        weights
    };
    while rates.iter().any(Option::is_none) {
        let share: Vec<Option<u64>> = std::iter::zip(&left, weights(&|f| rates[f].is_none()))
            .map(|(left, open)| (open > 0).then(|| u64::try_from(left * one / open).unwrap().max(1)))
            .collect();
        let level = share.iter().flatten().min().copied().unwrap();
        let full = |f: usize| flows[f].iter().any(|u| share[u.0 as usize] == Some(level));
        let stops: Vec<usize> = (0..flows.len()).filter(|&f| rates[f].is_none() && full(f)).collect();
        for (left, taken) in std::iter::zip(&mut left, weights(&|f| stops.contains(&f))) {
            *left = left.saturating_sub((taken * u128::from(level)).div_ceil(one));
        }
        for f in stops {
            rates[f] = Some(level);
        }
    }
    rates.into_iter().flatten().collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Waits,
    Synchronises { until: u64 },
    Moves,
    Drains,
    Nothing,
}

struct Lane {
    /// By port, which sender or receiver of its connection it is.
    recv: Vec<usize>,
    send: Vec<usize>,
    cursor: SliceCursor,
    slice: Option<Slice>,
    doing: Doing,
    began: u64,
    not_before: u64,
    /// Since when loads of the slice that waits are on their way.
    asked: Option<u64>,
    /// Whether its kernel has been started.
    launched: bool,
    /// When its rounds began.
    starts: Vec<u64>,
    signals: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waits,
    Lasts { until: u64 },
    Works,
    Kernels,
    Over,
}

/// Everything that ever happened on a connection, by sender or receiver and number of slice.
#[derive(Default)]
struct Conn {
    started: Vec<usize>,
    consumed: Vec<usize>,
    heads: Vec<Vec<u64>>,
    tails: Vec<Vec<u64>>,
    credits: Vec<Vec<u64>>,
    handed: Vec<Vec<(u64, u64)>>,
    /// When the senders knew that the proxy was through with each slice.
    acks: Vec<u64>,
    /// When the proxy was done with its work on each slice.
    posted: Vec<u64>,
    posting: bool,
    sent: usize,
    /// Since when it sends.
    sending: Option<u64>,
    carried: bool,
    /// Slices that have arrived: their bytes, since when they were there to be sent, and what their transfer is behind.
    arrived: Vec<(u64, u64, u64)>,
    /// When the receiver's proxy was done with each, whether it works on the next, and how many are handed over.
    taken: Vec<u64>,
    taking: bool,
    landed: usize,
    /// What slices take to be checked, once their lane writes them; whether one is, how many have been.
    checks: Vec<u64>,
    checking: bool,
    checked: usize,
}

impl Conn {
    fn join(&mut self, sends: bool) -> usize {
        if sends {
            self.started.push(0);
            self.heads.push(vec![]);
            self.tails.push(vec![]);
            self.handed.push(vec![]);
            self.started.len() - 1
        } else {
            self.consumed.push(0);
            self.credits.push(vec![]);
            self.consumed.len() - 1
        }
    }

    /// What the proxy has of a slice: most bytes of any sender, since the last one handed over.
    fn handed_over(&self, slice: usize) -> Option<(u64, u64)> {
        let all: Option<Vec<_>> = self.handed.iter().map(|h| h.get(slice).copied()).collect();
        let all = all?;
        Some((all.iter().map(|h| h.0).max()?, all.iter().map(|h| h.1).max()?))
    }

    /// Whether all checks of slices up to one are over.
    fn is_checked(&self, slice: usize, spec: &ConnSpec) -> bool {
        self.handed[0][..=slice].iter().filter(|h| checks(spec, h.0) > 0).count() <= self.checked
    }

    /// Whether the receivers have a place for a slice.
    fn fits(&self, slice: usize, depth: usize, now: u64) -> bool {
        self.place(slice, depth).is_some_and(|free| free <= now)
    }

    /// Since when they have; `None` where nobody knows yet.
    fn place(&self, slice: usize, depth: usize) -> Option<u64> {
        if slice < depth { Some(0) } else { latest(&self.credits, slice - depth) }
    }
}

/// Units of a proxy's work on a slice that a lane writes.
fn checks(spec: &ConnSpec, bytes: u64) -> u64 {
    if spec.proxy.is_none() || spec.uses.of(Section::Posting).is_empty() { 0 } else { bytes * spec.check / WEIGHT_ONE }
}

fn ps(units: u64, rate: u64) -> u64 {
    u64::try_from((u128::from(units) * 1_000_000_000_000).div_ceil(u128::from(rate))).unwrap()
}

/// The latest of what all ends said about a slice, once all have.
fn latest(times: &[Vec<u64>], slice: usize) -> Option<u64> {
    times.iter().map(|t| t.get(slice).copied()).try_fold(0, |latest, t| Some(t?.max(latest)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Lane(usize),
    Proxy(usize),
    Post(usize),
    Check(usize),
    Take(usize),
    Task(usize),
}

struct Flow {
    owner: Owner,
    uses: Vec<Use>,
    /// In 10^-12 bytes.
    work: u128,
}

struct Naive<'a> {
    instance: &'a Instance<'a>,
    now: u64,
    lanes: Vec<Lane>,
    /// Rounds that are over, and when the next may start.
    kernels: Vec<(u32, u64)>,
    conns: Vec<Conn>,
    flows: Vec<Flow>,
    tasks: Vec<Stage>,
    /// Times at which something might be possible that is not now.
    times: BTreeSet<u64>,
    outcome: Outcome,
}

/// Runs an instance as far as it goes.
pub(crate) fn run(instance: &Instance<'_>) -> Outcome {
    let mut conns: Vec<Conn> = instance.conns.iter().map(|_| Conn::default()).collect();
    let mut join = |ports: &[u32], sends| -> Vec<usize> {
        ports.iter().map(|&c| if c == UNUSED { 0 } else { conns[c as usize].join(sends) }).collect()
    };
    let launched =
        |spec: &collcast_sim::engine::LaneSpec| !instance.tasks.iter().any(|t| t.kernels.contains(&spec.kernel));
    let mut lane = |spec: &collcast_sim::engine::LaneSpec| Lane {
        recv: join(&spec.recv, false),
        send: join(&spec.send, true),
        cursor: SliceCursor::at(&spec.start),
        slice: None,
        doing: Doing::Waits,
        began: 0,
        not_before: spec.at.0,
        asked: None,
        launched: launched(spec),
        starts: launched(spec).then_some(spec.at.0).into_iter().collect(),
        signals: 0,
    };
    let lanes = instance.lanes.iter().map(&mut lane).collect();
    let mut naive = Naive {
        instance,
        now: 0,
        lanes,
        kernels: vec![(0, u64::MAX); instance.kernels.len()],
        conns,
        flows: Vec::new(),
        tasks: vec![Stage::Waits; instance.tasks.len()],
        times: instance.tasks.iter().map(|t| t.at.0).collect(),
        outcome: Outcome {
            job_ends: vec![0; instance.schedules.len()],
            task_starts: vec![0; instance.tasks.len()],
            task_ends: vec![0; instance.tasks.len()],
            task_causes: vec![UNUSED; instance.tasks.len()],
            load: vec![0; instance.resources.len()],
            ..Outcome::default()
        },
    };
    naive.run();
    naive.outcome.log = naive.outcome.log.sorted();
    naive.outcome
}

impl Naive<'_> {
    fn run(&mut self) {
        loop {
            // Tasks go as far as they can, then lanes, and again.
            while self.poll_tasks() || self.poll() {
                while self.poll_tasks() {}
                while self.poll() {}
            }
            let uses: Vec<&[Use]> = self.flows.iter().map(|f| f.uses.as_slice()).collect();
            let rates = rates(&self.capacities(), &uses);
            let ends: Vec<u64> = (self.flows.iter().zip(&rates))
                .map(|(f, &rate)| self.now + u64::try_from(f.work.div_ceil(u128::from(rate))).unwrap())
                .collect();
            let known = self.times.range(self.now + 1..).next().copied();
            let Some(next) = ends.iter().copied().chain(known).min() else {
                break;
            };
            for (flow, rate) in self.flows.iter_mut().zip(&rates) {
                flow.work = flow.work.saturating_sub(u128::from(*rate) * u128::from(next - self.now));
            }
            self.now = next;
            let mut over: Vec<Owner> = Vec::new();
            let mut ends = ends.into_iter();
            self.flows.retain(|f| {
                let ended = ends.next() == Some(next);
                over.extend(ended.then_some(f.owner));
                !ended
            });
            for owner in over {
                self.ended(owner);
            }
        }
        let through = self.lanes.iter().all(|l| l.doing == Doing::Nothing);
        self.outcome.stuck = !through || self.tasks.iter().any(|&t| t != Stage::Over);
    }

    /// What is left of every resource beside what tasks hold.
    fn capacities(&self) -> Vec<u64> {
        let mut left = self.instance.resources.clone();
        for (index, spec) in self.instance.tasks.iter().enumerate() {
            let until = spec.until.map_or(index, |t| t as usize);
            if self.tasks[index] != Stage::Waits && self.tasks[until] != Stage::Over {
                spec.holds.iter().for_each(|&(r, amount)| left[r as usize] = left[r as usize].saturating_sub(amount));
            }
        }
        left.into_iter().map(|c| c.max(1)).collect()
    }

    fn ended(&mut self, owner: Owner) {
        match owner {
            Owner::Lane(lane) => self.lanes[lane].doing = Doing::Drains,
            Owner::Proxy(id) => {
                self.conns[id].carried = true;
                self.deliver(id);
            }
            Owner::Post(id) => {
                self.conns[id].posted.push(self.now);
                self.conns[id].posting = false;
                self.stream(id);
                self.deliver(id);
            }
            Owner::Take(id) => {
                self.conns[id].taken.push(self.now);
                self.conns[id].taking = false;
                self.hand_over(id);
            }
            Owner::Check(id) => {
                self.conns[id].checked += 1;
                self.conns[id].checking = false;
            }
            Owner::Task(index) => self.start_kernels(index),
        }
    }

    /// A slice that is both posted and carried is there, later by the shorter of the two where they overlapped.
    fn deliver(&mut self, id: usize) {
        let (spec, conn) = (&self.instance.conns[id], &mut self.conns[id]);
        if !conn.carried || conn.posted.len() <= conn.sent {
            return;
        }
        let (bytes, since) = conn.handed_over(conn.sent).unwrap();
        let mut behind = 0;
        if let Some([work, wire]) = spec.overlap
            && conn.posted[conn.sent] > conn.sending.unwrap()
        {
            let posting = spec.post[usize::from(bytes > 0)];
            behind = ps(posting, work).min(ps(bytes, wire));
        }
        let ack = self.now + behind + spec.proxy.unwrap().ack.0;
        conn.sent += 1;
        (conn.sending, conn.carried) = (None, false);
        conn.acks.push(ack);
        conn.arrived.push((bytes, since, behind));
        self.times.insert(ack);
        if spec.take == 0 || spec.uses.of(Section::Taking).is_empty() {
            conn.taken.push(self.now);
            self.hand_over(id);
        }
    }

    /// A slice that has arrived, and that the receiver's proxy is done with, goes to its place once there is one; whether any
    /// did.
    fn hand_over(&mut self, id: usize) -> bool {
        let (spec, conn) = (&self.instance.conns[id], &mut self.conns[id]);
        let slice = conn.landed;
        let (Some(&taken), Some(free)) = (conn.taken.get(slice), conn.place(slice, spec.depth as usize)) else {
            return false;
        };
        let (bytes, since, behind) = conn.arrived[slice];
        let flush = if bytes > 0 { spec.proxy.unwrap().flush.0 } else { 0 };
        let there = (taken + behind + spec.latency.0).max(free.saturating_sub(spec.credit.0)) + flush;
        conn.landed += 1;
        self.times.insert(there);
        for sender in 0..conn.heads.len() {
            if conn.heads[sender].len() <= slice {
                conn.heads[sender].push(there);
            }
            conn.tails[sender].push(there);
            self.outcome.log.messages.push((u32::try_from(id).unwrap(), bytes, since, there));
        }
        true
    }

    /// First lines are on their way once a slice is both posted and being sent.
    fn stream(&mut self, id: usize) {
        let (spec, conn) = (&self.instance.conns[id], &mut self.conns[id]);
        if !spec.streaming
            || conn.sending.is_none()
            || conn.posted.len() <= conn.sent
            || conn.heads[0].len() != conn.sent
            || !conn.fits(conn.sent, spec.depth as usize, self.now)
        {
            return;
        }
        let head = self.now + spec.latency.0 + spec.overlap.map_or(0, |[work, _]| ps(spec.take, work));
        self.times.insert(head);
        conn.heads.iter_mut().for_each(|heads| heads.push(head));
    }

    /// One round of tasks: those whose time is over go on; then all who are ready and whose gate is
    /// open start, judged by how things stood before the round. Whether anything moved.
    fn poll_tasks(&mut self) -> bool {
        let specs = &self.instance.tasks;
        let mut moved = false;
        for (index, spec) in specs.iter().enumerate() {
            let done = |&k: &u32| self.kernels[k as usize].0 == self.instance.kernels[k as usize].rounds;
            match self.tasks[index] {
                Stage::Lasts { until } if until <= self.now => self.start_work(index),
                Stage::Kernels if spec.kernels.iter().all(done) => self.end_task(index),
                _ => continue,
            }
            moved = true;
        }
        let ready: Vec<(usize, u64)> = (0..specs.len())
            .filter(|&t| self.tasks[t] == Stage::Waits)
            .filter_map(|t| Some((t, self.ready_at(&specs[t])?)))
            .filter(|&(_, at)| at <= self.now)
            .collect();
        // Whether waves that run, or kernels that have begun and are not over, keep somebody out.
        let shut = |gate: u32, wave_is_enough: bool, needs: u32| {
            let begun = |t: &usize| self.tasks[*t] != Stage::Waits;
            let over = |t: &usize| self.tasks[*t] == Stage::Over;
            let ours = (0..specs.len()).filter_map(|t| match specs[t].gate {
                Gate::Occupies { gate: g, first, last, room } if g == gate => Some((t, first, last, room)),
                _ => None,
            });
            let ours: Vec<_> = ours.collect();
            let running: Vec<u32> =
                ours.iter().filter(|(t, ..)| begun(t) && !over(t)).map(|&(.., room)| room).collect();
            let begun = ours.iter().filter(|(t, first, ..)| *first && begun(t)).count();
            let over = ours.iter().filter(|(t, _, last, _)| *last && over(t)).count();
            if running.is_empty() { !wave_is_enough && begun > over } else { running.iter().any(|&room| room < needs) }
        };
        let kept: Vec<bool> = (ready.iter())
            .map(|&(t, _)| match specs[t].gate {
                Gate::Enters { gate, urgent, needs } => shut(gate, urgent, needs),
                _ => false,
            })
            .collect();
        // A kernel begins after those who wait to enter.
        let crowded = |gate: u32| {
            ready
                .iter()
                .zip(&kept)
                .any(|(&(t, _), &kept)| kept && matches!(specs[t].gate, Gate::Enters { gate: g, .. } if g == gate))
        };
        let starts: Vec<(usize, u64)> = (ready.iter().zip(&kept))
            .filter(|&(&(t, _), &kept)| match specs[t].gate {
                Gate::Occupies { gate, first, .. } => !first || !crowded(gate),
                _ => !kept,
            })
            .map(|(&ready, _)| ready)
            .collect();
        let causes: Vec<u32> = starts.iter().map(|&(t, at)| self.cause(t, at)).collect();
        for (&(task, _), cause) in starts.iter().zip(causes) {
            moved = true;
            self.outcome.task_starts[task] = self.now;
            self.outcome.task_causes[task] = cause;
            let lasts = specs[task].lasts.0;
            if lasts > 0 {
                self.tasks[task] = Stage::Lasts { until: self.now + lasts };
                self.times.insert(self.now + lasts);
            } else {
                self.start_work(task);
            }
        }
        moved
    }

    /// When all that a task waits for is over, each lag included; `None` while something is not.
    fn ready_at(&self, spec: &TaskSpec) -> Option<u64> {
        spec.after.iter().try_fold(spec.at.0, |at, &(t, lag)| {
            (self.tasks[t as usize] == Stage::Over).then(|| at.max(self.outcome.task_ends[t as usize] + lag.0))
        })
    }

    /// Who let a task start that was ready at a time: the last to leave its gate, if that kept it;
    /// else the last that it waited for. Of several the first.
    fn cause(&self, task: usize, ready_at: u64) -> u32 {
        let specs = &self.instance.tasks;
        let first_of_latest = |of: &mut dyn Iterator<Item = (u64, u32)>| {
            of.max_by_key(|&(end, t)| (end, std::cmp::Reverse(t))).map_or(UNUSED, |(_, t)| t)
        };
        if let Gate::Enters { gate, .. } | Gate::Occupies { gate, .. } = specs[task].gate
            && ready_at < self.now
        {
            let left = |t: &usize| {
                self.tasks[*t] == Stage::Over && matches!(specs[*t].gate, Gate::Occupies { gate: g, .. } if g == gate)
            };
            let left = (0..specs.len()).filter(left).map(|t| (self.outcome.task_ends[t], u32::try_from(t).unwrap()));
            return first_of_latest(&mut { left });
        }
        let spec = &specs[task];
        let after = spec.after.iter();
        first_of_latest(&mut after.map(|&(t, lag)| (spec.at.0.max(self.outcome.task_ends[t as usize] + lag.0), t)))
    }

    fn start_work(&mut self, index: usize) {
        let spec = &self.instance.tasks[index];
        if spec.uses.is_empty() {
            return self.start_kernels(index);
        }
        self.tasks[index] = Stage::Works;
        self.start(Owner::Task(index), spec.work.max(1), spec.uses.to_vec());
    }

    fn start_kernels(&mut self, index: usize) {
        self.tasks[index] = Stage::Kernels;
        let kernels = &self.instance.tasks[index].kernels;
        for (lane, spec) in self.lanes.iter_mut().zip(&self.instance.lanes) {
            if kernels.contains(&spec.kernel) {
                lane.launched = true;
                lane.starts.push(self.now + spec.at.0);
            }
        }
        if kernels.is_empty() {
            self.end_task(index);
        }
    }

    fn end_task(&mut self, index: usize) {
        self.tasks[index] = Stage::Over;
        self.outcome.task_ends[index] = self.now;
        self.outcome.end = self.outcome.end.max(self.now);
        for spec in &self.instance.tasks {
            let lags = spec.after.iter().filter(|(t, _)| *t as usize == index);
            self.times.extend(lags.map(|&(_, lag)| self.now + lag.0));
        }
    }

    fn start(&mut self, owner: Owner, bytes: u64, uses: Vec<Use>) {
        for &(r, weight) in &uses {
            self.outcome.load[r as usize] += u128::from(bytes) * u128::from(weight);
        }
        self.flows.push(Flow { owner, uses, work: u128::from(bytes) * 1_000_000_000_000 });
    }

    /// Asks every connection, lane and kernel once, the last first; whether anything moved.
    fn poll(&mut self) -> bool {
        let mut moved = false;
        for id in (0..self.conns.len()).rev() {
            let (spec, conn) = (&self.instance.conns[id], &mut self.conns[id]);
            if spec.proxy.is_none() {
                continue;
            }
            if let Some((bytes, _)) = conn.handed_over(conn.sent)
                && conn.sending.is_none()
                && conn.is_checked(conn.sent, spec)
                && (spec.overlap.is_some() || conn.sent < conn.posted.len())
                && (bytes <= spec.eager && spec.eager > 0 || conn.fits(conn.sent, spec.depth as usize, self.now))
            {
                conn.sending = Some(self.now);
                self.start(Owner::Proxy(id), bytes.max(1), spec.uses.of(Section::Transfer).to_vec());
                self.stream(id);
                moved = true;
            }
            let conn = &mut self.conns[id];
            if conn.taken.len() < conn.arrived.len() && !conn.taking {
                conn.taking = true;
                self.start(Owner::Take(id), spec.take, spec.uses.of(Section::Taking).to_vec());
                moved = true;
            }
            moved |= self.hand_over(id);
            let conn = &mut self.conns[id];
            let next = conn.posted.len();
            let due = if conn.handed_over(next).is_some() { !conn.is_checked(next, spec) } else { true };
            if due && !conn.posting && !conn.checking && conn.checked < conn.checks.len() {
                moved = true;
                conn.checking = true;
                let work = conn.checks[conn.checked];
                self.start(Owner::Check(id), work, spec.uses.of(Section::Posting).to_vec());
                continue;
            }
            let Some((bytes, _)) = conn.handed_over(conn.posted.len()) else { continue };
            let work = spec.post[usize::from(bytes > 0)];
            if !conn.posting && !conn.checking && conn.is_checked(conn.posted.len(), spec) {
                moved = true;
                if work > 0 && !spec.uses.of(Section::Posting).is_empty() {
                    conn.posting = true;
                    self.start(Owner::Post(id), work, spec.uses.of(Section::Posting).to_vec());
                } else {
                    conn.posted.push(self.now);
                    self.stream(id);
                }
            }
        }
        for lane in (0..self.lanes.len()).rev() {
            moved |= self.poll_lane(lane);
        }
        for kernel in 0..self.kernels.len() {
            moved |= self.poll_kernel(kernel);
        }
        moved
    }

    /// Ends a round when all lanes of a kernel are through, starts the next one gap later.
    fn poll_kernel(&mut self, index: usize) -> bool {
        let spec = self.instance.kernels[index];
        let (rounds, start) = self.kernels[index];
        let specs = &self.instance.lanes;
        let own = |l: &usize| specs[*l].kernel as usize == index;
        if rounds == spec.rounds || !(0..specs.len()).filter(own).all(|l| self.lanes[l].doing == Doing::Nothing) {
            return false;
        }
        if start == u64::MAX {
            if self.outcome.round_ends.len() <= rounds as usize {
                self.outcome.round_ends.push(0);
            }
            let end = &mut self.outcome.round_ends[rounds as usize];
            *end = self.now.max(*end);
            let last = rounds + 1 == spec.rounds;
            self.kernels[index] = if last { (spec.rounds, 0) } else { (rounds, self.now + spec.gap.0) };
            self.times.insert(self.now + spec.gap.0);
            return true;
        }
        if self.now < start {
            return false;
        }
        self.kernels[index] = (rounds + 1, u64::MAX);
        for lane in (0..specs.len()).filter(own) {
            self.lanes[lane].cursor = SliceCursor::at(&specs[lane].start);
            self.lanes[lane].doing = Doing::Waits;
            self.lanes[lane].signals = 0;
            self.lanes[lane].not_before = self.lanes[lane].not_before.max(self.now + specs[lane].at.0);
            self.lanes[lane].starts.push(self.now + specs[lane].at.0);
        }
        true
    }

    fn poll_lane(&mut self, index: usize) -> bool {
        let spec = &self.instance.lanes[index];
        let schedule = self.instance.schedules[spec.job as usize];
        let now = self.now;
        let signals: Vec<u64> = self.lanes.iter().map(|l| l.signals).collect();
        // When it knows as a sender of this round that all receivers have begun it, by port.
        let round = self.lanes[index].starts.len();
        let opened = |id: u32| {
            let specs = self.instance.lanes.iter().zip(&self.lanes);
            let receivers = specs.filter(|(spec, _)| spec.recv.contains(&id));
            let starts: Option<Vec<u64>> =
                receivers.map(|(_, lane)| lane.starts.get(round.wrapping_sub(1)).copied()).collect();
            starts.and_then(|starts| starts.into_iter().max()).map(|at| at + self.instance.conns[id as usize].latency.0)
        };
        let opened: Vec<Option<u64>> = spec.send.iter().map(|&id| opened(id)).collect();
        let lane = &mut self.lanes[index];
        match lane.doing {
            Doing::Moves | Doing::Nothing => return false,
            Doing::Waits => {
                self.times.insert(spec.at.0);
                if now < spec.at.0 || !lane.launched {
                    return false;
                }
                if lane.slice.is_none() {
                    lane.slice = lane.cursor.next(schedule, spec.template);
                }
                if lane.slice.is_none() {
                    lane.doing = Doing::Nothing;
                    let job = &mut self.outcome.job_ends[spec.job as usize];
                    *job = now.max(*job);
                    self.outcome.end = self.outcome.end.max(now);
                    return true;
                }
                let step = &lane.cursor.step;
                let arrived = step.recv.iter().all(|&port| {
                    let conn = &self.conns[spec.recv[port] as usize];
                    latest(&conn.heads, conn.consumed[lane.recv[port]]).is_some_and(|head| head <= now)
                });
                let credit = step.send.iter().all(|&port| {
                    let (conn, id) = (&self.conns[spec.send[port] as usize], spec.send[port] as usize);
                    let depth = self.instance.conns[id].depth as usize;
                    let started = conn.started[lane.send[port]];
                    if self.instance.conns[id].direct {
                        self.times.extend(opened[port]);
                        if opened[port].is_none_or(|at| at > now) {
                            return false;
                        }
                    }
                    if self.instance.conns[id].proxy.is_some() {
                        return started < depth || conn.acks.get(started - depth).is_some_and(|&ack| ack <= now);
                    }
                    conn.fits(started, depth, now)
                });
                let told = step.wait.is_none_or(|(port, count)| signals[spec.tokens[port] as usize] >= count);
                self.times.insert(lane.not_before);
                if !credit || now < lane.not_before {
                    return false;
                }
                let moves = lane.slice.as_ref().is_some_and(|slice| slice.span > 0);
                // Own data of the first wave is on its way from here, whatever has arrived.
                let asked = *lane.asked.get_or_insert(now);
                let own = moves && spec.wave > 0 && (step.src.is_some() || step.accumulate);
                let loads = if own { spec.access.load } else { 0 };
                let rate = Bandwidth::new(self.instance.resources[spec.issue.0 as usize]).unwrap();
                let units = spec.wave * loads / WEIGHT_ONE;
                let ready = asked + rate.time_for(Bytes(units)).0;
                self.times.insert(ready);
                if !told || !arrived || now < ready {
                    return false;
                }
                lane.asked = None;
                let crosses = moves && (!step.recv.is_empty() || !step.send.is_empty());
                let both = if step.dst.is_some() && !step.send.is_empty() { spec.both.0 } else { 0 };
                let sync = if crosses { spec.sync.0 + both } else { 0 };
                lane.began = now;
                lane.doing = Doing::Synchronises { until: now + sync };
                self.times.insert(now + sync);
                for &port in &step.send {
                    self.conns[spec.send[port] as usize].started[lane.send[port]] += 1;
                }
            }
            Doing::Synchronises { until } => {
                if now < until {
                    return false;
                }
                let (bytes, uses) = self.moves(index);
                let lane = &mut self.lanes[index];
                lane.doing = if bytes == 0 || uses.is_empty() { Doing::Drains } else { Doing::Moves };
                let step = lane.cursor.step.clone();
                for &port in &step.send {
                    let id = spec.send[port] as usize;
                    let facts = &self.instance.conns[id];
                    let work = checks(facts, bytes);
                    if work > 0 {
                        self.conns[id].checks.push(work);
                    }
                }
                let lane = &mut self.lanes[index];
                for &port in &lane.cursor.step.send {
                    let id = spec.send[port] as usize;
                    if self.instance.conns[id].streaming && self.instance.conns[id].proxy.is_none() {
                        let rate = Bandwidth::new(self.instance.resources[spec.issue.0 as usize]).unwrap();
                        let stored = spec.wave.min(bytes) * spec.access.store / WEIGHT_ONE;
                        let first = rate.time_for(Bytes(stored)).0;
                        let head = now + self.instance.conns[id].latency.0 + first;
                        self.conns[id].heads[lane.send[port]].push(head);
                        self.times.insert(head);
                    }
                }
                if bytes > 0 && !uses.is_empty() {
                    // What is full leaves it so many times the rate, in so many times fewer bytes.
                    for &(r, weight) in &uses {
                        self.outcome.load[r as usize] += u128::from(bytes) * u128::from(weight);
                    }
                    let [one, share] = [WEIGHT_ONE, spec.share].map(u128::from);
                    let scaled = |weight| (u128::from(weight) * share).div_ceil(one) as u64;
                    let uses = uses.into_iter().map(|(r, weight)| (r, scaled(weight))).collect();
                    let work = (u128::from(bytes) * one).div_ceil(share) * 1_000_000_000_000;
                    self.flows.push(Flow { owner: Owner::Lane(index), uses, work });
                }
            }
            Doing::Drains => {
                let step = lane.cursor.step.clone();
                let whole = step.recv.iter().all(|&port| {
                    let conn = &self.conns[spec.recv[port] as usize];
                    latest(&conn.tails, conn.consumed[lane.recv[port]]).is_some_and(|tail| tail <= now)
                });
                if !whole {
                    return false;
                }
                let bytes = lane.slice.take().unwrap().span * spec.element;
                lane.doing = Doing::Waits;
                lane.signals += u64::from(step.signal && lane.cursor.at_last_slice(schedule));
                let crossed = !step.recv.is_empty() || !step.send.is_empty();
                lane.not_before = now + if crossed { spec.after.0 } else { 0 };
                self.times.insert(lane.not_before);
                let began = lane.began;
                for &port in &step.recv {
                    let id = spec.recv[port] as usize;
                    let free = now + self.instance.conns[id].credit.0;
                    self.conns[id].consumed[lane.recv[port]] += 1;
                    self.conns[id].credits[lane.recv[port]].push(free);
                    self.times.insert(free);
                }
                for &port in &step.send {
                    let id = spec.send[port] as usize;
                    let (conn, facts) = (&mut self.conns[id], &self.instance.conns[id]);
                    let sender = lane.send[port];
                    if facts.proxy.is_some() {
                        conn.handed[sender].push((bytes, now));
                        continue;
                    }
                    let there = now + facts.latency.0;
                    if !facts.streaming {
                        conn.heads[sender].push(there);
                    }
                    conn.tails[sender].push(there);
                    self.times.insert(there);
                    self.outcome.log.messages.push((spec.send[port], bytes, began, there));
                }
                self.outcome.log.slices.push((u32::try_from(index).unwrap(), step.op, bytes, began, now));
            }
        }
        true
    }

    /// What a slice of a lane waits for loads of each byte (with lines: all at once), and what it issues.
    fn accesses(&self, index: usize) -> (u64, u64) {
        let (spec, lane) = (&self.instance.lanes[index], &self.lanes[index]);
        let step = &lane.cursor.step;
        let direct = |ports: &[usize], conns: &[u32]| {
            ports.iter().all(|&port| {
                assert_ne!(conns[port], UNUSED);
                self.instance.conns[conns[port] as usize].direct
            })
        };
        // What senders have put in place already is only waited for, or passed on.
        let placed = step.src.is_none()
            && !step.recv.is_empty()
            && direct(&step.recv, &spec.recv)
            && direct(&step.send, &spec.send);
        let mut loads = if placed && step.send.is_empty() { vec![] } else { vec![spec.access.fetch; step.recv.len()] };
        loads.extend(step.src.iter().map(|_| spec.access.load));
        loads.extend(step.accumulate.then_some(spec.access.load));
        let issued = loads.len() as u64 * spec.access.beside.unwrap_or(0);
        // A line's loads overlap.
        let loads = if spec.wave > 0 { loads.into_iter().max().unwrap_or(0) } else { loads.into_iter().sum() };
        let keeps = step.dst.is_some() && !placed;
        (loads, issued + step.send.len() as u64 * spec.access.store + if keeps { spec.access.keep } else { 0 })
    }

    /// Bytes of the slice of a lane, and what moving them takes: its warps for what it loads, but for the first
    /// wave of lines, and stores, more where it combines, the links it sends over, and those over which it fetches.
    fn moves(&self, index: usize) -> (u64, Vec<Use>) {
        let (spec, lane) = (&self.instance.lanes[index], &self.lanes[index]);
        let step = &lane.cursor.step;
        let of = |ports: &[usize], conns: &[u32]| -> Vec<&ConnSpec> {
            ports
                .iter()
                .map(|&p| conns[p])
                .inspect(|&c| assert_ne!(c, UNUSED))
                .map(|c| &self.instance.conns[c as usize])
                .collect()
        };
        let (recv, send) = (of(&step.recv, &spec.recv), of(&step.send, &spec.send));
        let (mut loads, stores) = self.accesses(index);
        let bytes = lane.slice.as_ref().map_or(0, |s| s.span * spec.element);
        if spec.wave > 0 && bytes > 0 {
            let waves = bytes.div_ceil(spec.wave);
            loads = (loads * (waves - 1) * spec.wave).div_ceil(bytes);
        }
        // Waits and instructions are one after the other, or overlap.
        let both = |loads: u64, stores: u64| match spec.access.beside {
            None => loads + stores,
            Some(_) => ((loads as f64).powi(2) + (stores as f64).powi(2)).sqrt() as u64,
        };
        let mut weight = spec.issue.1 * both(loads, stores) / WEIGHT_ONE;
        if step.reduce {
            weight += spec.issue.1 * spec.reduce_weight / WEIGHT_ONE;
        }
        let mut uses: Vec<Use> = Vec::new();
        if weight > 0 {
            uses.push((spec.issue.0, weight));
            if let Some((own, longer)) = spec.own {
                let reduce = if step.reduce { spec.reduce_weight } else { 0 };
                uses.push((own, both(loads * longer / WEIGHT_ONE, stores) + reduce));
            }
        }
        uses.extend(recv.iter().flat_map(|c| c.uses.of(Section::Load)));
        uses.extend(send.iter().flat_map(|c| c.uses.of(Section::Store)));
        uses.extend(send.iter().filter(|c| c.proxy.is_none()).flat_map(|c| c.uses.of(Section::Transfer)));
        (lane.slice.unwrap().span * spec.element, uses)
    }
}
