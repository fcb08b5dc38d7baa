#!/bin/bash
# 32 sets of 64 hosts, at the same time: which of them are slow is read from their times.
# Start it in its folder: bash round.mpirun.sh
# Then give this folder, with all earlier logs, to: collcast validate LOGS... --next-runs NEW_FOLDER
# Other commands and options: ALL_REDUCE_PERF=/opt/nccl-tests/build/all_reduce_perf MPIRUN_OPTIONS="-x NCCL_IB_HCA" bash round.mpirun.sh
# sbatch runs a copy of it from elsewhere.
folder=$(dirname -- "${BASH_SOURCE[0]}")
[ -e "$folder/round.mpirun.sh" ] || folder=${SLURM_SUBMIT_DIR:-.}
cd -- "$folder" || exit 1
read -ra perf <<<"${ALL_REDUCE_PERF:-all_reduce_perf}"
read -ra options <<<"${MPIRUN_OPTIONS:-}"
sizes=(-b 256M -e 4G -f 2 -g 1 -n 20 -w 5)
run() {
  local log=$1
  shift
  {
    echo "# cmd: all_reduce_perf ${sizes[*]}"
    "$@" "${options[@]}" "${perf[@]}" "${sizes[@]}"
  } >"$log" 2>&1 </dev/null || echo "$log: failed" >&2
}
run set-01.log mpirun -H node01:8,node57:8 -np 16 &
run set-02.log mpirun -H node02:8,node56:8 -np 16 &
run set-03.log mpirun -H node03:8,node55:8 -np 16 &
run set-04.log mpirun -H node04:8,node54:8 -np 16 &
run set-05.log mpirun -H node05:8,node53:8 -np 16 &
run set-06.log mpirun -H node06:8,node52:8 -np 16 &
run set-07.log mpirun -H node07:8,node51:8 -np 16 &
run set-08.log mpirun -H node08:8,node48:8 -np 16 &
run set-09.log mpirun -H node09:8,node49:8 -np 16 &
run set-10.log mpirun -H node10:8,node20:8 -np 16 &
run set-11.log mpirun -H node11:8,node23:8 -np 16 &
run set-12.log mpirun -H node12:8,node22:8 -np 16 &
run set-13.log mpirun -H node13:8,node58:8 -np 16 &
run set-14.log mpirun -H node14:8,node24:8 -np 16 &
run set-15.log mpirun -H node15:8,node27:8 -np 16 &
run set-16.log mpirun -H node16:8,node26:8 -np 16 &
run set-17.log mpirun -H node17:8,node21:8 -np 16 &
run set-18.log mpirun -H node18:8,node59:8 -np 16 &
run set-19.log mpirun -H node19:8,node50:8 -np 16 &
run set-20.log mpirun -H node25:8,node64:8 -np 16 &
run set-21.log mpirun -H node28:8,node62:8 -np 16 &
run set-22.log mpirun -H node29:8,node63:8 -np 16 &
run set-23.log mpirun -H node30:8,node47:8 -np 16 &
run set-24.log mpirun -H node31:8,node46:8 -np 16 &
run set-25.log mpirun -H node32:8,node41:8 -np 16 &
run set-26.log mpirun -H node33:8,node40:8 -np 16 &
run set-27.log mpirun -H node34:8,node61:8 -np 16 &
run set-28.log mpirun -H node35:8,node60:8 -np 16 &
run set-29.log mpirun -H node36:8,node45:8 -np 16 &
run set-30.log mpirun -H node37:8,node44:8 -np 16 &
run set-31.log mpirun -H node38:8,node43:8 -np 16 &
run set-32.log mpirun -H node39:8,node42:8 -np 16 &
wait
