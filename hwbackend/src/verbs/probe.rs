//! What a NIC does, measured between two processes: latencies, costs of posts and completions, message rate, and
//! bandwidth by size and queue pairs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::alone::{Far, lines};
use super::device::{Completions, Done, Nic, Order};
use super::measured::{Kind, Measured};
use super::memory::Memory;
use super::pair::{Address, Depths, Pair, Remote, Verb};
use super::run::Verbs;
use crate::cuda::driver::Device;
use crate::exec::ExecError;
use crate::rendezvous::Group;

/// Bytes of the largest message.
const LARGEST: usize = 8 << 20;
/// Queue pairs that are measured at once, on one NIC.
const MOST_PAIRS: usize = 4;
/// Work requests under way of a queue pair, and how many of them ask for a completion: as `ib_write_bw` and NCCL.
const WINDOW: u64 = 128;
const SIGNALS: u64 = 16;
/// Of several queue pairs, every so many-th request of each asks for a completion.
const EVERY: u64 = SIGNALS / 4;
/// Time of a batch.
const BATCH: Duration = Duration::from_millis(20);
/// How often a thread looks for what it waits for before it looks at the clock.
const LOOKS: u32 = 1024;
/// Posts of a burst whose cost is measured, and the rest before their completions are looked for.
const BURST: u32 = 32;
const REST: Duration = Duration::from_millis(5);

/// What one measurement is of.
#[derive(Clone, Copy, Debug)]
struct Asked {
    kind: Kind,
    bytes: usize,
    qps: u32,
}

/// How NICs are used for some measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// One of them, by a thread that the system places.
    Alone,
    /// All of them at once.
    Together,
    /// One of them, whose writes PCIe may reorder.
    Relaxed,
    /// One of them, by a thread of another NUMA node than its.
    Far,
}

/// The plan: few sizes where it is to be quick.
fn plan(way: Way, nics: u32, quick: bool) -> Vec<Asked> {
    let one = |kind, bytes| Asked { kind, bytes, qps: 1 };
    let large: &[usize] = if quick { &[64 << 10, 1 << 20] } else { &[4096, 64 << 10, 1 << 20, LARGEST] };
    match way {
        Way::Far => return vec![one(Kind::LatencyFar, 8)],
        Way::Relaxed => return large.iter().map(|&bytes| one(Kind::BandwidthRelaxed, bytes)).collect(),
        Way::Together => {
            let together = |&bytes: &usize| Asked { kind: Kind::Bandwidth, bytes, qps: nics };
            return large.iter().map(together).collect();
        }
        Way::Alone => {}
    }
    let small: &[usize] = if quick { &[8, 4096] } else { &[8, 64, 512, 4096, 32 << 10] };
    let mut all = Vec::new();
    for kind in [Kind::LatencyWrite, Kind::LatencyImmediate, Kind::LatencySend] {
        all.extend(small.iter().map(|&bytes| one(kind, bytes)));
    }
    all.extend([one(Kind::Post, 8), one(Kind::Completion, 8), one(Kind::Rate, 8)]);
    for &qps in if quick { &[1][..] } else { &[1, 2, 4] } {
        all.extend(large.iter().map(|&bytes| Asked { kind: Kind::Bandwidth, bytes, qps }));
    }
    all.extend([64 << 10, 1 << 20].map(|bytes| one(Kind::BandwidthBoth, bytes)));
    all
}

impl Verbs {
    /// Measures each pair of rank 0 and another rank, on each NIC and on all at once, in both directions; and what the
    /// thread of rank 0 does alone. Every rank calls it; rank 0 gets all rows.
    ///
    /// # Errors
    /// What the NICs have not, a peer that does not answer.
    pub fn probe(
        &mut self,
        quick: bool,
        batches: u32,
        patience: Duration,
        told: &mut dyn FnMut(&str),
    ) -> Result<Vec<Measured>, ExecError> {
        let mut rows = Vec::new();
        let (nics, gpu, group) = self.parts();
        if group.rank == 0 {
            rows.push(lines(batches));
        }
        // All ranks go through the same list: where they have not as many NICs, that of rank 0 counts.
        let count = group.broadcast((nics.len() as u32).to_le_bytes().to_vec())?;
        let count = count.try_into().map(u32::from_le_bytes).unwrap_or(1).max(1) as usize;
        for peer in 1..group.size {
            for nic in 0..count {
                let nic = &nics[nic % nics.len()..][..1];
                for way in [Way::Alone, Way::Relaxed, Way::Far] {
                    pair(group, (nic, gpu), peer, way, (quick, batches, patience), &mut rows, told)?;
                }
            }
            if count > 1 {
                pair(group, (nics, gpu), peer, Way::Together, (quick, batches, patience), &mut rows, told)?;
            }
        }
        Ok(rows)
    }
}

/// NICs, and the GPU whose memory they read and write; of the host where there is none.
type Ends<'a> = (&'a [Arc<Nic>], Option<&'a Arc<Device>>);

/// Measures rank 0 and one other over these NICs. Every rank calls it.
fn pair(
    group: &mut Group,
    (nics, gpu): Ends<'_>,
    peer: u32,
    way: Way,
    (quick, batches, patience): (bool, u32, Duration),
    rows: &mut Vec<Measured>,
    told: &mut dyn FnMut(&str),
) -> Result<(), ExecError> {
    let (rank, takes_part) = (group.rank, group.rank == 0 || group.rank == peer);
    let far = if way == Way::Far && gpu.is_none() { Far::from(&nics[0].name) } else { None };
    // Where a host has one node, or a NIC is on none, there is nothing to see.
    if way == Way::Far && group.agreed(Ok(u64::from(rank == 0 && far.is_some())))? == 0 {
        return Ok(());
    }
    let order = if way == Way::Relaxed { Order::Relaxed } else { Order::Strict };
    let other = if rank == 0 { peer } else { 0 };
    let mut link = takes_part.then(|| Link::new((nics, gpu), rank, other, order, patience)).transpose();
    if way == Way::Relaxed && group.agreed(Ok(u64::from(link.is_err())))? > 0 {
        return Ok(());
    }
    group.agreed(link.as_ref().map(|_| 0).map_err(|e| ExecError::Rendezvous(e.to_string())))?;
    let hello = link.as_ref().ok().and_then(Option::as_ref).map(Link::hello);
    let met = meet(group, hello.as_ref())?;
    let connected = match &mut link {
        Ok(Some(link)) => link.connect(met.get(link.peer as usize).and_then(Option::as_ref)),
        _ => Ok(()),
    };
    group.agreed(connected.map(|()| 0))?;
    let name = nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>().join("+");
    // No thread sees what arrives in memory of a GPU.
    let seen = |asked: &Asked| gpu.is_none() || asked.kind != Kind::LatencyWrite;
    for asked in plan(way, nics.len() as u32, quick).into_iter().filter(seen) {
        for src in [0, peer] {
            // Both directions at once are one measurement.
            if asked.kind == Kind::BandwidthBoth && src != 0 {
                continue;
            }
            told(&format!("{} of {} bytes from rank {src}", asked.kind.name(), asked.bytes));
            let times = measure(group, link.as_mut().ok().and_then(Option::as_mut), asked, src, batches)?;
            let (kind, qps, bytes) = (asked.kind, asked.qps, asked.bytes as u64);
            rows.push(Measured { kind, src, dst: peer - src, nic: name.clone(), qps, bytes, times_us: times });
        }
    }
    Ok(())
}

/// Work requests under way over all queue pairs: more than may be without a completion that was asked for.
fn window(asked: Asked) -> u64 {
    let one = if asked.bytes > 1 << 16 { SIGNALS } else { WINDOW };
    one.max(EVERY * u64::from(asked.qps))
}

/// What each rank has to say, at all.
fn meet(group: &mut Group, hello: Option<&Hello>) -> Result<Vec<Option<Hello>>, ExecError> {
    let odd = |e: serde_json::Error| ExecError::Rendezvous(format!("another process: {e}"));
    let mine = serde_json::to_vec(&hello).map_err(odd)?;
    let all = match group.gather(&mine)? {
        Some(all) => {
            let all = all.iter().map(|one| serde_json::from_slice(one)).collect::<Result<Vec<Option<Hello>>, _>>();
            serde_json::to_vec(&all.map_err(odd)?).map_err(odd)?
        }
        None => Vec::new(),
    };
    serde_json::from_slice(&group.broadcast(all)?).map_err(odd)
}

/// How one end is reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hello {
    pairs: Vec<Address>,
    /// What arrives, as each of the pairs reaches it.
    memory: Vec<Remote>,
}

/// Times of one message of each batch, in microseconds, as rank 0 gets them.
fn measure(
    group: &mut Group,
    mut link: Option<&mut Link>,
    asked: Asked,
    src: u32,
    batches: u32,
) -> Result<Vec<f64>, ExecError> {
    let leads = group.rank == src;
    let mut once = |group: &mut Group, messages: u64| -> Result<f64, ExecError> {
        group.agreed(Ok(0))?;
        let mine = match link.as_mut() {
            Some(link) => link.measure(asked, leads, messages),
            None => Ok(0.0),
        };
        let time = mine.as_ref().copied().unwrap_or(0.0);
        group.agreed(mine.map(|_| 0))?;
        Ok(group.slowest(&[time])?[0])
    };
    // One to warm up, a second to learn how many fit into a batch.
    once(group, 4)?;
    let one = once(group, 8)?;
    let messages = (BATCH.as_secs_f64() * 1e6 / one.max(0.01)).clamp(8.0, 4096.0) as u64;
    (0..batches).map(|_| once(group, messages)).collect()
}

/// One end of what is measured.
#[derive(Debug)]
struct Link {
    rank: u32,
    peer: u32,
    patience: Duration,
    pairs: Vec<Pair>,
    /// One for each NIC.
    queues: Vec<Completions>,
    /// What leaves, and then what arrives.
    memory: Memory,
    /// Where it arrives at the peer, by the pair.
    remote: Vec<Remote>,
    /// Work requests of each queue pair: posted, and known to be done.
    posted: Vec<u64>,
    completed: Vec<u64>,
    /// Whether the last one asked for no completion.
    silent: Vec<bool>,
    /// Messages that arrived, and those that were waited for.
    arrived: u64,
    taken: u64,
    /// The last number written to see that a message is there.
    stamp: u64,
    done: Vec<(u64, Done)>,
}

impl Link {
    fn new((nics, gpu): Ends<'_>, rank: u32, peer: u32, order: Order, patience: Duration) -> Result<Self, ExecError> {
        let depth = WINDOW as u32 + SIGNALS as u32;
        let most = MOST_PAIRS.max(nics.len());
        let entries = 2 * depth * most as u32;
        let queues: Vec<_> = nics.iter().map(|nic| Completions::new(nic, entries)).collect::<Result<_, _>>()?;
        let depths = Depths { sends: depth, receives: depth };
        let pair = |index: usize| Pair::new(&queues[index % nics.len()], index % nics.len(), depths);
        let pairs: Vec<_> = (0..most).map(pair).collect::<Result<_, _>>()?;
        let memory = match gpu {
            Some(gpu) => Memory::of_gpu(2 * LARGEST, nics, order, gpu)?.0,
            None => Memory::new(2 * LARGEST, nics, order)?,
        };
        Ok(Self {
            rank,
            peer,
            patience,
            pairs,
            queues,
            memory,
            remote: Vec::new(),
            posted: vec![0; most],
            completed: vec![0; most],
            silent: vec![false; most],
            arrived: 0,
            taken: 0,
            stamp: 0,
            done: Vec::new(),
        })
    }

    fn hello(&self) -> Hello {
        let address = self.memory.address() + LARGEST as u64;
        let memory = |pair: &Pair| Remote { address, key: self.memory.keys(pair.place).1 };
        let memory = self.pairs.iter().map(memory).collect();
        Hello { pairs: self.pairs.iter().map(Pair::address).collect(), memory }
    }

    fn connect(&mut self, hello: Option<&Hello>) -> Result<(), ExecError> {
        let hello = hello.filter(|h| h.pairs.len() == self.pairs.len() && h.memory.len() == h.pairs.len());
        let hello = hello.ok_or_else(|| ExecError::Rendezvous(format!("rank {} has no address", self.peer)))?;
        for (pair, address) in self.pairs.iter().zip(&hello.pairs) {
            pair.connect(address, self.patience)?;
        }
        self.remote.clone_from(&hello.memory);
        (0..WINDOW).try_for_each(|_| self.receive())
    }

    /// Posts a receive into what arrives.
    fn receive(&self) -> Result<(), ExecError> {
        self.pairs[0].post_receive(0, Some((&self.memory, LARGEST, 1 << 16)))
    }

    fn measure(&mut self, asked: Asked, leads: bool, messages: u64) -> Result<f64, ExecError> {
        match asked.kind {
            Kind::LatencyWrite | Kind::LatencyImmediate | Kind::LatencySend => self.latency(asked, leads, messages),
            Kind::LatencyFar => {
                let _far = Far::from(&self.pairs[0].nic().name);
                self.latency(asked, leads, messages)
            }
            Kind::Bandwidth | Kind::BandwidthRelaxed | Kind::Rate if leads => self.stream(asked, messages),
            Kind::BandwidthBoth => self.stream(asked, messages),
            Kind::Post | Kind::Completion if leads => self.costs(asked.kind),
            _ => Ok(0.0),
        }
    }

    /// Half of a round trip: the median of so many, as `ib_write_lat` has it, since one that the system interrupts says
    /// nothing of the NIC.
    fn latency(&mut self, asked: Asked, leads: bool, messages: u64) -> Result<f64, ExecError> {
        // Numbers go on where they were, at both ends alike.
        let first = self.stamp;
        let mut times = Vec::with_capacity(messages as usize);
        let mut before = Instant::now();
        for round in 0..messages {
            if leads {
                self.send(asked, first + round + 1)?;
            }
            self.await_message(asked, first + round + 1)?;
            if leads {
                let now = Instant::now();
                times.push(now - std::mem::replace(&mut before, now));
            } else {
                self.send(asked, first + round + 1)?;
            }
        }
        self.stamp += messages;
        self.drain()?;
        times.sort_unstable();
        Ok(times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6 / 2.0))
    }

    fn send(&mut self, asked: Asked, stamp: u64) -> Result<(), ExecError> {
        let verb = match asked.kind {
            Kind::LatencyImmediate => Verb::WriteImmediate(self.remote[0], stamp as u32),
            Kind::LatencySend => Verb::Send,
            _ => {
                // The last bytes arrive last; who waits looks at them.
                self.memory.bytes_mut(asked.bytes - 8, 8).copy_from_slice(&stamp.to_ne_bytes());
                Verb::Write(self.remote[0])
            }
        };
        self.post(0, verb, asked.bytes, (self.posted[0] + 1).is_multiple_of(SIGNALS))?;
        self.poll_while(|link| link.under_way() > WINDOW / 2)
    }

    fn await_message(&mut self, asked: Asked, stamp: u64) -> Result<(), ExecError> {
        if matches!(asked.kind, Kind::LatencyWrite | Kind::LatencyFar) {
            return self.wait_while(Self::spin, |link| link.memory.word(LARGEST + asked.bytes - 8) != stamp);
        }
        self.taken += 1;
        self.poll_while(|link| link.arrived < link.taken)?;
        self.receive()
    }

    /// Messages one after the other over the queue pairs in turn, until all are acknowledged: time of one.
    fn stream(&mut self, asked: Asked, messages: u64) -> Result<f64, ExecError> {
        let begin = Instant::now();
        let window = window(asked);
        for message in 0..messages {
            self.poll_while(|link| link.under_way() >= window)?;
            let pair = (message % u64::from(asked.qps)) as usize;
            // The last of each queue pair too, so that all is known to have arrived.
            let last = message + u64::from(asked.qps) >= messages;
            let signalled = last || (message / u64::from(asked.qps)) % EVERY == EVERY - 1;
            self.post(pair, Verb::Write(self.remote[pair]), asked.bytes, signalled)?;
        }
        self.drain()?;
        Ok(begin.elapsed().as_secs_f64() * 1e6 / messages as f64)
    }

    /// What the thread that posts spends: on a post, or on a completion.
    fn costs(&mut self, kind: Kind) -> Result<f64, ExecError> {
        let begin = Instant::now();
        for _ in 0..BURST {
            self.post(0, Verb::Write(self.remote[0]), 8, true)?;
        }
        let posts = begin.elapsed();
        std::thread::sleep(REST);
        let begin = Instant::now();
        self.drain()?;
        let completions = begin.elapsed();
        let time = if kind == Kind::Post { posts } else { completions };
        Ok(time.as_secs_f64() * 1e6 / f64::from(BURST))
    }

    /// Work requests that are not known to be done.
    fn under_way(&self) -> u64 {
        self.posted.iter().sum::<u64>() - self.completed.iter().sum::<u64>()
    }

    fn post(&mut self, pair: usize, verb: Verb, bytes: usize, signalled: bool) -> Result<(), ExecError> {
        self.posted[pair] += 1;
        self.silent[pair] = !signalled;
        let number = (pair as u64) << 48 | self.posted[pair];
        self.pairs[pair].post(verb, (&self.memory, 0, bytes as u32), number, signalled)
    }

    /// Waits until all are acknowledged.
    fn drain(&mut self) -> Result<(), ExecError> {
        // A round of latencies may end between two that ask for a completion. Others end with one, and nothing is added.
        if self.silent[0] {
            self.post(0, Verb::Write(self.remote[0]), 0, true)?;
        }
        self.poll_while(|link| link.under_way() > 0)
    }

    fn poll_while(&mut self, waits: impl Fn(&Self) -> bool) -> Result<(), ExecError> {
        self.wait_while(Self::poll, waits)
    }

    fn spin(&mut self) -> Result<(), ExecError> {
        std::hint::spin_loop();
        Ok(())
    }

    /// Does something over and over until nothing is waited for. The clock is asked seldom: that takes longer than to
    /// look at memory.
    fn wait_while(
        &mut self,
        work: impl Fn(&mut Self) -> Result<(), ExecError>,
        waits: impl Fn(&Self) -> bool,
    ) -> Result<(), ExecError> {
        let mut begin = None;
        while waits(self) {
            for _ in 0..LOOKS {
                if !waits(self) {
                    return Ok(());
                }
                work(self)?;
            }
            self.late(*begin.get_or_insert_with(Instant::now))?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), ExecError> {
        self.queues.iter().try_for_each(|queue| queue.poll(&mut self.done))?;
        for (number, done) in self.done.drain(..) {
            match done {
                Done::Sent => self.completed[(number >> 48) as usize] = number & ((1 << 48) - 1),
                Done::Arrived(..) => self.arrived += 1,
                Done::Failed(words, vendor) => {
                    let what = format!("{words} (vendor's code {vendor:#x})");
                    return Err(ExecError::Connection { rank: self.rank, peer: self.peer, channel: 0, what });
                }
            }
        }
        Ok(())
    }

    fn late(&self, begin: Instant) -> Result<(), ExecError> {
        if begin.elapsed() <= self.patience {
            return Ok(());
        }
        let what = format!("no answer in {} s", self.patience.as_secs());
        Err(ExecError::Connection { rank: self.rank, peer: self.peer, channel: 0, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whoever waits for a free place in the window waits for a completion, over any number of queue pairs; over those of
    /// one NIC the window is as before.
    #[test]
    fn a_full_window_has_a_completion() {
        for bytes in [8, 1 << 20] {
            for qps in 1..=64 {
                let window = window(Asked { kind: Kind::Bandwidth, bytes, qps });
                assert!(u64::from(qps) * (EVERY - 1) < window, "{bytes} bytes, {qps} pairs: {window}");
                assert!(qps > MOST_PAIRS as u32 || window == if bytes == 8 { WINDOW } else { SIGNALS });
            }
        }
    }
}
