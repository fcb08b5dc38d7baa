#!/usr/bin/env bash
# Slurm prolog (and epilog): a host that is slow, or lacks GPUs, gets no job. In slurm.conf:
#   Prolog=/etc/slurm/collcast-prolog.sh
#   Epilog=/etc/slurm/collcast-prolog.sh
#   PrologFlags=Alloc
# A run takes some seconds a host. A GPU or link that hangs ends it after 34 s in NCCL's kernels, and after 60 s elsewhere;
# one that hangs nvidia-smi, 35 s later.
# A prolog that fails drains the host and requeues the job; an epilog that fails drains it.
# The run takes all GPUs of the host, so only jobs that have all of them are judged, before and after: beside another job
# it would be slow itself, and slow that job down. Jobs with some or no GPUs are let through: Slurm says which they have
# in SLURM_JOB_GPUS. Set COLLCAST_ALWAYS=1 where jobs take whole hosts and do not ask for GPUs.
# What did not run to its end is let through too. It is in the system's log, and the metrics say `collcast_ok 0`.
# They say `collcast_state 1` where the run ended, and what healthy hosts reach is known too loosely to judge it.
set -uo pipefail
machine=${COLLCAST_MACHINE:-dgx-h100}
good=${COLLCAST_GOOD:-/etc/collcast/good}
metrics=${COLLCAST_METRICS:-/var/lib/node_exporter/collcast.prom}
# Needs NCCL, the CUDA run-time compiler (libnvrtc) and driver 570 or later.
# Where the loader does not find NCCL by itself, set COLLCAST_NCCL_LIBRARY to its file, such as /opt/nccl/lib/libnccl.so.2.
# Slurm starts it without PATH, which bash makes up for itself alone; the folder of collcast is behind.
export PATH="$PATH:${COLLCAST_BIN:-/usr/local/bin}"

say() {
  echo "collcast-prolog: $1" >&2
  logger -t collcast-prolog "$1" 2>/dev/null
}

if [ -z "${COLLCAST_ALWAYS:-}" ]; then
  # A list such as 0,1,2 or 0-7.
  given=$(tr ',' '\n' <<<"${SLURM_JOB_GPUS:-}" | awk -F- 'NF { n += NF > 1 ? $2 - $1 + 1 : 1 } END { print n + 0 }')
  # None where nvidia-smi fails or hangs: then the run says what is wrong.
  there=$(timeout -k 5 30 nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
  [ "$given" -gt 0 ] && [ "$given" -ge "$there" ] || exit 0
fi

# Runs of hosts that are known to be good tell more than a forecast.
if [ -d "$good" ]; then
  expected=(--expect-from "$good")
else
  expected=(--expect "$machine")
fi
# Without a place for metrics the host is judged all the same.
folder=$(dirname "$metrics")
if mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ]; then
  expected+=(--prometheus "$metrics")
else
  say "no metrics: $folder cannot be written to"
  metrics=/dev/null
fi
timeout 60 collcast bench -t "$machine" --backend nccl --quick "${expected[@]}" --watchdog 2
code=$?
case $code in
  0) exit 0 ;;
  1) exit 1 ;; # slow, wrong results, fewer GPUs than the machine has, or none: the line above says which
  124) # a host that is well is done in some seconds
    echo "collcast_ok 0" >"$metrics"
    say "not done within 60 s: a GPU or a link hangs"
    exit 1
    ;;
  126 | 127) why="collcast cannot be started" ;;
  2) why="its options or files are wrong" ;;
  3) why="NCCL or another library is missing" ;;
  *) why="it failed" ;;
esac
# Not a verdict about the host.
echo "collcast_ok 0" >"$metrics"
say "not judged, exit code $code: $why"
exit 0
