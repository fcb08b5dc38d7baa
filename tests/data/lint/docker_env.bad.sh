export NCCL_IB_HCA=mlx5
docker run --gpus all --ipc=host --device=/dev/infiniband --ulimit memlock=-1 -e NCCL_NET=IB image python train.py
