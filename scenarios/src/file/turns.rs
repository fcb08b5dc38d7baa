//! Reads what ranks do turn by turn, where a scenario says so in place of layers.

use std::collections::BTreeSet;

use collcast_sim::collective::Collective;
use collcast_sim::ids::Rank;
use collcast_topologies::error::TopologiesError;

use super::{MAX_GROUP, MAX_OPERATIONS, MAX_RANKS, Reader};
use crate::programs::{Communicator, Does, Programs, Turn};
use crate::raw::{RawCommunicator, RawFile, RawTurn, Text};

/// Part of the memory's rate that kernels need where nothing says: that of large matrix products, about.
const MEMORY: f64 = 0.5;
/// Ids that an error lists.
const IDS_SHOWN: usize = 20;

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
        self.in_order(raw, &programs)?;
        self.joined(raw, &programs)?;
        let operations = programs.operations();
        if operations > MAX_OPERATIONS {
            let message = format!("the programs have {operations} operations");
            let error = self.source.whole(message, "at most 2 million are simulated: leave micro-batches out");
            return Err(TopologiesError::TooLarge(error));
        }
        Ok(Some(programs))
    }

    /// Refuses a turn that comes `after` one which its program never runs before it. A block that runs again has its own ids then.
    fn in_order(&self, raw: &RawFile, programs: &Programs) -> Result<(), TopologiesError> {
        for (program, (_, turns)) in raw.programs.iter().zip(&programs.programs) {
            // What waits, and what is known then.
            let (mut waits, mut found, mut known) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
            let mut wait = |turn: &'_ RawTurn, known: &BTreeSet<&String>| {
                for id in &turn.after {
                    waits.push((turn.name.get_ref().clone(), id.clone()));
                    found.extend(known.contains(id.get_ref()).then(|| id.span().start));
                }
            };
            for (written, turn) in program.turns.iter().zip(turns) {
                wait(written, &known);
                if let Does::Block(block, times) = turn.does {
                    for turn in (0..times.min(2)).flat_map(|_| &raw.blocks[block].turns) {
                        wait(turn, &known);
                        known.extend(&turn.id);
                    }
                }
                known.extend(&written.id);
            }
            if let Some((name, id)) = waits.into_iter().find(|(_, id)| !found.contains(&id.span().start)) {
                let message = format!("no turn before `{name}` has the id `{}`", id.get_ref());
                let hint = match known.remove(id.get_ref()) {
                    true => "the turn with this id is not before it: turns run in order".to_owned(),
                    false if known.is_empty() => "give an earlier turn this id".to_owned(),
                    false => {
                        let known: Vec<&str> = known.into_iter().map(String::as_str).take(IDS_SHOWN).collect();
                        format!("known: {}", known.join(", "))
                    }
                };
                return Err(self.bad(id.span(), message, "an id of an earlier turn", &hint));
            }
        }
        Ok(())
    }

    /// Refuses a communicator of which one rank makes calls and another in its group none.
    fn joined(&self, raw: &RawFile, programs: &Programs) -> Result<(), TopologiesError> {
        let used: Vec<BTreeSet<usize>> = programs.programs.iter().map(|(_, turns)| used(programs, turns)).collect();
        for (at, (of, written)) in programs.communicators.iter().zip(&raw.communicators).enumerate() {
            let calls = |rank: Rank| {
                let program = programs.programs.partition_point(|((_, last), _)| *last < rank.0);
                used.get(program).is_some_and(|used| used.contains(&at))
            };
            for group in of.groups() {
                let (some, none): (Vec<Rank>, Vec<Rank>) = group.into_iter().partition(|rank| calls(*rank));
                if let (Some(with), Some(without)) = (some.first(), none.first()) {
                    let name = written.name.get_ref();
                    let message = format!(
                        "`{name}` joins ranks {with} and {without}: rank {with} makes calls on it, and rank {without} none"
                    );
                    let hint = "give the programs of all its ranks the same calls, and both ends of a message";
                    return Err(self.bad(written.name.span(), message, "this communicator", hint));
                }
            }
        }
        Ok(())
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

/// The communicators that turns use.
fn used(programs: &Programs, turns: &[Turn]) -> BTreeSet<usize> {
    let of = |turn: &Turn| match turn.does {
        Does::Call(_, of, _) | Does::Send(of, _) | Does::Recv(of, _) => BTreeSet::from([of]),
        Does::Block(block, _) => used(programs, &programs.blocks[block].1),
        Does::Kernels(..) => BTreeSet::new(),
    };
    turns.iter().flat_map(of).collect()
}

/// A rank of a program that is in no group of a communicator which its turns have, if there is one.
fn outside<'p>(programs: &'p Programs, turns: &[Turn], (first, last): (u32, u32)) -> Option<(u32, &'p Communicator)> {
    let of = used(programs, turns).into_iter().map(|of| &programs.communicators[of]);
    of.flat_map(|of| (first..=last).map(move |rank| (rank, of))).find(|(rank, of)| of.group_of(*rank).is_none())
}
