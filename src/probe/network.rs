//! What the NICs between processes do: latencies, costs of posts and completions, rates; and the constants of the
//! network that follow from them, as a profile.

use std::path::PathBuf;
use std::time::Duration;

use collcast_hwbackend::rendezvous::World;
use collcast_hwbackend::verbs::{Measured, Options, Verbs};
use collcast_sim::profile::{Constant, Parameter};

use crate::bench::{date, facts, layer_text};
use crate::error::Error;
use crate::files::make_folder;
use crate::kernels::{NetworkRow, constants};
use crate::watch::Watch;

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
    /// Whether the CPUs of rank 0's host are AMD's.
    pub amd: bool,
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
    let amd = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("AuthenticAMD"));
    Ok(NetworkOutcome { folder: request.folder.clone(), rows, amd, facts: facts(&verbs) })
}

impl NetworkOutcome {
    /// The constants of the network that follow from the rows, each with its 90% interval over the batches; what ports
    /// carry of their nominal rate takes a machine, and so `calibrate`.
    pub fn constants(&self) -> Vec<(Constant, Parameter)> {
        let rows: Vec<NetworkRow> = self.rows.iter().map(NetworkRow::of).collect();
        // Only a port can carry more than it should.
        constants(&rows, None, self.amd).unwrap_or_default()
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
    use collcast_hwbackend::verbs::Kind;
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
        let mut outcome = NetworkOutcome { folder: PathBuf::new(), rows: Vec::new(), amd: false, facts: Vec::new() };
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
            [
                ("latency.network.simple", 7.0),
                ("latency.network.control", 7.0),
                ("network.proxy", 3.0),
                ("network.receive", 3.0)
            ]
        );
        let prior = Profile::builtin("prior").unwrap();
        let layered = prior.layered(Layer::parse(&outcome.profile().unwrap(), "network.toml").unwrap());
        assert_eq!(layered[Constant::LatencyNetworkControl].value, 7.0);
    }
}
