//! One run of nccl-tests: what the lines above its table say, and what is derived from these.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use collcast_sim::collective::{Collective, Launch};
use collcast_sim::measurement::{Choice, Timing};

use super::row::{LogRow, is_time};
use crate::read::bus::{Sample, bus_factor_fits, ranks_of_samples};
use crate::read::parsed::{End, Input, Parsed, several_communicators};
use crate::read::settings::Env;
use crate::read::sidecar::Sidecar;

/// What is said of runs whose lines are mixed.
pub(super) const SEVERAL: &str = "several runs at once in one log: nccl-tests was built without MPI=1?";

/// What is known of the run whose table comes next or is being read.
#[derive(Default)]
pub(super) struct LogRun {
    pub(super) collective: Option<Collective>,
    /// The name of a test that is none of them; file names are then no help.
    pub(super) unknown_test: Option<String>,
    pub(super) threads: Option<u32>,
    pub(super) gpus: Option<u32>,
    pub(super) graph: Option<u32>,
    /// Calls of the timed loop (`-n`), and how many of them go into one group (`-m`).
    pub(super) calls: Option<u32>,
    pub(super) together: Option<u32>,
    /// Whether the host waits after each call (`-z`), and NCCL registers the buffers (`-R`).
    pub(super) blocking: Option<u32>,
    pub(super) register: Option<u32>,
    /// Rank to (host, process, device).
    pub(super) ranks: BTreeMap<u32, (String, u64, u32)>,
    /// Host of each GPU, and its place on the PCIe bus.
    pub(super) gpus_used: BTreeSet<(String, String)>,
    /// What was run when it listed its devices.
    pub(super) listed: Option<Collective>,
    /// Communicators: several at once where `NCCL_TESTS_SPLIT` made them.
    pub(super) groups: BTreeSet<u32>,
    /// Two ranks have the same GPU of the same host.
    pub(super) same_gpu: bool,
    /// Lines of several runs are mixed.
    pub(super) mixed: bool,
    /// Who wrote the last row, and who any, by the tags before them.
    pub(super) writer: Option<u64>,
    pub(super) writers: BTreeSet<u64>,
    /// Rows before its last average.
    pub(super) averaged: Option<usize>,
    /// What NCCL_DEBUG says of the communicator.
    pub(super) debug_ranks: Option<u32>,
    pub(super) debug_nodes: Option<u32>,
    /// Whether NCCL's nodes are NVLink domains, which may be of several hosts.
    pub(super) domains: bool,
    pub(super) columns: Option<Vec<String>>,
    /// NCCL's version: what nccl-tests was linked with, and what NCCL itself says, which wins.
    pub(super) linked: Option<String>,
    pub(super) nccl: Option<String>,
    pub(super) env: Env,
    pub(super) choices: HashMap<u64, Choice>,
    pub(super) rows: Vec<LogRow>,
    /// Its last lines are there, which say whether results were right.
    pub(super) finished: bool,
    /// Some line says that it failed, or that results were wrong.
    pub(super) failed: bool,
    /// Lines that look like rows and could not be read.
    pub(super) unread: usize,
}

impl LogRun {
    /// How it ended.
    pub(super) fn end(&self) -> End {
        match (self.failed, self.finished) {
            (true, _) => End::Failed,
            (false, true) => End::Whole,
            (false, false) => End::Cut,
        }
    }

    /// The hosts that its device lines name.
    pub(super) fn named_hosts(&self) -> BTreeSet<&String> {
        self.ranks.values().map(|(host, _, _)| host).filter(|host| !host.is_empty()).collect()
    }

    /// From the device lines, if they agree with the rates; else from what is left. `by` says who named the collective.
    pub(super) fn ranks(
        &self,
        (collective, by): (Collective, &str),
        input: &Input<'_>,
        out: &mut Parsed,
    ) -> Result<u32, String> {
        let first_line = self.rows.first().map(|row| row.line);
        let samples: Vec<Sample> = self.rows.iter().flat_map(|row| row.halves).filter_map(|half| half.sample).collect();
        let by_rate = ranks_of_samples(collective, &samples);
        let sidecar = input.sidecar;
        // What the sibling file says of ranks, it says because the list is cut.
        let listed = sidecar
            .ranks
            .or_else(|| Some(self.ranks.last_key_value()?.0 + 1))
            .or(self.debug_ranks)
            .or_else(|| sidecar.nodes?.checked_mul(sidecar.gpus_per_node?));
        match (listed, by_rate) {
            (Some(listed), _) if bus_factor_fits(collective, listed, &samples) => {
                if !self.ranks.is_empty() && self.ranks.len() < listed as usize && sidecar.ranks.is_none() {
                    let text = format!(
                        "only {} of {listed} device lines; {listed} ranks by the last of them",
                        self.ranks.len()
                    );
                    out.note(first_line, text);
                }
                Ok(listed)
            }
            (Some(listed), Some((ranks, last))) if ranks == last => {
                let text = format!("{listed} ranks are named, but busbw / algbw is that of {ranks}; {ranks} is used");
                out.note(first_line, text);
                Ok(ranks)
            }
            (Some(listed), Some((first, last))) => Err(format!(
                "{listed} ranks are named, but busbw / algbw is that of {}; say `ranks = N` in {}.toml beside the file",
                range(first, last),
                input.stem
            )),
            (Some(listed), None) => {
                let text = format!(
                    "busbw / algbw is not that of {collective} ({by}) over {listed} ranks, nor over any other number"
                );
                out.note(first_line, text);
                Ok(listed)
            }
            (None, Some((ranks, last))) if ranks == last => {
                let text = format!("no device lines; {ranks} ranks by busbw / algbw");
                out.note(first_line, text);
                Ok(ranks)
            }
            // One process has all of them, as far as the rows tell.
            (None, by_rate) if self.of_one_process() > 1 => {
                let ranks = self.of_one_process();
                let told = by_rate
                    .map_or("does not tell".to_owned(), |(first, last)| format!("is that of {}", range(first, last)));
                let text = format!("no device lines; {ranks} ranks, as one process has (busbw / algbw {told})");
                out.note(first_line, text);
                Ok(ranks)
            }
            (None, by_rate) => Err(format!(
                "{} rows and no device lines, so no number of ranks (busbw / algbw {}); say `ranks = N` in {}.toml beside the file",
                self.rows.len(),
                by_rate.map_or("does not tell".to_owned(), |(first, last)| {
                    format!("is that of {}", range(first, last))
                }),
                input.stem
            )),
        }
    }

    /// Why no time of it is that of a call, if so.
    pub(super) fn problem(&self) -> Option<String> {
        if self.mixed {
            return Some(SEVERAL.to_owned());
        }
        if let Some(calls) = self.together.filter(|&calls| calls > 1) {
            return Some(format!("`agg iters: {calls}` (-m): times are of {calls} calls in one group"));
        }
        if let Some(problem) = several_communicators(&self.groups) {
            return Some(problem);
        }
        let blocking = self.blocking.is_some_and(|how| how > 0);
        blocking.then(|| "`Blocking Enabled` (-z): times are of calls that the host waits for".to_owned())
    }

    /// The loop that was timed, where it is not of 20 calls.
    pub(super) fn timing(&self) -> Option<Timing> {
        let usual = Timing::default();
        let calls = self.calls.filter(|&calls| calls > 0 && calls != usual.calls)?;
        Some(Timing { calls, ..usual })
    }

    /// Halves of its table, by the names above it: out of place and in place, or one that somebody kept.
    pub(super) fn halves(&self) -> usize {
        self.columns.as_ref().map_or(2, |columns| columns.iter().filter(|name| is_time(name)).count())
    }

    /// Ranks of one process: threads times GPUs of each; 1 where neither is said.
    fn of_one_process(&self) -> u32 {
        self.threads.unwrap_or(1).saturating_mul(self.gpus.unwrap_or(1))
    }

    /// What the sibling file says, else as the device lines tell.
    pub(super) fn hosts(&self, ranks: u32, sidecar: &Sidecar, out: &mut Parsed) -> Option<u32> {
        if let Some(nodes) = sidecar.nodes {
            return Some(nodes);
        }
        if self.same_gpu {
            let text = "two ranks have the same GPU of the same host: hosts share a name; say `nodes = N` in the .toml beside \
                        the file";
            out.note_once(None, text.to_owned());
            return self.debug_hosts();
        }
        let names: BTreeSet<&str> = self.ranks.values().map(|(host, _, _)| host.as_str()).collect();
        let named = u32::try_from(names.len()).ok()?;
        if named > 0 && self.ranks.len() == ranks as usize {
            return Some(named);
        }
        // The devices of the last host tell the GPUs of each, if its last line is there.
        let last = self.ranks.last_key_value().map(|(&last, _)| last + 1);
        let per_host = self
            .ranks
            .values()
            .filter(|_| last == Some(ranks))
            .map(|&(_, _, device)| device.saturating_add(1))
            .max()
            .or(sidecar.gpus_per_node);
        match per_host {
            Some(per_host) if ranks.is_multiple_of(per_host) && ranks / per_host >= named => {
                out.note_once(
                    None,
                    format!(
                        "number of hosts: {}, of {per_host} GPUs, by the devices that are listed",
                        ranks / per_host
                    ),
                );
                Some(ranks / per_host)
            }
            _ => self.debug_hosts(),
        }
    }

    /// NCCL's nodes, where these are hosts.
    fn debug_hosts(&self) -> Option<u32> {
        self.debug_nodes.filter(|_| !self.domains)
    }

    /// By graph, threads and GPUs, else by the processes of the device lines.
    pub(super) fn launch(&self) -> Option<Launch> {
        if self.graph.is_some_and(|graph| graph > 0) {
            return Some(Launch::Graph);
        }
        match (self.threads, self.gpus) {
            (_, Some(gpus)) if gpus > 1 => Some(Launch::SingleThread),
            (Some(threads), Some(_)) if threads > 1 => Some(Launch::Threads),
            (Some(_), Some(_)) => Some(Launch::Processes),
            _ => {
                let processes: BTreeSet<(&str, u64)> =
                    self.ranks.values().map(|(host, process, _)| (host.as_str(), *process)).collect();
                (processes.len() > 1 && processes.len() == self.ranks.len()).then_some(Launch::Processes)
            }
        }
    }

    /// The choice of NCCL for a row of `size` bytes. NCCL's count is that of one rank where nccl-tests' size is of all.
    pub(super) fn choice_for(&self, collective: Collective, ranks: u32, size: u64) -> Option<Choice> {
        if self.choices.is_empty() {
            return None;
        }
        let bytes = match collective {
            Collective::AllGather | Collective::ReduceScatter => size / u64::from(ranks.max(1)),
            _ => size,
        };
        self.choices.get(&bytes).copied()
    }
}

fn range(first: u32, last: u32) -> String {
    match last {
        u32::MAX => format!("{first} or more"),
        last => format!("{first} to {last}"),
    }
}

/// `Rank  0 Group  0 Pid   4542 on         vm device  0 [0000:00:06] NVIDIA H200`.
pub(super) fn rank_line(text: &str) -> Option<(u32, u32, (String, u64, u32))> {
    let words: Vec<&str> = text.split_whitespace().take(64).collect();
    let after = |key: &str| words.windows(2).find(|pair| pair[0] == key).map(|pair| pair[1]);
    let rank: u32 = after("Rank")?.parse().ok()?;
    let process = after("Pid").and_then(|pid| pid.parse().ok()).unwrap_or(0);
    let group = after("Group").and_then(|group| group.parse().ok()).unwrap_or(0);
    let device = after("device")?.parse().ok()?;
    (rank < 1 << 24).then(|| (rank, group, (after("on").unwrap_or_default().to_owned(), process, device)))
}
