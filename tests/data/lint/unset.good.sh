#!/bin/bash
export NCCL_IB_HCA=mlx5
unset NCCL_IB_HCA
mpirun -np 16 -H a:8,b:8 ./train
