docker run --gpus all --shm-size=16g --ulimit memlock=-1 --device=/dev/infiniband \
  -e NCCL_IB_HCA=mlx5 image python train.py
docker run --rm image make
