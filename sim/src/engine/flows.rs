//! Flows over shared resources, with weighted max-min fair rates in integers.
//!
//! A flow uses several resources at once (a thread block, the links of its route), each with
//! a weight: the units of the resource that one payload byte takes. Rates are raised together
//! until a resource is full; its flows stop there, the others go on (progressive filling:
//! Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).
//!
//! Exactness: rates are whole bytes per second, remaining work whole 10^-12 bytes; a share is
//! `floor(capacity left / sum of weights)` and never sinks, and what a round takes from a resource is
//! computed from the summed weights. So the result does not depend on the order of flows, nor on
//! whether m equal flows are counted as one of m times the weight, nor on which other parts of
//! the network were solved at the same time.
//!
//! Speed: where many flows hang together, a change seldom reaches far. Rates are max-min fair if and only if
//! every flow has a resource that is full at its rate, and none that was full below it; so the
//! flows that a change touches are filled anew beside the others at their known rates, and those
//! of them for which that no longer holds join until it holds for all. Resources with room for all
//! that these flows may take are left out. A flow that only resources of its own hold back changes
//! no other one, where what it shares is not full: then nothing is filled at all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use smallvec::SmallVec;

use crate::schedule::wiring::UNUSED;

/// Scale of weights: 1 byte of payload takes 1 unit of a resource.
pub const WEIGHT_ONE: u64 = 1 << 20;

/// What a flow takes of a resource: resource, weight (scaled by [`WEIGHT_ONE`]).
pub type Use = (u32, u64);

/// Work is counted in 10^-12 bytes, so that rate (bytes/s) times time (ps) is work.
const WORK_PER_BYTE: u128 = 1_000_000_000_000;

/// Fields stand as they are used together: what filling asks of a flow lies in one line of memory.
#[derive(Clone, Debug, Default)]
#[repr(C)]
struct Flow {
    rate: u64,
    /// Stamp of the solution for which it is filled anew.
    seen: u32,
    /// Number of the filling in which it has its rate, or is known to keep it.
    done: u32,
    /// Number of the filling in which it was noted beside the members.
    beside: u32,
    /// Rate in the filling at work.
    next: u64,
    tag: u32,
    /// Resource, weight, and where this flow stands in the resource's list.
    uses: SmallVec<[(u32, u64, u32); 6]>,
    /// No rate of its is higher; 0 where nobody has asked.
    most: u64,
    since: u64,
    work: u128,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    capacity: u64,
    /// Taken out of the capacity for a while.
    held: u64,
    /// Flows that use it, and which of their uses it is.
    flows: SmallVec<[(u32, u32); 4]>,
    seen: u32,
    dirty: bool,
    /// Rate at which its last flows stopped because it was full; 0 where others stopped them all.
    full: u64,
    /// What its flows take of it at their rates, and the sum of their weights, both scaled by [`WEIGHT_ONE`].
    used: u128,
    weight: u128,
    /// What flows that are filled anew may take more of it, scaled alike, and the stamp of the solution for which that is.
    more: u128,
    more_stamp: u32,
    /// The same as `full` in the filling at work.
    filled: u64,
    left: u128,
    weights: u128,
    fixed: u128,
    share: u64,
}

/// Flows in flight from which only those near a change are solved. Fewer are solved sooner at once.
const MANY: usize = 48;
/// Resources up to which the fullest is sooner found one by one than in a heap.
const SCANNED: usize = 48;
/// How often flows may join those near a change before all that hang together are solved.
const JOINS: u32 = 12;

/// All flows in flight.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    flows: Vec<Flow>,
    free: Vec<u32>,
    resources: Vec<Resource>,
    dirty: Vec<u32>,
    /// Flows without a rate yet.
    started: Vec<u32>,
    /// Flows from which only those near a change are solved.
    many: usize,
    stamp: u32,
    filling: u32,
    component: Vec<u32>,
    members: Vec<u32>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    beside: Vec<(u64, u32)>,
    stopping: Vec<u32>,
    touched: Vec<u32>,
    joining: Vec<u32>,
    ends: Ends,
    /// Flows and resources that were looked at to find rates: what solving has cost.
    pub looked_at: u64,
    /// Whether a flow got the least rate there is where its resource has less for it.
    pub starved: bool,
}

/// When each flow will end if nothing changes, in ps: a heap, in which a flow whose rate changes moves.
#[derive(Clone, Debug, Default)]
struct Ends {
    heap: Vec<(u64, u32)>,
    /// By flow: where it stands in the heap; [`UNUSED`] without a rate. Apart from the flows, so that moves in the heap touch
    /// little memory.
    places: Vec<u32>,
}

impl Flows {
    /// No flows over resources of the given capacities (units per second; 0 counts as 1).
    pub fn new(capacities: impl IntoIterator<Item = u64>) -> Self {
        let resources =
            capacities.into_iter().map(|c| Resource { capacity: c.max(1), ..Resource::default() }).collect();
        Self { resources, many: MANY, ..Self::default() }
    }

    /// Starts a flow of `bytes` at time `now`; its rate is set by the next [`Self::solve`].
    /// Every flow needs at least one use.
    pub fn start(&mut self, now: u64, bytes: u64, uses: &[Use], tag: u32) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            self.ends.places.push(UNUSED);
            u32::try_from(self.flows.len() - 1).unwrap_or(u32::MAX)
        });
        let flow = &mut self.flows[id as usize];
        flow.work = u128::from(bytes) * WORK_PER_BYTE;
        (flow.rate, flow.next, flow.most) = (0, 1, 0);
        flow.since = now;
        flow.tag = tag;
        flow.uses.clear();
        for &(resource, weight) in uses {
            // Two uses of one resource (a fork over one link) are one of the summed weight.
            if let Some(same) = flow.uses.iter_mut().find(|u| u.0 == resource) {
                same.1 += weight;
                continue;
            }
            let list = &mut self.resources[resource as usize];
            let slot = u32::try_from(flow.uses.len()).unwrap_or(u32::MAX);
            flow.uses.push((resource, weight, u32::try_from(list.flows.len()).unwrap_or(u32::MAX)));
            list.flows.push((id, slot));
        }
        for &(resource, weight, _) in &flow.uses {
            self.resources[resource as usize].weight += u128::from(weight);
        }
        self.started.push(id);
        id
    }

    /// The flow that ends first if nothing changes, and when, in ps; flows started since the last [`Self::solve`] are
    /// left out.
    pub fn next(&self) -> Option<(u64, u32)> {
        self.ends.heap.first().copied()
    }

    /// Ends a flow and says whose it was.
    pub fn end(&mut self, id: u32) -> u32 {
        self.ends.remove(id);
        let flow = &mut self.flows[id as usize];
        let tag = flow.tag;
        let (uses, rate) = (std::mem::take(&mut flow.uses), u128::from(flow.rate));
        for &(resource, weight, position) in &uses {
            let list = &mut self.resources[resource as usize];
            list.used -= u128::from(weight) * rate;
            list.weight -= u128::from(weight);
            list.flows.swap_remove(position as usize);
            if let Some(&(moved, slot)) = list.flows.get(position as usize) {
                self.flows[moved as usize].uses[slot as usize].2 = position;
            }
            // Who is not held back by it does not notice.
            if list.full > 0 {
                self.mark(resource);
            }
        }
        self.free.push(id);
        tag
    }

    /// Takes some of a resource's capacity away; what is left never falls below 1.
    pub fn hold(&mut self, resource: u32, amount: u64) {
        let list = &mut self.resources[resource as usize];
        list.held = list.held.saturating_add(amount);
        self.mark(resource);
    }

    /// Gives back what [`Self::hold`] took.
    pub fn release(&mut self, resource: u32, amount: u64) {
        let list = &mut self.resources[resource as usize];
        list.held = list.held.saturating_sub(amount);
        self.mark(resource);
    }

    /// A resource is to be solved.
    fn mark(&mut self, resource: u32) {
        if !std::mem::replace(&mut self.resources[resource as usize].dirty, true) {
            self.dirty.push(resource);
        }
    }

    /// Sets the rates of all flows that the changes since the last call can touch, from `now` on.
    pub fn solve(&mut self, now: u64) {
        self.solve_apart(now);
        if self.dirty.is_empty() {
            return;
        }
        if self.flows.len() - self.free.len() >= self.many && self.solve_near(now) {
            return;
        }
        self.stamp = self.stamp.wrapping_add(1);
        while let Some(start) = self.dirty.pop() {
            self.resources[start as usize].dirty = false;
            if self.resources[start as usize].seen == self.stamp {
                continue;
            }
            self.find_component(start);
            self.fill(false);
            self.settle(now);
        }
    }

    /// Solves what changes no flow but its own.
    fn solve_apart(&mut self, now: u64) {
        for index in 0..self.started.len() {
            self.begin(self.started[index], now);
        }
        self.started.clear();
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&resource| !self.solve_alone(resource, now));
        self.dirty = dirty;
    }

    /// Gives a flow the rate that resources of its own leave it, where what it shares with others has room for that and holds
    /// nobody back; else leaves it to be solved.
    #[inline]
    fn begin(&mut self, id: u32, now: u64) {
        let flow = &self.flows[id as usize];
        // Ended before it had a rate, and perhaps started again.
        if flow.uses.is_empty() || flow.rate > 0 {
            return;
        }
        self.looked_at += flow.uses.len() as u64;
        let alone = |&(r, weight, _): &(u32, u64, u32)| weight > 0 && self.resources[r as usize].flows.len() == 1;
        let share = |&(r, weight, _): &(u32, u64, u32)| self.resources[r as usize].alone(weight);
        let level = flow.uses.iter().filter(|used| alone(used)).map(share).min();
        // Nobody takes more of what has room at the rate that its own resources leave it.
        let most = level.unwrap_or(u64::MAX);
        let free = |&(r, weight, _): &(u32, u64, u32)| {
            let resource = &self.resources[r as usize];
            let more = u128::from(weight) * u128::from(most);
            weight > 0 && !resource.dirty && resource.full == 0 && resource.has_room(more)
        };
        if let Some(level) = level.filter(|_| flow.uses.iter().all(|used| alone(used) || free(used))) {
            return self.take_alone(id, now, level);
        }
        let tight: SmallVec<[u32; 6]> = flow.uses.iter().filter(|used| !free(used)).map(|used| used.0).collect();
        tight.into_iter().for_each(|r| self.mark(r));
    }

    /// Gives a flow a rate from now on.
    fn set_rate(&mut self, id: u32, now: u64, rate: u64) {
        let flow = &mut self.flows[id as usize];
        for &(r, weight, _) in &flow.uses {
            let used = &mut self.resources[r as usize].used;
            *used = *used + u128::from(weight) * u128::from(rate) - u128::from(weight) * u128::from(flow.rate);
        }
        let end = flow.set_rate(now, rate);
        self.ends.set(id, end);
    }

    /// Solves a resource that has room and holds nobody back any more, or one flow that shares nothing of what it uses: as
    /// filling does. Whether it was one.
    #[inline]
    fn solve_alone(&mut self, start: u32, now: u64) -> bool {
        let resource = &self.resources[start as usize];
        // Solved with the other resources of its flow.
        if !resource.dirty {
            return true;
        }
        self.looked_at += resource.flows.len() as u64;
        let holds = |&(id, _): &(u32, u32)| {
            let rate = self.flows[id as usize].rate;
            rate == 0 || rate == resource.full
        };
        if resource.flows.is_empty() || resource.has_room(0) && !resource.flows.iter().any(holds) {
            let resource = &mut self.resources[start as usize];
            (resource.dirty, resource.full) = (false, 0);
            return true;
        }
        let [(id, _)] = resource.flows[..] else { return false };
        let flow = &self.flows[id as usize];
        if flow.uses.iter().any(|&(r, weight, _)| weight == 0 || self.resources[r as usize].flows.len() > 1) {
            return false;
        }
        let level = flow.uses.iter().map(|&(r, weight, _)| self.resources[r as usize].alone(weight)).min();
        self.take_alone(id, now, level.unwrap_or(1));
        true
    }

    /// Gives a flow a rate, and says so of the resources that only it uses.
    fn take_alone(&mut self, id: u32, now: u64, level: u64) {
        for &(r, weight, _) in &self.flows[id as usize].uses {
            let resource = &mut self.resources[r as usize];
            if resource.flows.len() == 1 {
                resource.dirty = false;
                resource.full = if resource.alone(weight) == level { level } else { 0 };
                self.starved |= resource.held == 0 && resource.left() << 20 < u128::from(weight);
            }
        }
        if self.flows[id as usize].rate != level {
            self.set_rate(id, now, level);
        }
    }

    /// Solves the flows near the changes, if they stay few.
    fn solve_near(&mut self, now: u64) -> bool {
        self.stamp = self.stamp.wrapping_add(1);
        self.component.clear();
        self.members.clear();
        self.joining.clear();
        for &r in &self.dirty {
            self.resources[r as usize].seen = self.stamp;
            self.component.push(r);
            // Who is new here, or was stopped here.
            let resource = &self.resources[r as usize];
            let stopped = |&&(id, _): &&(u32, u32)| {
                let rate = self.flows[id as usize].rate;
                rate == 0 || rate == resource.full
            };
            self.joining.extend(resource.flows.iter().filter(stopped).map(|f| f.0));
        }
        for _ in 0..JOINS {
            for &id in &self.joining {
                let flow = &mut self.flows[id as usize];
                if std::mem::replace(&mut flow.seen, self.stamp) == self.stamp {
                    continue;
                }
                self.members.push(id);
                if flow.most == 0 {
                    let alone = |&(r, weight, _): &(u32, u64, u32)| self.resources[r as usize].most(weight);
                    flow.most = flow.uses.iter().map(alone).min().unwrap_or(u64::MAX);
                }
                let rises = u128::from(flow.most.saturating_sub(flow.rate));
                for &(r, weight, _) in &flow.uses {
                    let resource = &mut self.resources[r as usize];
                    if resource.seen == self.stamp || resource.stays_free(u128::from(weight) * rises, self.stamp) {
                        continue;
                    }
                    resource.seen = self.stamp;
                    self.component.push(r);
                }
            }
            if 2 * self.members.len() > self.flows.len() - self.free.len() {
                return false;
            }
            self.fill(true);
            if self.joining.is_empty() {
                for r in self.dirty.drain(..) {
                    self.resources[r as usize].dirty = false;
                }
                self.settle(now);
                return true;
            }
        }
        false
    }

    /// Collects the resources and flows connected to `start`.
    fn find_component(&mut self, start: u32) {
        self.component.clear();
        self.members.clear();
        self.resources[start as usize].seen = self.stamp;
        self.component.push(start);
        let mut next = 0;
        while let Some(&resource) = self.component.get(next) {
            next += 1;
            for index in 0..self.resources[resource as usize].flows.len() {
                let (id, _) = self.resources[resource as usize].flows[index];
                let flow = &mut self.flows[id as usize];
                if flow.seen == self.stamp {
                    continue;
                }
                flow.seen = self.stamp;
                self.members.push(id);
                for &(other, _, _) in &flow.uses {
                    let other_resource = &mut self.resources[other as usize];
                    if other_resource.seen != self.stamp {
                        other_resource.seen = self.stamp;
                        self.component.push(other);
                    }
                }
            }
        }
    }

    /// Progressive filling of the members over the component; `near`: beside the other flows there, which keep
    /// their rates. Those that cannot keep them are in [`Self::joining`] afterwards; what was found is
    /// of use only where there are none.
    fn fill(&mut self, near: bool) {
        self.begin_filling();
        if near {
            self.find_beside();
        }
        let ordered = self.component.len() > SCANNED;
        self.first_shares(ordered);
        self.beside.sort_unstable();
        let mut kept = 0;
        let mut open = self.component.len();
        let mut going = self.members.len() + self.beside.len();
        while going > 0 {
            let share = if ordered { self.least_share() } else { self.least_open(&mut open) };
            let known = self.beside.get(kept).map(|b| b.0);
            let Some(level) = share.into_iter().chain(known).min() else { break };
            self.stopping.clear();
            // Flows stop where a resource is full at this level,
            if share == Some(level) {
                self.stop_where_full(level, ordered);
            }
            // or where a resource stops them that nothing else has touched.
            kept = self.stop_beside(level, kept);
            going -= self.stopping.len();
            self.take_shares(level);
        }
    }

    /// Begins a filling: the component's resources are empty, and all members open on them.
    #[inline]
    fn begin_filling(&mut self) {
        self.filling = self.filling.wrapping_add(1);
        self.looked_at += (self.component.len() + self.members.len()) as u64;
        self.joining.clear();
        self.heap.clear();
        self.beside.clear();
        for &r in &self.component {
            let resource = &mut self.resources[r as usize];
            resource.left = resource.left();
            (resource.weights, resource.fixed, resource.filled, resource.share) = (0, 0, 0, 0);
        }
        for &id in &self.members {
            for &(r, weight, _) in &self.flows[id as usize].uses {
                let resource = &mut self.resources[r as usize];
                if resource.seen == self.stamp {
                    resource.weights += u128::from(weight);
                }
            }
        }
    }

    /// The shares before any flow has stopped; `ordered`: in the heap too.
    #[inline]
    fn first_shares(&mut self, ordered: bool) {
        for &r in &self.component {
            let resource = &mut self.resources[r as usize];
            if resource.weights > 0 {
                resource.raise_share();
                self.starved |= resource.held == 0 && (resource.left << 20) < resource.weights;
                if ordered {
                    self.heap.push(Reverse((resource.share, r)));
                }
            }
        }
    }

    /// Stops the open flows of the resources that are full at a level.
    #[inline]
    fn stop_where_full(&mut self, level: u64, ordered: bool) {
        let mut full = std::mem::take(&mut self.touched);
        if ordered {
            full.clear();
            while self.least_share() == Some(level) {
                full.extend(self.heap.pop().map(|Reverse((_, r))| r));
            }
        }
        for &r in &full {
            let resource = &mut self.resources[r as usize];
            resource.filled = level;
            for &(id, _) in &resource.flows {
                let flow = &mut self.flows[id as usize];
                if flow.done == self.filling {
                    continue;
                }
                if flow.seen != self.stamp && flow.rate != level {
                    self.joining.push(id);
                }
                (flow.done, flow.next) = (self.filling, level);
                self.stopping.push(id);
            }
        }
        self.touched = full;
    }

    /// Stops the flows beside the members, from the one at `kept` on, that keep a rate up to a level because a
    /// resource elsewhere is full at it; the others join. The first with a higher rate.
    #[inline]
    fn stop_beside(&mut self, level: u64, mut kept: usize) -> usize {
        while let Some(&(rate, id)) = self.beside.get(kept).filter(|b| b.0 <= level) {
            kept += 1;
            let flow = &mut self.flows[id as usize];
            if flow.done == self.filling {
                continue;
            }
            let elsewhere = |&(r, _, _): &(u32, u64, u32)| {
                let resource = &self.resources[r as usize];
                resource.seen != self.stamp && resource.full == rate
            };
            if flow.uses.iter().any(elsewhere) {
                flow.done = self.filling;
                self.stopping.push(id);
            } else {
                self.joining.push(id);
            }
        }
        kept
    }

    /// Takes what the stopping flows use at a level out of the component's resources, and raises the shares there.
    #[inline]
    fn take_shares(&mut self, level: u64) {
        self.touched.clear();
        for &id in &self.stopping {
            for &(r, weight, _) in &self.flows[id as usize].uses {
                let resource = &mut self.resources[r as usize];
                if resource.seen == self.stamp {
                    if resource.fixed == 0 {
                        self.touched.push(r);
                    }
                    resource.fixed += u128::from(weight);
                }
            }
        }
        for &r in &self.touched {
            let resource = &mut self.resources[r as usize];
            let taken = (resource.fixed * u128::from(level)).div_ceil(u128::from(WEIGHT_ONE));
            resource.left = resource.left.saturating_sub(taken);
            resource.weights -= resource.fixed;
            resource.fixed = 0;
            if resource.weights > 0 {
                resource.raise_share();
            }
        }
    }

    /// Notes the other flows on the component.
    fn find_beside(&mut self) {
        for &r in &self.component {
            let resource = &mut self.resources[r as usize];
            self.looked_at += resource.flows.len() as u64;
            for &(id, slot) in &resource.flows {
                let flow = &mut self.flows[id as usize];
                if flow.seen == self.stamp {
                    continue;
                }
                resource.weights += u128::from(flow.uses[slot as usize].1);
                if std::mem::replace(&mut flow.beside, self.filling) != self.filling {
                    self.beside.push((flow.rate, id));
                }
            }
        }
    }

    /// The least share of the component's resources with flows that have not stopped, and in [`Self::touched`] those that have
    /// it. The first `open` of the component are asked, and those without such flows are moved behind them.
    #[inline]
    fn least_open(&mut self, open: &mut usize) -> Option<u64> {
        self.touched.clear();
        let mut least = u64::MAX;
        let mut at = 0;
        while at < *open {
            let r = self.component[at];
            let resource = &self.resources[r as usize];
            if resource.weights == 0 {
                *open -= 1;
                self.component.swap(at, *open);
                continue;
            }
            if resource.share < least {
                least = resource.share;
                self.touched.clear();
            }
            if resource.share == least {
                self.touched.push(r);
            }
            at += 1;
        }
        (*open > 0).then_some(least)
    }

    /// The same by the heap, but for those that have it: shares only rise, so what it has is never too high.
    fn least_share(&mut self) -> Option<u64> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let Reverse((share, r)) = *top;
            let resource = &self.resources[r as usize];
            if resource.weights == 0 {
                PeekMut::pop(top);
            } else if resource.share > share {
                *top = Reverse((resource.share, r));
            } else {
                return Some(share);
            }
        }
    }

    /// Takes over what was found for the members.
    fn settle(&mut self, now: u64) {
        for &r in &self.component {
            let resource = &mut self.resources[r as usize];
            resource.full = resource.filled;
        }
        for index in 0..self.members.len() {
            let id = self.members[index];
            let flow = &self.flows[id as usize];
            if flow.rate != flow.next {
                let rate = flow.next;
                self.set_rate(id, now, rate);
            }
        }
    }

    /// The present rate of a flow, in payload bytes per second.
    pub fn rate(&self, id: u32) -> u64 {
        self.flows[id as usize].rate
    }
}

/// The rate at which flows of so much weight fill a capacity; at least 1 byte/s, so that everything ends.
fn share(capacity: u128, weights: u128) -> u64 {
    let scaled = capacity << 20;
    let share = match (u64::try_from(scaled), u64::try_from(weights)) {
        (Ok(scaled), Ok(weights)) => scaled / weights,
        _ => u64::try_from(scaled / weights).unwrap_or(u64::MAX),
    };
    share.max(1)
}

impl Resource {
    /// Its capacity without what is taken out of it.
    fn left(&self) -> u128 {
        u128::from(self.capacity.saturating_sub(self.held).max(1))
    }

    /// A rate that no flow of a weight exceeds, whatever is held.
    fn most(&self, weight: u64) -> u64 {
        share(self.capacity.into(), weight.max(1).into())
    }

    /// Whether it has room for all that flows which are filled anew may take more of it, one of them now known to take so much
    /// more: then it holds nobody back.
    fn stays_free(&mut self, more: u128, stamp: u32) -> bool {
        if std::mem::replace(&mut self.more_stamp, stamp) != stamp {
            self.more = 0;
        }
        self.more += more;
        self.full == 0 && self.has_room(self.more)
    }

    /// The rate of a flow that has it for itself.
    fn alone(&self, weight: u64) -> u64 {
        share(self.left(), weight.into())
    }

    /// Whether filling would not find it full if its flows took so much more, scaled by [`WEIGHT_ONE`]: shares are rounded down
    /// by less than a weight each, and what each of the levels takes is rounded up.
    fn has_room(&self, more: u128) -> bool {
        let rounds = (self.flows.len() as u128 + 1) << 20;
        self.used + more + self.weight + rounds < self.left() << 20
    }

    /// The rate at which the flows that are still open would fill it. Stopping flows below it raises it, or leaves it: rounding
    /// may not sink it.
    fn raise_share(&mut self) {
        self.share = self.share.max(share(self.left, self.weights));
    }
}

impl Flow {
    /// Changes its rate; when it will end.
    fn set_rate(&mut self, now: u64, rate: u64) -> u64 {
        let done = u128::from(self.rate) * u128::from(now - self.since);
        self.work = self.work.saturating_sub(done);
        (self.since, self.rate) = (now, rate);
        let time = match u64::try_from(self.work) {
            Ok(work) => work.div_ceil(rate),
            Err(_) => u64::try_from(self.work.div_ceil(u128::from(rate))).unwrap_or(u64::MAX),
        };
        now.saturating_add(time)
    }
}

impl Ends {
    /// Children of a node: fewer levels than with two.
    const CHILDREN: usize = 4;

    fn set(&mut self, id: u32, end: u64) {
        let mut at = self.places[id as usize] as usize;
        if at >= self.heap.len() {
            at = self.heap.len();
            self.heap.push((end, id));
        }
        self.heap[at].0 = end;
        self.sift(at);
    }

    fn remove(&mut self, id: u32) {
        let at = std::mem::replace(&mut self.places[id as usize], UNUSED) as usize;
        if at < self.heap.len() {
            self.heap.swap_remove(at);
            if at < self.heap.len() {
                self.sift(at);
            }
        }
    }

    /// Moves what is at a place to where it belongs.
    fn sift(&mut self, mut at: usize) {
        let moving = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / Self::CHILDREN;
            if self.heap[parent] <= moving {
                break;
            }
            self.put(at, self.heap[parent]);
            at = parent;
        }
        loop {
            let first = at * Self::CHILDREN + 1;
            let children = first..(first + Self::CHILDREN).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]).filter(|&child| self.heap[child] < moving)
            else {
                break;
            };
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, moving);
    }

    fn put(&mut self, at: usize, entry: (u64, u32)) {
        self.heap[at] = entry;
        self.places[entry.1 as usize] = u32::try_from(at).unwrap_or(UNUSED);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    /// Textbook progressive filling in floats: one flow after another, no components.
    fn reference(capacities: &[u64], flows: &[Vec<Use>]) -> Vec<f64> {
        let mut rates = vec![None; flows.len()];
        while rates.iter().any(Option::is_none) {
            let share = |r: usize, rates: &[Option<f64>]| {
                let (mut left, mut weights) = (capacities[r] as f64, 0.0);
                for (flow, rate) in flows.iter().zip(rates) {
                    for &(_, w) in flow.iter().filter(|u| u.0 as usize == r) {
                        match rate {
                            Some(rate) => left -= rate * w as f64 / WEIGHT_ONE as f64,
                            None => weights += w as f64 / WEIGHT_ONE as f64,
                        }
                    }
                }
                (weights > 0.0).then(|| left.max(0.0) / weights)
            };
            let shares: Vec<_> = (0..capacities.len()).map(|r| share(r, &rates)).collect();
            let level = shares.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            for (index, flow) in flows.iter().enumerate() {
                let stops = flow.iter().any(|u| shares[u.0 as usize].is_some_and(|s| s <= level * (1.0 + 1e-12)));
                if rates[index].is_none() && stops {
                    rates[index] = Some(level);
                }
            }
        }
        rates.into_iter().flatten().collect()
    }

    fn solve(capacities: &[u64], flows: &[Vec<Use>]) -> Vec<u64> {
        let mut solver = Flows::new(capacities.iter().copied());
        let ids: Vec<u32> = flows.iter().map(|uses| solver.start(0, 1000, uses, 0)).collect();
        solver.solve(0);
        ids.iter().map(|&id| solver.rate(id)).collect()
    }

    fn network() -> impl Strategy<Value = (Vec<u64>, Vec<Vec<Use>>)> {
        let capacities = prop::collection::vec(1_000_000_u64..500_000_000_000, 1..8);
        capacities.prop_flat_map(|capacities| {
            let uses =
                (0..u32::try_from(capacities.len()).unwrap(), 1_u64..4).prop_map(|(r, w)| (r, w * WEIGHT_ONE / 2));
            let flow = prop::collection::vec(uses, 1..5);
            (Just(capacities), prop::collection::vec(flow, 1..24))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Goal: the fast solver agrees with the textbook, to the floor of each round.
        #[test]
        fn rates_are_those_of_the_textbook((capacities, flows) in network()) {
            for (fast, slow) in solve(&capacities, &flows).iter().zip(reference(&capacities, &flows)) {
                prop_assert!((*fast as f64 - slow).abs() <= 64.0 + slow * 1e-6, "{fast} {slow}");
            }
        }

        /// Goal: order, incremental solving and counting m equal flows as one change nothing.
        #[test]
        fn order_history_and_folding_change_nothing((capacities, flows) in network(), m in 2_u64..9) {
            let expected = solve(&capacities, &flows);
            let mut backwards: Vec<_> = flows.clone();
            backwards.reverse();
            let mut reversed = solve(&capacities, &backwards);
            reversed.reverse();
            prop_assert_eq!(&reversed, &expected);

            let mut solver = Flows::new(capacities.iter().copied());
            let mut extra = Vec::new();
            let mut ids = Vec::new();
            for (time, uses) in flows.iter().enumerate() {
                extra.push(solver.start(time as u64, 5000, &uses[..1], 0));
                ids.push(solver.start(time as u64, u64::MAX, uses, 0));
                solver.solve(time as u64);
            }
            for id in extra {
                prop_assert_eq!(solver.end(id), 0);
            }
            solver.solve(1000);
            prop_assert_eq!(ids.iter().map(|&id| solver.rate(id)).collect::<Vec<_>>(), expected.clone());

            let copies: Vec<_> = flows.iter().flat_map(|f| std::iter::repeat_n(f.clone(), m as usize)).collect();
            let folded: Vec<Vec<Use>> =
                flows.iter().map(|f| f.iter().map(|&(r, w)| (r, w * m)).collect()).collect();
            let (unfolded, folded) = (solve(&capacities, &copies), solve(&capacities, &folded));
            for (index, rate) in folded.iter().enumerate() {
                prop_assert_eq!(*rate, unfolded[index * m as usize]);
            }
        }
    }

    /// What changes, where, and what a flow uses.
    type Change = (usize, prop::sample::Index, Vec<(u32, u64)>);

    /// Goal: after any changes, solving near them, or apart, gives what filling all from the start gives. Both ways are taken.
    #[test]
    fn near_is_as_good_as_all() {
        let cases = 300;
        let (apart, nearby) = (Cell::new(0), Cell::new(0));
        let uses = prop::collection::vec((0_u32..60, 1_u64..4), 1..4);
        let change = (0_usize..8, any::<prop::sample::Index>(), uses);
        let strategy = (
            prop::collection::vec(1_000_000_u64..500_000_000, 20..60),
            prop::collection::vec(100_000_u64..100_000_000, 120),
            prop::collection::vec(change, 20..120),
        );
        let check = |(shared, own, changes): (Vec<u64>, Vec<u64>, Vec<Change>)| {
            let resources = shared.len() as u32;
            let capacities = [&shared[..], &own[..]].concat();
            let mut near = Flows { many: 0, ..Flows::new(capacities.iter().copied()) };
            let mut live: Vec<(u32, Vec<Use>)> = Vec::new();
            let mut held = vec![0; capacities.len()];
            for (time, (what, which, uses)) in changes.iter().enumerate() {
                match what {
                    0 | 1 if !live.is_empty() => {
                        let (id, _) = live.swap_remove(which.index(live.len()));
                        near.end(id);
                    }
                    2 => {
                        let r = which.index(capacities.len());
                        let amount = capacities[r] / 4;
                        if held[r] == 0 {
                            near.hold(r as u32, amount);
                        } else {
                            near.release(r as u32, amount);
                        }
                        held[r] = amount - held[r];
                    }
                    _ => {
                        // Neighbours on a line share a resource here and there.
                        let from = which.index(shared.len()) as u32;
                        let mut uses: Vec<Use> =
                            uses.iter().map(|&(r, w)| ((from + r % 3) % resources, w * WEIGHT_ONE / 2)).collect();
                        // Most have a resource of their own too, which may hold them back.
                        uses.extend((what % 4 != 3).then_some((resources + time as u32, WEIGHT_ONE)));
                        let id = near.start(time as u64, u64::MAX, &uses, 0);
                        live.push((id, uses));
                    }
                }
                near.solve_apart(time as u64);
                if near.dirty.is_empty() {
                    apart.set(apart.get() + 1);
                } else if near.solve_near(time as u64) {
                    nearby.set(nearby.get() + 1);
                } else {
                    near.many = usize::MAX;
                    near.solve(time as u64);
                }
                let mut all = Flows { many: usize::MAX, ..Flows::new(capacities.iter().copied()) };
                // What is held, if by nothing, is filled.
                held.iter().enumerate().for_each(|(r, &amount)| all.hold(r as u32, amount));
                let ids: Vec<u32> = live.iter().map(|(_, uses)| all.start(0, u64::MAX, uses, 0)).collect();
                all.solve(0);
                for (&(id, _), &other) in live.iter().zip(&ids) {
                    prop_assert_eq!(near.rate(id), all.rate(other));
                }
            }
            Ok(())
        };
        TestRunner::new(ProptestConfig::with_cases(cases)).run(&strategy, check).unwrap();
        assert!(apart.get() > 5 * cases && nearby.get() > 5 * cases, "{apart:?} {nearby:?}");
    }

    /// Goal: a transfer takes its time to the picosecond, also when its rate changes on the way.
    #[test]
    fn work_is_exact() {
        let mut flows = Flows::new([1_000_000_000]);
        let a = flows.start(0, 1000, &[(0, WEIGHT_ONE)], 7);
        flows.solve(0);
        assert_eq!(flows.next(), Some((1_000_000, a)));
        let b = flows.start(250_000, 1000, &[(0, WEIGHT_ONE)], 8);
        flows.solve(250_000);
        assert_eq!(flows.next(), Some((1_750_000, a)));
        assert_eq!(flows.end(a), 7);
        assert_eq!(flows.next(), Some((2_250_000, b)));
        flows.solve(1_750_000);
        assert_eq!(flows.next(), Some((2_000_000, b)));
        assert_eq!((flows.end(b), flows.next()), (8, None));
    }

    proptest! {
        /// Goal: whatever moves or goes, the first is the first of all.
        #[test]
        fn ends_are_in_order(changes in prop::collection::vec((0_u32..40, any::<Option<u16>>()), 1..200)) {
            let mut ends = Ends { heap: Vec::new(), places: vec![UNUSED; 40] };
            let mut plain = std::collections::BTreeMap::new();
            for (id, end) in changes {
                match end.map(u64::from) {
                    Some(end) => {
                        ends.set(id, end);
                        plain.insert(id, end);
                    }
                    None => {
                        ends.remove(id);
                        plain.remove(&id);
                    }
                }
                prop_assert_eq!(ends.heap.first().copied(), plain.iter().map(|(&id, &end)| (end, id)).min());
            }
        }
    }
}
