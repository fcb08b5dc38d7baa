//! The messages of an algorithm as a GOAL schedule, and of a call.

use std::collections::HashMap;

use collcast_scenarios::goal::{Goal, OPS_MAX, Operation, What};
use collcast_sim::schedule::msccl::Imported;
use collcast_sim::units::Bytes;

use crate::error::Error;

/// The messages of an algorithm for a buffer of a size. Steps of a thread block follow each other: one goes on once a message
/// is on its way, as into a FIFO, or has come. Each message has a tag of its own. Copies and reductions take no time.
///
/// # Errors
/// More messages than the format's reader takes.
pub(crate) fn of(imported: &Imported, size: Bytes) -> Result<Goal, Error> {
    let bytes = |chunks: u64| (u128::from(size.0) * u128::from(chunks) / u128::from(imported.chunks.max(1))) as u64;
    let steps = imported.gpus.iter().flat_map(|gpu| &gpu.blocks).map(|block| block.steps.len()).sum::<usize>();
    if 2 * steps > OPS_MAX {
        return Err(Error::usage(
            format!("{steps} steps are more than a GOAL schedule is read with"),
            "take fewer ranks or channels",
        ));
    }
    // The number of a message from one rank to another on a channel.
    let mut sent: HashMap<(u32, u32, u32), u32> = HashMap::new();
    let mut received: HashMap<(u32, u32, u32), u32> = HashMap::new();
    let mut all = Goal::default();
    for (rank, gpu) in (0..).zip(&imported.gpus) {
        let mut operations: Vec<Operation> = Vec::new();
        // By block and step: the operation that is its end, and the one that is its beginning.
        let mut ends: HashMap<(usize, usize), u32> = HashMap::new();
        let mut begins: Vec<((usize, usize), u32)> = Vec::new();
        let tag = |of: &mut HashMap<(u32, u32, u32), u32>, from: u32, to: u32, channel: u32| {
            let number = of.entry((from, to, channel)).or_default();
            let tag = *number * imported.channels.max(1) + channel;
            *number += 1;
            tag
        };
        for (place, block) in gpu.blocks.iter().enumerate() {
            let mut last: Option<u32> = None;
            for (number, step) in block.steps.iter().enumerate() {
                let bytes = bytes(step.count);
                let mut parts = Vec::new();
                if let Some(from) = block.recv.filter(|_| step.kind.receives()) {
                    let tag = tag(&mut received, from, rank, block.channel);
                    parts.push(What::Recv { bytes, from: Some(from), tag: Some(tag) });
                }
                if let Some(to) = block.send.filter(|_| step.kind.sends()) {
                    let tag = tag(&mut sent, rank, to, block.channel);
                    parts.push(What::Send { bytes, to, tag });
                }
                // What stays in the rank waits all the same, and others wait for it.
                if parts.is_empty() {
                    parts.push(What::Calc(0));
                }
                for (part, what) in parts.into_iter().enumerate() {
                    let own = operations.len() as u32;
                    let mut operation = Operation { cpu: place as u32, ..Operation::new(what) };
                    if let Some(last) = last {
                        wait(&mut operation, last, operations[last as usize].what);
                    }
                    operations.push(operation);
                    if part == 0 {
                        begins.push(((place, number), own));
                    }
                    last = Some(own);
                }
                ends.extend(last.map(|last| ((place, number), last)));
            }
        }
        for ((place, number), own) in begins {
            let after = gpu.blocks[place].steps[number].after.filter(|after| after.0 != place);
            if let Some(&other) = after.and_then(|after| ends.get(&after)) {
                let what = operations[other as usize].what;
                wait(&mut operations[own as usize], other, what);
            }
        }
        all.ranks.push(operations);
    }
    Ok(all)
}

/// What a file says of it.
pub(super) fn comment(imported: &Imported, size: Bytes) -> String {
    format!(
        "{}: {} of {size} over {} ranks, a message a step\nCopies and reductions take no time here.",
        imported.name, imported.collective, imported.ranks
    )
}

/// Puts an operation after another: after its end, or after its start where it sends.
fn wait(operation: &mut Operation, other: u32, what: What) {
    match what {
        What::Send { .. } => operation.irequires.push(other),
        _ => operation.requires.push(other),
    }
}
