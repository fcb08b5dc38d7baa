#!/bin/bash
#SBATCH --nodes=64
#SBATCH --nodelist=node01,node57,node02,node56,node03,node55,node04,node54,node05,node53,node06,node52,node07,node51,node08,node48,node09,node49,node10,node20,node11,node23,node12,node22,node13,node58,node14,node24,node15,node27,node16,node26,node17,node21,node18,node59,node19,node50,node25,node64,node28,node62,node29,node63,node30,node47,node31,node46,node32,node41,node33,node40,node34,node61,node35,node60,node36,node45,node37,node44,node38,node43,node39,node42
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --output=/dev/null
# 32 sets of 64 hosts, at the same time: which of them are slow is read from their times.
# Start it in its folder: sbatch round.slurm.sh
# Then give this folder, with all earlier logs, to: collcast validate LOGS... --next-runs NEW_FOLDER
# Other commands and options: ALL_REDUCE_PERF=/opt/nccl-tests/build/all_reduce_perf SRUN_OPTIONS=--mpi=pmix sbatch round.slurm.sh
# sbatch runs a copy of it from elsewhere.
folder=$(dirname -- "${BASH_SOURCE[0]}")
[ -e "$folder/round.slurm.sh" ] || folder=${SLURM_SUBMIT_DIR:-.}
cd -- "$folder" || exit 1
read -ra perf <<<"${ALL_REDUCE_PERF:-all_reduce_perf}"
read -ra options <<<"${SRUN_OPTIONS:-}"
sizes=(-b 256M -e 4G -f 2 -g 1 -n 20 -w 5)
run() {
  local log=$1
  shift
  {
    echo "# cmd: all_reduce_perf ${sizes[*]}"
    "$@" "${options[@]}" "${perf[@]}" "${sizes[@]}"
  } >"$log" 2>&1 </dev/null || echo "$log: failed" >&2
}
run set-01.log srun --nodelist=node01,node57 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-02.log srun --nodelist=node02,node56 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-03.log srun --nodelist=node03,node55 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-04.log srun --nodelist=node04,node54 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-05.log srun --nodelist=node05,node53 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-06.log srun --nodelist=node06,node52 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-07.log srun --nodelist=node07,node51 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-08.log srun --nodelist=node08,node48 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-09.log srun --nodelist=node09,node49 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-10.log srun --nodelist=node10,node20 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-11.log srun --nodelist=node11,node23 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-12.log srun --nodelist=node12,node22 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-13.log srun --nodelist=node13,node58 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-14.log srun --nodelist=node14,node24 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-15.log srun --nodelist=node15,node27 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-16.log srun --nodelist=node16,node26 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-17.log srun --nodelist=node17,node21 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-18.log srun --nodelist=node18,node59 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-19.log srun --nodelist=node19,node50 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-20.log srun --nodelist=node25,node64 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-21.log srun --nodelist=node28,node62 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-22.log srun --nodelist=node29,node63 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-23.log srun --nodelist=node30,node47 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-24.log srun --nodelist=node31,node46 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-25.log srun --nodelist=node32,node41 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-26.log srun --nodelist=node33,node40 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-27.log srun --nodelist=node34,node61 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-28.log srun --nodelist=node35,node60 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-29.log srun --nodelist=node36,node45 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-30.log srun --nodelist=node37,node44 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-31.log srun --nodelist=node38,node43 -N 2 --ntasks=16 --ntasks-per-node=8 &
run set-32.log srun --nodelist=node39,node42 -N 2 --ntasks=16 --ntasks-per-node=8 &
wait
