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
        let (size, stride) = (shape.size.min(MEMBERS), shape.stride.max(1));
        // As many bytes from each to each, of fewer members.
        let bytes = match collective {
            Collective::AllToAll => (u128::from(bytes) * u128::from(size) / u128::from(shape.size.max(1))) as u64,
            _ => bytes,
        };
        let all = u64::from(self.group.stage()) / (shape.size * stride).max(1);
        let mut loads = Vec::new();
        for (block, lane) in (0..all.max(1)).flat_map(|block| (0..stride).map(move |lane| (block, lane))) {
            let rank = |member: u64| Rank(self.first + (block * shape.size * stride + lane + member * stride) as u32);
            let beside = Beside { collective, bytes, ranks: (0..size).map(rank).collect() };
            loads.extend(beside.loads(&mut self.links.borrow_mut()).unwrap_or_default());
        }
        loads
    }
}

/// Whether two lists of loads use something that both do.
fn shares(a: &[Load], b: &[Load]) -> bool {
    let used = |load: &Load| load.way.stages.iter().flat_map(|stage| stage.uses.iter().map(|used| used.0)).collect();
    let ours: std::collections::HashSet<_> = a.iter().flat_map(|load: &Load| -> Vec<_> { used(load) }).collect();
    b.iter().flat_map(|load| -> Vec<_> { used(load) }).any(|used| ours.contains(&used))
}
