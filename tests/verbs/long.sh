# Every kind of schedule between 2, 3 and 4 processes, from nothing to 64 MiB, odd sizes too: each element compared, and each
# schedule the one that `simulate` shows by its hash. Then a probe of two NICs at once. Half an hour on two emulated CPUs.
sizes="0 100003 67108864"
# So many GPUs, collective, algorithm, protocol: every size; hashes of both.
exact() {
  gpus=$1
  collective=$2
  algorithm=$3
  protocol=$4
  all=$5
  for size in $all; do
    set -- --gpus "$gpus" -c "$collective" --algorithm "$algorithm" --protocol "$protocol" -s "$size"
    collcast bench --backend verbs h200x4 --nics rxe0,rxe1 --batches 3 --warmup 0 --budget 0.1 --watchdog 60 \
      --format csv "$@" >/tmp/bench.csv || return 1
    hash=$(tail -1 /tmp/bench.csv | tr , '\n' | grep -E '^[0-9a-f]{16}$')
    [ -n "$hash" ] || return 1
    collcast simulate h200x4 --launch processes "$@" >/tmp/simulated 2>&1 || return 1
    grep -q "$hash" /tmp/simulated || {
      cat /tmp/simulated
      echo "bench ran $hash, of $size bytes"
      return 1
    }
    hashes="$hashes $hash"
  done
  echo "exact from ${all%% *} B to ${all##* } B, schedules$hashes"
}
for gpus in 2 3 4; do
  for call in "all_reduce ring" "all_reduce tree" "all_reduce coll_tree" "all_gather ring" "all_gather pat" \
    "reduce_scatter pat" "broadcast ring" "all_to_all direct" "send_recv direct"; do
    hashes=
    check "$gpus processes, $call" exact "$gpus" $call simple "$sizes"
  done
  hashes=
  check "$gpus processes, all_reduce ring, lines" exact "$gpus" all_reduce ring ll "0 8 100003"
done
imported() { verbs --exact random_algorithms_are_exact --nocapture 2>&1 | grep -v '^$'; }
check "60 random imported algorithms" imported
# Bandwidth over both NICs of each rank at once is among the rows.
both_nics() {
  collcast probe --backend verbs --quick --nics rxe0,rxe1 --watchdog 20 -o /out/both || return 1
  grep -E 'bandwidth,0,1,rxe0\+rxe1,2,(65536|1048576)' /out/both/verbs.csv
}
mkdir -p /out
check "probe of two NICs at once" both_nics
