#!/bin/bash
export NCCL_CROSS_NIC=0
export NCCL_CROSS_NIC=1
torchrun --nproc-per-node 8 train.py
