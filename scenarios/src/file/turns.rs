//! Reads what ranks do turn by turn, where a scenario says so in place of layers.

use collcast_sim::collective::Collective;
use collcast_topologies::error::TopologiesError;

use super::{MAX_GROUP, MAX_OPERATIONS, MAX_RANKS, Reader};
use crate::programs::{Communicator, Does, Programs, Turn};
use crate::raw::{RawCommunicator, RawFile, RawTurn, Text};

/// Part of the memory's rate that kernels need where nothing says: that of large matrix products, about.
const MEMORY: f64 = 0.5;

impl Reader<'_> {
    /// The programs of a file, if it has some.
    pub(super) fn programs(&self, raw: &RawFile) -> Result<Option<Programs>, TopologiesError> {
        let whole =
            |message: &str, hint: &str| TopologiesError::Contradiction(self.source.whole(message.to_owned(), hint));
        if raw.programs.is_empty() {
            let parts = raw.communicators.is_empty() && raw.blocks.is_empty();
            return match parts {
                true => Ok(None),
                false => Err(whole("there are communicators or blocks, and no [[programs]]", "say what ranks do")),
            };
        }
        if !raw.layers.is_empty() || raw.machine.spread.is_some() {
            let message = "a scenario with [[programs]] has neither [[layers]] nor a spread";
            return Err(whole(message, "leave one of them out: programs say what each rank does"));
        }
        let communicators = raw.communicators.iter().map(|of| self.communicator(of)).collect::<Result<Vec<_>, _>>()?;
        let mut programs = Programs { communicators, ..Programs::default() };
        for block in &raw.blocks {
            let turns = block.turns.iter().map(|turn| self.turn(turn, &programs, false)).collect::<Result<_, _>>()?;
            programs.blocks.push((block.name.get_ref().clone(), turns));
        }
        let mut next = 0;
        for program in &raw.programs {
            let [first, last] = *program.ranks.get_ref();
            if first != next || last < first || last as usize >= MAX_RANKS as usize {
                let message = format!("a program of ranks {first} to {last}, where rank {next} is the next");
                return Err(self.bad(program.ranks.span(), message, "every rank has one program, in their order", ""));
            }
            next = last + 1;
            let turns =
                program.turns.iter().map(|turn| self.turn(turn, &programs, true)).collect::<Result<Vec<_>, _>>()?;
            if let Some((rank, of)) = outside(&programs, &turns, (first, last)) {
                let message = format!("rank {rank} is in no group of `{}`, which its program uses", of.name);
                return Err(self.bad(program.ranks.span(), message, "these ranks", ""));
            }
            programs.programs.push(((first, last), turns));
        }
        let operations = programs.operations();
        if operations > MAX_OPERATIONS {
            let message = format!("the programs have {operations} operations");
            let error = self.source.whole(message, "at most 2 million are simulated: leave micro-batches out");
            return Err(TopologiesError::TooLarge(error));
        }
        Ok(Some(programs))
    }

    fn communicator(&self, raw: &RawCommunicator) -> Result<Communicator, TopologiesError> {
        let (name, [first, last], stride) = (raw.name.get_ref(), raw.ranks, raw.stride.unwrap_or(1));
        let within = raw.within.unwrap_or(stride);
        let bad = |message: String| self.bad(raw.name.span(), message, "this communicator", "");
        if !(2..=MAX_GROUP).contains(&raw.size) {
            return Err(bad(format!("`{name}` has groups of {} ranks: expected 2 to {MAX_GROUP}", raw.size)));
        }
        let block = u64::from(raw.size) * u64::from(stride);
        let ranks = u64::from(last.saturating_sub(first)) + 1;
        if block == 0 || last < first || u64::from(last) >= 2 * MAX_RANKS || !ranks.is_multiple_of(block) {
            return Err(bad(format!(
                "ranks {first} to {last} of `{name}` are no blocks of size times stride, {block}"
            )));
        }
        if !(1..=stride).contains(&within) {
            return Err(bad(format!("within of `{name}` is {within}: expected 1 to its stride, {stride}")));
        }
        Ok(Communicator { name: name.clone(), size: raw.size, stride, ranks: (first, last + 1), within })
    }

    fn turn(&self, raw: &RawTurn, programs: &Programs, blocks: bool) -> Result<Turn, TopologiesError> {
        let name = raw.name.get_ref();
        let bad = |message: String, hint: &str| self.bad(raw.name.span(), message, "this turn", hint);
        let known: Vec<(&str, usize)> =
            (programs.communicators.iter().enumerate()).map(|(at, of)| (&*of.name, at)).collect();
        let on = || match &raw.on {
            Some(on) => self.name(on, "a communicator", &known),
            None => Err(bad(format!("`{name}` has no communicator"), "name one, as in on = \"tensor\"")),
        };
        let message = |bytes: &Text| -> Result<_, TopologiesError> {
            let on = on()?;
            match programs.communicators[on].size {
                2 => Ok((on, self.size(bytes)?)),
                _ => Err(bad(
                    format!("`{name}` is a message among more than two ranks"),
                    "its communicator has size = 2",
                )),
            }
        };
        let given = [&raw.time, &raw.call, &raw.send, &raw.receive, &raw.block];
        let does = match given {
            [Some(time), None, None, None, None] => {
                let memory = raw.memory.as_ref().map_or(Ok(MEMORY), |part| self.share(part, "memory", 1.0))?;
                Does::Kernels(self.time(time)?, raw.kernels.unwrap_or(1).max(1), memory)
            }
            [None, Some(call), None, None, None] => {
                let all: Vec<_> = Collective::ALL.iter().map(|one| (one.name(), *one)).collect();
                let Some(size) = &raw.size else {
                    return Err(bad(format!("`{name}` has no size"), "give one, as in size = \"64 MiB\""));
                };
                Does::Call(self.name(call, "a collective", &all)?, on()?, self.size(size)?)
            }
            [None, None, Some(bytes), None, None] => message(bytes).map(|(on, bytes)| Does::Send(on, bytes))?,
            [None, None, None, Some(bytes), None] => message(bytes).map(|(on, bytes)| Does::Recv(on, bytes))?,
            [None, None, None, None, Some(block)] if blocks => {
                let known: Vec<(&str, usize)> =
                    programs.blocks.iter().enumerate().map(|(at, block)| (&*block.0, at)).collect();
                Does::Block(self.name(block, "a block", &known)?, raw.times.unwrap_or(1))
            }
            [None, None, None, None, Some(_)] => {
                return Err(bad(format!("`{name}` is a block in a block"), "write its turns there"));
            }
            _ => {
                let hint = "give one: time = \"80 us\", call = \"all_gather\", send, receive or block";
                return Err(bad(format!("`{name}` does nothing, or several things"), hint));
            }
        };
        let after = raw.after.iter().map(|id| id.get_ref().clone()).collect();
        Ok(Turn { name: name.clone(), does, hidden: raw.hidden, id: raw.id.clone(), after })
    }
}

/// A rank of a program that is in no group of a communicator which its turns have, if there is one.
fn outside<'p>(programs: &'p Programs, turns: &[Turn], (first, last): (u32, u32)) -> Option<(u32, &'p Communicator)> {
    let used = |turn: &Turn| match turn.does {
        Does::Call(_, of, _) | Does::Send(of, _) | Does::Recv(of, _) => vec![of],
        Does::Block(block, _) => {
            let of = |turn: &Turn| match turn.does {
                Does::Call(_, of, _) | Does::Send(of, _) | Does::Recv(of, _) => Some(of),
                Does::Kernels(..) | Does::Block(..) => None,
            };
            programs.blocks[block].1.iter().filter_map(of).collect()
        }
        Does::Kernels(..) => Vec::new(),
    };
    let mut all: Vec<usize> = turns.iter().flat_map(used).collect();
    all.sort_unstable();
    all.dedup();
    let of = all.into_iter().map(|of| &programs.communicators[of]);
    of.flat_map(|of| (first..=last).map(move |rank| (rank, of))).find(|(rank, of)| of.group_of(*rank).is_none())
}
