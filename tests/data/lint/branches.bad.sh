#!/bin/bash
if [ x ]; then export NCCL_SOCKET_IFNAME=lo; else export NCCL_SOCKET_IFNAME=eth0; fi
torchrun a.py
case $FABRIC in
  tcp) export NCCL_MAX_CTAS=8 ;;
  *)
    export NCCL_MIN_CTAS=16
    ;;
esac
case $1 in a) export NCCL_MAX_CTASS=1;; esac
