//! Any schedule as waves: first every rank combines what it has, then one group of sends and
//! receives carries the results on. Made from the flat records, and so of no algorithm.

use std::collections::BTreeMap;

use collcast_sim::schedule::Schedule;
use collcast_sim::schedule::wiring::UNUSED;

use crate::exec::ExecError;
use crate::flat::{
    ACCUMULATE, DST_OUTPUT, DST_SCRATCH, Flat, FlatLane, HAS_DST, HAS_SRC, Record, SIGNAL, SRC_OUTPUT, SRC_SCRATCH,
};

/// A place in the memory of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A byte of input, output or scratch: 0, 1, 2.
    Buffer(usize, u64),
    /// A slot of a connection, where it leaves.
    Leaving(u32, u32),
    /// A slot of a connection, where it arrived.
    Arrived(u32, u32),
}

/// What one rank combines: all sources into every target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Combination {
    pub(crate) rank: u32,
    pub(crate) bytes: u32,
    pub(crate) from: Vec<Place>,
    pub(crate) to: Vec<Place>,
}

/// One message; never empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) src: u32,
    pub(crate) dst: u32,
    pub(crate) conn: u32,
    pub(crate) slot: u32,
    pub(crate) bytes: u32,
}

/// Combinations, then messages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wave {
    pub(crate) combinations: Vec<Combination>,
    pub(crate) messages: Vec<Message>,
}

/// A schedule as waves.
#[derive(Clone, Debug)]
pub(crate) struct Waves {
    pub(crate) waves: Vec<Wave>,
    /// Ranks at the ends of each connection.
    pub(crate) ends: Vec<(u32, u32)>,
    /// Slots of a connection, and bytes of the largest.
    pub(crate) depth: u32,
    pub(crate) slot: u32,
}

/// Slices sent and received on a connection so far.
#[derive(Clone, Copy, Default)]
struct Progress {
    sent: u64,
    arrived: u64,
    received: u64,
}

impl Waves {
    /// Lets all lanes go on by one record a wave, each as soon as its data and a free slot are there.
    pub(crate) fn new(schedule: &Schedule) -> Result<Self, ExecError> {
        let flat = Flat::new(schedule)?;
        let mut ends = vec![(0, 0); flat.conns];
        for lane in &flat.lanes {
            for port in lane.ports.iter().filter(|p| p.conn != UNUSED) {
                let end = &mut ends[port.conn as usize];
                *(if port.sends { &mut end.0 } else { &mut end.1 }) = lane.rank;
            }
        }
        let mut flows = vec![Progress::default(); flat.conns];
        let mut signals = vec![0_u64; flat.lanes.len()];
        let mut at = vec![0; flat.lanes.len()];
        let mut waves = Vec::new();
        while flat.lanes.iter().zip(&at).any(|(lane, &at)| at < lane.records.len()) {
            let mut wave = Wave::default();
            let before = signals.clone();
            let mut moved = false;
            for (index, (lane, at)) in flat.lanes.iter().zip(&mut at).enumerate() {
                // Waits move nothing, so they cost no wave.
                while let Some(record) = lane.records.get(*at).filter(|r| r.waits > 0) {
                    let token = usize::from(record.waits) - 1 - lane.ports.len();
                    if before[lane.tokens[token] as usize] < record.src {
                        break;
                    }
                    (*at, moved) = (*at + 1, true);
                }
                let Some(record) = lane.records.get(*at).filter(|r| r.waits == 0) else { continue };
                if ready(lane, record, &flows, u64::from(flat.depth)) {
                    step(lane, record, &mut flows, flat.depth, &ends, &mut wave);
                    signals[index] += u64::from(record.flags & SIGNAL != 0);
                    (*at, moved) = (*at + 1, true);
                }
            }
            if !moved {
                return Err(ExecError::Refused {
                    what: "the schedule's lanes wait for each other".to_owned(),
                    hint: "it is not one that was proved",
                });
            }
            flows.iter_mut().for_each(|flow| flow.arrived = flow.sent);
            if wave != Wave::default() {
                waves.push(wave);
            }
        }
        Ok(Self { waves, ends, depth: flat.depth, slot: flat.largest.next_multiple_of(16).max(16) })
    }
}

fn conns<'a>(lane: &'a FlatLane, record: &'a Record, sends: bool) -> impl Iterator<Item = u32> + 'a {
    let receives = usize::from(record.receives);
    let ends = if sends { receives..receives + usize::from(record.sends) } else { 0..receives };
    record.ports[ends].iter().map(|&port| lane.ports[usize::from(port)].conn)
}

/// Whether all that a record receives has arrived, and all that it sends has a free slot.
fn ready(lane: &FlatLane, record: &Record, flows: &[Progress], depth: u64) -> bool {
    // One record may receive twice from a connection, or send twice to it.
    let mut wanted: BTreeMap<(u32, bool), u64> = BTreeMap::new();
    for sends in [false, true] {
        for conn in conns(lane, record, sends) {
            *wanted.entry((conn, sends)).or_default() += 1;
        }
    }
    wanted.into_iter().all(|((conn, sends), count)| {
        let flow = flows[conn as usize];
        if sends { flow.sent - flow.received + count <= depth } else { flow.arrived - flow.received >= count }
    })
}

fn step(lane: &FlatLane, record: &Record, flows: &mut [Progress], depth: u32, ends: &[(u32, u32)], wave: &mut Wave) {
    let (mut from, mut to) = (Vec::new(), Vec::new());
    let slot = |count: u64| (count % u64::from(depth)) as u32;
    for conn in conns(lane, record, false) {
        let flow = &mut flows[conn as usize];
        from.push(Place::Arrived(conn, slot(flow.received)));
        flow.received += 1;
    }
    let buffer = |output: u8, scratch: u8| {
        usize::from(record.flags & output != 0) + 2 * usize::from(record.flags & scratch != 0)
    };
    if record.flags & HAS_SRC != 0 {
        from.push(Place::Buffer(buffer(SRC_OUTPUT, SRC_SCRATCH), record.src));
    }
    if record.flags & HAS_DST != 0 {
        let place = Place::Buffer(buffer(DST_OUTPUT, DST_SCRATCH), record.dst);
        if record.flags & ACCUMULATE != 0 {
            from.push(place);
        }
        to.push(place);
    }
    for conn in conns(lane, record, true) {
        let flow = &mut flows[conn as usize];
        let slot = slot(flow.sent);
        flow.sent += 1;
        to.push(Place::Leaving(conn, slot));
        let (src, dst) = ends[conn as usize];
        if record.bytes > 0 {
            wave.messages.push(Message { src, dst, conn, slot, bytes: record.bytes });
        }
    }
    if record.bytes > 0 && !to.is_empty() {
        wave.combinations.push(Combination { rank: lane.rank, bytes: record.bytes, from, to });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{expected, parts, range, value};
    use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
    use collcast_sim::ids::Rank;
    use collcast_sim::nccl::{Limits, Plan};
    use collcast_sim::schedule::msccl::{Imported, export, one_loop};
    use collcast_sim::schedule::verify::verify;
    use collcast_sim::schedule::{Call, Order, valid_algorithms};
    use collcast_sim::units::Bytes;

    /// Runs the waves on numbers in place of bytes, four to one; sums.
    fn check_exact(schedule: &Schedule) {
        let call = &schedule.call;
        let (waves, range) = (Waves::new(schedule).unwrap(), range(call).unwrap());
        let slots = waves.ends.len() * waves.depth as usize * (waves.slot / 4) as usize;
        let mut memory: Vec<[Vec<u32>; 5]> = (0..call.ranks)
            .map(|rank| {
                let input = (0..call.input_len(Rank(rank))).map(|e| value(rank, e, range)).collect();
                let numbers = |n: u64| vec![0; n as usize];
                let (output, scratch) = (call.output_len(Rank(rank)), schedule.scratch_len(Rank(rank)));
                [input, numbers(output), numbers(scratch), vec![0; slots], vec![0; slots]]
            })
            .collect();
        let slot = |conn: u32, at: u32| (conn * waves.depth + at) as usize * (waves.slot / 4) as usize;
        let find = |place: &Place| match *place {
            Place::Buffer(buffer, at) => (buffer, at as usize / 4),
            Place::Leaving(conn, at) => (3, slot(conn, at)),
            Place::Arrived(conn, at) => (4, slot(conn, at)),
        };
        for wave in &waves.waves {
            for op in &wave.combinations {
                let memory = &mut memory[op.rank as usize];
                for i in 0..op.bytes as usize / 4 {
                    let sum = op.from.iter().map(find).map(|(part, at)| memory[part][at + i]).sum();
                    op.to.iter().map(find).for_each(|(part, at)| memory[part][at + i] = sum);
                }
            }
            for m in &wave.messages {
                let (at, count) = (slot(m.conn, m.slot), m.bytes as usize / 4);
                let data = memory[m.src as usize][3][at..at + count].to_vec();
                memory[m.dst as usize][4][at..at + count].copy_from_slice(&data);
            }
        }
        for rank in 0..call.ranks {
            for part in parts(call, Rank(rank)) {
                for i in 0..part.count {
                    let found = memory[rank as usize][1][(part.at + i) as usize];
                    assert_eq!(found, expected(&part, i, call.op, range), "{call:?}, rank {rank}, {i} of {part:?}");
                }
            }
        }
    }

    /// Goal: waves of any schedule give exact results; also an imported one, with scratch memory and
    /// tokens.
    #[test]
    fn waves_give_exact_results() -> Result<(), Box<dyn std::error::Error>> {
        for &collective in Collective::ALL {
            for &algorithm in valid_algorithms(collective) {
                for (hosts, per_host, count) in [(1, 3, 1), (1, 4, 1000), (2, 2, 777), (3, 2, 64)] {
                    let order = Order::grid(hosts, per_host);
                    let mut call = Call::of_size(collective, hosts * per_host, Bytes(0), DataType::Int32);
                    call.count = count;
                    let limits = Limits { channels: 2, exact_channels: true, ..Limits::default() };
                    let mut plan = Plan::new(&call, algorithm, Protocol::Simple, &limits);
                    (plan.chunk, plan.min_slice) = (plan.grain * 8, plan.grain);
                    if algorithm == Algorithm::Direct {
                        plan.per_channel = count.div_ceil(u64::from(plan.channels_per_peer)).max(1);
                    }
                    let Ok(schedule) = Schedule::new(call.clone(), plan, &order) else { continue };
                    if Flat::new(&schedule).is_err() {
                        continue; // It needs switches that combine.
                    }
                    check_exact(&schedule);
                    if collective != Collective::SendRecv {
                        let small = one_loop(&call, &plan, &order)?;
                        let imported = Imported::parse(&export(&small, "ours")?, "ours.xml")?;
                        let schedule = imported.schedule(small.call.clone(), &Limits::default())?;
                        // PAT sends more chunks before it receives than MSCCL's FIFOs hold.
                        if algorithm != Algorithm::Pat || verify(&schedule).is_ok() {
                            check_exact(&schedule);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
