//! What NCCL itself said in the logs of slow runs.

use std::collections::BTreeMap;
use std::fs;

use collcast_hwbackend::read::{FileKind, FileReport};
use collcast_sim::topology::{LinkKind, Topology, VertexKind};
use collcast_topologies::input;

use crate::files::quoted;
use crate::health::{Health, State};

/// What NCCL says where data between hosts goes over TCP.
const SOCKETS: [&str; 2] = ["Using network Socket", "via NET/Socket"];

/// What a log with lines of NCCL says of its runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Said {
    /// The line by which data between hosts goes over TCP though the machine has RDMA, in words.
    pub(crate) sockets: Option<String>,
    /// How to find out what else of it is not as the machine has it.
    pub(crate) lint: String,
}

/// What the logs of slow runs say, by file: those that have lines of NCCL. `named`: the machine as users name it.
pub(super) fn said(
    health: &Health,
    files: &[FileReport],
    (topology, named): (&Topology, &str),
) -> BTreeMap<String, Said> {
    let has_rdma = topology.vertices().any(|(_, vertex)| match &vertex.kind {
        VertexKind::Nic(nic) => !nic.management && nic.kind != LinkKind::Ethernet,
        _ => false,
    });
    let of = |file: &FileReport| {
        let path = file.path.display().to_string();
        let is_slow = health.runs.iter().any(|run| run.state == State::Slow && run.file == path);
        if file.kind != FileKind::Log || !is_slow {
            return None;
        }
        let bytes = fs::read(&file.path).ok()?;
        let text = input::lossy(&bytes);
        let mut lines = (1_u64..).zip(text.lines()).filter(|(_, line)| line.contains("NCCL INFO ")).peekable();
        lines.peek()?;
        let sockets = lines.find_map(|(number, line)| {
            let words = SOCKETS.into_iter().find(|words| line.contains(words))?;
            Some(format!("{path}:{number}: NCCL says `{words}`, and the machine has RDMA"))
        });
        let lint = format!(
            "`collcast lint {} -t {} --nodes {}` says what of the log is not as the machine has it",
            quoted(&path),
            quoted(named),
            topology.hosts().len()
        );
        Some((path, Said { sockets: sockets.filter(|_| has_rdma), lint }))
    };
    files.iter().filter_map(of).collect()
}
