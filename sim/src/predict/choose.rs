//! By which algorithm and protocol a call runs, and what NCCL's cut of it may use.

use std::collections::BTreeSet;

use super::error::PredictError;
use super::predictor::Predictor;
use super::settings::{Choice, Settings};
use crate::call::Call;
use crate::collective::{Algorithm, Launch, Protocol};
use crate::ids::Rank;
use crate::nccl::cost::place;
use crate::nccl::plan::{P2P_CHUNK, P2P_CHUNK_NVLINK};
use crate::nccl::rules::{NvlsTreeChunks, Rules};
use crate::nccl::{Cell, Decision, Graphs, Layer, Limits, Model, NothingLeft, PathClass, Plan, Selection, Version};
use crate::network::{check_multicast, check_sharp};
use crate::schedule::{check_fits, check_supported, valid_algorithms, valid_protocols};
use crate::units::Bytes;

/// What a choice came down to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// Algorithm to simulate.
    pub algorithm: Algorithm,
    /// Protocol to simulate.
    pub protocol: Protocol,
    /// Channels that a tuner asks for.
    pub channels: Option<u32>,
    /// Which layer of NCCL's choice decided; none where the user did.
    pub layer: Option<Layer>,
    /// What NCCL picks where that has no schedule here.
    pub instead_of: Option<(Algorithm, Protocol)>,
}

impl Predictor<'_> {
    /// NCCL's cost model on some graphs.
    pub fn model<'g>(&self, graphs: &'g Graphs, settings: &Settings) -> Model<'g> {
        // NCCL calls the buffers of any CUDA graph registered (`regBuff` of `src/enqueue.cc`).
        let registered = settings.registered || settings.launch == Launch::Graph;
        Model::new(graphs, self.version(settings), settings.nccl).with_registered(registered)
    }

    /// What NCCL's cut of a call may use, whatever algorithm and protocol.
    pub fn limits(&self, ranks: u32, settings: &Settings) -> Limits {
        let graphs = self.graph(ranks, settings);
        let (nccl, version) = (&settings.nccl, self.version(settings));
        Limits {
            channels: settings.channels.unwrap_or_else(|| self.model(&graphs, settings).channels()).max(1),
            exact_channels: settings.channels.is_some(),
            registered: settings.registered,
            threads: None,
            threshold: None,
            buffers: nccl.buffers.resolved(),
            p2p_channels: settings.channels.map_or(graphs.p2p_channels, |told| (told.max(1), told.max(1))),
            p2p_chunk: match nccl.p2p_chunks {
                [nvlink, ..] if graphs.hosts < 2 && graphs.ring.type_intra <= PathClass::Nvl => {
                    nvlink.unwrap_or(P2P_CHUNK_NVLINK)
                }
                [_, pcie, _] if graphs.hosts < 2 => pcie.unwrap_or(P2P_CHUNK),
                [.., network] => network.unwrap_or(P2P_CHUNK),
            },
            p2p_ll_bytes: nccl.p2p_ll_bytes.unwrap_or(Limits::default().p2p_ll_bytes),
            network: graphs.hosts > 1,
            nvls_chunks: {
                let (chunk, tree_most) = graphs.nvls_chunks;
                let [told, told_tree] = nccl.nvls_chunks;
                let chunk = told.unwrap_or(chunk);
                let tree = match Rules::of(version).nvls_tree_chunks {
                    NvlsTreeChunks::NvlsOrLess => chunk,
                    // The cut has a step of the FIFO at most.
                    NvlsTreeChunks::Step | NvlsTreeChunks::StepOrLess => Bytes(u64::MAX),
                };
                (chunk, told_tree.or(tree_most).map_or(tree, |most| most.min(tree)))
            },
            hosts: graphs.hosts,
            ranks_per_host: graphs.ranks_per_host.0,
            heads: graphs.heads(),
            version,
            spread: settings.spread,
        }
    }

    /// What NCCL's cut of a call may use with one algorithm and protocol.
    pub(super) fn limits_of(
        &self,
        call: &Call,
        algorithm: Algorithm,
        protocol: Protocol,
        settings: &Settings,
    ) -> Limits {
        let limits = self.limits(call.ranks, settings);
        let graphs = self.graph(call.ranks, settings);
        let model = self.model(&graphs, settings);
        match algorithm {
            Algorithm::Ring | Algorithm::Tree => Limits {
                // Tree kernels always start with all threads.
                threads: (algorithm == Algorithm::Ring).then(|| model.max_threads(algorithm, protocol)),
                threshold: Some(model.threshold(algorithm, protocol)),
                ..limits
            },
            Algorithm::Direct => limits,
            _ => {
                let own = || model.call_channels(algorithm, protocol, call.size().0);
                Limits { channels: settings.channels.unwrap_or_else(own), ..limits }
            }
        }
    }

    /// Whether the machine can do an algorithm on a call: type, shape, reduction, switches.
    pub(super) fn check_machine(
        &self,
        call: &Call,
        algorithm: Algorithm,
        settings: &Settings,
    ) -> Result<(), PredictError> {
        self.check_type(call, settings)?;
        let version = self.version(settings);
        let has = |version: Version, a: usize| Rules::of(version).algorithms[a];
        if let Some((a, _)) = place(algorithm, Protocol::Simple).filter(|&(a, _)| !has(version, a)) {
            let releases = (Version::OLDEST.minor..=Version::NEWEST.minor).map(|minor| Version::new(2, minor, 0));
            let since = releases.into_iter().find(|&release| release > version && has(release, a));
            return Err(PredictError::NotYet { version, algorithm, since });
        }
        let order = self.order(call.ranks, settings);
        check_fits(call, algorithm, &order)?;
        if matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree) {
            let fewest = order.hosts.iter().map(Vec::len).min().unwrap_or(0);
            if fewest < Rules::of(version).nvls_ranks as usize {
                return Err(PredictError::NvlsRanks { version, algorithm, fewest });
            }
            for host in &order.hosts {
                check_multicast(self.topology, &host.iter().map(|&r| Rank(r)).collect::<Vec<_>>())?;
            }
        }
        let network = match algorithm {
            Algorithm::Nvls => order.hosts.len() > 1,
            _ => matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain),
        };
        if network {
            check_sharp(self.topology)?;
        }
        Ok(())
    }

    /// All modelled pairs of algorithm and protocol that a choice leaves.
    pub fn candidates(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Vec<(Algorithm, Protocol)> {
        let graphs = self.graph(call.ranks, settings);
        let table = self.model(&graphs, settings).table(call);
        // LL128 is left out where it is not safe; what NCCL has no table for is free.
        let unsafe_here =
            |a, p| p == Protocol::Ll128 && place(a, p).is_some_and(|(a, p)| !matches!(table[a][p], Cell::On(_)));
        valid_algorithms(call.collective)
            .iter()
            // NCCL has no CollTree, so nobody could take such advice.
            .filter(|&&a| {
                algorithm == Choice::Forced(a) || a != Algorithm::CollTree && self.check_machine(call, a, settings).is_ok()
            })
            .flat_map(|&a| valid_protocols(a).iter().map(move |&p| (a, p)))
            .filter(|&(a, p)| match algorithm {
                Choice::Forced(forced) => a == forced,
                _ if settings.nccl.nvls == Some(false) && matches!(a, Algorithm::Nvls | Algorithm::NvlsTree) => false,
                _ => settings.nccl.algorithms.allows(call.collective, a) != Some(false),
            } && match protocol {
                Choice::Forced(forced) => p == forced,
                _ => settings.nccl.protocols.allows(call.collective, p) != Some(false) && !unsafe_here(a, p),
            })
            .collect()
    }

    /// NCCL's choice for a call; what the user forces is a setting of NCCL.
    ///
    /// # Errors
    /// Settings that NCCL would fail with.
    pub fn decide(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Decision, PredictError> {
        self.decide_among(call, 1, algorithm, protocol, settings)
    }

    /// The same in a group of `calls` calls, `call` having the bytes of all that share its choice.
    pub(super) fn decide_among(
        &self,
        call: &Call,
        calls: u32,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Decision, PredictError> {
        self.check_type(call, settings)?;
        let mut settings = *settings;
        if let Choice::Forced(a) = algorithm {
            settings.nccl.algorithms = Selection::only(a);
        }
        if let Choice::Forced(p) = protocol {
            settings.nccl.protocols = Selection::only(p);
        }
        if valid_algorithms(call.collective) == [Algorithm::Direct] {
            let limits = self.limits(call.ranks, &settings);
            return Ok(Decision {
                algorithm: Algorithm::Direct,
                protocol: match protocol {
                    Choice::Forced(p) => p,
                    _ => Plan::point_to_point_protocol(call, &limits),
                },
                channels: limits.p2p_channels.0,
                tuned_channels: false,
                layer: Layer::Rule,
                candidates: Vec::new(),
                why: "send and receive: LL for small messages inside a host, else Simple".to_owned(),
            });
        }
        let graphs = self.graph(call.ranks, &settings);
        let model = self.model(&graphs, &settings);
        model.decide_group(self.tuner.as_ref(), call, call.size().0, calls).map_err(|NothingLeft { candidates }| {
            if candidates.is_empty() {
                return PredictError::NothingToChoose(call.collective);
            }
            let reasons: BTreeSet<&str> = (candidates.iter())
                .filter_map(|c| if let Cell::Off(why) = c.cell { Some(why) } else { None })
                .collect();
            let reasons = reasons.into_iter().collect::<Vec<_>>().join("; ");
            PredictError::NothingLeft { version: self.version(&settings), collective: call.collective, reasons }
        })
    }

    /// Resolves `auto` as NCCL does; forced parts stay. Where NCCL picks what has no schedule
    /// here, the pair that NCCL would take next, and [`Resolved::instead_of`] says so.
    ///
    /// # Errors
    /// Nothing to choose from.
    pub fn resolve(
        &self,
        call: &Call,
        algorithm: Choice<Algorithm>,
        protocol: Choice<Protocol>,
        settings: &Settings,
    ) -> Result<Resolved, PredictError> {
        if let (Choice::Forced(algorithm), Choice::Forced(protocol)) = (algorithm, protocol) {
            return Ok(Resolved { algorithm, protocol, channels: None, layer: None, instead_of: None });
        }
        if let Choice::Forced(a) = algorithm {
            check_supported(call.collective, a)?;
            // An algorithm with one protocol needs no table, and may be one that NCCL has not.
            if let [only] = valid_protocols(a) {
                return Ok(Resolved { algorithm: a, protocol: *only, channels: None, layer: None, instead_of: None });
            }
        }
        let decision = self.decide(call, algorithm, protocol, settings)?;
        let protocol = match protocol {
            Choice::Forced(forced) => forced, // NCCL's copy of one rank has none.
            _ => decision.protocol,
        };
        let picked = (decision.algorithm, protocol);
        let layer = Some(decision.layer);
        if check_supported(call.collective, picked.0).is_ok() {
            let channels = decision.tuned_channels.then_some(decision.channels);
            return Ok(Resolved { algorithm: picked.0, protocol: picked.1, channels, layer, instead_of: None });
        }
        let modelled = (decision.candidates.iter())
            .filter(|c| check_supported(call.collective, c.algorithm).is_ok())
            .filter_map(|c| Some((c.time_us?, (c.algorithm, c.protocol))))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, (algorithm, protocol)) = modelled.ok_or_else(|| {
            // Names what has no schedule, and what has.
            check_supported(call.collective, picked.0)
                .err()
                .map_or(PredictError::NothingToChoose(call.collective), Into::into)
        })?;
        Ok(Resolved { algorithm, protocol, channels: None, layer, instead_of: Some(picked) })
    }
}
