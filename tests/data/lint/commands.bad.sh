#!/bin/bash
export NCCL_MAX_CTAS=8
NCCL_IB_QPS_PER_CONNECTION=2 torchrun --nproc-per-node 8 a.py
NCCL_MIN_CTAS=16 torchrun --nproc-per-node 8 b.py
export NCCL_MIN_CTAS=4
