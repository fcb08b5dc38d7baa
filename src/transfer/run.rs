//! Forecasts a transfer by each of its ways.

use std::num::NonZeroU32;

use collcast_sim::ids::HostId;
use collcast_sim::profile::OriginKind;
use collcast_sim::transfer::{Backend, Finished, Fleet, Load, Place, TransferError, Way, run, ways};
use collcast_sim::units::{Bytes, SimDuration, SimTime};

use super::outcome::{Outcome, Row};
use super::places::places;
use super::request::Request;
use crate::error::Error;
use crate::kernels::gpu_of;
use crate::site::{Site, SiteSpec};

/// Layers at most: more than any model has.
const MOST_LAYERS: u64 = 4096;

/// Part of a transfer's time from which on a copy for each contiguous piece would count.
const COUNTS: f64 = 0.05;

/// A pair of places with the ways between them.
struct Pair {
    places: (Place, Place),
    ways: Vec<Way>,
}

/// Forecasts a transfer by each of its ways, or by those that are named, at once.
///
/// # Errors
/// A machine or profile that cannot be read, places that it has not, ways that do not lead there.
pub fn transfer(request: &Request) -> Result<Outcome, Error> {
    let (from, to) = (places("--from", &request.from)?, places("--to", &request.to)?);
    let pairs = pair(&from, &to)?;
    check(request)?;
    let on_disk = |(from, to): &(Place, Place)| [from, to].into_iter().any(|place| matches!(place, Place::Disk(_)));
    if request.drives.is_some() && !pairs.iter().any(on_disk) {
        return Err(Error::usage(
            "--drives: no drive is in this transfer",
            "leave it out, or name a place such as disk:0",
        ));
    }
    let drives = some_drives(request.drives)?;
    let site = site(request, &pairs)?;
    let gpu = gpu_of(&site.topology, request.gpu.as_deref())?;
    let mut fleet = Fleet::new(&site.topology, &site.profile, &gpu, drives);
    let pairs: Vec<Pair> =
        pairs.into_iter().map(|places| Pair { places, ways: ways(&mut fleet, places.0, places.1) }).collect();
    let others = request.beside.as_ref().map_or(Ok(Vec::new()), |beside| beside.loads(&mut fleet))?;
    let by = |shares: &[(Backend, f64)]| by(&site, request, (&pairs, &others), shares);
    let alone = |backend: Backend| by(&[(backend, 1.0)]);
    let shared = |backend: &Backend| pairs.iter().all(|pair| pair.ways.iter().any(|way| way.backend == *backend));
    let known: Vec<Backend> = Backend::ALL.into_iter().filter(shared).collect();
    let Some(&nixl) = known.first() else { return Err(nowhere(request, &pairs)) };
    let mut rows = Vec::new();
    match &request.path {
        Some(path) => {
            let named = named(path, &known)?;
            let times = named.iter().map(|&b| Ok((b, alone(b)?.seconds))).collect::<Result<Vec<_>, Error>>()?;
            let rate: f64 = times.iter().map(|(_, seconds)| 1.0 / seconds.max(1e-12)).sum();
            let shares: Vec<(Backend, f64)> = times.iter().map(|&(b, s)| (b, 1.0 / s.max(1e-12) / rate)).collect();
            rows.push(Row { nixl: named == [nixl], ..by(&shares)? });
        }
        None => {
            for &backend in &known {
                rows.push(Row { nixl: backend == nixl, ..alone(backend)? });
            }
        }
    }
    rows.sort_by(|a, b| a.pieces_left_out.cmp(&b.pieces_left_out).then(a.seconds.total_cmp(&b.seconds)));
    Ok(Outcome {
        machine: site.topology.name.clone(),
        from: request.from.clone(),
        to: request.to.clone(),
        bytes: request.bytes,
        pairs: pairs.len(),
        inputs: site.sources.clone(),
        notes: notes(request, &site, &fleet, &rows),
        rows,
    })
}

fn check(request: &Request) -> Result<(), Error> {
    if request.bytes == 0 {
        return Err(Error::usage("a transfer of 0 bytes takes no time", "give 1 or more bytes"));
    }
    if request.block == Some(0) {
        return Err(Error::usage("--block 0: a piece has 1 or more bytes", "leave it out for one piece of each pair"));
    }
    if request.layers == 0 || request.layers > MOST_LAYERS {
        return Err(Error::usage(format!("--layers {}", request.layers), format!("give 1 to {MOST_LAYERS} layers")));
    }
    Ok(())
}

/// The drives of each host, where they are given. Hosts that are said to have none are refused.
pub(crate) fn some_drives(drives: Option<u32>) -> Result<Option<NonZeroU32>, Error> {
    let none = || Error::usage("hosts without drives have nothing to read", "give --drives 1 or more");
    drives.map(|count| NonZeroU32::new(count).ok_or_else(none)).transpose()
}

/// Each place with the one that it sends to.
fn pair(from: &[Place], to: &[Place]) -> Result<Vec<(Place, Place)>, Error> {
    let pairs: Vec<(Place, Place)> = match (from, to) {
        ([one], many) => many.iter().map(|&to| (*one, to)).collect(),
        (many, [one]) => many.iter().map(|&from| (from, *one)).collect(),
        (from, to) if from.len() == to.len() => from.iter().copied().zip(to.iter().copied()).collect(),
        _ => {
            let message = format!("{} places send to {}", from.len(), to.len());
            return Err(Error::usage(message, "name as many at both ends, or one at either"));
        }
    };
    match pairs.iter().find(|(from, to)| from == to) {
        Some((same, _)) => Err(Error::usage(format!("{same} sends to itself"), "name two places")),
        None => Ok(pairs),
    }
}

/// The machine, with as many hosts as the places need.
fn site(request: &Request, pairs: &[(Place, Place)]) -> Result<Site, Error> {
    let topology = request.site.topology()?;
    let hosts = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
    let each = (topology.ranks() / hosts.max(1)).max(1);
    let host = |place: &Place| match place {
        Place::Gpu(rank) => rank.0 / each,
        Place::Host(host) | Place::Disk(host) | Place::Cached(host) => host.0,
        Place::Store => 0,
    };
    let beside = request.beside.iter().flat_map(|beside| &beside.ranks).map(|rank| rank.0 / each);
    let needed =
        pairs.iter().flat_map(|(from, to)| [host(from), host(to)]).chain(beside).max().unwrap_or(0).saturating_add(1);
    if needed > hosts && request.site.nodes.is_none() {
        return SiteSpec { nodes: Some(needed), ..request.site.clone() }.load();
    }
    if needed > hosts {
        let (message, hint) =
            (format!("the places need {needed} hosts, and `{}` has {hosts}", topology.name), "give more --nodes");
        return Err(Error::usage(message, hint));
    }
    request.site.load_onto(topology)
}

fn nowhere(request: &Request, pairs: &[Pair]) -> Error {
    let Some(blocked) = pairs.iter().find(|pair| pair.ways.is_empty()) else {
        // Each pair with the ways of its own, once.
        let mut known: Vec<(Vec<&str>, String)> = Vec::new();
        for Pair { places: (from, to), ways } in pairs {
            let names: Vec<&str> = ways.iter().map(|way| way.backend.name()).collect();
            if known.iter().all(|(other, _)| *other != names) {
                let text = format!("{from} to {to} by {}", names.join(" or "));
                known.push((names, text));
            }
        }
        let each: Vec<String> = known.into_iter().map(|(_, text)| text).collect();
        let message =
            format!("no single way serves all pairs from {} to {}: {}", request.from, request.to, each.join(", "));
        return Error::usage(message, "split the transfer into those that take the same way");
    };
    let (from, to) = blocked.places;
    Error::usage(
        format!("no way leads from {from} to {to} ({} to {})", request.from, request.to),
        "drives are reached from their own host only; hosts need NICs that are joined by a fabric, and `network` of their \
         `storage` for an object store",
    )
}

/// The back ends of a path.
fn named(path: &str, known: &[Backend]) -> Result<Vec<Backend>, Error> {
    let names: Vec<&str> = known.iter().map(|backend| backend.name()).collect();
    let mut named = Vec::new();
    for name in path.split('+') {
        let backend = Backend::named(name).filter(|backend| known.contains(backend)).ok_or_else(|| {
            Error::usage(format!("--path: `{name}` does not lead there"), format!("these do: {}", names.join(" ")))
        })?;
        if named.contains(&backend) {
            return Err(Error::usage(format!("--path names `{name}` twice"), "name each back end once"));
        }
        named.push(backend);
    }
    Ok(named)
}

/// By some back ends at once, each with its share of the bytes, beside other loads.
fn by(
    site: &Site,
    request: &Request,
    (pairs, others): (&[Pair], &[Load]),
    shares: &[(Backend, f64)],
) -> Result<Row, Error> {
    let layers = request.layers;
    let part = request.prefill / layers as f64;
    let ready: Vec<SimTime> =
        (1..=layers).map(|layer| SimTime(SimDuration::from_us(part * layer as f64 * 1e6).0)).collect();
    let ready = if request.prefill > 0.0 || layers > 1 { ready } else { Vec::new() };
    let mut loads = Vec::new();
    let (mut stages, mut copies_s) = (0, 0.0_f64);
    for (index, pair) in (0..).zip(pairs) {
        let up_to = |i: u64| (u128::from(request.bytes) * u128::from(i) / pairs.len() as u128) as u64;
        let own = up_to(index + 1) - up_to(index);
        let mut left = own;
        for (nth, &(backend, share)) in shares.iter().enumerate() {
            let Some(way) = pair.ways.iter().find(|way| way.backend == backend) else { continue };
            let bytes = if nth + 1 == shares.len() { left } else { ((own as f64 * share) as u64).min(left) };
            left -= bytes;
            stages = way.stages.len();
            let block = request.block.unwrap_or(bytes.div_ceil(layers)).max(1);
            // Posts to a NIC are counted by piece; copies are taken as contiguous.
            let copies = way.stages.iter().filter(|stage| stage.posts.is_empty());
            let start_s: f64 = copies.map(|stage| stage.start.as_us() * 1e-6).sum();
            copies_s = copies_s.max(request.block.map_or(0.0, |block| bytes as f64 / block as f64 * start_s));
            loads.push(Load { way: way.clone(), bytes, block, register: request.register, ready: ready.clone() });
        }
    }
    let sent = |loads: &[Load]| run(loads, site.profile.transfer_descriptor()).map_err(|error| limited(&error));
    let last = |ends: &[SimTime]| ends.iter().map(|end| SimDuration(end.0).as_us() * 1e-6).fold(0.0, f64::max);
    let own = loads.len();
    let alone = if others.is_empty() { None } else { Some((last(&sent(&loads)?.ends), last(&sent(others)?.ends))) };
    loads.extend_from_slice(others);
    let Finished { ends, busiest } = sent(&loads)?;
    let end = last(&ends[..own]);
    let beside = alone.map(|(alone, other)| (alone, last(&ends[own..]) / other.max(1e-12) - 1.0));
    let (bound, busy) = busiest.map_or((String::new(), 0.0), |(used, busy)| (used.name(&site.topology), busy));
    let rate = busiest.and_then(|(used, _)| used.constant(&site.topology)).map(|constant| &site.profile[constant]);
    let assumed = rate.filter(|rate| rate.origin == OriginKind::Assumed).map(|rate| rate.source.clone());
    let exposed_s = (end - request.prefill).max(0.0);
    Ok(Row {
        path: shares.iter().map(|share| share.0.name()).collect::<Vec<_>>().join("+"),
        stages,
        seconds: end,
        exposed_s,
        gb_per_s: request.bytes as f64 / end.max(1e-12) / 1e9,
        bound,
        busy,
        assumed,
        beside,
        pieces_left_out: copies_s > COUNTS * end,
        nixl: false,
    })
}

fn limited(error: &TransferError) -> Error {
    Error::usage(error.to_string(), "take fewer bytes, pairs or layers, or a larger --block")
}

fn notes(request: &Request, site: &Site, fleet: &Fleet<'_>, rows: &[Row]) -> Vec<String> {
    let mut notes = vec![format!("profile {}: {}", site.profile.name, crate::site::made_of(&site.profile.evidence))];
    if rows.iter().any(|row| row.path.contains("rdma") || row.path.contains("tcp")) {
        notes.push(format!(
            "between hosts {:.2} ms go by before the first byte: Mooncake and vLLM on two hosts of 8 x H800; --profile with \
             another transfer.request changes it",
            site.profile.transfer_request().as_us() * 1e-3
        ));
    }
    if request.block.is_none() {
        let of = if request.layers > 1 { "each pair and layer" } else { "each pair" };
        notes.push(format!("one contiguous piece for {of}; a paged KV cache takes longer: --block 4K"));
    }
    if let Some((row, source)) = rows.first().and_then(|row| Some((row, row.assumed.as_ref()?))) {
        notes.push(format!("the rate of {} is assumed: {source}", row.bound));
    }
    let left_out: Vec<&str> = rows.iter().filter(|row| row.pieces_left_out).map(|row| row.path.as_str()).collect();
    if let (Some(block), false) = (request.block, left_out.is_empty()) {
        notes.push(format!(
            "copies take pieces of {} as contiguous: {} would take longer, and stand last",
            Bytes(block).human(),
            left_out.join(", ")
        ));
    }
    if request.from.starts_with("disk") || request.to.starts_with("disk") {
        let storage = fleet.storage(HostId(0));
        let (read, write) = (storage.read.gb_per_s(), storage.write.gb_per_s());
        notes
            .push(format!("hosts have {} NVMe drives, each reads {read} GB/s and writes {write} GB/s", storage.drives));
    }
    notes.push(match request.register {
        true => "memory at both ends is registered first: buffers are new; agents know each other".to_owned(),
        false => "memory is registered and agents know each other: both are done once, at start".to_owned(),
    });
    if let Some(beside) = &request.beside {
        notes.push(format!(
            "beside it an {} of {} bytes over {} GPUs begins: its bytes share links by max-min, without NCCL's slices",
            beside.collective,
            beside.bytes,
            beside.ranks.len()
        ));
    }
    notes
}
