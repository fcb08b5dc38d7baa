//! A timeline of one call for ui.perfetto.dev: what every lane does, and how many messages each link carries.

use std::collections::{BTreeMap, BTreeSet};

use collcast_reports::perfetto::{Counter, TraceEvent, TraceWriter};
use collcast_sim::engine::Observer;
use collcast_sim::network::{Laid, ResourceName, lay};
use collcast_sim::predict::{PredictError, Settings};
use collcast_sim::schedule::Schedule;
use collcast_sim::topology::Topology;
use collcast_sim::units::{SimDuration, SimTime};

use super::row::Row;
use crate::error::Error;
use crate::site::Site;

/// Most slices of a timeline: about a gigabyte of JSON, more than viewers take.
const MAX_MESSAGES: u64 = 2_000_000;

/// The timeline of a call that was forecast, as Perfetto's JSON.
///
/// # Errors
/// A call of more messages than a viewer takes.
pub fn timeline(site: &Site, row: &Row) -> Result<Vec<u8>, Error> {
    if row.prediction.messages > MAX_MESSAGES {
        return Err(Error::usage(
            format!("the timeline would hold {} messages; at most {MAX_MESSAGES} are written", row.prediction.messages),
            "trace a smaller size or fewer ranks: the pattern is the same",
        ));
    }
    let (schedule, recorder) = recorded(site, row)?;
    let settings = settings_of(site, row);
    let laid = lay(&site.topology, &site.profile, &settings.transport, &schedule).map_err(PredictError::from)?;
    // Bytes in memory are always taken.
    recorder.write(&site.topology, &schedule, &laid).map_err(|source| crate::files::failed("timeline".as_ref(), source))
}

/// The settings under which a call was forecast.
pub(super) fn settings_of(site: &Site, row: &Row) -> Settings {
    let settings = row.query.settings(site.settings());
    Settings { channels: settings.channels.or(row.prediction.tuned_channels), ..settings }
}

/// The schedule of a call that was forecast.
///
/// # Errors
/// As of its forecast.
pub(super) fn scheduled(site: &Site, row: &Row) -> Result<Schedule, Error> {
    let (query, prediction, settings) = (&row.query, &row.prediction, settings_of(site, row));
    let predictor = site.predictor();
    Ok(match &query.schedule {
        Some(imported) => predictor.imported_schedule(imported, &query.call, &settings)?,
        None => predictor.schedule(&query.call, prediction.algorithm, prediction.protocol, &settings)?,
    })
}

/// [`scheduled`], and all that happens when it runs.
///
/// # Errors
/// As of its forecast.
pub(super) fn recorded(site: &Site, row: &Row) -> Result<(Schedule, Recorder), Error> {
    let (query, prediction) = (&row.query, &row.prediction);
    let settings = settings_of(site, row);
    let (algorithm, protocol) = (prediction.algorithm, prediction.protocol);
    let predictor = site.predictor();
    let schedule = scheduled(site, row)?;
    let mut recorder = Recorder::default();
    let unfolded = Settings { fold: false, ..settings };
    match &query.schedule {
        Some(imported) => predictor.predict_imported(imported, &query.call, &unfolded, &mut recorder)?,
        None => predictor.predict_one(&query.call, algorithm, protocol, &unfolded, &mut recorder)?,
    };
    Ok((schedule, recorder))
}

/// A slice that was moved: the place of its worker, its instruction, bytes, from and to.
pub(super) type Slice = (u32, usize, u64, SimTime, SimTime);

/// Keeps everything that happens, for the timeline.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) slices: Vec<Slice>,
    pub(super) messages: Vec<(u32, u64, SimTime, SimTime)>,
}

impl Observer for Recorder {
    fn slice(&mut self, lane: u32, instruction: usize, bytes: u64, from: SimTime, to: SimTime) {
        self.slices.push((lane, instruction, bytes, from, to));
    }

    fn message(&mut self, conn: u32, bytes: u64, from: SimTime, to: SimTime) {
        self.messages.push((conn, bytes, from, to));
    }
}

/// What an instruction does, in the field's words.
pub(super) fn spelling(schedule: &Schedule, template: usize, instruction: usize) -> String {
    let op = &schedule.templates[template].ops()[instruction];
    let words = [
        (!op.recv.is_empty(), "recv"),
        (op.reduce, "reduce"),
        (op.dst.is_some(), "copy"),
        (!op.send.is_empty(), "send"),
    ];
    let words: Vec<&str> = words.into_iter().filter(|w| w.0).map(|w| w.1).collect();
    if words.is_empty() { "nop".to_owned() } else { words.join("+") }
}

impl Recorder {
    fn write(mut self, topology: &Topology, schedule: &Schedule, laid: &Laid<'_>) -> std::io::Result<Vec<u8>> {
        let fabric = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
        let mut trace = TraceWriter::new(Vec::new())?;
        for (host, info) in (0..).zip(topology.hosts()) {
            trace.process_name(host, &info.name)?;
        }
        trace.process_name(fabric, "links: messages in flight")?;
        let lanes = u64::from(schedule.lanes.max(1));
        let place = |lane: usize| {
            let w = &laid.wiring.workers[lane];
            let thread = (u64::from(w.rank.0) * 64 + u64::from(w.channel.0)) * lanes + u64::from(w.lane.0);
            (topology.host_of(w.rank).0, thread)
        };
        for (index, w) in laid.wiring.workers.iter().enumerate() {
            let (process, thread) = place(index);
            trace.thread_name(process, thread, &format!("rank {} channel {} lane {}", w.rank, w.channel, w.lane))?;
        }
        let category = format!("{}/{}", schedule.plan.algorithm, schedule.plan.protocol);
        self.slices.sort();
        for (lane, instruction, bytes, from, to) in self.slices {
            let (process, thread) = place(lane as usize);
            trace.event(&TraceEvent {
                name: spelling(schedule, laid.wiring.workers[lane as usize].template, instruction),
                category: category.clone(),
                process,
                thread,
                start: from,
                duration: to - from,
                args: vec![("bytes".to_owned(), bytes.to_string())],
            })?;
        }
        // How many messages are on each link, as steps up and down.
        let mut steps: BTreeMap<u32, BTreeMap<SimTime, i64>> = BTreeMap::new();
        for (conn, _, from, to) in self.messages {
            let resources: BTreeSet<u32> =
                laid.instance.conns[conn as usize].uses.iter().map(|(_, used)| used.0).collect();
            for resource in resources {
                let steps = steps.entry(resource).or_default();
                *steps.entry(from).or_default() += 1;
                *steps.entry(to.max(from + SimDuration(1))).or_default() -= 1;
            }
        }
        for (resource, steps) in steps {
            let ResourceName::Link(link) = laid.names[resource as usize] else { continue };
            let mut in_flight = 0;
            for (time, step) in steps {
                in_flight += step;
                let values = vec![("messages".to_owned(), u64::try_from(in_flight).unwrap_or(0))];
                trace.counter(&Counter { name: topology.link_name(link), process: fabric, time, values })?;
            }
        }
        trace.finish()
    }
}
