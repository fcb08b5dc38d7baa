//! The files: a table for NVIDIA's example tuner, an environment file, the report.

use std::fmt::Write as _;
use std::path::Path;

use collcast_reports::model::Report;
use collcast_reports::{json, markdown};
use collcast_tuner::table::{A_DOMAIN, END, FOR, NEXT, WITH};

use super::advice::{LARGEST, Span, runs};
use super::communicator::Communicator;
use super::install::{LIBRARY, NEXT_TUNER, PLUGIN, TABLE};
use super::outcome::{Machine, Outcome};
use super::process::{Process, Tried};
use super::tuned::{Advice, Own, Tuned};
use super::variables::Variables;
use crate::bench::date;
use crate::error::Error;
use crate::files;

/// First words of every file.
const PREDICTED: &str = "Written by `collcast tune`; check it with `collcast compare` on runs before and after.";
/// What must hold of a table: NCCL does not compare what its ranks answer.
const SAME: &str = "Every host needs the same table: a job hangs where ranks read different ones, or some read none.";

/// Lines for a tuner plugin. NVIDIA's example takes one channel where no line matches or a line says -1, so every size has
/// a line and every line its channels: what is not changed is NCCL's own choice, written out. Ours leaves those lines to
/// NCCL itself. Collectives that were not looked at would get one channel from the example: the caller's list should hold
/// all that the job uses. Changes that were found for registered buffers are for these alone. Others are for all: NCCL calls
/// the buffers of any CUDA graph registered (`regBuff` of `src/enqueue.cc`).
pub(super) fn tuner_csv(calls: &[Tuned], machine: &Machine, registered: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# NCCL tuner table for {}. {PREDICTED}", machine.name);
    let known = [("nccl", Some(machine.nccl.as_str())), ("gpu", machine.gpu.as_deref()), ("form", machine.form)];
    let known: Vec<String> = known.iter().filter_map(|(key, value)| Some(format!("{key}={}", (*value)?))).collect();
    // Our plugin refuses the table elsewhere (`hwbackend/tuner`).
    let _ = writeln!(out, "{FOR} {}", known.join(" "));
    // NICs do not matter to calls within a host.
    let several = calls.iter().any(|call| call.communicator.nodes > 1);
    let parts = machine.host.iter().filter(|(part, _)| several || *part != "nics");
    let parts: Vec<String> = parts.map(|(part, value)| format!("{part}={value}")).collect();
    if !parts.is_empty() {
        let _ = writeln!(out, "{FOR} {}", parts.join(" "));
    }
    for (name, value) in &machine.with {
        let _ = writeln!(out, "{WITH} {name}={value}");
    }
    if let Some(next) = machine.next {
        let _ = writeln!(out, "{NEXT} {next}");
    }
    let _ = writeln!(out, "# {SAME}");
    let _ =
        writeln!(out, "# Undo: take NCCL_TUNER_PLUGIN out of the job's settings; `collcast tune undo FILE` does it.");
    let _ = writeln!(
        out,
        "# With NVIDIA's example plugin a collective without a line runs on one channel: tune all that are used (-c all)."
    );
    let _ = writeln!(
        out,
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
    );
    if registered {
        let _ = writeln!(
            out,
            "# Changes are for registered buffers (--registered), and so for calls in CUDA graphs; others keep NCCL's choice."
        );
        let _ = writeln!(
            out,
            "# Register buffers on all ranks or on none: NCCL asks each rank of its own, and a job hangs where answers differ."
        );
    }
    let way = |call: &Tuned| call.advice.as_ref().map(|_| (call.taken().pair, call.taken().channels_most));
    let (changed, mut kept): (Vec<Span<'_>>, Vec<Span<'_>>) =
        runs(calls, way).into_iter().partition(|span| span.calls[0].advice.is_some());
    if registered {
        // The first line that holds is taken: calls with other buffers come to these.
        kept = runs(calls, |_| ());
    }
    let buffers = if registered { "1" } else { "-1" };
    let (mut lines, mut shape) = (0, ANY.to_owned());
    let mut shaped = |out: &mut String, span: &Span<'_>| {
        let own = domains(&span.calls[0].communicator, calls);
        if own != shape {
            let _ = writeln!(out, "{A_DOMAIN} {own}");
            shape = own;
        }
    };
    let _ = writeln!(out, "# changes:");
    for span in &changed {
        shaped(&mut out, span);
        let last = &span.calls[span.calls.len() - 1];
        if let Some(words) = gains(span.calls) {
            let _ = writeln!(out, "# {words}");
        }
        let taken = Own { from: span.from, pair: last.taken().pair, channels: last.taken().channels_most };
        line(&mut out, last, (&taken, span.to), buffers);
        lines += 1;
    }
    let _ = writeln!(out, "# kept: NCCL's own choices, for NVIDIA's example; ours leaves them to NCCL");
    for span in &kept {
        shaped(&mut out, span);
        for (own, to) in owns(span) {
            line(&mut out, &span.calls[0], (&own, to), "-1");
            lines += 1;
        }
    }
    let _ = writeln!(out, "{END} {lines} lines");
    out
}

/// NCCL's own choices over the sizes of a span, each with its last byte count.
fn owns(span: &Span<'_>) -> Vec<(Own, u64)> {
    let own = &span.calls[0].own;
    let ends = own.iter().skip(1).map(|next| next.from - 1).chain([LARGEST]);
    let within = own.iter().zip(ends).filter(|(own, end)| own.from <= span.to && *end >= span.from);
    within.map(|(own, end)| (Own { from: own.from.max(span.from), ..*own }, end.min(span.to))).collect()
}

/// A line holds whatever ranks the communicator has in each NVLink domain.
const ANY: &str = "any";

/// Ranks of an NVLink domain that lines hold for: any where all domains have as many, unless another communicator has as many
/// ranks and domains.
fn domains(of: &Communicator, calls: &[Tuned]) -> String {
    let like = |other: &Communicator| (other.nodes, other.ranks) == (of.nodes, of.ranks);
    let other = calls.iter().map(|call| &call.communicator).any(|c| like(c) && c.a_domain != of.a_domain);
    let (least, most) = of.a_domain;
    if other || least != most { format!("{least} to {most}") } else { ANY.to_owned() }
}

/// A line for calls like one, from a size on to another.
fn line(out: &mut String, like: &Tuned, (of, to): (&Own, u64), buffers: &str) {
    let Own { from, pair: (algorithm, protocol), channels } = of;
    let _ = writeln!(
        out,
        "{},{from},{to},{},{},{channels},{},{},-1,{buffers}",
        // The plugin's name of a collective.
        like.collective.name().replace('_', ""),
        algorithm.name(),
        protocol.name(),
        like.communicator.nodes,
        like.communicator.ranks,
    );
}

/// What the changes of some calls gain, and how sure that is; none where NCCL's choice stays.
fn gains(calls: &[Tuned]) -> Option<String> {
    let changes: Vec<(&Tuned, &Advice)> = calls.iter().filter_map(|c| Some((c, c.advice.as_ref()?))).collect();
    let &(most, advice) = changes.iter().max_by(|a, b| a.1.gain.total_cmp(&b.1.gain))?;
    let belief = &most.taken().belief;
    let (low, high) = belief.interval();
    let default = most.default_candidate().pair;
    Some(format!(
        "sizes that gain: {}, most {:.0}% at {} B (90% interval {:.0}% to {:.0}%, {}) over {}/{}",
        changes.len(),
        100.0 * advice.gain,
        most.size_bytes,
        100.0 * low,
        100.0 * high,
        advice.basis.name(),
        default.0,
        default.1,
    ))
}

/// What stands in place of the variables where none would do anything.
const NOTHING: &str = "# Nothing to load: tuner.csv changes none of NCCL's choices.\n";

/// What the table is made for and the job must have, as a comment.
fn needs(machine: &Machine) -> String {
    let with = machine.with.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    if with.is_empty() {
        String::new()
    } else {
        format!("# The job must have {}: else the table is refused.\n", with.join(" "))
    }
}

/// Lines of a Slurm script that load the table for a job, and those that undo it.
fn slurm(folder: &Path, plugin: &Path, outcome: &Outcome) -> String {
    if !outcome.does_something() {
        return NOTHING.to_owned();
    }
    let mut out = format!("# For a Slurm script, before srun. {PREDICTED}\n# {SAME}\n{}", needs(&outcome.machine));
    if !plugin.is_file() {
        let _ = writeln!(out, "# Put {LIBRARY} there: cargo build --release -p collcast-tuner");
    }
    let loads = loads(folder, plugin, outcome);
    for (name, value) in &loads {
        let _ = writeln!(out, "export {name}={}", files::quoted(value));
    }
    let _ = writeln!(out, "# Undo: unset {}", names(loads.iter().map(|load| load.0)));
    out
}

/// The same for a container of Kubernetes.
fn kubernetes(folder: &Path, outcome: &Outcome) -> String {
    if !outcome.does_something() {
        return NOTHING.to_owned();
    }
    let mut out = format!(
        "# For a container; mount the table and libcollcast_tuner.so there. {PREDICTED}\n# {SAME}\n{}# Undo: take these variables out.\nenv:\n",
        needs(&outcome.machine)
    );
    for (name, value) in loads(folder, &folder.join(LIBRARY), outcome) {
        // A string of JSON is one of YAML.
        let _ = writeln!(out, "  - name: {name}\n    value: {}", serde_json::Value::from(value));
    }
    out
}

/// The variables that load the table, the tuner that NCCL would ask without it, and the values for the whole process that go
/// with it.
fn loads(folder: &Path, plugin: &Path, outcome: &Outcome) -> Vec<(&'static str, String)> {
    let table = folder.join("tuner.csv").display().to_string();
    let mut loads = vec![(PLUGIN, plugin.display().to_string()), (TABLE, table)];
    loads.extend(outcome.machine.next.map(|next| (NEXT_TUNER, next.to_owned())));
    let advised = outcome.process.advised().into_iter().flat_map(|tried| &tried.settings);
    loads.extend(advised.map(|setting| (setting.variable.name(), setting.value.to_string())));
    loads
}

/// The names of variables, as `unset` takes them.
fn names<'n>(of: impl IntoIterator<Item = &'n str>) -> String {
    of.into_iter().collect::<Vec<_>>().join(" ")
}

/// Variables as a file that a shell sources, or that `--env` reads.
pub(super) fn nccl_env(variables: &Variables, process: &Process, machine: &Machine) -> String {
    let Machine { name, nodes, ranks, .. } = machine;
    let mut out = format!("# NCCL settings for {name}, {ranks} ranks, hosts: {nodes}. {PREDICTED}\n");
    if variables.lines.is_empty() {
        let _ = writeln!(out, "# No lists of algorithms: {}.", variables.why);
    }
    if !variables.lines.is_empty() {
        out.push_str(
            "# These lists hold for every communicator of a process, and were judged for those ranks alone: they may slow others.\n",
        );
    }
    for line in &variables.lines {
        let _ = writeln!(out, "{line}");
    }
    if let Some(tried) = process.advised() {
        let _ = writeln!(out, "# For the whole process, with tuner.csv loaded: {}.", saves(tried));
        for setting in &tried.settings {
            let _ = writeln!(out, "{setting}");
        }
        let _ = writeln!(out, "# Undo: unset {}", names(tried.settings.iter().map(|s| s.variable.name())));
    }
    out
}

/// What values for a process gain, and what that rests on.
fn saves(tried: &Tried) -> String {
    let rests = match (tried.spread, tried.doubt) {
        (Some((without, with)), _) => format!(
            "measured {} times in turns, rounds differ by {:.1}% without and {:.1}% with",
            tried.rounds,
            100.0 * without,
            100.0 * with
        ),
        (None, doubt) => format!("forecast, give or take {:.1}%", 100.0 * doubt.unwrap_or_default()),
    };
    let least = tried.least.as_ref().map(|least| {
        format!("; {} of {} B gains least, {:.1}%", least.collective, least.size_bytes, 100.0 * least.gain)
    });
    format!("{:.1}% less time over {} calls ({rests}{})", 100.0 * tried.gain, tried.calls, least.unwrap_or_default())
}

/// What `measured.csv` does not say: what NCCL was told, by which it is read again.
fn beside_measured(machine: &Machine) -> String {
    let env = machine.with.iter().map(|(name, value)| (name.clone(), toml::Value::String(value.clone())));
    let named = |(key, value): (&str, String)| (key.to_owned(), toml::Value::String(value));
    let title = format!("Times of `collcast tune --measure` on {}", machine.name);
    let mut table: toml::Table = [("title", title), ("date", date())].into_iter().map(named).collect();
    table.insert("env".to_owned(), toml::Value::Table(env.collect()));
    table.to_string()
}

/// Writes `tuner.csv`, `nccl.env`, `slurm.sh`, `kubernetes.yaml`, `measured.csv` with its `.toml` where a search measured, and
/// reports of the outcome, one for programs as `tune.json` and one for people as `tune.md`, into a folder. That is made if it is not there;
/// each file is whole or not there. `plugin` is our library; without one, the user puts it into the folder.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn write(
    outcome: &Outcome,
    for_programs: &Report,
    for_people: &Report,
    folder: &Path,
    plugin: Option<&Path>,
) -> Result<(), Error> {
    files::make_folder(folder)?;
    let whole = |source| Error::File { what: "find", path: folder.to_owned(), source };
    let there = std::path::absolute(folder).map_err(whole)?;
    let mut files = vec![
        ("slurm.sh", slurm(&there, plugin.unwrap_or(&there.join(LIBRARY)), outcome)),
        ("kubernetes.yaml", kubernetes(&there, outcome)),
        ("tuner.csv", outcome.tuner_csv.clone()),
        ("nccl.env", outcome.nccl_env.clone()),
        ("tune.json", json::render(for_programs)),
        ("tune.md", markdown::render(for_people)),
    ];
    if let Some(text) = &outcome.measured_csv {
        files.push(("measured.csv", text.clone()));
        files.push(("measured.toml", beside_measured(&outcome.machine)));
    }
    for (name, text) in files {
        files::write(&folder.join(name), text.as_bytes())?;
    }
    Ok(())
}
