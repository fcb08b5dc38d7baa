//! What the NICs between processes do: latencies, costs of posts and completions, rates; and the constants of the
//! network that follow from them, as a profile.

use std::path::PathBuf;
use std::time::Duration;

use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs::{Kind, Measured, Options, Verbs};
use collcast_sim::profile::{Constant, OriginKind, Parameter};

use crate::bench::{date, facts, layer_text};
use crate::error::Error;
use crate::files::make_folder;
use crate::statistics::{median, quantile};
use crate::watch::Watch;

/// Bytes of the messages whose latency counts: what carries no data to speak of.
const SMALL: u64 = 8;
/// Shares of the batches that a 90% interval leaves out at each end.
const TAIL: f64 = 0.05;

/// What is to be found out, by one process of several.
#[derive(Clone, Debug)]
pub struct NetworkRequest {
    /// Folder for what is found; made where it is not there.
    pub folder: PathBuf,
    /// Fewer sizes and queue pairs.
    pub quick: bool,
    /// Batches, each of which gives one time.
    pub batches: u32,
    /// Longest wait for a peer.
    pub patience: Duration,
    /// The place of this process; rank 0 gets what is found.
    pub world: World,
    /// NICs of this process.
    pub verbs: Options,
    /// Hears what is measured.
    pub watch: Watch,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct NetworkOutcome {
    /// The folder for it.
    pub folder: PathBuf,
    /// Times between rank 0 and each other rank, on each NIC, in both directions.
    pub rows: Vec<Measured>,
    /// What it ran on; key and value.
    pub facts: Vec<(String, String)>,
}

/// Measures the NICs between rank 0 and each other process. All processes of the job call it.
///
/// # Errors
/// No RDMA device, a folder that cannot be written to, a peer that does not answer.
pub fn network(request: &NetworkRequest) -> Result<NetworkOutcome, Error> {
    let mut verbs = Verbs::open(&request.world, &request.verbs, request.patience)?;
    if request.world.rank == 0 {
        make_folder(&request.folder)?;
    }
    let mut told = |what: &str| drop(request.watch.stage(what));
    let rows = verbs.probe(request.quick, request.batches, request.patience, &mut told)?;
    Ok(NetworkOutcome { folder: request.folder.clone(), rows, facts: facts(&verbs) })
}

impl NetworkOutcome {
    /// Times of a kind over all pairs, NICs and directions, of small messages.
    fn small(&self, kind: Kind) -> Vec<f64> {
        let rows = self.rows.iter().filter(|row| row.kind == kind && row.bytes == SMALL);
        let mut times: Vec<f64> = rows.flat_map(|row| row.times_us.iter().copied()).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// The constants of the network that follow from the rows, each with its 90% interval over the batches.
    pub fn constants(&self) -> Vec<(Constant, Parameter)> {
        let [write, immediate, post, completion] =
            [Kind::LatencyWrite, Kind::LatencyImmediate, Kind::Post, Kind::Completion].map(|kind| self.small(kind));
        if [&write, &immediate, &post, &completion].iter().any(|times| times.is_empty()) {
            return Vec::new();
        }
        let proxy = median(post.clone()) + median(completion.clone());
        let least = |q: f64| quantile(&post, q) + quantile(&completion, q);
        let of = |value: f64, low: f64, high: f64, source: &str| Parameter {
            value,
            origin: OriginKind::Measured,
            source: source.to_owned(),
            interval: Some([low.min(value), high.max(value)]),
        };
        // A latency begins when the post is done: what the post takes is the thread's.
        let latency = |times: &[f64], source: &str| {
            let less = |time: f64| (time - proxy).max(0.0);
            let [low, high] = [TAIL, 1.0 - TAIL].map(|q| less(quantile(times, q)));
            of(less(median(times.to_vec())), low, high, source)
        };
        let control = latency(&write, "latency_write of 8 B, less post and completion");
        let simple = latency(&immediate, "latency_write_imm of 8 B, less post and completion");
        let proxy = of(proxy, least(TAIL), least(1.0 - TAIL), "post and completion of a write of 8 B");
        vec![
            (Constant::LatencyNetworkLl, simple.clone()),
            (Constant::LatencyNetworkLl128, simple.clone()),
            (Constant::LatencyNetworkSimple, simple),
            (Constant::LatencyNetworkControl, control),
            (Constant::NetworkProxy, proxy),
        ]
    }

    /// These constants as a profile that layers over another; nothing where too little was measured.
    pub fn profile(&self) -> Option<String> {
        let host = self.facts.iter().find(|fact| fact.0 == "host").map_or("", |fact| fact.1.as_str());
        layer_text(("probe --backend verbs", "network"), &format!("{host}, {}", date()), &self.constants())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

    use super::*;
    use collcast_sim::profile::{Layer, Profile};

    /// Goal: constants are what the rows say, by hand: a write of 10 us whose post and completion take 2 and 1 us; and
    /// the profile is one that is read.
    #[test]
    fn constants_follow_from_the_rows() {
        let row = |kind, times_us: [f64; 3]| Measured {
            kind,
            src: 0,
            dst: 1,
            nic: "rxe0".to_owned(),
            qps: 1,
            bytes: 8,
            times_us: times_us.to_vec(),
        };
        let mut outcome = NetworkOutcome { folder: PathBuf::new(), rows: Vec::new(), facts: Vec::new() };
        assert!(outcome.profile().is_none());
        outcome.rows = vec![
            row(Kind::LatencyWrite, [10.0, 9.0, 12.0]),
            row(Kind::LatencyImmediate, [13.0, 13.0, 13.0]),
            row(Kind::Post, [2.0, 2.0, 2.0]),
            row(Kind::Completion, [1.0, 1.0, 1.0]),
        ];
        let values: Vec<(&str, f64)> = outcome.constants().iter().map(|(c, p)| (c.name(), p.value)).collect();
        assert_eq!(
            values[2..],
            [("latency.network.simple", 10.0), ("latency.network.control", 7.0), ("network.proxy", 3.0)]
        );
        let prior = Profile::builtin("prior").unwrap();
        let layered = prior.layered(Layer::parse(&outcome.profile().unwrap(), "network.toml").unwrap());
        assert_eq!(layered[Constant::LatencyNetworkControl].value, 7.0);
    }
}
