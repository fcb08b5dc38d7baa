#!/usr/bin/env bash
# Slurm prolog (and epilog): a host that is slow, or lacks GPUs, gets no job. In slurm.conf:
#   Prolog=/etc/slurm/collcast-prolog.sh
#   Epilog=/etc/slurm/collcast-prolog.sh
#   PrologFlags=Alloc
# A run takes some seconds a host. A GPU or link that hangs ends it after 34 s in NCCL's kernels, and after 60 s elsewhere.
# A prolog that fails drains the host and requeues the job; an epilog that fails drains it.
# Hosts without GPUs may share it: jobs that were given none (Slurm sets SLURM_JOB_GPUS) are let through. Set
# COLLCAST_ALWAYS=1 where jobs take whole hosts and do not ask for GPUs.
set -uo pipefail
machine=${COLLCAST_MACHINE:-dgx-h100}
good=${COLLCAST_GOOD:-/etc/collcast/good}
metrics=${COLLCAST_METRICS:-/var/lib/node_exporter/collcast.prom}

[ -n "${SLURM_JOB_GPUS:-}${COLLCAST_ALWAYS:-}" ] || exit 0

# Runs of hosts that are known to be good tell more than a forecast.
if [ -d "$good" ]; then
  expected=(--expect-from "$good")
else
  expected=(--expect "$machine")
fi
timeout 60 collcast bench -t "$machine" --backend nccl --quick "${expected[@]}" --watchdog 2 --prometheus "$metrics"
code=$?
case $code in
  0) exit 0 ;;
  1) exit 1 ;; # slow, wrong results, fewer GPUs than the machine has, or none: the line above says which
  124) # a host that is well is done in some seconds
    echo "collcast_ok 0" >"$metrics"
    echo "collcast-prolog: not done within 60 s: a GPU or a link hangs" >&2
    exit 1
    ;;
  126 | 127) why="collcast cannot be started" ;;
  2) why="its options or files are wrong" ;;
  3) why="NCCL or another library is missing" ;;
  *) why="it failed" ;;
esac
# Not a verdict about the host.
echo "collcast-prolog: not judged, exit code $code: $why" >&2
exit 0
