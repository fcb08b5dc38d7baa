//! What the threads of hosts do for a connection through the network.
//!
//! The sender's proxy works on each slice that it is handed and transfers it, once the receiver has a place for it. The
//! receiver's proxy works on each that has arrived and hands it over. A slice that is sent before there is a place waits
//! for it where it arrived.

use super::observe::Observer;
use super::state::{Handed, Landed, Owner, Simulation, Slot, wake_all};
use super::uses::Section;
use crate::units::SimTime;

impl<O: Observer> Simulation<'_, '_, O> {
    /// Hands over the slice at the front of a proxy's queue, if the proxy has done its work on it and all is there.
    pub(super) fn deliver(&mut self, id: u32) {
        let spec = &self.instance.conns[id as usize];
        let conn = &mut self.conns[id as usize];
        let (Some(sent), true, 1..) = (conn.sending, conn.carried, conn.posted) else { return };
        let Some(Handed { bytes, since, posted, .. }) = conn.queue.pop_front() else { return };
        let behind = if posted > sent { spec.shorter(bytes) } else { 0 };
        let at = self.now.saturating_add(behind);
        (conn.sending, conn.carried) = (None, false);
        conn.posted -= 1;
        let slice = conn.arrived;
        conn.slot(slice).acked = at.saturating_add(spec.proxy.map_or(0, |proxy| proxy.ack.0));
        conn.arrived += 1;
        conn.landed.push_back(Landed { bytes, since, at: self.now, behind });
        wake_all(&mut conn.senders, &mut self.ready);
        self.take(id);
    }

    /// The turn of the receiver's proxy: it works on the next slice that has arrived.
    fn take(&mut self, id: u32) {
        let spec = &self.instance.conns[id as usize];
        let conn = &mut self.conns[id as usize];
        if spec.take == 0 || spec.uses.of(Section::Taking).is_empty() {
            conn.taken = conn.landed.len();
            self.hand_over(id);
        } else if !conn.taking && conn.taken < conn.landed.len() {
            conn.taking = true;
            self.start_flow(spec.take, spec.uses.of(Section::Taking), Owner::Take(id));
        }
    }

    /// The receiver's proxy is done with its work on a slice.
    pub(super) fn took(&mut self, id: u32) {
        let conn = &mut self.conns[id as usize];
        conn.landed[conn.taken].at = self.now;
        conn.taken += 1;
        conn.taking = false;
        self.hand_over(id);
        self.take(id);
    }

    /// Hands over what has arrived and has a place.
    pub(super) fn hand_over(&mut self, id: u32) {
        let spec = &self.instance.conns[id as usize];
        let conn = &mut self.conns[id as usize];
        let flush = spec.proxy.map_or(0, |proxy| proxy.flush.0);
        while conn.taken > 0
            && let Some(free) = conn.credit(conn.ended)
            && let Some(Landed { bytes, since, at, behind }) = conn.landed.pop_front()
        {
            conn.taken -= 1;
            // The receiver's end knows of a free place as long before the sender's as a word of it takes.
            let at = at.saturating_add(behind).saturating_add(spec.latency.0).max(free.saturating_sub(spec.credit.0));
            let there = at.saturating_add(if bytes > 0 { flush } else { 0 });
            for _ in &conn.senders {
                self.observer.message(id, bytes, SimTime(since), SimTime(there));
            }
            let slice = conn.ended;
            let head = if conn.produced > slice { conn.slot(slice).head } else { there };
            *conn.slot(slice) = Slot { head, tail: there, ..*conn.slot(slice) };
            conn.produced = conn.produced.max(slice + 1);
            conn.ended = slice + 1;
            wake_all(&mut conn.receivers, &mut self.ready);
        }
    }

    /// The first lines of what a proxy sends are on their way, if it has done its work on the slice.
    pub(super) fn stream(&mut self, id: u32) {
        let spec = &self.instance.conns[id as usize];
        let head = self.now.saturating_add(spec.first_line());
        let conn = &mut self.conns[id as usize];
        let is_next = conn.produced == conn.arrived && conn.credit(conn.arrived).is_some_and(|free| free <= self.now);
        if spec.streaming && conn.sending.is_some() && conn.posted > 0 && is_next {
            let slice = conn.arrived;
            conn.slot(slice).head = head;
            conn.produced += 1;
            wake_all(&mut conn.receivers, &mut self.ready);
        }
    }

    /// A proxy's turn: it works on the next slice, and sends the first. The work overlaps the transfers
    /// before it, and those of other connections: only the first of a burst shows its cost.
    pub(super) fn proxy(&mut self, id: u32) {
        let instance = self.instance;
        let spec = &instance.conns[id as usize];
        while let conn = &mut self.conns[id as usize]
            && !conn.posting
            && !conn.checking
        {
            let next = conn.queue.get(conn.posted).copied();
            if conn.checked < next.map_or(conn.checks, |handed| handed.checks) {
                if let Some(work) = conn.unchecked.pop_front() {
                    conn.checking = true;
                    self.start_flow(work, spec.uses.of(Section::Posting), Owner::Check(id));
                }
                break;
            }
            let Some(Handed { bytes, .. }) = next else { break };
            let work = spec.work(bytes);
            if work == 0 || spec.uses.of(Section::Posting).is_empty() {
                conn.is_posted(self.now);
                continue;
            }
            conn.posting = true;
            self.start_flow(work, spec.uses.of(Section::Posting), Owner::Post(id));
        }
        let conn = &mut self.conns[id as usize];
        let Some(&Handed { bytes, since, checks, posted }) = conn.queue.front() else { return };
        let waits = spec.overlap.is_none() && posted > self.now;
        if conn.sending.is_some() || waits || conn.checked < checks {
            return;
        }
        let eager = spec.eager > 0 && bytes <= spec.eager;
        let known = since.saturating_add(spec.announce.0);
        match if eager { Some(0) } else { conn.credit(conn.arrived).map(|free| free.max(known)) } {
            Some(free) if free > self.now => return self.wake(Owner::Proxy(id), free),
            Some(_) => {}
            // Who frees it asks again.
            None => return,
        }
        conn.sending = Some(self.now);
        self.start_flow(bytes.max(1), spec.uses.of(Section::Transfer), Owner::Proxy(id));
        self.stream(id);
    }
}
