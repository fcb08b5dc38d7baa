#!/bin/bash
export NCCL_IB_HCA=mlx5
sysctl -w net.ipv4.ip_local_port_range="32768 60999"
mpirun --hostfile hosts --map-by ppr:8:node \
  -x NCCL_IB_HCA \
  -x NCCL_IB_TIMEOUT=22 \
  taskset -c 0-15 ./all_reduce_perf -b 8 -e 4G
