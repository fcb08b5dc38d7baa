# For a Slurm script, before srun. Written by `collcast tune`; check it with `collcast compare` on runs before and after.
export NCCL_TUNER_PLUGIN=/work/main/tuned/libcollcast_tuner.so
export COLLCAST_TUNER_TABLE=/work/main/tuned/tuner.csv
# Undo: unset NCCL_TUNER_PLUGIN COLLCAST_TUNER_TABLE
