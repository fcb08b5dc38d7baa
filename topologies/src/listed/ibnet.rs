//! What `ibnetdiscover` prints of an InfiniBand network: every switch and adapter, every cable with its rate.
//!
//! # Source
//! The manual page ibnetdiscover(8) of infiniband-diags: records of `Switch`, `Ca` and `Rt`, a line for each cabled port.

use std::collections::{BTreeMap, HashMap, HashSet};

use collcast_sim::units::Bandwidth;

use super::clos::{Adapter, Cable, Cables};
use crate::error::{Source, TopologiesError, quote};

/// Most ports that are read: the largest subnets have about 50,000 addresses, of which switches use a part.
const MAX_PORTS: usize = 1_000_000;

/// Data rates of a lane in Gb/s; source: InfiniBand architecture, and the data sheets of the adapters (4 lanes of NDR
/// are 400 Gb/s).
const LANES: [(&str, f64); 9] = [
    ("SDR", 2.0),
    ("DDR", 4.0),
    ("QDR", 8.0),
    ("FDR10", 10.0),
    ("FDR", 13.64),
    ("EDR", 25.0),
    ("HDR", 50.0),
    ("NDR", 100.0),
    ("XDR", 200.0),
];

/// What SHARP's aggregation node in a switch calls itself.
const AGGREGATION: &str = "Mellanox Technologies Aggregation Node";

/// Whether a text is such a list.
pub(crate) fn looks_like(text: &str) -> bool {
    text.lines().take(2000).any(|line| line.starts_with("switchguid=") || line.starts_with("caguid="))
}

/// `4xNDR` as a rate.
fn rate(word: &str) -> Option<Bandwidth> {
    let (width, speed) = word.split_once('x')?;
    let width: u32 = width.parse().ok().filter(|width| (1..=12).contains(width))?;
    let lane = LANES.iter().find(|(name, _)| *name == speed)?.1;
    Some(Bandwidth::from_gb_per_s(f64::from(width) * lane / 8.0))
}

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Record {
    Switch,
    Other,
}

/// A cabled port of a switch: `[1] "H-e09d73"[1](e09d73) # "node1 mlx5_0" lid 7 4xNDR`.
struct Port<'a> {
    number: u32,
    peer: &'a str,
    peer_port: u32,
    description: &'a str,
    rate: Option<Bandwidth>,
}

/// What to save where a list is cut off.
const SAVE: &str = "save what `ibnetdiscover` prints, without --list or --ports";

/// Reads the cables.
///
/// # Errors
/// A record or a port that is cut off; no switch; too many ports. With line and column.
pub(crate) fn read(source: Source<'_>) -> Result<Cables, TopologiesError> {
    let mut reading = Reading::default();
    let mut at = 0;
    for line in source.text.split_inclusive('\n') {
        let (start, text) = (at, line.trim_end());
        at += line.len();
        let cut = |message: String| {
            TopologiesError::Syntax(source.at(start..start + text.len().max(1), message, "here", SAVE))
        };
        let begins = ["Switch", "Ca", "Rt"].into_iter().find_map(|kind| {
            text.strip_prefix(kind).filter(|rest| rest.starts_with([' ', '\t'])).map(|rest| (kind, rest))
        });
        if let Some((kind, rest)) = begins {
            reading.begin(kind, rest).map_err(cut)?;
        } else if text.starts_with('[') {
            reading.port(text).map_err(cut)?;
        }
        if reading.ports > MAX_PORTS {
            return Err(TopologiesError::TooLarge(
                source.whole(format!("the list has over {MAX_PORTS} ports"), "one list describes one subnet"),
            ));
        }
    }
    if reading.cables.switches.is_empty() {
        return Err(TopologiesError::Syntax(source.whole("the list has no switch", SAVE)));
    }
    Ok(reading.finish())
}

/// A list as far as it is read.
#[derive(Default)]
struct Reading {
    cables: Cables,
    /// Whose ports follow, and of a switch its place.
    record: Option<(Record, usize)>,
    /// Places of switches by GUID.
    switch_of: HashMap<String, usize>,
    /// Ports of adapters by GUID and number.
    adapters: HashSet<(String, u32)>,
    /// Ports whose adapters have no name of a host, by what they are called.
    unnamed: BTreeMap<String, usize>,
    unknown_rates: usize,
    /// Names of switches that are given.
    taken: HashSet<String>,
    /// Cables between switches: place of one, GUID of the other, their ports.
    links: Vec<(usize, String, u32, u32, Option<Bandwidth>)>,
    ports: usize,
}

impl Reading {
    /// A record; an error says what of it is cut off.
    fn begin(&mut self, kind: &str, rest: &str) -> Result<(), String> {
        let guid = quoted(rest).ok_or_else(|| format!("the record of a {kind} has no GUID in quotes"))?;
        if kind != "Switch" {
            self.record = Some((Record::Other, 0));
            return Ok(());
        }
        let description = rest.split_once('#').and_then(|(_, rest)| quoted(rest)).unwrap_or(guid);
        let place = self.cables.switches.len();
        if self.switch_of.insert(guid.to_owned(), place).is_some() {
            return Err(format!("the switch `{}` is listed twice", quote(guid)));
        }
        self.cables.switches.push(super::plain_name(switch_name(description), &mut self.taken));
        self.record = Some((Record::Switch, place));
        Ok(())
    }

    /// A port of the record; an error says what of it is cut off.
    fn port(&mut self, line: &str) -> Result<(), String> {
        let (kind, place) = self.record.ok_or_else(|| "a port stands before any switch or adapter".to_owned())?;
        self.ports += 1;
        // The other end of a cable lists it too.
        if kind == Record::Other {
            return Ok(());
        }
        let port = port(line).ok_or_else(|| "the line is no port of a switch".to_owned())?;
        if port.peer.starts_with("S-") {
            self.unknown_rates += usize::from(port.rate.is_none());
            self.links.push((place, port.peer.to_owned(), port.number, port.peer_port, port.rate));
        } else if port.description.contains(AGGREGATION) {
            self.cables.reduces = true;
        } else if let Some((host, device)) = named(port.description) {
            self.unknown_rates += usize::from(port.rate.is_none());
            if !self.adapters.insert((port.peer.to_owned(), port.peer_port)) {
                return Err(format!("the port of `{}` has two cables", quote(port.description)));
            }
            self.cables.adapters.push(Adapter {
                host: host.to_owned(),
                device: if port.peer_port > 1 { format!("{device}/{}", port.peer_port) } else { device.to_owned() },
                switch: place,
                rate: port.rate,
            });
        } else {
            let words: Vec<&str> = port.description.split_whitespace().collect();
            *self.unnamed.entry(words.join(" ")).or_default() += 1;
        }
        Ok(())
    }

    /// The cables, of which those between switches are listed at both ends, and what was passed over or assumed.
    fn finish(self) -> Cables {
        let Self { mut cables, switch_of, unnamed, unknown_rates, links, .. } = self;
        let mut seen: HashSet<(usize, u32)> = HashSet::new();
        let mut lacking: Vec<String> = Vec::new();
        for (from, peer, from_port, to_port, rate) in links {
            let Some(&to) = switch_of.get(&peer) else {
                lacking.push(peer);
                continue;
            };
            if !seen.contains(&(from, from_port)) {
                seen.insert((from, from_port));
                seen.insert((to, to_port));
                cables.between.push(Cable { from, to, rate });
            }
        }
        if let Some(first) = lacking.first() {
            let (count, first) = (lacking.len(), quote(first));
            cables
                .notes
                .push(format!("passed over: {count} cables to switches that the list lacks, the first to `{first}`"));
        }
        for (description, count) in unnamed {
            cables.notes.push(format!(
                "passed over: {count} ports of adapters without the name of a host (`{}`); rdma-ndd sets it",
                quote(&description)
            ));
        }
        if unknown_rates > 0 {
            cables.notes.push(format!("assumed: the rate of {unknown_rates} cables that the list does not say"));
        }
        cables
    }
}

/// What stands in the first pair of quotes.
fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('"')?;
    rest.split_once('"').map(|(inside, _)| inside)
}

/// Number in the first pair of brackets, and what follows.
fn bracket(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.trim_start().strip_prefix('[')?.split_once(']')?;
    Some((number.parse().ok()?, rest))
}

fn port(line: &str) -> Option<Port<'_>> {
    let (number, rest) = bracket(line)?;
    // A chassis adds `[ext 3]`.
    let quote = rest.find('"')?;
    let peer = quoted(&rest[quote..])?;
    let (peer_port, rest) = bracket(&rest[quote + peer.len() + 2..])?;
    let (_, comment) = rest.split_once('#')?;
    let description = quoted(comment)?;
    let rate = comment.split_whitespace().next_back().and_then(rate);
    Some(Port { number, peer, peer_port, description, rate })
}

/// Host and device of `node018 HCA-1` or `node018 mlx5_0`.
fn named(description: &str) -> Option<(&str, &str)> {
    let (host, device) = description.trim().split_once(' ')?;
    let known = ["HCA-", "mlx", "ibp", "ib", "hfi", "rocep"].iter().any(|start| device.starts_with(start));
    let plain = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    (known && plain && !device.contains(' ')).then_some((host, device))
}

/// `A09-LEAF-01` of `MF0;A09-LEAF-01:MQM9701/U1`.
fn switch_name(description: &str) -> &str {
    let name = description.split_once(';').map_or(description, |(_, rest)| rest);
    name.split(':').next().unwrap_or(name)
}
