export NCCL_IB_HCA=mlx5
docker run --gpus all --ipc=host --privileged -e NCCL_IB_HCA image python train.py
docker run --gpus all --ipc=host --privileged --env=NCCL_IB_HCA image python train.py
docker run --gpus all --ipc=host --privileged --env-file job.env image python train.py
docker build -t image .
