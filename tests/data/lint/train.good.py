import os
import torch.distributed as dist

if os.environ["NCCL_P2P_DISABLE"] == "1":
    print("slow")
os.environ.setdefault("NCCL_DEBUG", "WARN")
dist.init_process_group(backend="nccl", init_method="env://")
