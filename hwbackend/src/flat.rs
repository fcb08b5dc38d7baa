//! Schedules as flat records, the form in which a device pulls them: per lane a list of 48-byte
//! records that say what to receive, combine, store and send, and what to wait for.
//!
//! Made through the cursor alone. Everything a device must rely on is checked here: that no
//! record reaches outside a buffer, that ports exist, that limits of the layout hold.

use collcast_sim::collective::DataType;
use collcast_sim::ids::Rank;
use collcast_sim::schedule::program::{Buffer, Step};
use collcast_sim::schedule::wiring::{SliceCursor, UNUSED, Wired, Wiring};
use collcast_sim::schedule::{Call, Schedule};

use crate::exec::ExecError;

/// Receive and send ports of one record, together: `MAX_ENDS` of `cuda/interpret.cu`.
pub const MAX_ENDS: usize = 24;
/// Most records of a schedule: 1.5 GiB of them.
pub const MAX_RECORDS: usize = 1 << 25;

/// The record has a local source.
pub const HAS_SRC: u8 = 1;
/// The record has a local destination.
pub const HAS_DST: u8 = 2;
/// Its source is in the output buffer.
pub const SRC_OUTPUT: u8 = 4;
/// Its destination is in the output buffer.
pub const DST_OUTPUT: u8 = 8;
/// Its source is in scratch memory.
pub const SRC_SCRATCH: u8 = 16;
/// Its destination is in scratch memory.
pub const DST_SCRATCH: u8 = 32;
/// What the destination holds is combined with the rest.
pub const ACCUMULATE: u8 = 64;
/// Other lanes of the rank are told when it is over.
pub const SIGNAL: u8 = 128;

/// One slice of one instruction, or a wait for another lane; `Record` of `cuda/interpret.cu`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Byte offset of the source in its buffer; of a wait, how often the other lane must have
    /// signalled in this run.
    pub src: u64,
    /// Byte offset of the destination in its buffer.
    pub dst: u64,
    /// Bytes; may be 0, and is handed over all the same.
    pub bytes: u32,
    /// Receive ports.
    pub receives: u8,
    /// Send ports.
    pub sends: u8,
    /// See [`HAS_SRC`] and those below it.
    pub flags: u8,
    /// 0, or 1 + the place of the lane waited for among [`FlatLane::ports`] and then
    /// [`FlatLane::tokens`]: such a record does nothing else.
    pub waits: u8,
    /// Receive ports, then send ports: indices into [`FlatLane::ports`].
    pub ports: [u8; MAX_ENDS],
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// Index of the connection in [`Wiring::conns`]; [`UNUSED`] where it is never used.
    pub conn: u32,
    /// Whether this is its sending end.
    pub sends: bool,
    /// The rank at the other end.
    pub peer: u32,
}

/// The program of one lane.
#[derive(Clone, Debug)]
pub struct FlatLane {
    /// Rank.
    pub rank: u32,
    /// Channel.
    pub channel: u32,
    /// Lane.
    pub lane: u32,
    /// Threads that move its data.
    pub threads: u32,
    /// What it does, in order.
    pub records: Vec<Record>,
    /// Its connections: those it receives from, then those it sends to.
    pub ports: Vec<Port>,
    /// Lanes that it may wait for, as indices into [`Flat::lanes`]; [`UNUSED`] where nobody is.
    pub tokens: Vec<u32>,
    /// How often it signals in a run.
    pub signals: u32,
}

/// A schedule as records.
#[derive(Clone, Debug)]
pub struct Flat {
    /// Lanes in order of rank, channel, lane.
    pub lanes: Vec<FlatLane>,
    /// Number of connections.
    pub conns: usize,
    /// Slots of every FIFO.
    pub depth: u32,
    /// Data bytes of the largest slice.
    pub largest: u32,
}

impl Flat {
    /// Flattens a schedule.
    ///
    /// # Errors
    /// What the layout cannot hold, and schedules that reach outside a buffer.
    pub fn new(schedule: &Schedule) -> Result<Self, ExecError> {
        let wiring = Wiring::new(schedule).map_err(|error| refuse(error.to_string()))?;
        if let Some(wired) = wiring.conns.iter().find(|wired| wired.conn.ranks().is_none()) {
            let what =
                format!("{:?} has a group at an end, which takes a switch that combines or multicasts", wired.conn);
            return Err(refuse(what));
        }
        let mut flat =
            Self { lanes: Vec::new(), conns: wiring.conns.len(), depth: schedule.plan.fifo_slices.max(1), largest: 0 };
        let mut records = 0;
        for worker in &wiring.workers {
            let end = |sends: bool| {
                let wiring = &wiring;
                move |&conn: &u32| {
                    let ranks = wiring.conns.get(conn as usize).and_then(|w| w.conn.ranks());
                    Port { conn, sends, peer: ranks.map_or(0, |(src, dst)| if sends { dst.0 } else { src.0 }) }
                }
            };
            let mut lane = FlatLane {
                rank: worker.rank.0,
                channel: worker.channel.0,
                lane: worker.lane.0,
                threads: worker.threads,
                records: Vec::new(),
                ports: worker.recv.iter().map(end(false)).chain(worker.send.iter().map(end(true))).collect(),
                tokens: worker.tokens.to_vec(),
                signals: 0,
            };
            let ends = lane.ports.len() + lane.tokens.len();
            if ends > 255 {
                return Err(refuse(format!("a lane has {ends} connections and tokens; at most 255 fit")));
            }
            let mut cursor = SliceCursor::new(worker);
            while let Some(slice) = cursor.next(schedule, worker.template) {
                // The wait is for the instruction, so before its first slice; the signal after its last.
                if cursor.at_first_slice() {
                    lane.records.extend(wait(&lane, &cursor.step)?);
                }
                let mut record = record(schedule, worker, &lane, &cursor, slice.from, slice.count)?;
                if cursor.step.signal && cursor.at_last_slice(schedule) {
                    record.flags |= SIGNAL;
                    lane.signals += 1;
                }
                flat.largest = flat.largest.max(record.bytes);
                lane.records.push(record);
                records += 1;
                if records > MAX_RECORDS {
                    return Err(ExecError::Refused {
                        what: format!("the schedule has more than {MAX_RECORDS} records"),
                        hint: "take a smaller size, or a protocol with larger slices",
                    });
                }
            }
            flat.lanes.push(lane);
        }
        Ok(flat)
    }
}

fn refuse(what: String) -> ExecError {
    ExecError::Refused { what, hint: "this schedule cannot be run as records; the host backend may run it" }
}

fn at(lane: &FlatLane) -> String {
    format!("rank {}, channel {}, lane {}, record {}", lane.rank, lane.channel, lane.lane, lane.records.len())
}

/// The wait that an instruction begins with.
fn wait(lane: &FlatLane, step: &Step) -> Result<Option<Record>, ExecError> {
    let Some((token, count)) = step.wait.filter(|w| w.1 > 0) else { return Ok(None) };
    let known = lane.tokens.get(token).is_some_and(|&t| t != UNUSED);
    if !known {
        return Err(refuse(format!("{}: waits for a lane that is not there", at(lane))));
    }
    Ok(Some(Record { src: count, waits: (lane.ports.len() + token) as u8 + 1, ..Record::default() }))
}

fn record(
    schedule: &Schedule,
    worker: &Wired,
    lane: &FlatLane,
    cursor: &SliceCursor,
    from: u64,
    count: u64,
) -> Result<Record, ExecError> {
    // Field by field: what an instruction can do more must be refused here or be part of a record.
    let Step { op: _, recv, reduce: _, src, dst, send, count: _, span: _, accumulate, wait: _, signal: _ } =
        &cursor.step;
    let at = || at(lane);
    let element = schedule.element_size();
    let bytes = u32::try_from(count.saturating_mul(element))
        .ok()
        .filter(|&b| b < 1 << 31)
        .ok_or_else(|| refuse(format!("{}: a slice of {count} elements; at most 2 GiB fit", at())))?;
    let mut record = Record { bytes, ..Record::default() };
    let ends = recv.len() + send.len();
    if ends > MAX_ENDS {
        return Err(refuse(format!("{}: {ends} connections in one instruction; at most {MAX_ENDS} fit", at())));
    }
    let accumulate = *accumulate && dst.is_some();
    if bytes > 0 && recv.is_empty() && src.is_none() && !accumulate {
        return Err(refuse(format!("{}: data from nowhere", at())));
    }
    let sends = send.iter().map(|&port| worker.recv.len() + port);
    for (end, port) in recv.iter().copied().chain(sends).enumerate() {
        let known = lane.ports.get(port).is_some_and(|p| p.conn != UNUSED && p.sends == (end >= recv.len()));
        if !known {
            return Err(refuse(format!("{}: a port without a connection", at())));
        }
        record.ports[end] = port as u8;
    }
    (record.receives, record.sends) = (recv.len() as u8, send.len() as u8);
    let call = &schedule.call;
    let place = |buffer: Buffer, offset: u64| {
        let length = match buffer {
            Buffer::Input => call.input_len(worker.rank),
            Buffer::Output => call.output_len(worker.rank),
            Buffer::Scratch => schedule.scratch_len(worker.rank),
        };
        if bytes == 0 {
            return Ok(0);
        }
        if offset.checked_add(from).and_then(|at| at.checked_add(count)).is_none_or(|end| end > length) {
            let element = offset.saturating_add(from).saturating_add(count - 1);
            return Err(refuse(format!("{}: element {element} is outside the {buffer:?} of {length}", at())));
        }
        let shared = call.in_place && buffer != Buffer::Scratch;
        let base = if shared { call.in_place_offset(worker.rank, buffer) } else { 0 };
        Ok((base + offset + from) * element)
    };
    let flags = |buffer: Buffer, output: u8, scratch: u8| match buffer {
        Buffer::Output if !call.in_place => output,
        Buffer::Scratch => scratch,
        Buffer::Input | Buffer::Output => 0,
    };
    // Accumulation alone is a copy of a place to itself, and to the peers.
    let alone = accumulate && recv.is_empty() && src.is_none();
    if let Some((buffer, offset)) = if alone { *dst } else { *src } {
        record.src = place(buffer, offset)?;
        record.flags |= HAS_SRC | flags(buffer, SRC_OUTPUT, SRC_SCRATCH);
    }
    if let Some((buffer, offset)) = *dst {
        record.dst = place(buffer, offset)?;
        record.flags |= HAS_DST | flags(buffer, DST_OUTPUT, DST_SCRATCH);
        record.flags |= if accumulate && !alone { ACCUMULATE } else { 0 };
    }
    Ok(record)
}

/// Bytes of the memory behind a rank's input and output; in place they are one, behind both.
pub fn buffer_bytes(call: &Call, rank: Rank) -> [u64; 2] {
    let (input, output) = (call.input_len(rank) * call.dtype.size(), call.output_len(rank) * call.dtype.size());
    if call.in_place { [input.max(output), 0] } else { [input, output] }
}

/// The macro that tells device code its element type.
///
/// # Errors
/// A type that it does not know.
pub fn element_macro(dtype: DataType) -> Result<u32, ExecError> {
    match dtype {
        DataType::Float32 => Ok(0),
        DataType::Float16 => Ok(1),
        DataType::Bfloat16 => Ok(2),
        DataType::Int32 => Ok(3),
        other => Err(ExecError::Refused {
            what: format!("our own kernels do not combine {other}"),
            hint: "they know float32, float16, bfloat16 and int32; NCCL's own collectives are checked in types of 8 bits too",
        }),
    }
}
