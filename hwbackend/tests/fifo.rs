//! Goal: the FIFO of the host executor hands over every slice once, in order, never holds more than its
//! slots, and wakes whoever can go on.
//! Method: its own source with the locks of loom, which runs every interleaving; loom's waits have no
//! time limit, so a wake-up that is missing is a deadlock, which loom reports.

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex};
    pub(crate) use std::sync::PoisonError;
}

#[path = "../src/fifo.rs"]
mod source;

use source::{Counter, Fifo, Until};
use sync::{AtomicBool, Ordering};

fn add(a: u64, b: u64) -> u64 {
    a + b
}

/// `senders` post `slices` slices each, `receivers` take them all.
fn check(senders: usize, receivers: usize, depth: u32, slices: u64) {
    let mut model = loom::model::Builder::new();
    // Two forced switches show nearly all faults (Musuvathi and Qadeer, "Iterative context bounding",
    // PLDI 2007), and keep this within seconds.
    model.preemption_bound = Some(2);
    model.check(move || {
        let fifo = Arc::new(Fifo::new(senders, receivers, depth));
        let stop = Arc::new(AtomicBool::new(false));
        let in_flight = Arc::new(AtomicUsize::new(0));
        let deadline = Instant::now() + Duration::from_secs(600);
        let posting: Vec<_> = (0..senders)
            .map(|sender| {
                let (fifo, stop, in_flight) = (Arc::clone(&fifo), Arc::clone(&stop), Arc::clone(&in_flight));
                loom::thread::spawn(move || {
                    for slice in 0..slices {
                        let until = Until { deadline, stop: &stop };
                        assert!(fifo.post(sender, vec![10 * slice + sender as u64], &add, until).is_some());
                        if senders == 1 && receivers == 1 {
                            in_flight.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        let receive = move |receiver: usize, fifo: &Fifo, stop: &AtomicBool, in_flight: &AtomicUsize| {
            for slice in 0..slices {
                let until = Until { deadline, stop };
                let sum: u64 = (0..senders as u64).map(|sender| 10 * slice + sender).sum();
                assert_eq!(fifo.front(receiver, until), Some(vec![sum]), "slice {slice}");
                // A slot that is looked at is not given to the next slice.
                assert!(in_flight.load(Ordering::SeqCst) <= (slice as usize) + depth as usize);
                fifo.free(receiver);
            }
        };
        let others: Vec<_> = (1..receivers)
            .map(|receiver| {
                let (fifo, stop, in_flight) = (Arc::clone(&fifo), Arc::clone(&stop), Arc::clone(&in_flight));
                loom::thread::spawn(move || receive(receiver, &fifo, &stop, &in_flight))
            })
            .collect();
        receive(0, &fifo, &stop, &in_flight);
        for thread in posting.into_iter().chain(others) {
            assert!(thread.join().is_ok());
        }
    });
}

#[test]
fn one_sender_and_one_receiver() {
    for (depth, slices) in [(1, 2), (1, 3), (2, 3)] {
        check(1, 1, depth, slices);
    }
}

#[test]
fn groups_at_an_end() {
    check(2, 1, 1, 2);
    check(1, 2, 1, 2);
}

/// Goal: who waits for a signal sees what was done before it.
#[test]
fn a_signal_wakes_who_waits() {
    loom::model(|| {
        let counter = Arc::new(Counter::new());
        let done = Arc::new(AtomicUsize::new(0));
        let (other, its) = (Arc::clone(&counter), Arc::clone(&done));
        let thread = loom::thread::spawn(move || {
            for _ in 0..2 {
                its.fetch_add(1, Ordering::Relaxed);
                other.signal();
            }
        });
        let stop = AtomicBool::new(false);
        let until = Until { deadline: Instant::now() + Duration::from_secs(600), stop: &stop };
        assert!(counter.wait(2, until));
        assert_eq!(done.load(Ordering::Relaxed), 2);
        assert!(thread.join().is_ok());
    });
}
