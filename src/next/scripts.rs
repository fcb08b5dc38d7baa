//! Scripts that run sets of hosts: for Slurm, and for mpirun.

use super::ask::Next;
use crate::health::suspects::Plan;

/// A script, to be written beside the logs that it makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// The name of its file.
    pub name: &'static str,
    /// Its text.
    pub text: String,
}

/// Sizes of each run: 256 MiB to 4 GiB, where links show and not latency, 20 timed calls of each after 5 others. Sizes and
/// counts are those of nccl-tests' own performance pages, at the upper end.
const SIZES: &str = "-b 256M -e 4G -f 2 -g 1 -n 20 -w 5";

/// The name of a set's log; sets are counted from 1.
pub fn log_name(set: usize, sets: usize) -> String {
    let width = sets.to_string().len().max(2);
    format!("set-{set:0width$}.log")
}

/// The scripts of a round; none where nothing is to run.
pub fn scripts(next: &Next) -> Vec<Script> {
    let Plan::Run(round) = &next.plan else { return Vec::new() };
    let used = round.sets.iter().map(Vec::len).sum::<usize>();
    let all = round.sets.concat().join(",");
    let gpus = next.gpus;
    let slurm_head = format!(
        "#SBATCH --nodes={used}\n#SBATCH --nodelist={all}\n#SBATCH --ntasks-per-node={gpus}\n#SBATCH --gpus-per-node={gpus}\n#SBATCH --exclusive\n#SBATCH --output=round.out\n"
    );
    let slurm = |hosts: &[String]| {
        let (count, names) = (hosts.len(), hosts.join(","));
        format!(
            "srun --nodelist={names} -N {count} --ntasks={} --ntasks-per-node={gpus}",
            count as u64 * u64::from(gpus)
        )
    };
    let mpirun = |hosts: &[String]| {
        let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{gpus}")).collect();
        format!("mpirun -H {} -np {}", slots.join(","), hosts.len() as u64 * u64::from(gpus))
    };
    let text = |name: &str, head: &str, call: &dyn Fn(&[String]) -> String, more: &str| {
        let mut text = head_of(next, round.sets.len(), name, head, more);
        let end = if next.one_by_one { " || status=1" } else { " & runs+=($!)" };
        for (index, set) in round.sets.iter().enumerate() {
            text += &format!("run {} {}{end}\n", log_name(index + 1, round.sets.len()), call(set));
        }
        if !next.one_by_one {
            text += "for one in \"${runs[@]}\"; do wait \"$one\" || status=1; done\n";
        }
        text + "exit $status\n"
    };
    vec![
        Script { name: "round.slurm.sh", text: text("round.slurm.sh", &slurm_head, &slurm, "SRUN_OPTIONS=--mpi=pmix") },
        Script {
            name: "round.mpirun.sh",
            text: text("round.mpirun.sh", "", &mpirun, "MPIRUN_OPTIONS=\"-x NCCL_IB_HCA\""),
        },
    ]
}

/// What a script begins with.
fn head_of(next: &Next, sets: usize, name: &str, head: &str, more: &str) -> String {
    let how = if next.one_by_one { "one after the other" } else { "at the same time" };
    let start = if head.is_empty() { format!("bash {name}") } else { format!("sbatch {name}") };
    let option = more.split('=').next().unwrap_or_default();
    format!(
        r##"#!/bin/bash
{head}# {sets} sets of {hosts} hosts, {how}: which of them are slow is read from their times.
# Start it in its folder: {start}
# Then give this folder, with all earlier logs, to: collcast validate LOGS... --next-runs NEW_FOLDER
# Other commands and options: ALL_REDUCE_PERF=/opt/nccl-tests/build/all_reduce_perf {more} {start}
# sbatch runs a copy of it from elsewhere.
folder=$(dirname -- "${{BASH_SOURCE[0]}}")
[ -e "$folder/{name}" ] || folder=${{SLURM_SUBMIT_DIR:-.}}
cd -- "$folder" || exit 1
read -ra perf <<<"${{ALL_REDUCE_PERF:-all_reduce_perf}}"
read -ra options <<<"${{{option}:-}}"
sizes=({SIZES})
run() {{
  local log=$1
  shift
  {{
    echo "# cmd: all_reduce_perf ${{sizes[*]}}"
    "$@" "${{options[@]}}" "${{perf[@]}}" "${{sizes[@]}}"
  }} >"$log" 2>&1 </dev/null && return
  echo "$log: failed" >&2
  return 1
}}
runs=() status=0
"##,
        hosts = next.hosts.len(),
    )
}
