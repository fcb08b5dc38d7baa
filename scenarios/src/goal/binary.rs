//! To and from LogGOPSim's binary form, which its `txt2bin` makes and its simulator maps into memory.
//!
//! Little-endian, packed: a magic number of 8 bytes; ranks (4), the highest CPU and NIC (1 each); for each rank where its part
//! begins and ends (8 each, from behind the magic number). A part has its number of operations and of those that wait for
//! nothing (4 each), the latter by place (4 each), then 39 bytes an operation, then the places that operations are waited for by.
//!
//! # Source
//! spcl/LogGOPSim `src/LogGOPSim/Parser.hpp`, `Graph::serialize_mmap`.

use super::model::{DEPENDENCIES_MAX, Goal, GoalError, OPS_MAX, Operation, RANKS_MAX, What};

/// `MAGIC_COOKIE`.
const MAGIC: u64 = 4223;
/// Bytes of the magic number.
const MAGIC_BYTES: usize = 8;
/// Bytes of an operation: seven numbers of 4, its size of 8, kind, CPU and NIC of 1.
const OPERATION_BYTES: usize = 39;
/// Any rank, or any tag.
const ANY: u32 = u32::MAX;

/// Whether a file begins as a binary schedule does.
pub fn is_binary(start: &[u8]) -> bool {
    start.starts_with(&MAGIC.to_le_bytes())
}

/// The schedule in binary form.
///
/// # Errors
/// A CPU or NIC above 255, a tag that means any, which the form cannot say.
pub fn to_binary(goal: &Goal) -> Result<Vec<u8>, GoalError> {
    let refused = |what: String| Err(GoalError::Run(format!("{what}: write the text form")));
    let all = || goal.ranks.iter().flatten();
    let byte = |value: u32| u8::try_from(value).ok();
    let (cpu, nic) = (all().map(|op| op.cpu).max().unwrap_or(0), all().map(|op| op.nic).max().unwrap_or(0));
    let (Some(cpu), Some(nic)) = (byte(cpu), byte(nic)) else {
        return refused(format!("CPU {cpu} or NIC {nic} is above 255, the highest of the binary form"));
    };
    let is_any = |op: &Operation| matches!(op.what, What::Send { tag: ANY, .. } | What::Recv { tag: Some(ANY), .. });
    if all().any(is_any) {
        return refused(format!("tag {ANY} means any in the binary form"));
    }
    let table = 4 + 2 + 16 * goal.ranks.len();
    let mut out = MAGIC.to_le_bytes().to_vec();
    out.extend((goal.ranks.len() as u32).to_le_bytes());
    out.extend([cpu, nic]);
    out.resize(MAGIC_BYTES + table, 0);
    for (rank, operations) in goal.ranks.iter().enumerate() {
        let begin = out.len() - MAGIC_BYTES;
        part(operations, &mut out);
        let end = out.len() - MAGIC_BYTES;
        let entry = MAGIC_BYTES + 4 + 2 + 16 * rank;
        out[entry..entry + 8].copy_from_slice(&(begin as u64).to_le_bytes());
        out[entry + 8..entry + 16].copy_from_slice(&(end as u64).to_le_bytes());
    }
    Ok(out)
}

/// What one rank does.
fn part(operations: &[Operation], out: &mut Vec<u8>) {
    // By operation: those that wait for its end, and for its start.
    let mut waited: Vec<[Vec<u32>; 2]> = vec![Default::default(); operations.len()];
    for (place, operation) in operations.iter().enumerate() {
        operation.requires.iter().for_each(|&other| waited[other as usize][0].push(place as u32));
        operation.irequires.iter().for_each(|&other| waited[other as usize][1].push(place as u32));
    }
    let waits = |operation: &Operation| (operation.requires.len() + operation.irequires.len()) as u32;
    let first: Vec<u32> = (0..).zip(operations).filter(|(_, op)| waits(op) == 0).map(|(place, _)| place).collect();
    let mut put = |value: u32| out.extend(value.to_le_bytes());
    put(operations.len() as u32);
    put(first.len() as u32);
    first.into_iter().for_each(&mut put);
    let mut listed = 0;
    for (operation, waited) in operations.iter().zip(&waited) {
        let (kind, peer, size, tag) = match operation.what {
            What::Send { bytes, to, tag } => (1_u8, to, bytes, tag),
            What::Recv { bytes, from, tag } => (2, from.unwrap_or(ANY), bytes, tag.unwrap_or(ANY)),
            What::Calc(ns) => (3, 0, ns, 0),
        };
        out.extend(waits(operation).to_le_bytes());
        out.push(kind);
        out.extend(peer.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend(tag.to_le_bytes());
        out.extend([operation.cpu as u8, operation.nic as u8]);
        for by in waited {
            out.extend((by.len() as u32).to_le_bytes());
            out.extend((listed as u32).to_le_bytes());
            listed += by.len();
        }
    }
    waited.iter().flatten().flatten().for_each(|place| out.extend(place.to_le_bytes()));
}

/// Reads a binary schedule; `file` is its name for messages.
///
/// # Errors
/// A file that is cut or is none, more than is read.
pub fn from_binary(bytes: &[u8], file: &str) -> Result<Goal, GoalError> {
    let mut reader = Reader { bytes: bytes.get(MAGIC_BYTES..).unwrap_or_default(), ops: 0, dependencies: 0 };
    if !is_binary(bytes) {
        return Err(GoalError::Run(format!(
            "{file}: no schedule of LogGOPSim: it does not begin with its magic number"
        )));
    }
    reader.all().map_err(|what| GoalError::Run(format!("{file}: {what}")))
}

struct Reader<'b> {
    /// Behind the magic number.
    bytes: &'b [u8],
    ops: usize,
    dependencies: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N], String> {
        let bytes = at.checked_add(N).and_then(|end| self.bytes.get(at..end));
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
            format!("it ends before byte {}: it was cut, so convert it again with txt2bin", at.saturating_add(N))
        })
    }

    fn number(&self, at: usize) -> Result<u32, String> {
        self.take(at).map(u32::from_le_bytes)
    }

    fn place(&self, at: usize) -> Result<usize, String> {
        let place = u64::from_le_bytes(self.take(at)?);
        usize::try_from(place).map_err(|_| format!("a part begins at byte {place}"))
    }

    fn all(&mut self) -> Result<Goal, String> {
        let ranks = self.number(0)?;
        if ranks == 0 || ranks > RANKS_MAX {
            return Err(format!("{ranks} ranks: 1 to {RANKS_MAX} are read"));
        }
        let parts = (0..ranks as usize).map(|rank| self.part(rank, ranks)).collect::<Result<_, _>>()?;
        Ok(Goal { ranks: parts })
    }

    fn part(&mut self, rank: usize, ranks: u32) -> Result<Vec<Operation>, String> {
        let begin = self.place(6 + 16 * rank)?;
        let after =
            |bytes: usize| begin.checked_add(bytes).ok_or_else(|| format!("rank {rank} begins at byte {begin}"));
        let (count, first) = (self.number(begin)? as usize, self.number(after(4)?)? as usize);
        self.ops = self.ops.saturating_add(count);
        if self.ops > OPS_MAX {
            return Err(format!("more than {OPS_MAX} operations: take fewer ranks"));
        }
        let nodes = first.checked_mul(4).and_then(|bytes| bytes.checked_add(8)).ok_or("too many operations")?;
        let nodes = after(nodes)?;
        let listed = nodes.checked_add(count * OPERATION_BYTES).ok_or("too many operations")?;
        // The last of them is there before room is made for all.
        if count > 0 {
            self.take::<OPERATION_BYTES>(listed - OPERATION_BYTES)?;
        }
        let mut operations = Vec::with_capacity(count);
        for place in 0..count {
            operations.push(self.operation(nodes + place * OPERATION_BYTES, rank as u32, ranks)?);
        }
        let mut waits = vec![0_u32; count];
        for place in 0..count {
            for (start, of_start) in [(23, false), (31, true)] {
                let at = nodes + place * OPERATION_BYTES + start;
                let (number, index) = (self.number(at)? as usize, self.number(at + 4)? as usize);
                self.dependencies = self.dependencies.saturating_add(number);
                if self.dependencies > DEPENDENCIES_MAX {
                    return Err(format!("more than {DEPENDENCIES_MAX} dependencies: take fewer ranks"));
                }
                for entry in 0..number {
                    let at = (index + entry).checked_mul(4).and_then(|bytes| listed.checked_add(bytes));
                    let other = self.number(at.ok_or("a list of dependencies is out of range")?)? as usize;
                    let waiting = operations
                        .get_mut(other)
                        .ok_or_else(|| format!("operation {other} of rank {rank} waits, and the rank has {count}"))?;
                    let list = if of_start { &mut waiting.irequires } else { &mut waiting.requires };
                    list.push(place as u32);
                    waits[other] += 1;
                }
            }
        }
        for (place, waits) in waits.into_iter().enumerate() {
            let said = self.number(nodes + place * OPERATION_BYTES)?;
            if said != waits {
                return Err(format!("operation {place} of rank {rank} waits for {said} others, and {waits} say so"));
            }
        }
        Ok(operations)
    }

    fn operation(&self, at: usize, rank: u32, ranks: u32) -> Result<Operation, String> {
        let [kind] = self.take(at + 4)?;
        let (peer, tag) = (self.number(at + 5)?, self.number(at + 17)?);
        let bytes = u64::from_le_bytes(self.take(at + 9)?);
        let [cpu, nic] = self.take(at + 21)?;
        let known = |value: u32| (value != ANY).then_some(value);
        let what = match kind {
            1 => What::Send { bytes, to: peer, tag },
            2 => What::Recv { bytes, from: known(peer), tag: known(tag) },
            3 => What::Calc(bytes),
            other => return Err(format!("an operation of rank {rank} is of kind {other}; there are 1 to 3")),
        };
        let other = match what {
            What::Send { to, .. } => Some(to),
            What::Recv { from, .. } => from,
            What::Calc(_) => None,
        };
        if let Some(other) = other.filter(|&other| other >= ranks || other == rank) {
            return Err(format!("rank {rank} has a message with {other}, which is no other rank of {ranks}"));
        }
        Ok(Operation { what, cpu: cpu.into(), nic: nic.into(), requires: Vec::new(), irequires: Vec::new() })
    }
}
