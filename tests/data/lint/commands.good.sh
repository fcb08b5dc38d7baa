#!/bin/bash
NCCL_MAX_CTAS=4 NCCL_P2P_NET_CHUNKSIZE=131072 torchrun --nproc-per-node 8 a.py
NCCL_MIN_CTAS=16 torchrun --nproc-per-node 8 b.py
mpirun -np 8 -x NCCL_MAX_CTAS=8 ./c
mpirun -np 8 -x NCCL_MIN_CTAS=16 ./c
