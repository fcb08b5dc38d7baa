//! What tables cannot say of one call: who does what when, and how its chunks move.

use std::collections::{BTreeMap, VecDeque};

use collcast_reports::figure::{Drawing, Figure, Machine, Message, Span, Steps, Timeline};
use collcast_reports::palette::Hue;
use collcast_sim::ids::LinkId;
use collcast_sim::network::{Laid, ResourceName, lay};
use collcast_sim::predict::{PredictError, Shares};
use collcast_sim::schedule::Schedule;
use collcast_sim::schedule::program::Step;
use collcast_sim::schedule::wiring::{SliceCursor, Wired, Wiring};
use collcast_sim::topology::Topology;
use collcast_sim::units::SimTime;

use super::row::Row;
use super::timeline::{recorded, scheduled, settings_of, spelling};
use crate::error::Error;
use crate::site::Site;

/// Most messages of a call that is run once more for a picture: about a second.
const MOST_MESSAGES: u64 = 200_000;
/// Most ranks of a picture, which a reader can tell apart.
const MOST_RANKS: u32 = 16;
/// Most boxes of a timeline: later ones are left out.
const MOST_SPANS: usize = 1_500;
/// Most ranks times steps of a schedule that is shown step by step: about 300 KB of a page.
const MOST_PLACES: usize = 512;

/// Most ranks of a machine whose links are drawn: its run is laid whole, in about a second.
const MOST_DRAWN: u32 = 1_024;
/// Parts of a call's time at each of which links are shown.
const PARTS: usize = 12;

/// The pictures of a call that was forecast; those alone that can be read of a call of its size.
///
/// # Errors
/// As of its forecast.
pub fn pictures(site: &Site, row: &Row) -> Result<Vec<Figure>, Error> {
    let settings = settings_of(site, row);
    // Communicators at once share links, and what is run here is one.
    let alone = row.query.groups.is_none();
    if row.ranks > MOST_RANKS || row.prediction.messages > MOST_MESSAGES {
        if !alone || row.ranks > MOST_DRAWN {
            return Ok(Vec::new());
        }
        let shares = site.predictor().shares(&scheduled(site, row)?, &settings)?;
        return Ok(machine(site, &shares, &[]).into_iter().collect());
    }
    let (schedule, recorder) = recorded(site, row)?;
    let shares = if alone { site.predictor().shares(&schedule, &settings)? } else { Shares::new() };
    let laid = lay(&site.topology, &site.profile, &settings.transport, &schedule).map_err(PredictError::from)?;
    let mut figures = Vec::new();
    figures.extend(steps(&schedule));
    figures.extend(machine(site, &shares, &carried(&laid, &recorder.messages)));
    figures.push(channel(&schedule, &laid.wiring.workers, recorder.slices));
    Ok(figures)
}

/// What links carry in a part of a call: of each link, in any unit; and from when to when, in microseconds.
type Carried = (BTreeMap<LinkId, f64>, f64, f64);

/// What links carry in each of some equal parts of a call: each message evenly from its first byte to its arrival.
fn carried(laid: &Laid<'_>, messages: &[(u32, u64, SimTime, SimTime)]) -> Vec<Carried> {
    let us = |at: SimTime| (at - SimTime::default()).as_us();
    let end = messages.iter().map(|message| us(message.3)).fold(0.0, f64::max);
    let part = end / PARTS as f64;
    let mut parts: Vec<Carried> =
        (0..PARTS).map(|index| (BTreeMap::new(), part * index as f64, part * (index + 1) as f64)).collect();
    for &(conn, bytes, from, to) in messages {
        let (from, to) = (us(from), us(to));
        let long = (to - from).max(f64::MIN_POSITIVE);
        for (links, begins, ends) in &mut parts {
            let share = if to > from {
                ((to.min(*ends) - from.max(*begins)) / long).max(0.0)
            } else {
                f64::from(u8::from(*begins <= from && from < *ends))
            };
            if share == 0.0 {
                continue;
            }
            for (_, used) in laid.instance.conns[conn as usize].uses.iter() {
                if let ResourceName::Link(link) = laid.names[used.0 as usize] {
                    *links.entry(link).or_default() += bytes as f64 * used.1 as f64 * share;
                }
            }
        }
    }
    parts
}

/// The machine, with how busy its links are over the whole call and in parts of it; none where no link is used.
fn machine(site: &Site, shares: &Shares, parts: &[Carried]) -> Option<Figure> {
    let mut busy: BTreeMap<LinkId, Vec<f64>> = BTreeMap::new();
    for &(name, share) in shares {
        if let (ResourceName::Link(link), true) = (name, share > 0.0) {
            // Parts are measured by the whole, which knows what overhead and efficiency take.
            let sum: f64 = parts.iter().filter_map(|(links, ..)| links.get(&link)).sum();
            let of = |(links, ..): &Carried| links.get(&link).map_or(0.0, |amount| amount / sum * PARTS as f64 * share);
            busy.insert(link, [share].into_iter().chain(parts.iter().map(of)).collect());
        }
    }
    let time = |(_, from, to): &Carried| format!("{from:.1} to {to:.1} us");
    let times = ["whole call".to_owned()].into_iter().chain(parts.iter().map(time)).collect();
    busy_links(&site.topology, times, busy, "the whole call, protocol overhead included", "")
}

/// A machine with how busy its links are at some times, the whole time first; none where no link is used.
pub(crate) fn busy_links(
    topology: &Topology,
    times: Vec<String>,
    busy: BTreeMap<LinkId, Vec<f64>>,
    over: &str,
    note: &str,
) -> Option<Figure> {
    let mut kinds: Vec<(&'static str, f64)> = Vec::new();
    for (&link, shares) in &busy {
        let kind = topology.link(link).kind.name();
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, most)) => *most = most.max(shares[0]),
            None => kinds.push((kind, shares[0])),
        }
    }
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    let said: Vec<String> = kinds.iter().map(|(kind, most)| format!("{kind} {:.0}%", most * 100.0)).collect();
    let hosts = if topology.hosts().len() > 1 { " The busiest host is drawn in full." } else { "" };
    let caption = format!(
        "Share of a link's rate that is taken over {over}; of both directions and of links side by side \
         the busiest. Most of each kind: {}.{hosts}{note}",
        said.join(", ")
    );
    let drawn = Machine { topology: topology.clone(), times, busy };
    (!kinds.is_empty()).then(|| Figure::new("Which links are busy", caption, Drawing::Machine(Box::new(drawn))))
}

/// What the lanes of the first channel do.
fn channel(schedule: &Schedule, workers: &[Wired], slices: Vec<super::timeline::Slice>) -> Figure {
    let mut timeline = Timeline::default();
    let mut lanes: BTreeMap<u32, usize> = BTreeMap::new();
    for (index, worker) in (0..).zip(workers).filter(|(_, worker)| worker.channel.0 == 0) {
        lanes.insert(index, timeline.lanes.len());
        let lane = if schedule.lanes > 1 { format!(", lane {}", worker.lane) } else { String::new() };
        timeline.lanes.push(format!("rank {}{lane}", worker.rank));
    }
    let mut shown: Vec<_> = slices.into_iter().filter(|slice| lanes.contains_key(&slice.0)).collect();
    shown.sort_by_key(|slice| (slice.3, slice.0));
    let all = shown.len();
    shown.truncate(MOST_SPANS);
    let mut names: Vec<String> = Vec::new();
    for (worker, instruction, _, from, to) in shown {
        let name = spelling(schedule, workers[worker as usize].template, instruction);
        let known = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name.clone());
            names.len() - 1
        });
        let [from, to] = [from, to].map(|at| (at - SimTime::default()).as_us());
        timeline.spans.push(Span { lane: lanes[&worker], from, to, name, hue: Hue::nth(known) });
    }
    let part =
        if all > MOST_SPANS { format!(" The first {MOST_SPANS} of {all} slices are shown.") } else { String::new() };
    let caption = format!(
        "The first of {} channels: a box for each slice, from its first byte to its last. --timeline FILE has all of them.{part}",
        schedule.plan.channels
    );
    Figure::new("What the ranks do, and when", caption, Drawing::Timeline(timeline))
}

/// How the chunks of the first channel move, a step at a time; none where groups of ranks share a connection.
///
/// In each step every lane carries out one instruction for which all is there that others sent in earlier steps. FIFOs
/// have no end here, and a chunk is whole: how long it takes is the timeline's to say.
fn steps(schedule: &Schedule) -> Option<Figure> {
    let wiring = Wiring::new(schedule).ok()?;
    let first = |worker: &&Wired| worker.channel.0 == 0;
    let mut lanes: Vec<(&Wired, SliceCursor, Option<Step>)> =
        wiring.workers.iter().filter(first).map(|worker| (worker, SliceCursor::new(worker), None)).collect();
    let mut fifos: BTreeMap<u32, VecDeque<String>> = BTreeMap::new();
    let mut steps: Vec<Vec<Message>> = Vec::new();
    let most = MOST_PLACES / schedule.call.ranks.max(1) as usize;
    loop {
        let mut sent: Vec<(u32, String)> = Vec::new();
        let mut moved = false;
        for (worker, cursor, step) in &mut lanes {
            if step.is_none() {
                *step = instruction(schedule, worker, cursor);
            }
            let conn = |ports: &[u32], port: usize| ports.get(port).copied();
            let Some(at) = step.as_ref() else { continue };
            let receives: Vec<u32> = at.recv.iter().filter_map(|port| conn(&worker.recv, *port)).collect();
            if receives.iter().any(|conn| fifos.get(conn).is_none_or(VecDeque::is_empty)) {
                continue;
            }
            let received: Vec<String> =
                receives.iter().filter_map(|conn| fifos.get_mut(conn).and_then(VecDeque::pop_front)).collect();
            let what = chunk(at).or_else(|| received.into_iter().next()).unwrap_or_default();
            sent.extend(at.send.iter().filter_map(|port| Some((conn(&worker.send, *port)?, what.clone()))));
            (moved, *step) = (true, None);
        }
        if !moved {
            break;
        }
        let mut messages = Vec::new();
        for (conn, what) in sent {
            let (from, to) = wiring.conns.get(conn as usize)?.conn.ranks()?;
            messages.push(Message { from: from.0 as usize, to: to.0 as usize, what: what.clone() });
            fifos.entry(conn).or_default().push_back(what);
        }
        messages.sort();
        if !messages.is_empty() {
            steps.push(messages);
        }
        if steps.len() > most {
            break;
        }
    }
    let more = steps.len() > most;
    steps.truncate(most);
    if steps.is_empty() {
        return None;
    }
    let caption = format!(
        "The first channel of {}/{}: an arrow is a message, with the number of the chunk it carries. {}",
        schedule.plan.algorithm,
        schedule.plan.protocol,
        if more { "Later steps repeat the pattern." } else { "All steps are shown." }
    );
    let ranks = (0..schedule.call.ranks).map(|rank| rank.to_string()).collect();
    Some(Figure::new("How the chunks move", caption, Drawing::Steps(Steps { ranks, steps })))
}

/// The next instruction of a lane, all its slices at once.
fn instruction(schedule: &Schedule, worker: &Wired, cursor: &mut SliceCursor) -> Option<Step> {
    loop {
        cursor.next(schedule, worker.template)?;
        if cursor.at_last_slice(schedule) {
            return Some(cursor.step.clone());
        }
    }
}

/// The number of the chunk that an instruction is about, by its place in the buffer.
fn chunk(step: &Step) -> Option<String> {
    let (_, offset) = step.dst.or(step.src)?;
    Some(format!("{}", offset / step.span.max(1)))
}
