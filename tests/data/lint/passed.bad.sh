#!/bin/bash
mpirun -np 16 -x NCCL_IB_HCAA -x NCCL_IB_HCA ./train
apptainer exec --nv --env NCCL_IB_HCA=mlx5_0,mlx5_1,NCCL_DEBGU=INFO train.sif python train.py
