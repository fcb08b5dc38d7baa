import os
import torch.distributed as dist

os.environ["NCCL_P2P_DISABLE"] = "1"
os.environ.setdefault("NCCL_DEBGU", "WARN")
dist.init_process_group(backend="gloo", init_method="env://")
