//! What NCCL itself said in the logs of slow runs that no fault explains.

use std::fs;

use collcast_hwbackend::read::{FileKind, FileReport};
use collcast_sim::doctor::Cause;
use collcast_sim::topology::{LinkKind, Topology, VertexKind};

use crate::diagnose::Anomaly;
use crate::files::quoted;
use crate::health::{Health, State};

/// What NCCL says where data between hosts goes over TCP.
const SOCKETS: [&str; 2] = ["Using network Socket", "via NET/Socket"];

/// A line of NCCL in the log of a slow run.
struct Line {
    file: String,
    number: u64,
    /// Which of [`SOCKETS`] it has.
    sockets: Option<&'static str>,
}

/// The first line in which NCCL says that a log's data goes over TCP, or else its first line.
fn line_of(file: &FileReport) -> Option<Line> {
    let bytes = fs::read(&file.path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let said = |(number, line): (u64, &str)| {
        let sockets = SOCKETS.into_iter().find(|sockets| line.contains(sockets));
        Line { file: file.path.display().to_string(), number, sockets }
    };
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| line.contains("NCCL INFO ")).map(said);
    let first = lines.next()?;
    if first.sockets.is_some() { Some(first) } else { lines.find(|line| line.sockets.is_some()).or(Some(first)) }
}

/// What was found, with TCP for the cause of what is unexplained where a log of several hosts names it and the machine has
/// RDMA; and no word on how to get a log that is there. `named`: the machine as users name it.
pub(super) fn by_logs(
    mut found: Vec<Anomaly>,
    health: &Health,
    files: &[FileReport],
    (topology, named): (&Topology, &str),
) -> Vec<Anomaly> {
    let Some(unknown) = found.iter_mut().find(|a| a.kind == Cause::Unknown.name()) else { return found };
    let has_rdma = topology.vertices().any(|(_, vertex)| match &vertex.kind {
        VertexKind::Nic(nic) => !nic.management && nic.kind != LinkKind::Ethernet,
        _ => false,
    });
    let slow = |file: &&FileReport| {
        let path = file.path.display().to_string();
        file.kind == FileKind::Log && health.runs.iter().any(|run| run.state == State::Slow && run.file == path)
    };
    let lines: Vec<Line> = files.iter().filter(slow).filter_map(line_of).collect();
    let over_hosts = |line: &&Line| health.runs.iter().any(|run| run.file == line.file && run.hosts > Some(1));
    let sockets = lines.iter().filter(over_hosts).find_map(|line| Some((line, line.sockets?))).filter(|_| has_rdma);
    if let Some((Line { file, number, .. }, said)) = sockets {
        unknown.kind = Cause::TcpFallback.name();
        unknown.evidence =
            format!("{file}:{number}: NCCL says `{said}`, and the machine has RDMA; {}", unknown.evidence);
        let next = Cause::TcpFallback.next();
        // What comes before confirms it.
        unknown.suggestion = next.split_once("; then ").map_or(next, |(_, then)| then).to_owned();
    } else if let Some(line) = lines.first() {
        let lint = format!(
            "`collcast lint {} -t {} --nodes {}` says what of the log is not as the machine has it",
            quoted(&line.file),
            quoted(named),
            topology.hosts().len()
        );
        unknown.suggestion = unknown.suggestion.replacen(Cause::Unknown.next(), &lint, 1);
    }
    found
}
