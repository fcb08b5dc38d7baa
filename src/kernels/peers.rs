//! Constants of copies between two GPUs, from rows of `bench --backend transfer`.

use std::path::PathBuf;

use collcast_sim::ids::Rank;
use collcast_sim::profile::{Constant, OriginKind, Parameter, Profile};
use collcast_sim::transfer::{Backend, Fleet, Load, Place, run, ways};
use collcast_sim::units::SimDuration;

use super::fitted::{Estimate, Fitted, Of};
use super::load::gpu_of;
use super::probed::Probed;
use super::read::headed;
use super::table::Cells;
use crate::bench::layer_text;
use crate::error::Error;
use crate::site::{Site, SiteSpec};
use crate::statistics::Stats;

/// What is fitted: the time of a copy is the first, and its bytes at the second of NVLink's rate.
const FITTED: [Constant; 2] = [Constant::CopyEngineStart, Constant::EfficiencyNvlinkCopyEngine];

/// What to fit to, and on which machine.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerRequest {
    /// Tables of `bench --backend transfer`.
    pub measurements: Vec<PathBuf>,
    /// The machine, which says what NVLink carries.
    pub site: SiteSpec,
    /// Name of the profile.
    pub name: String,
}

/// A copy between two GPUs: bytes, and median, least and most us.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Peer {
    bytes: u64,
    us: [f64; 3],
}

impl Peer {
    /// Whether fits leave it out: every second power of four is, as of copies with host memory.
    fn left_out(&self) -> bool {
        (self.bytes.max(1).ilog2() / 2).is_multiple_of(2)
    }
}

/// Fits what copy engines take between two GPUs to every second size; the others are judged.
///
/// # Errors
/// A file or machine that cannot be read, or another table; GPUs without NVLink; fewer than two sizes to fit to.
pub fn fit_peers(request: &PeerRequest) -> Result<Fitted, Error> {
    let site = request.site.load()?;
    let (peers, inputs) = Probed::Copies.read(&request.measurements, read)?;
    let (out, train): (Vec<Peer>, Vec<Peer>) = peers.into_iter().partition(Peer::left_out);
    let mut sizes: Vec<u64> = train.iter().map(|peer| peer.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 {
        let message = format!("{} sizes of copies between GPUs are too few", sizes.len());
        return Err(Error::usage(
            message,
            "run bench --backend transfer on two GPUs, or fit host copies with --compute GPU",
        ));
    }
    // Time is a line over bytes: two sizes of a forecast say which of the profile's constants makes which.
    let prior = [FITTED[0], FITTED[1]].map(|constant| site.profile[constant].value);
    let ends = [1 << 20, 1 << 30];
    let [few, many] = [seconds(&site, &site.profile, ends[0])?, seconds(&site, &site.profile, ends[1])?];
    let byte = (many - few) / (ends[1] - ends[0]) as f64;
    let rest = few - byte * ends[0] as f64 - prior[0] * 1e-6;
    let found = [0, 1, 2].map(|which| {
        let (start, slope) = line(train.iter().map(|peer| (peer.bytes as f64, peer.us[which] * 1e-6)));
        [(start - rest) * 1e6, prior[1] * byte / slope]
    });
    let mut fitted = site.profile.clone();
    let mut constants = Vec::new();
    for (which, constant) in FITTED.into_iter().enumerate() {
        let spec = constant.spec();
        let value = found[0][which];
        if !(spec.bounds[0]..=spec.bounds[1]).contains(&value) {
            let message =
                format!("{} would be {value:.4} {}, and can be {:?}", constant.name(), spec.unit, spec.bounds);
            return Err(Error::usage(message, "look whether the machine of -t is the one that was measured"));
        }
        fitted.parameters.set(constant, value);
        let all = found.map(|found| found[which]);
        let interval = Some([all.into_iter().fold(value, f64::min), all.into_iter().fold(value, f64::max)]);
        let source = format!("{} copies between GPUs", train.len());
        constants.push((constant, Parameter { value, origin: OriginKind::Measured, source, interval }));
    }
    let errors = |profile: &Profile, peers: &[Peer]| -> Result<Stats, Error> {
        let error = |peer: &Peer| Ok(seconds(&site, profile, peer.bytes)? * 1e6 / peer.us[0] - 1.0);
        Ok(Stats::of(peers.iter().map(error).collect::<Result<Vec<f64>, Error>>()?.into_iter()))
    };
    let evidence = format!("copies between two GPUs of {}: {} sizes", site.topology.name, sizes.len());
    let estimate = |(which, (constant, found)): (usize, &(Constant, Parameter))| Estimate {
        name: constant.name(),
        unit: constant.spec().unit,
        value: found.value,
        prior: prior[which],
    };
    Ok(Fitted {
        of: Of::Links,
        inputs,
        notes: Vec::new(),
        warnings: Vec::new(),
        trained: errors(&fitted, &train)?,
        left_out: errors(&fitted, &out)?,
        left_out_before: errors(&site.profile, &out)?,
        toml: layer_text(("calibrate", &request.name), &evidence, &constants).unwrap_or_default(),
        constants: constants.iter().enumerate().map(estimate).collect(),
    })
}

/// Rows of copies between GPUs.
fn read(file: &str, text: &str) -> Result<Vec<Peer>, Error> {
    let (header, lines) = headed(text);
    let mut peers = Vec::new();
    for (line, text) in lines {
        let row = Cells { header: &header, cells: text.split(',').map(str::trim).collect() };
        if row.text("way") == "peer" {
            let wrong =
                |what: String| Error::usage(format!("{file}:{line}: {what}"), "docs/formats.md says what a row has");
            let us = |column: &str| row.positive(column).map_err(wrong);
            peers.push(Peer {
                bytes: row.count("bytes").map_err(wrong)?,
                us: [us("us")?, us("us_min")?, us("us_max")?],
            });
        }
    }
    Ok(peers)
}

/// Of a copy between the first two GPUs of a machine, by the engine.
fn seconds(site: &Site, profile: &Profile, bytes: u64) -> Result<f64, Error> {
    let gpu = gpu_of(&site.topology, None)?;
    let mut fleet = Fleet::new(&site.topology, profile, &gpu, None);
    let places = (Place::Gpu(Rank(0)), Place::Gpu(Rank(1)));
    let way = ways(&mut fleet, places.0, places.1).into_iter().find(|way| way.backend == Backend::Nvlink);
    let way = way.ok_or_else(|| {
        let message = format!("GPUs of `{}` have no NVLink between them", site.topology.name);
        Error::usage(message, "name the machine that was measured with -t")
    })?;
    let load = Load { way, bytes, block: bytes.max(1), register: false, ready: Vec::new() };
    let done =
        run(&[load], profile.transfer_descriptor()).map_err(|e| Error::usage(e.to_string(), "take fewer bytes"))?;
    Ok(done.ends.iter().map(|end| SimDuration(end.0).as_us() * 1e-6).fold(0.0, f64::max))
}

/// The line of least squares of relative errors: its start and slope.
pub(super) fn line(points: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut a, mut b, mut c, mut d, mut e) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in points {
        let (one, x) = (1.0 / y, x / y);
        (a, b, c, d, e) = (a + one * one, b + one * x, c + x * x, d + one, e + x);
    }
    let determinant = a * c - b * b;
    ((d * c - b * e) / determinant, (a * e - b * d) / determinant)
}
