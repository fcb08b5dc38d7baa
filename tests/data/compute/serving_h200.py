"""Decodes and prefills of whole models on one GPU, and attention of one query a sequence: OUT=. python serving_h200.py"""
import os, sys, json, statistics, time
import torch, torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend
out = os.environ["OUT"]
dev = torch.device("cuda")
torch.manual_seed(0)

def graph_time(fn, per, reps=5, least=0.02):
    """Seconds of a call: `fn` makes `per` calls; captured, replayed, median of reps."""
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        fn()
    torch.cuda.current_stream().wait_stream(s)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        fn()
    g.replay(); torch.cuda.synchronize()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record(); g.replay(); b.record(); torch.cuda.synchronize()
    once = a.elapsed_time(b) / 1e3
    n = max(1, min(200, int(least / max(once, 1e-6))))
    times = []
    for _ in range(reps):
        a.record()
        for _ in range(n): g.replay()
        b.record(); torch.cuda.synchronize()
        times.append(a.elapsed_time(b) / 1e3 / n / per)
    del g
    return statistics.median(times), min(times), max(times)

rows = ["backend,batch,heads,kv_heads,keys,head_dim,us,us_min,us_max"]
start = time.time()
for (h, kv) in [(32, 8), (8, 1), (64, 8), (16, 16), (16, 1)]:
    for keys in [512, 2048, 8192, 32768, 131072]:
        for batch in [1, 4, 16, 64, 256]:
            kvbytes = 2 * batch * kv * keys * 128 * 2
            if kvbytes > 12e9: continue
            copies = max(1, min(32, int(4e8 // kvbytes)))
            q = torch.randn(batch, h, 1, 128, device=dev, dtype=torch.bfloat16)
            ks = [torch.randn(batch, keys, kv, 128, device=dev, dtype=torch.bfloat16).transpose(1, 2) for _ in range(copies)]
            vs = [torch.randn(batch, keys, kv, 128, device=dev, dtype=torch.bfloat16).transpose(1, 2) for _ in range(copies)]
            for name, backend in [("flash2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)]:
                def fn():
                    with sdpa_kernel(backend):
                        for k, v in zip(ks, vs):
                            F.scaled_dot_product_attention(q, k, v, enable_gqa=(h != kv))
                try:
                    t, lo, hi = graph_time(fn, copies)
                    rows.append(f"{name},{batch},{h},{kv},{keys},128,{t*1e6:.3f},{lo*1e6:.3f},{hi*1e6:.3f}")
                except Exception as e:
                    print("skip", name, batch, h, kv, keys, str(e)[:80])
            del ks, vs, q
open(out + "/decode_attention.csv", "w").write("\n".join(rows) + "\n")
print("attention", len(rows), time.time() - start, flush=True)

# Steps of whole models: all layers of one GPU, fused kernels over elements, captured.
MODELS = {  # name: layers, hidden, heads, kv, inter, vocab
    "llama3-8b": (32, 4096, 32, 8, 14336, 128256),
    "llama3-70b-tp8": (80, 8192, 8, 1, 3584, 16032),
    "llama3-70b-tp4": (80, 8192, 16, 2, 7168, 32064),
}
D = 128
def norm(x, w): return F.rms_norm(x, (x.shape[-1],), w, 1e-5)
def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
@torch.compile(dynamic=False)
def first(x, res, w):
    res = res + x
    return norm(res, w), res
@torch.compile(dynamic=False)
def split(qkv, cos, sin, h: int, kv: int):
    t = qkv.shape[0]
    q, k, v = qkv.split((h * D, kv * D, kv * D), -1)
    return rope(q.view(t, h, D), cos, sin), rope(k.view(t, kv, D), cos, sin), v.reshape(t, kv, D)
@torch.compile(dynamic=False)
def gated(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b
torch._dynamo.config.cache_size_limit = 256

steps = ["model,phase,batch,tokens,context,ms,ms_min,ms_max"]
for name, (L, H, h, kv, I, V) in MODELS.items():
    mk = lambda *s: torch.randn(*s, device=dev, dtype=torch.bfloat16) * 0.02
    w = [dict(n1=mk(H), qkv=mk((h + 2 * kv) * D, H), o=mk(H, h * D), n2=mk(H), gu=mk(2 * I, H), d=mk(H, I)) for _ in range(L)]
    emb, head, nf = mk(V, H), mk(V, H), mk(H)
    cases = [("decode", b, 1, c) for b, c in [(1, 1024), (1, 32768), (8, 1024), (8, 8192), (32, 512), (32, 4096), (64, 1024), (128, 1024), (256, 512)]]
    cases += [("prefill", 1, t, 0) for t in [128, 512, 2048, 8192]]
    for phase, B, T, C in cases:
        try:
            n = B * T
            ids = torch.randint(0, V, (n,), device=dev)
            cos = torch.randn(n, 1, D // 2, device=dev, dtype=torch.bfloat16); sin = torch.randn(n, 1, D // 2, device=dev, dtype=torch.bfloat16)
            if phase == "decode":
                kc = [torch.randn(B, C, kv, D, device=dev, dtype=torch.bfloat16) for _ in range(L)]
                vc = [torch.randn(B, C, kv, D, device=dev, dtype=torch.bfloat16) for _ in range(L)]
                pos = torch.tensor([C - 1], device=dev)
            def step():
                x = F.embedding(ids, emb); res = torch.zeros_like(x)
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    for i, p in enumerate(w):
                        y, res = first(x, res, p["n1"])
                        q, k, v = split(y @ p["qkv"].t(), cos, sin, h, kv)
                        if phase == "decode":
                            kc[i].index_copy_(1, pos, k.view(B, 1, kv, D)); vc[i].index_copy_(1, pos, v.view(B, 1, kv, D))
                            a = F.scaled_dot_product_attention(q.view(B, 1, h, D).transpose(1, 2), kc[i].transpose(1, 2), vc[i].transpose(1, 2), enable_gqa=True)
                        else:
                            a = F.scaled_dot_product_attention(q.view(B, T, h, D).transpose(1, 2), k.view(B, T, kv, D).transpose(1, 2), v.view(B, T, kv, D).transpose(1, 2), is_causal=True, enable_gqa=True)
                        a = a.transpose(1, 2).reshape(n, h * D)
                        y, res = first(a @ p["o"].t(), res, p["n2"])
                        x = gated(y @ p["gu"].t()) @ p["d"].t()
                y, res = first(x, res, nf)
                if phase == "prefill": y = y[-1:]
                return (y @ head.t()).argmax(-1)
            with torch.no_grad():
                step(); torch.cuda.synchronize()
                t, lo, hi = graph_time(step, 1, reps=5, least=0.3)
            steps.append(f"{name},{phase},{B},{T},{C},{t*1e3:.4f},{lo*1e3:.4f},{hi*1e3:.4f}")
        except Exception as e:
            print("skip", name, phase, B, T, C, str(e)[:200])
        kc = vc = None
    del w, emb, head
    torch.cuda.empty_cache()
    print(name, time.time() - start, flush=True)
open(out + "/steps.csv", "w").write("\n".join(steps) + "\n")
print(torch.__version__, torch.backends.cudnn.version(), torch.cuda.get_device_name(), torch.version.cuda)
