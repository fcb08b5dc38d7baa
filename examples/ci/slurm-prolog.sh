#!/usr/bin/env bash
# Slurm prolog (and epilog): a host whose collectives are slow gets no job. In slurm.conf:
#   Prolog=/etc/slurm/collcast-prolog.sh
#   Epilog=/etc/slurm/collcast-prolog.sh
#   PrologFlags=Alloc
# A run takes some seconds a host. A prolog that fails drains the host and requeues the job; an epilog that fails drains it.
set -uo pipefail
machine=${COLLCAST_MACHINE:-dgx-h100}
good=${COLLCAST_GOOD:-/etc/collcast/good}
metrics=${COLLCAST_METRICS:-/var/lib/node_exporter/collcast.prom}

# Runs of hosts that are known to be good tell more than a forecast.
if [ -d "$good" ]; then
  expected=(--expect-from "$good")
else
  expected=(--expect "$machine")
fi
timeout 60 collcast bench -t "$machine" --backend nccl --quick "${expected[@]}" --prometheus "$metrics"
code=$?
case $code in
  0) exit 0 ;;
  1) exit 1 ;; # slow, or wrong results: the line above says which
  *)
    # No GPU, no library, or no time: not a verdict about the host.
    echo "collcast-prolog: not judged, exit code $code" >&2
    exit 0
    ;;
esac
