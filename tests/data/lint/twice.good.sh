#!/bin/bash
if [ "$FABRIC" = ib ]; then
  export NCCL_CROSS_NIC=0
else
  export NCCL_CROSS_NIC=1
fi
export NCCL_IB_TC=106
export NCCL_IB_TC=106
export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH
torchrun --nproc-per-node 8 train.py
