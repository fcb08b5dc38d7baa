#!/bin/bash
export NCCL_IB_HCA=mlx5_0
mpirun -np 64 --hostfile hosts ./train
