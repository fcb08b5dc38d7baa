# What `.ci/run` runs in the guest: every kind of schedule between processes, the tests of the executor, faults.
run() {
  collcast bench --backend verbs h200x4 --iterations 2 --batches 3 --warmup 1 --budget 0.3 --watchdog 20 "$@"
}
# The hash of what was run is the one that `simulate` shows.
same_hash() {
  run "$@" --gpus 2 --format csv >/tmp/bench.csv || return 1
  hash=$(tail -1 /tmp/bench.csv | tr , '\n' | grep -E '^[0-9a-f]{16}$')
  collcast simulate h200x4 --gpus 2 --launch processes "$@" | grep "$hash"
}
export COLLCAST_VERBS=required COLLCAST_VERBS_FAULTS=${FAULTS:-12}
check tests verbs --test-threads=1
check wire run --gpus 2 --nics 'rxe{rank}' --algorithm ring --protocol simple -s 0,8,1K,100003,1M
check hash same_hash -c all_reduce --algorithm ring --protocol simple -s 64K
check tree run --gpus 3 --nics rxe0,rxe1 --qps 2 --algorithm tree --protocol simple -s 1K,64K
