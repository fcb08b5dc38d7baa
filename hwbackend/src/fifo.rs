//! What the lanes of the host executor share: bounded FIFOs with credits, and counters of signals.
//!
//! Locks come from the module `sync` beside this one, so that a test can put those of a model checker
//! in their place (`tests/fifo.rs`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::sync::{AtomicBool, Condvar, Mutex, Ordering, PoisonError};

/// How often a waiter looks whether it should stop; what it waits for wakes it at once.
const PAUSE: Duration = Duration::from_millis(20);

/// Until when to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until<'a> {
    pub(crate) deadline: Instant,
    /// Set when another lane failed.
    pub(crate) stop: &'a AtomicBool,
}

impl Until<'_> {
    fn over(self) -> bool {
        Instant::now() >= self.deadline || self.stop.load(Ordering::Relaxed)
    }
}

/// A bounded FIFO whose slots are freed by the receivers when they are done with them.
#[derive(Debug)]
pub(crate) struct Fifo {
    slots: Mutex<Slots>,
    depth: u64,
    changed: Condvar,
}

/// The slots in use, oldest first.
#[derive(Debug)]
struct Slots {
    /// What each sender posted, until all have: then the combined slice alone.
    slots: VecDeque<Vec<Option<Vec<u64>>>>,
    /// Slices that all receivers are done with.
    gone: u64,
    /// Slices posted, by sender.
    sent: Vec<u64>,
    /// Slices done with, by receiver.
    received: Vec<u64>,
}

impl Slots {
    fn slot(&mut self, slice: u64) -> Option<&mut Vec<Option<Vec<u64>>>> {
        self.slots.get_mut(usize::try_from(slice - self.gone).ok()?)
    }

    /// Takes a sender's slice, if there is credit for it; the last one combines them, in the
    /// order of senders, as a switch would.
    fn post(&mut self, sender: usize, depth: u64, data: &mut Vec<u64>, add: &dyn Fn(u64, u64) -> u64) -> Option<()> {
        let slice = self.sent[sender];
        if slice - self.gone >= depth {
            return None;
        }
        self.sent[sender] += 1;
        let senders = self.sent.len();
        if self.slot(slice).is_none() {
            self.slots.push_back(vec![None; senders]);
        }
        let slot = self.slot(slice)?;
        slot[sender] = Some(std::mem::take(data));
        if slot.iter().all(Option::is_some) {
            let sum = slot.drain(..).flatten().reduce(|a, b| a.into_iter().zip(b).map(|(a, b)| add(a, b)).collect());
            slot.push(sum);
        }
        Some(())
    }

    /// What a receiver gets next, if all senders have posted it.
    fn front(&mut self, receiver: usize) -> Option<Vec<u64>> {
        let slice = self.received[receiver];
        if self.sent.iter().any(|&sent| sent <= slice) {
            return None;
        }
        self.slot(slice)?.first()?.clone()
    }

    fn free(&mut self, receiver: usize) {
        self.received[receiver] += 1;
        while self.received.iter().all(|&r| r > self.gone) {
            self.slots.pop_front();
            self.gone += 1;
        }
    }
}

impl Fifo {
    /// A FIFO of so many senders, receivers and slots.
    pub(crate) fn new(senders: usize, receivers: usize, depth: u32) -> Self {
        let slots = Slots { slots: VecDeque::new(), gone: 0, sent: vec![0; senders], received: vec![0; receivers] };
        Self { slots: Mutex::new(slots), depth: u64::from(depth), changed: Condvar::new() }
    }

    /// Posts a sender's next slice once there is credit; what several senders posted is combined by
    /// `add`. `None` when there was none in time.
    pub(crate) fn post(
        &self,
        sender: usize,
        mut data: Vec<u64>,
        add: &dyn Fn(u64, u64) -> u64,
        until: Until<'_>,
    ) -> Option<()> {
        self.wait(until, |slots| slots.post(sender, self.depth, &mut data, add))?;
        self.changed.notify_all();
        Some(())
    }

    /// A receiver's next slice, whose slot stays taken. `None` when it did not come in time.
    pub(crate) fn front(&self, receiver: usize, until: Until<'_>) -> Option<Vec<u64>> {
        self.wait(until, |slots| slots.front(receiver))
    }

    /// A receiver is done with its oldest slice.
    pub(crate) fn free(&self, receiver: usize) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).free(receiver);
        self.changed.notify_all();
    }

    fn wait<T>(&self, until: Until<'_>, mut ready: impl FnMut(&mut Slots) -> Option<T>) -> Option<T> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = ready(&mut slots) {
                return Some(value);
            }
            if until.over() {
                return None;
            }
            slots = self.changed.wait_timeout(slots, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How many instructions of a lane have signalled.
#[derive(Debug)]
pub(crate) struct Counter {
    value: Mutex<u64>,
    changed: Condvar,
}

impl Counter {
    /// Nothing has signalled.
    pub(crate) fn new() -> Self {
        Self { value: Mutex::new(0), changed: Condvar::new() }
    }

    /// One more.
    pub(crate) fn signal(&self) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Waits until there are `count` at least; `false` when there were not in time.
    pub(crate) fn wait(&self, count: u64, until: Until<'_>) -> bool {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        while *value < count {
            if until.over() {
                return false;
            }
            value = self.changed.wait_timeout(value, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
