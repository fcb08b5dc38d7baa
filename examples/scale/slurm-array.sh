#!/usr/bin/env bash
# A long sweep as an array job under Slurm. No GPU is needed. Submit it, and what puts the parts together:
#   job=$(sbatch --parsable slurm-array.sh)
#   sbatch --dependency=afterok:$job --wrap="collcast merge parts/*.json --format csv -o sweep.csv"
# Where part 3 failed: sbatch --array=3 slurm-array.sh, then merge again, since afterok did not. Add your account and partition.
#SBATCH --job-name=collcast-sweep
#SBATCH --array=1-16
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00
set -euo pipefail

# As many as --array has above. SLURM_ARRAY_TASK_COUNT is 1 where one part is run again.
of=16
mkdir -p parts
collcast sweep dgx-h100 --nodes 64,256,1024 --size 8:8G:2 \
  --collective all_reduce,all_gather,reduce_scatter,all_to_all \
  --shard "$SLURM_ARRAY_TASK_ID/$of" -o "parts/$SLURM_ARRAY_TASK_ID.json"
