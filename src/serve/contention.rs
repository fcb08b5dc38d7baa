//! What the collectives of a worker and its transfers cost each other on links that they share, by the engine.
//!
//! A table has a line for each exchange of a worker and each kind of transfer. It says what a byte of the exchange takes on
//! links, how much longer that is while transfers run, and how much slower those are meanwhile. All four times are runs of
//! the engine with the bytes of both as flows.

use std::cell::RefCell;
use std::collections::BTreeMap;

use collcast_scenarios::serving::{Beside as Cost, Taken, WAYS};
use collcast_scenarios::training::calls::{Exchange, Shape};
use collcast_sim::collective::Collective;
use collcast_sim::ids::Rank;
use collcast_sim::transfer::{Fleet as Links, Load, TransferError, Way, run};
use collcast_sim::units::SimDuration;

use super::fleet::Group;
use super::setup::Setup;
use crate::transfer::Beside;

/// Bytes of an exchange and of a transfer of which rates are taken: latencies are far below their times.
const BYTES: u64 = 1 << 30;
/// How much longer than alone the one takes that is to run all along beside the other.
const OUTLASTS: f64 = 8.0;
/// Members of an exchange that are flows at most.
const MEMBERS: u64 = 64;

/// A line of the table: all zeros where nothing is shared.
#[derive(Clone, Copy, Default)]
struct Line {
    /// Seconds on links of a byte of the exchange.
    byte: f64,
    /// How many times that is with transfers beside it, less once.
    longer: f64,
    /// Part of their rate that transfers lose meanwhile.
    lost: f64,
}

/// The table of one worker, by what it sends to itself and what comes to it.
pub(super) struct Contention<'s> {
    links: RefCell<Links<'s>>,
    descriptor: SimDuration,
    group: Group,
    /// Its first GPU.
    first: u32,
    /// By kind of transfer: its ways, and bytes of a contiguous piece.
    transfers: [(Vec<Way>, u64); WAYS],
    known: RefCell<BTreeMap<(Shape, Exchange), [Line; WAYS]>>,
    pub(super) failed: RefCell<Option<TransferError>>,
}

impl<'s> Contention<'s> {
    pub(super) fn new(setup: &'s Setup, (group, first): (Group, u32), transfers: [(Vec<Way>, u64); WAYS]) -> Self {
        let links = RefCell::new(Links::new(&setup.site.topology, &setup.site.profile, &setup.gpu, None));
        let descriptor = setup.site.profile.transfer_descriptor();
        let (known, failed) = Default::default();
        Self { links, descriptor, group, first, transfers, known, failed }
    }

    /// What an exchange that takes so many seconds alone takes beside transfers.
    pub(super) fn taken(&self, shape: Shape, exchange: Exchange, bytes: u64, seconds: f64) -> Taken {
        let known = self.known.borrow().get(&(shape, exchange)).copied();
        let lines = known.unwrap_or_else(|| {
            let lines = self.lines(shape, exchange).unwrap_or_else(|error| {
                self.failed.borrow_mut().get_or_insert(error);
                [Line::default(); WAYS]
            });
            self.known.borrow_mut().insert((shape, exchange), lines);
            lines
        });
        let cost = |line: Line| {
            // What is left of it are latencies, in which links are free.
            let on_links = (line.byte * bytes as f64).min(seconds);
            let longer = on_links * line.longer;
            Cost { longer, lost: (on_links + longer) * line.lost }
        };
        Taken { seconds, beside: lines.map(cost) }
    }

    fn lines(&self, shape: Shape, exchange: Exchange) -> Result<[Line; WAYS], TransferError> {
        let mut lines = [Line::default(); WAYS];
        for (line, (ways, block)) in lines.iter_mut().zip(&self.transfers) {
            if !ways.is_empty() {
                *line = self.line(shape, exchange, (ways, *block))?;
            }
        }
        Ok(lines)
    }

    fn line(&self, shape: Shape, exchange: Exchange, (ways, block): (&[Way], u64)) -> Result<Line, TransferError> {
        let Exchange::Collective(collective) = exchange else { return Ok(Line::default()) };
        let send = |bytes: f64| self.exchange(shape, collective, bytes as u64);
        let transfer = |bytes: f64| -> Vec<Load> {
            let of = |way: &Way| {
                let way = Way { request: SimDuration::ZERO, notify: SimDuration::ZERO, ..way.clone() };
                Load { way, bytes: bytes as u64, block, register: false, ready: Vec::new() }
            };
            ways.iter().map(of).collect()
        };
        let last = |loads: &[Load], of: std::ops::Range<usize>| -> Result<f64, TransferError> {
            let ends = run(loads, self.descriptor)?.ends;
            Ok(ends[of].iter().map(|end| SimDuration(end.0).as_us() * 1e-6).fold(0.0, f64::max))
        };
        let both = |sent: &[Load], moved: &[Load]| [sent, moved].concat();
        let (sent, moved) = (send(BYTES as f64), transfer(BYTES as f64));
        if !shares(&sent, &moved) {
            return Ok(Line::default());
        }
        let (exchanges, transfers) = (last(&sent, 0..sent.len())?, last(&moved, 0..moved.len())?);
        if exchanges <= 0.0 || transfers <= 0.0 {
            return Ok(Line::default());
        }
        // Each beside one of the other that is not through before it.
        let more = |own: f64, other: f64| BYTES as f64 * (own / other * OUTLASTS).max(1.0);
        let beside = both(&sent, &transfer(more(exchanges, transfers)));
        let longer = last(&beside, 0..sent.len())? / exchanges - 1.0;
        let long = send(more(transfers, exchanges));
        let beside = both(&long, &moved);
        let slower = last(&beside, long.len()..beside.len())? / transfers;
        Ok(Line {
            byte: exchanges / BYTES as f64,
            longer: longer.max(0.0),
            lost: (1.0 - 1.0 / slower.max(1.0)).max(0.0),
        })
    }

    /// An exchange of so many bytes in all groups of a stage, as flows; of one that no way joins, none.
    fn exchange(&self, shape: Shape, collective: Collective, bytes: u64) -> Vec<Load> {
        let (stage, first) = (u64::from(self.group.stage()), u64::from(self.first));
        let (size, stride) = (shape.size.min(MEMBERS), shape.stride.max(1));
        // As many bytes from each to each, of fewer members.
        let bytes = match collective {
            Collective::AllToAll => (u128::from(bytes) * u128::from(size) / u128::from(shape.size.max(1))) as u64,
            _ => bytes,
        };
        let mut loads = Vec::new();
        for ranks in groups(stage, (shape.size, stride)).filter_map(|group| ranks(first, group, (size, stride))) {
            let beside = Beside { collective, bytes, ranks };
            loads.extend(beside.loads(&mut self.links.borrow_mut()).unwrap_or_default());
        }
        loads
    }
}

/// Where the groups of a stage begin, of so many members so many ranks apart; a group that is larger than a stage
/// counts as one for each of its places.
fn groups(stage: u64, (size, stride): (u64, u64)) -> impl Iterator<Item = u64> {
    let span = size.saturating_mul(stride).max(1);
    let blocks = (stage / span).max(1);
    (0..blocks).flat_map(move |block| (0..stride).map(move |lane| block * span + lane))
}

/// The ranks of a group that begins behind the first one; none where its numbers are no ranks.
fn ranks(first: u64, group: u64, (size, stride): (u64, u64)) -> Option<Vec<Rank>> {
    let rank = |member: u64| {
        let at = first.checked_add(group)?.checked_add(member.checked_mul(stride)?)?;
        u32::try_from(at).ok().map(Rank)
    };
    (0..size).map(rank).collect()
}

/// Whether two lists of loads use something that both do.
fn shares(a: &[Load], b: &[Load]) -> bool {
    let used = |load: &Load| load.way.stages.iter().flat_map(|stage| stage.uses.iter().map(|used| used.0)).collect();
    let ours: std::collections::HashSet<_> = a.iter().flat_map(|load: &Load| -> Vec<_> { used(load) }).collect();
    b.iter().flat_map(|load| -> Vec<_> { used(load) }).any(|used| ours.contains(&used))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each rank of a stage is in one group, and numbers beyond ranks are no group rather than other ranks.
    #[test]
    fn groups_are_of_ranks_that_there_are() {
        let of = |first: u64, stage: u64, shape: (u64, u64)| -> Vec<Option<Vec<Rank>>> {
            groups(stage, shape).map(|group| ranks(first, group, shape)).collect()
        };
        let some = |all: &[u32]| Some(all.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!(of(8, 8, (2, 2)), [some(&[8, 10]), some(&[9, 11]), some(&[12, 14]), some(&[13, 15])]);
        assert_eq!(of(0, 2, (4, 2)), [some(&[0, 2, 4, 6]), some(&[1, 3, 5, 7])]);
        assert_eq!(of(u64::from(u32::MAX) - 1, 4, (4, 1)), [None]);
        assert_eq!(groups(1, (u64::MAX, 4)).count(), 4);
    }
}
