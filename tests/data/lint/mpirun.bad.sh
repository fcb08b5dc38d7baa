#!/bin/bash
export NCCL_IB_HCA=mlx5
export NCCL_CROSS_NIC=0
sysctl -w net.ipv4.ip_local_port_range="60000 60200"
mpirun --hostfile hosts --map-by ppr:8:node \
  -x NCCL_IB_TIMOUT=22 \
  taskset -c 3 ./all_reduce_perf -b 8 -e 4G
