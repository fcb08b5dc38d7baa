//! Writes an algorithm as a plan.
//!
//! Each message of a connection has a place of its own at the receiver, so that no sender waits for room: where it belongs, or a
//! part of the scratch. Before the first message the receiver signals that it runs, since a call before might still read there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use thiserror::Error;

use super::check::Flaw;
use super::form::{
    BufferIds, ChannelIds, Chunks, Connected, Gpu, MAX_OPERATIONS, Name, Operation, Plan, RemoteBuffer, Semaphore,
    ThreadBlock,
};
use crate::collective::{Collective, Protocol};
use crate::schedule::msccl::Imported;
use crate::schedule::msccl::algorithm::{Block, Instruction, Kind, Place};
use crate::schedule::program::Buffer;

/// Whether receives that nothing is added to land where they belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Landing {
    /// Where they belong.
    Direct,
    /// In scratch, from where they are copied.
    Staged,
}

/// What stands between an algorithm and a plan.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// A collective that plans are not written of.
    #[error("no MSCCL++ plan is written of {0}: all_reduce, all_gather, reduce_scatter and all_to_all have one")]
    Collective(Collective),
    /// Packets of data and flags.
    #[error("an MSCCL++ plan of {0} would have packets, which are not written: take --protocol simple")]
    Packets(Protocol),
    /// More thread blocks than run at once.
    #[error(
        "the plan would have {0} thread blocks a GPU, and all of them must run at once: an A100 has {BLOCKS_MAX} SMs; take fewer \
         --channels or ranks"
    )]
    Blocks(usize),
    /// What was written is wrong.
    #[error(transparent)]
    Flaw(#[from] Flaw),
}

/// Thread blocks of a GPU that surely run at once: the SMs of an A100, the smallest GPU behind NVSwitch that MSCCL++ is for.
const BLOCKS_MAX: usize = 108;
/// Threads of a block where the file does not say, as MSCCL++ has them.
const THREADS: u32 = 1024;
/// Bytes that a chunk is a multiple of: one access of a thread.
const ALIGNMENT: u32 = 16;
/// Semaphores of one operation (`MAX_DEVICE_SEMAPHORES`).
const SEMAPHORES: usize = 16;
const MEMORY: &str = "memory";

/// From one rank to another on a channel of the algorithm.
type Connection = (u32, u32, u32);

pub(super) fn written(imported: &Imported, landing: Landing) -> Result<Plan, PlanError> {
    if imported.protocol != Protocol::Simple {
        return Err(PlanError::Packets(imported.protocol));
    }
    let (whole, part) = (imported.chunks, imported.chunks / u64::from(imported.ranks.max(1)));
    let (collective, input, output) = match imported.collective {
        Collective::AllReduce => ("allreduce", whole, whole),
        Collective::AllGather => ("allgather", part, whole),
        Collective::ReduceScatter => ("reducescatter", whole, part),
        Collective::AllToAll => ("alltoall", whole, whole),
        other => return Err(PlanError::Collective(other)),
    };
    let mut writer = Writer::new(imported, landing);
    let gpus: Vec<Gpu> = (0..imported.ranks).map(|rank| writer.gpu(rank, input, output)).collect();
    let blocks = gpus.iter().map(|gpu| gpu.threadblocks.len()).max().unwrap_or(0);
    if blocks > BLOCKS_MAX {
        return Err(PlanError::Blocks(blocks));
    }
    let most = gpus.iter().map(|gpu| gpu.scratch_chunks).max().unwrap_or(0).max(input).max(output);
    let of_size = if imported.collective == Collective::AllGather { output } else { input };
    let largest = u64::from(u32::MAX) / most.max(1) / u64::from(ALIGNMENT) * u64::from(ALIGNMENT) * of_size;
    Ok(Plan {
        name: imported.name.clone(),
        collective: collective.to_owned(),
        protocol: "Simple".to_owned(),
        inplace: imported.in_place,
        reuse_resources: false,
        gpus,
        num_threads_per_block: imported.threads.unwrap_or(THREADS),
        use_double_scratch_buffer: false,
        buffer_alignment: ALIGNMENT,
        min_message_size: imported.min_bytes.unwrap_or(0),
        max_message_size: imported.max_bytes.map_or(largest, |most| most.min(largest)),
    })
}

struct Writer<'a> {
    imported: &'a Imported,
    /// By connection: where each message lands.
    landings: HashMap<Connection, Vec<Place>>,
    /// By rank: chunks of scratch.
    scratch: Vec<u64>,
    /// By rank: its channels, with the connection that each is for.
    channels: Vec<Vec<Connection>>,
}

impl<'a> Writer<'a> {
    fn new(imported: &'a Imported, landing: Landing) -> Self {
        let mut landings: HashMap<Connection, Vec<Place>> = HashMap::new();
        let mut connections: BTreeSet<(u32, u32, Connection)> = BTreeSet::new();
        let mut scratch: Vec<u64> = Vec::new();
        for (rank, gpu) in (0..).zip(&imported.gpus) {
            let mut used = gpu.scratch;
            for block in &gpu.blocks {
                let Some(from) = block.recv else { continue };
                if !block.steps.iter().any(|step| step.kind.receives()) {
                    continue;
                }
                let connection = (from, rank, block.channel);
                let of_connection = landings.entry(connection).or_default();
                for step in block.steps.iter().filter(|step| step.kind.receives()) {
                    let belongs = matches!(step.kind, Kind::Receive | Kind::ReceiveCopySend);
                    of_connection.push(match landing {
                        Landing::Direct if belongs => step.dst,
                        _ => {
                            used += step.count;
                            (Buffer::Scratch, used - step.count)
                        }
                    });
                }
                connections.insert((from.min(rank), from.max(rank), connection));
            }
            scratch.push(used);
        }
        // In one order at both ends, so that the ends of a channel meet.
        let mut channels: Vec<Vec<Connection>> = vec![Vec::new(); imported.gpus.len()];
        for (_, _, connection) in connections {
            channels[connection.0 as usize].push(connection);
            channels[connection.1 as usize].push(connection);
        }
        Self { imported, landings, scratch, channels }
    }

    fn gpu(&mut self, rank: u32, input: u64, output: u64) -> Gpu {
        let blocks = &self.imported.gpus[rank as usize].blocks;
        let channels = &self.channels[rank as usize];
        let mut semaphores: Vec<Semaphore> = Vec::new();
        let mut new_semaphore = || {
            semaphores.push(Semaphore { init_value: 0 });
            semaphores.len() as u32 - 1
        };
        // By step: the semaphore that it acquires, and those that it releases.
        let mut acquires: HashMap<(usize, usize), u32> = HashMap::new();
        let mut releases: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
        for (place, block) in blocks.iter().enumerate() {
            for (number, step) in block.steps.iter().enumerate() {
                if let Some(other) = step.after.filter(|after| after.0 != place) {
                    let semaphore = new_semaphore();
                    acquires.insert((place, number), semaphore);
                    releases.entry(other).or_default().push(semaphore);
                }
            }
        }
        let mut remote: Vec<RemoteBuffer> = Vec::new();
        let mut threadblocks: Vec<ThreadBlock> = Vec::new();
        for (place, block) in blocks.iter().enumerate().filter(|(_, block)| !block.steps.is_empty()) {
            let mut own = Own::new(rank, block, channels);
            let mut groups = vec![own.handshake()];
            for (number, step) in block.steps.iter().enumerate() {
                let acquire = acquires.get(&(place, number)).copied();
                groups.push(own.step(step, &self.landings, acquire));
                let release = releases.get(&(place, number)).map_or(&[][..], Vec::as_slice);
                let release = release.chunks(SEMAPHORES).map(|ids| Operation::of_semaphores(Name::SemRelease, ids));
                groups.extend(release.map(|op| vec![op]));
            }
            let buffers: Vec<u32> = own.remote.iter().map(|buffer| number_of(&mut remote, buffer.clone())).collect();
            for ops in parts(groups, &mut new_semaphore) {
                threadblocks.push(ThreadBlock {
                    id: threadblocks.len() as u32,
                    ops,
                    channels: vec![ChannelIds { channel_type: MEMORY.to_owned(), channel_ids: own.channels.clone() }],
                    remote_buffer_refs: vec![BufferIds {
                        access_channel_type: MEMORY.to_owned(),
                        remote_buffer_ids: buffers.clone(),
                    }],
                });
            }
        }
        let connected_to = channels.iter().map(|&(from, to, _)| if from == rank { to } else { from }).collect();
        Gpu {
            id: rank,
            input_chunks: input,
            output_chunks: output,
            scratch_chunks: self.scratch[rank as usize],
            threadblocks,
            channels: vec![Connected { channel_type: MEMORY.to_owned(), connected_to }],
            remote_buffers: remote,
            semaphores,
        }
    }
}

/// The number of a buffer among others, to which it is added where it is new.
fn number_of(all: &mut Vec<RemoteBuffer>, buffer: RemoteBuffer) -> u32 {
    let known = all.iter().position(|other| *other == buffer);
    known.unwrap_or_else(|| {
        all.push(buffer);
        all.len() - 1
    }) as u32
}

/// Operations of a thread block, whose threads meet where they must: between data that moves and what follows, and between a
/// wait, which is one thread's, and data that moves.
#[derive(Default)]
struct Part {
    ops: Vec<Operation>,
    moved: bool,
    waited: bool,
}

impl Part {
    fn push(&mut self, op: Operation) {
        let waits = matches!(op.name, Name::Wait | Name::SemAcquire);
        let moves = !waits && !matches!(op.name, Name::Signal | Name::SemRelease);
        if self.moved && !waits || self.waited && moves {
            self.ops.push(Operation::new(Name::Nop));
            (self.moved, self.waited) = (false, false);
        }
        (self.moved, self.waited) = (self.moved || moves, self.waited || waits);
        self.ops.push(op);
    }
}

/// Thread blocks, one after another, of no more operations than the executor holds.
fn parts(groups: Vec<Vec<Operation>>, new_semaphore: &mut impl FnMut() -> u32) -> Vec<Vec<Operation>> {
    let mut all: Vec<Vec<Operation>> = Vec::new();
    let mut part = Part::default();
    for group in groups {
        // With a meeting before each, and with room to hand over.
        if part.ops.len() + 2 * group.len() + 2 > MAX_OPERATIONS {
            let semaphore = new_semaphore();
            part.push(Operation::of_semaphores(Name::SemRelease, &[semaphore]));
            all.push(std::mem::take(&mut part).ops);
            part.push(Operation::of_semaphores(Name::SemAcquire, &[semaphore]));
        }
        group.into_iter().for_each(|op| part.push(op));
    }
    all.push(part.ops);
    all
}

/// What a thread block has.
struct Own {
    /// Numbers of its channels on the GPU: of what it receives, then of what it sends.
    channels: Vec<u32>,
    recv: Option<(Connection, u32)>,
    send: Option<(Connection, u32)>,
    remote: Vec<RemoteBuffer>,
    received: usize,
    sent: usize,
}

impl Own {
    fn new(rank: u32, block: &Block, channels: &[Connection]) -> Self {
        let mut own = Self { channels: Vec::new(), recv: None, send: None, remote: Vec::new(), received: 0, sent: 0 };
        let mut take = |connection: Connection| {
            let number = channels.iter().position(|known| *known == connection)?;
            own.channels.push(number as u32);
            Some((connection, own.channels.len() as u32 - 1))
        };
        let recv = block.recv.and_then(|from| take((from, rank, block.channel)));
        let send = block.send.and_then(|to| take((rank, to, block.channel)));
        (own.recv, own.send) = (recv, send);
        own
    }

    /// What comes before the first message.
    fn handshake(&self) -> Vec<Operation> {
        let mut ops = Vec::new();
        ops.extend(self.recv.map(|(_, channel)| Operation::of_channel(Name::Signal, channel)));
        ops.extend(self.send.map(|(_, channel)| Operation::of_channel(Name::Wait, channel)));
        ops
    }

    fn step(
        &mut self,
        step: &Instruction,
        landings: &HashMap<Connection, Vec<Place>>,
        acquire: Option<u32>,
    ) -> Vec<Operation> {
        let mut ops: Vec<Operation> = Vec::new();
        ops.extend(acquire.map(|semaphore| Operation::of_semaphores(Name::SemAcquire, &[semaphore])));
        let next = |of: Option<(Connection, u32)>, count: &mut usize| {
            let (connection, channel) = of?;
            *count += 1;
            Some((landings.get(&connection)?.get(*count - 1).copied()?, channel, connection.1))
        };
        let from = if step.kind.receives() { next(self.recv, &mut self.received) } else { None };
        let to = if step.kind.sends() { next(self.send, &mut self.sent) } else { None };
        ops.extend(from.map(|(_, channel, _)| Operation::of_channel(Name::Wait, channel)));
        let own = |place: Place| Chunks {
            r#type: Some(letter(place.0).to_owned()),
            buffer_id: None,
            index: place.1,
            size: step.count,
        };
        let remote = to.map(|(place, _, rank)| {
            let buffer = RemoteBuffer {
                rank,
                r#type: letter(place.0).to_owned(),
                access_channel_types: vec![MEMORY.to_owned()],
            };
            let id = number_of(&mut self.remote, buffer);
            Chunks { r#type: None, buffer_id: Some(id), index: place.1, size: step.count }
        });
        // Where what arrived is: its own place where none is to be kept.
        let landed = from.map_or(step.dst, |(place, _, _)| place);
        let kept = if step.kind == Kind::ReceiveReduceSend { landed } else { step.dst };
        match step.kind {
            Kind::Copy if step.src != step.dst => ops.push(Operation::moves(Name::Copy, own(step.src), own(step.dst))),
            Kind::Reduce => ops.push(Operation::sum([own(step.dst), own(step.src)], own(step.dst), None)),
            Kind::Receive | Kind::ReceiveCopySend if landed != step.dst => {
                ops.push(Operation::moves(Name::Copy, own(landed), own(step.dst)));
            }
            Kind::ReceiveReduceCopy | Kind::ReceiveReduceSend | Kind::ReceiveReduceCopySend => {
                ops.push(Operation::sum([own(step.src), own(landed)], own(kept), remote.clone()));
            }
            _ => {}
        }
        if let (Kind::Send | Kind::ReceiveCopySend, Some(remote)) = (step.kind, remote) {
            let src = if step.kind == Kind::Send { step.src } else { step.dst };
            ops.push(Operation::moves(Name::Put, own(src), remote));
        }
        ops.extend(to.map(|(_, channel, _)| Operation::of_channel(Name::Signal, channel)));
        ops
    }
}

fn letter(buffer: Buffer) -> &'static str {
    match buffer {
        Buffer::Input => "i",
        Buffer::Output => "o",
        Buffer::Scratch => "s",
    }
}

impl Operation {
    fn new(name: Name) -> Self {
        Self {
            name,
            src_buff: vec![],
            dst_buff: vec![],
            channel_ids: vec![],
            channel_type: None,
            reduce_op: None,
            semaphore_ids: vec![],
        }
    }

    fn of_channel(name: Name, channel: u32) -> Self {
        Self { channel_ids: vec![channel], channel_type: Some(MEMORY.to_owned()), ..Self::new(name) }
    }

    fn of_semaphores(name: Name, ids: &[u32]) -> Self {
        Self { semaphore_ids: ids.to_vec(), ..Self::new(name) }
    }

    fn moves(name: Name, src: Chunks, dst: Chunks) -> Self {
        let channel_type = dst.buffer_id.map(|_| MEMORY.to_owned());
        Self { src_buff: vec![src], dst_buff: vec![dst], channel_type, ..Self::new(name) }
    }

    fn sum(sources: [Chunks; 2], dst: Chunks, remote: Option<Chunks>) -> Self {
        let name = if remote.is_some() { Name::Res } else { Name::Re };
        let channel_type = remote.as_ref().map(|_| MEMORY.to_owned());
        let dst_buff = [dst].into_iter().chain(remote).collect();
        Self { src_buff: sources.into(), dst_buff, channel_type, reduce_op: Some("sum".to_owned()), ..Self::new(name) }
    }
}
