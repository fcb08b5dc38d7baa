# What `.ci/run` runs in the guest: the tests of the executor, every kind of schedule between processes, faults, a probe.
run() {
  collcast bench --backend verbs h200x4 --batches 3 --budget 0.3 --watchdog 20 "$@"
}
# The hash of what was run is the one that `simulate` shows.
same_hash() {
  run "$@" --gpus 2 --format csv >/tmp/bench.csv || return 1
  hash=$(tail -1 /tmp/bench.csv | tr , '\n' | grep -E '^[0-9a-f]{16}$')
  collcast simulate h200x4 --gpus 2 --launch processes "$@" | grep "$hash"
}
# Starts a long run as a launcher would, breaks something by the command given, and wants rank 0 to say these words.
broken() {
  says=$1
  act=$2
  shift 2
  export MASTER_ADDR=127.0.0.1 COLLCAST_PORT=29777 WORLD_SIZE=2
  for rank in 1 0; do
    RANK=$rank LOCAL_RANK=$rank collcast bench --backend verbs h200x4 --gpus 2 --nics 'rxe{rank}' --algorithm ring \
      --protocol simple -s 1M --iterations 100 --batches 1000 --budget 60 --watchdog 3 "$@" >/tmp/broken.$rank 2>&1 &
    eval "pid$rank=$!"
  done
  sleep 4
  begin=$(cut -d. -f1 /proc/uptime)
  $act
  wait "$pid0"
  code=$?
  wait "$pid1"
  unset MASTER_ADDR COLLCAST_PORT WORLD_SIZE
  took=$(($(cut -d. -f1 /proc/uptime) - begin))
  cat /tmp/broken.0
  echo "rank 0 ended with $code after $took s"
  [ $code = 1 ] && [ $took -le 15 ] && grep -q "$says" /tmp/broken.0
}
# Two ranks that a launcher's variables name: those of rank, local rank, and what else it sets.
launched() {
  rank_name=$1
  local_name=$2
  shift 2
  for rank in 1 0; do
    env "$rank_name=$rank" "$local_name=$rank" "$@" COLLCAST_PORT=29778 collcast bench --backend verbs h200x4 --gpus 2 \
      --nics "${nics:-rxe{rank\}}" --algorithm ring --protocol simple -s 64K --batches 3 --budget 0.3 >/tmp/launched.$rank 2>&1 &
    eval "pid$rank=$!"
  done
  wait "$pid0"
  code=$?
  wait "$pid1"
  cat /tmp/launched.1 /tmp/launched.0
  return $((code + $?))
}
# No rank has such a NIC: both end, and say why.
one_without() {
  nics=rxe{rank}{rank} launched OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2
  grep -q 'no RDMA device `rxe11`' /tmp/launched.1 && grep -q 'no RDMA device' /tmp/launched.0
}
# NICs and no GPU: what is missing is said, with exit code 3.
no_gpu() {
  collcast probe --backend verbs --memory gpu --nics rxe0
  code=$?
  [ $code = 3 ]
}
kill_peer() { kill -9 "$pid1"; }
link_down() { cable cut; }
lose_all() { cable lose 100 0; }
# Loss and delay that the NICs make good for: the result is exact all the same.
lossy() {
  cable lose 0.5 2
  run --gpus 2 --nics 'rxe{rank}' --algorithm ring --protocol simple -s 64K
  code=$?
  cable mend
  return $code
}
# A user who may lock 64 KiB: what is missing is said, with exit code 3.
memlock() {
  chmod 666 /dev/infiniband/uverbs*
  chmod 777 /tmp
  (
    ulimit -l 64
    /tools/setpriv --reuid 1000 --clear-groups collcast bench --backend verbs h200x4 --gpus 2 --nics rxe0 --algorithm ring --protocol simple -s 1M
  )
  code=$?
  [ $code = 3 ]
}

export COLLCAST_VERBS_FAULTS=12
check "tests of the executor" verbs --test-threads=1
for call in "all_reduce ring" "all_reduce tree" "all_gather pat" "all_reduce coll_tree" "all_to_all direct" "send_recv direct"; do
  set -- $call
  check "$1 $2" run --gpus 3 -c "$1" --algorithm "$2" --protocol simple -s 0,8,100003
done
check "four ranks, two NICs, two queue pairs" run --gpus 4 --nics rxe0,rxe1 --qps 2 --algorithm ring --protocol simple -s 1M
check "16 MiB" run --gpus 2 --nics 'rxe{rank}' --algorithm ring --protocol simple -s 16M --warmup 0
check "the schedule hash of simulate" same_hash -c all_reduce --algorithm ring --protocol simple -s 64K
check "mpirun of Open MPI" launched OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2
check "srun" launched SLURM_PROCID SLURM_LOCALID SLURM_NTASKS=2 SLURM_STEP_NODELIST=localhost
check "mpiexec of MPICH" launched PMI_RANK MPI_LOCALRANKID PMI_SIZE=2 MPI_LOCALNRANKS=2
check "ranks without their NICs" one_without
check "loss and delay" lossy
check "memory that cannot be locked" memlock
check "a peer that is killed" broken "rank 1 is gone" kill_peer
check "a link that goes down" broken "v1\|down" link_down
cable mend
check "a link that loses all" broken "rank 1" lose_all
cable mend
check "after all that" run --gpus 2 --nics 'rxe{rank}' --algorithm ring --protocol simple -s 64K
check "probe of memory of a GPU" no_gpu
check "probe" collcast probe --backend verbs --quick --nics 'rxe{rank}' --watchdog 20 -o /out/probe
