//! Constants of the network between two hosts, from rows of `probe --backend verbs`.
//!
//! The mechanisms are those of forecasts: a proxy thread works on each slice, a slice's bytes take the port's rate, and the
//! peer sees it a latency later. So one message takes work, transfer and latency one after the other, and many take the
//! longer of work and transfer each.

use std::path::PathBuf;

use collcast_hwbackend::verbs::{Kind, Measured};
use collcast_sim::profile::{Constant, OriginKind, Parameter, Profile};
use collcast_sim::topology::{LinkKind, Topology, VertexKind};

use super::fitted::{Estimate, Fitted, Of};
use super::peers::line;
use super::probed::Probed;
use super::read::headed;
use super::table::Cells;
use crate::bench::layer_text;
use crate::error::Error;
use crate::site::SiteSpec;
use crate::statistics::{Stats, median, quantile};

/// Bytes of the least message whose time is taken to be the port's: NCCL's smallest slice of Simple over a network.
const LARGE: u64 = 64 << 10;
/// Shares of the batches that a 90% interval leaves out at each end.
const TAIL: f64 = 0.05;
/// How often a byte that leaves and one that arrives cross the memory of a host that stages both: stored by a block and
/// read by the NIC, written by the NIC and loaded by a block.
const CROSSINGS: f64 = 4.0;
/// Of twice a direction's rate, what both together carry at most where the host is what holds them back. A port that
/// carries both at once loses less to acknowledgements: 3% at an MTU of 1 KiB.
const SHARED: f64 = 0.9;

/// What to fit to, and on which machine.
#[derive(Clone, PartialEq, Debug)]
pub struct NetworkFitRequest {
    /// Tables of `probe --backend verbs`.
    pub measurements: Vec<PathBuf>,
    /// The machine, which says what its ports carry.
    pub site: SiteSpec,
    /// Name of the profile.
    pub name: String,
}

/// A row of a probe.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct NetworkRow {
    kind: Kind,
    /// Whether rank 0 sent.
    first: bool,
    /// Whether several NICs were used at once.
    together: bool,
    bytes: u64,
    /// Median of a message, and what 5% and 95% of the batches do not exceed.
    pub(crate) us: [f64; 3],
}

impl NetworkRow {
    /// Of what was just measured.
    pub(crate) fn of(row: &Measured) -> Self {
        let mut times = row.times_us.clone();
        times.sort_by(f64::total_cmp);
        let us = [median(times.clone()), quantile(&times, TAIL), quantile(&times, 1.0 - TAIL)];
        Self { kind: row.kind, first: row.src == 0, together: row.nic.contains('+'), bytes: row.bytes, us }
    }

    /// GB/s by the median (0), or by one of the other two.
    pub(crate) fn gbps(&self, which: usize) -> f64 {
        self.bytes as f64 / self.us[which] / 1e3
    }
}

/// A port of a machine: what it is, what it carries nominally in GB/s, and the constant of the memory behind it.
type Port = (LinkKind, f64, Constant);

/// What rows say of the mechanisms.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Mechanisms {
    /// Work on a slice, and latencies after it, in us.
    proxy: f64,
    receive: f64,
    simple: f64,
    control: f64,
    /// GB/s of a direction alone, and of each while both are used.
    rate: f64,
    both: f64,
    /// GB/s of lines that a thread checks.
    lines: f64,
}

impl Mechanisms {
    /// By the medians (0), the lower (1) or the upper ends (2) of the rows; `None` where kinds are missing.
    fn of(rows: &[NetworkRow], which: usize) -> Option<Self> {
        let some = |values: Vec<f64>| Some(values).filter(|values| !values.is_empty()).map(median);
        let of = |kind: Kind| rows.iter().filter(move |row| row.kind == kind && !row.together);
        // One message: what it takes whatever its bytes is where the line over bytes begins.
        let start = |kind: Kind| {
            let least = of(kind).map(|row| row.bytes).min()?;
            let one = some(of(kind).filter(|row| row.bytes == least).map(|row| row.us[which]).collect())?;
            let begin = line(of(kind).map(|row| (row.bytes as f64, row.us[which]))).0;
            // Of one size there is no line; none begins above its own smallest message.
            Some(if begin.is_finite() { begin.clamp(0.0, one) } else { one })
        };
        let (write, immediate) = (start(Kind::LatencyWrite)?, start(Kind::LatencyImmediate)?);
        let thread = |kind: Kind| some(of(kind).map(|row| row.us[which]).collect());
        // A post that sends by itself, as soft RoCE's does, is no longer than the message that it sends.
        let proxy = (thread(Kind::Post)? + thread(Kind::Completion)?).min(write).min(immediate);
        let large = |kind: Kind| of(kind).filter(|row| row.bytes >= LARGE).map(|row| row.gbps(which)).collect();
        let rate = some(large(Kind::Bandwidth)).unwrap_or(f64::NAN);
        let both = some(large(Kind::BandwidthBoth)).unwrap_or(rate);
        let lines = some(of(Kind::Lines).map(|row| row.gbps(which)).collect()).unwrap_or(f64::NAN);
        // Who receives posts and completes as who sends does, within the message's latency.
        let receive = proxy.min(immediate - proxy);
        Some(Self { proxy, receive, simple: immediate - proxy - receive, control: write - proxy, rate, both, lines })
    }

    /// As a profile has them, for a port.
    fn of_profile(profile: &Profile, port: Port, amd: bool) -> Self {
        let value = |constant: Constant| profile[constant].value;
        let rate = port.1 * value(efficiency(port.0));
        Self {
            proxy: value(Constant::NetworkProxy),
            receive: value(Constant::NetworkReceive),
            simple: value(Constant::LatencyNetworkSimple),
            control: value(Constant::LatencyNetworkControl),
            rate,
            both: rate.min(value(port.2) / CROSSINGS),
            lines: value(lines_of(amd)),
        }
    }

    /// Time of a row; `None` of what forecasts do not know.
    fn us(&self, row: &NetworkRow) -> Option<f64> {
        let transfer = |rate: f64| row.bytes as f64 / rate / 1e3;
        let time = match row.kind {
            Kind::LatencyWrite => self.proxy + transfer(self.rate) + self.control,
            Kind::LatencyImmediate => self.proxy + transfer(self.rate) + self.receive + self.simple,
            Kind::Bandwidth if !row.together => self.proxy.max(transfer(self.rate)),
            Kind::BandwidthBoth => self.proxy.max(transfer(self.both)),
            Kind::Lines => transfer(self.lines),
            _ => return None,
        };
        Some(time).filter(|time| time.is_finite())
    }
}

/// The constant of what a port carries.
fn efficiency(kind: LinkKind) -> Constant {
    match kind {
        LinkKind::Infiniband => Constant::EfficiencyInfiniband,
        LinkKind::Efa => Constant::EfficiencyEfa,
        LinkKind::Ethernet => Constant::EfficiencyEthernet,
        _ => Constant::EfficiencyRoce,
    }
}

fn lines_of(amd: bool) -> Constant {
    if amd { Constant::ProxyLinesAmd } else { Constant::ProxyLines }
}

/// Constants that follow from rows, each with its 90% interval over the batches; those of the port where one is given.
/// Nothing where too little was measured.
///
/// # Errors
/// A port that carried more than it can.
pub(crate) fn constants(
    rows: &[NetworkRow],
    port: Option<Port>,
    amd: bool,
) -> Result<Vec<(Constant, Parameter)>, Error> {
    let found = [0, 1, 2].map(|which| Mechanisms::of(rows, which));
    let [Some(middle), Some(low), Some(high)] = found else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    let mut add = |constant: Constant, source: &str, of: &dyn Fn(&Mechanisms) -> f64| {
        let [value, low, high] = [of(&middle), of(&low), of(&high)];
        if value.is_finite() {
            let interval = Some([value.min(low).min(high), value.max(low).max(high)]);
            let source = source.to_owned();
            all.push((constant, Parameter { value, origin: OriginKind::Measured, source, interval }));
        }
    };
    let immediate = "latency_write_imm where its line over bytes begins, less network.proxy and network.receive";
    for constant in [Constant::LatencyNetworkLl, Constant::LatencyNetworkLl128, Constant::LatencyNetworkSimple] {
        add(constant, immediate, &|m| m.simple);
    }
    let write = "latency_write where its line over bytes begins, less network.proxy";
    add(Constant::LatencyNetworkControl, write, &|m| m.control);
    add(Constant::NetworkProxy, "post and completion of a write of 8 B, of a message's latency at most", &|m| m.proxy);
    add(Constant::NetworkReceive, "as network.proxy, of what that leaves of latency_write_imm", &|m| m.receive);
    add(lines_of(amd), "lines: a thread checks what another one wrote", &|m| m.lines);
    let Some((kind, nominal, memory)) = port else { return Ok(all) };
    add(efficiency(kind), &format!("bandwidth from 64 KiB up, of {nominal:.4} GB/s"), &|m| m.rate / nominal);
    if middle.both < SHARED * middle.rate {
        let source = "bandwidth_both, four times: bytes that leave and arrive, staged by blocks, and NICs move them";
        add(memory, source, &|m| m.both * CROSSINGS);
    }
    for (constant, found) in &mut all {
        let spec = constant.spec();
        if !(spec.bounds[0]..=spec.bounds[1]).contains(&found.value) {
            let message =
                format!("{} would be {:.4} {}, and can be {:?}", constant.name(), found.value, spec.unit, spec.bounds);
            return Err(Error::usage(message, "look whether the NICs of -t's machine are those that were measured"));
        }
        found.interval = found.interval.map(|ends| ends.map(|end| end.clamp(spec.bounds[0], spec.bounds[1])));
    }
    Ok(all)
}

/// Fits what NICs and their proxies take to rows that rank 0 sent; those of the other direction are judged. Rows of several
/// probes count alike: one that was slow moves no median.
///
/// # Errors
/// A file or machine that cannot be read, another table, a machine without a network, too few rows.
pub fn fit_network(request: &NetworkFitRequest) -> Result<Fitted, Error> {
    let site = request.site.load()?;
    let hint = "name the machine that was measured with -t, a host of it with its NICs";
    let port =
        port(&site.topology).ok_or_else(|| Error::usage(format!("`{}` has no network", site.topology.name), hint))?;
    let amd = has(&site.topology, "amd");
    let (rows, inputs) = Probed::Network.read(&request.measurements, read)?;
    let (train, out): (Vec<NetworkRow>, Vec<NetworkRow>) = rows.into_iter().partition(|row| row.first);
    let constants = constants(&train, Some(port), amd)?;
    if constants.is_empty() {
        let message = "the tables have no latencies, posts and completions of rank 0";
        return Err(Error::usage(message, "take verbs.csv of collcast probe --backend verbs as it is"));
    }
    let mut fitted = site.profile.clone();
    constants.iter().for_each(|(constant, found)| fitted.parameters.set(*constant, found.value));
    let errors = |profile: &Profile, rows: &[NetworkRow]| {
        let of = Mechanisms::of_profile(profile, port, amd);
        Stats::of(rows.iter().filter_map(|row| Some(of.us(row)? / row.us[0] - 1.0)))
    };
    let evidence = format!("RDMA between two hosts of {}: {} rows", site.topology.name, train.len());
    let estimate = |(constant, found): &(Constant, Parameter)| Estimate {
        name: constant.name(),
        unit: constant.spec().unit,
        value: found.value,
        prior: site.profile[*constant].value,
    };
    Ok(Fitted {
        of: Of::Network,
        inputs,
        notes: Vec::new(),
        warnings: Vec::new(),
        trained: errors(&fitted, &train),
        left_out: errors(&fitted, &out),
        left_out_before: errors(&site.profile, &out),
        toml: layer_text(("calibrate", &request.name), &evidence, &constants).unwrap_or_default(),
        constants: constants.iter().map(estimate).collect(),
    })
}

/// The port of a machine's first NIC that leaves the host.
fn port(topology: &Topology) -> Option<Port> {
    let (_, _, _, link) = topology.links().find(|(_, _, _, link)| link.kind.is_network())?;
    let arm = ["arm", "grace", "nvidia"].into_iter().any(|name| has(topology, name));
    let memory = if arm { Constant::HostMemoryArm } else { Constant::HostMemory };
    Some((link.kind, link.rate.get() as f64 / 1e9, memory))
}

/// Whether a CPU is of a vendor, by part of its name in small letters.
fn has(topology: &Topology, name: &str) -> bool {
    let of = |kind: &VertexKind| matches!(kind, VertexKind::Cpu { vendor } if vendor.to_lowercase().contains(name));
    topology.hosts().iter().flat_map(|host| &host.cpus).any(|&cpu| of(&topology.vertex(cpu).kind))
}

fn read(file: &str, text: &str) -> Result<Vec<NetworkRow>, Error> {
    let (header, lines) = headed(text);
    let mut rows = Vec::new();
    for (line, text) in lines {
        let row = Cells { header: &header, cells: text.split(',').map(str::trim).collect() };
        let wrong =
            |what: String| Error::usage(format!("{file}:{line}: {what}"), "docs/formats.md says what a row has");
        let us = |column: &str| row.positive(column).map_err(wrong);
        let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
        rows.push(NetworkRow {
            kind: row.named("kind", &kinds).map_err(wrong)?,
            first: row.count("src").map_err(wrong)? == 0,
            together: row.text("nic").contains('+'),
            bytes: row.count("size_bytes").map_err(wrong)?,
            us: [us("time_us")?, us("time_us_p5")?, us("time_us_p95")?],
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

    use super::*;

    /// Rows of a network with these mechanisms, as a probe would see them.
    fn rows(of: &Mechanisms) -> Vec<NetworkRow> {
        let row = |kind: Kind, bytes: u64, us: f64| NetworkRow {
            kind,
            first: true,
            together: false,
            bytes,
            us: [us, us * 0.9, us * 1.2],
        };
        let mut all = vec![row(Kind::Post, 8, of.proxy * 0.75), row(Kind::Completion, 8, of.proxy * 0.25)];
        for bytes in [8, 512, 4096, 64 << 10, 1 << 20, 8 << 20] {
            for kind in [Kind::LatencyWrite, Kind::LatencyImmediate, Kind::Bandwidth, Kind::BandwidthBoth, Kind::Lines]
            {
                let mut planted = row(kind, bytes, 1.0);
                let us = of.us(&planted).unwrap();
                planted.us = [us, us * 0.9, us * 1.2];
                all.push(planted);
            }
        }
        all
    }

    /// Goal: planted mechanisms are found again: of a port of 25 GB/s that carries 23, of a host that moves 30 both ways.
    #[test]
    fn planted_mechanisms_are_found() -> Result<(), Box<dyn std::error::Error>> {
        let planted =
            Mechanisms { proxy: 1.2, receive: 1.2, simple: 3.0, control: 1.9, rate: 23.0, both: 15.0, lines: 8.0 };
        let found = constants(&rows(&planted), Some((LinkKind::Infiniband, 25.0, Constant::HostMemory)), true)?;
        let value = |constant: Constant| found.iter().find(|(c, _)| *c == constant).unwrap().1.clone();
        for (constant, expected) in [
            (Constant::NetworkProxy, 1.2),
            (Constant::NetworkReceive, 1.2),
            (Constant::LatencyNetworkSimple, 3.0),
            (Constant::LatencyNetworkLl, 3.0),
            (Constant::LatencyNetworkControl, 1.9),
            (Constant::EfficiencyInfiniband, 0.92),
            (Constant::HostMemory, 60.0),
            (Constant::ProxyLinesAmd, 8.0),
        ] {
            let found = value(constant);
            assert!((found.value / expected - 1.0).abs() < 1e-9, "{constant:?}: {found:?}");
            let [low, high] = found.interval.unwrap();
            assert!(low < found.value && found.value < high, "{constant:?}: {found:?}");
        }
        let arm = constants(&rows(&planted), Some((LinkKind::Infiniband, 25.0, Constant::HostMemoryArm)), false)?;
        assert!(arm.iter().any(|(constant, found)| *constant == Constant::HostMemoryArm && found.value > 59.0));
        assert!(arm.iter().all(|(constant, _)| *constant != Constant::HostMemory));
        // Both directions at full rate say nothing of the host.
        let free = constants(
            &rows(&Mechanisms { both: 23.0, ..planted }),
            Some((LinkKind::Roce, 25.0, Constant::HostMemory)),
            false,
        )?;
        assert!(free.iter().all(|(constant, _)| *constant != Constant::HostMemory));
        // Without a machine there is no port.
        let alone = constants(&rows(&planted), None, false)?;
        assert_eq!(alone.len(), 7, "{alone:?}");
        assert!(
            constants(&rows(&planted), Some((LinkKind::Roce, 12.5, Constant::HostMemory)), false).is_err(),
            "more than the port carries"
        );
        assert!(constants(&[], None, false)?.is_empty());
        Ok(())
    }

    /// Goal: a post that sends by itself is not longer than the message that it sends, nor is the receiver's work than what
    /// that leaves of a message.
    #[test]
    fn posts_of_soft_nics_are_bounded() {
        let planted =
            Mechanisms { proxy: 4.0, receive: 1.0, simple: 0.0, control: 0.0, rate: 0.1, both: 0.1, lines: 1.0 };
        let mut rows = rows(&planted);
        rows.iter_mut().filter(|row| row.kind == Kind::Post).for_each(|row| row.us = [40.0; 3]);
        let found = Mechanisms::of(&rows, 0).unwrap();
        assert!((found.proxy - 4.0).abs() < 1e-9 && (found.receive - 1.0).abs() < 1e-9, "{found:?}");
        assert!(found.simple.abs() < 1e-9, "{found:?}");
    }
}
