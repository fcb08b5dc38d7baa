#!/usr/bin/env bash
# Nightly on two nodes under Slurm: measures with nccl-tests, compares with the night that you accepted
# and with the nights since, and checks the forecast. Submit once; it submits the next night itself:
#   sbatch slurm-nightly.sh
# Account and partition belong below as #SBATCH lines: the next night has no other options.
# Exits 1 where something became slower: mail comes with --mail-type=FAIL. A night that fails is marked
# with a file beside its folder, such as 2026-01-31.FAILED, and no later night is compared with it.
# The first night that passes is accepted. To accept the level of another one:
#   echo 2026-01-31 > ~/nccl-nightly/accepted; rm -f ~/nccl-nightly/2026-01-31.FAILED
#SBATCH --job-name=collcast-nightly
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --time=00:30:00
#SBATCH --output=collcast-nightly-%j.out
#SBATCH --mail-type=FAIL
set -euo pipefail

# Yours: where logs are kept, nccl-tests built with MPI=1, the suite, and its machine.
logs=${LOGS:-$HOME/nccl-nightly}
nccl_tests=${NCCL_TESTS:-$HOME/nccl-tests/build}
suite=${SUITE:-$HOME/checks/suite.toml}
topology=${TOPOLOGY:-dgx-h100}
nights=${NIGHTS:-5}

# This script, where it was submitted from: Slurm runs a copy.
sbatch --begin=now+24hours "$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')"

today=$logs/$(date +%Y-%m-%d)
mkdir -p "$today"
# Until all has passed: a night that is stopped has failed.
touch "$today.FAILED"
status=0
# Three repeats: noise is told from change by them.
for repeat in 1 2 3; do
  for test in all_reduce all_gather reduce_scatter alltoall; do
    # What Slurm says of a run that failed is in its log: `validate` reads it.
    srun --mpi=pmix "$nccl_tests/${test}_perf" -b 8 -e 4G -f 2 -g 1 -n 20 > "$today/$test.$repeat.log" 2>&1 || status=1
  done
done

# The night that was accepted shows what becomes slower bit by bit.
accepted=$(cat "$logs/accepted" 2>/dev/null || true)
if [ -n "$accepted" ]; then
  collcast compare "$logs/$accepted" "$today" --tolerance 5% || status=1
fi
# The last nights that passed, from the accepted one on, as one set, show smaller changes.
before=$logs/before
rm -rf "$before"
mkdir -p "$before"
find "$logs" -mindepth 1 -maxdepth 1 -type d -name '20*' | sort |
  while read -r night; do
    if [ ! -e "$night.FAILED" ] && [[ ! ${night##*/} < $accepted ]]; then echo "$night"; fi
  done | tail -n "$nights" | while read -r night; do cp -r "$night" "$before/"; done
if [ -n "$(ls -A "$before")" ]; then
  collcast compare "$before" "$today" --tolerance 5% || status=1
  collcast compare "$before" "$today" --tolerance 5% --format markdown -o "$today.md" || status=1
fi
# Measured against the forecast: bands of sizes below 85% of the expected bus bandwidth fail.
collcast validate "$today" -t "$topology" --nodes 2 --fail-below 85% || status=1
# Did the machine's files or the settings move a choice of NCCL or a forecast?
collcast check "$suite" || status=1
if [ "$status" = 0 ]; then
  rm "$today.FAILED"
  [ -n "$accepted" ] || echo "${today##*/}" > "$logs/accepted"
fi
exit "$status"
