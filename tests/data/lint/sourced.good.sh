#!/bin/bash
set -a
. sourced.good.env
set +a
NCCL_IB_HCA=mlx5_0
srun ./train
