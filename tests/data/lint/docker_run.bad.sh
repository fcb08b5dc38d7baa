docker run --gpus all --shm-size=64m --cpuset-cpus=0 \
  -e NCCL_IB_HCA=mlx5 image python train.py
docker run --gpus all --ipc=host --device=/dev/infiniband image python train.py
