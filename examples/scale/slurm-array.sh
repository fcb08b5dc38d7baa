#!/usr/bin/env bash
# A long sweep as an array job under Slurm. No GPU is needed. Submit it, and what puts the parts together:
#   job=$(sbatch --parsable slurm-array.sh)
#   sbatch --dependency=afterok:$job --wrap="collcast merge parts/*.json --format csv -o sweep.csv"
# A part that failed is run again by its number: sbatch --array=3 slurm-array.sh
#SBATCH --job-name=collcast-sweep
#SBATCH --array=1-16
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00
set -euo pipefail

# As many as --array has above: Slurm counts only those that are run again.
of=16
mkdir -p parts
collcast sweep dgx-h100 --nodes 64,256,1024 --size 8:8G:2 \
  --collective all_reduce,all_gather,reduce_scatter,all_to_all \
  --shard "$SLURM_ARRAY_TASK_ID/$of" -o "parts/$SLURM_ARRAY_TASK_ID.json"
