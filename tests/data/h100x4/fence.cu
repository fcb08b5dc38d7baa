// Latency of a fence after stores to a peer, and of flags there and back, by block, with 1 to 24 blocks at once.
#include <cstdio>
#include <cstdint>
#include <vector>
#include <algorithm>
#include <cuda_runtime.h>
#define CK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e)); return 1; } } while (0)
__device__ unsigned smid() { unsigned r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r; }
__device__ unsigned long long now() { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
// Every thread stores `each` lots of 16 bytes to the peer; one fences.
__global__ void fence(uint4* peer, int each, int rounds, float* ns, unsigned* sm) {
  uint4* out = peer + (size_t)blockIdx.x * 65536;
  long long total = 0;
  for (int r = 0; r < rounds; r++) {
    __syncthreads();
    for (int i = 0; i < each; i++) out[i * blockDim.x + threadIdx.x] = make_uint4(r, r, r, r);
    __syncthreads();
    if (threadIdx.x == 0) { long long a = clock64(); __threadfence_system(); total += clock64() - a; }
  }
  if (threadIdx.x == 0) { ns[blockIdx.x] = (float)total / rounds; sm[blockIdx.x] = smid(); }
}
// Ping-pong of counters: mine is in my memory, theirs in the peer's. `each` lots of data a thread before each counter.
__global__ void pong(volatile unsigned* mine, volatile unsigned* theirs, uint4* peer, int each, int rounds, int first, float* ns, unsigned* sm) {
  volatile unsigned* m = mine + blockIdx.x * 64; volatile unsigned* t = theirs + blockIdx.x * 64;
  uint4* out = peer + (size_t)blockIdx.x * 65536;
  __shared__ int late; if (threadIdx.x == 0) late = 0; __syncthreads();
  unsigned long long a = 0;
  for (int r = 1; r <= rounds && !late; r++) {
    if (r == 11) a = now();
    if (threadIdx.x == 0 && (!first || r > 1)) {
      unsigned want = first ? r - 1 : r; unsigned long long s = now(); int n = 0;
      while (*m < want) if ((++n & 255) == 0 && now() - s > 100000000ull) { late = 1; break; }
    }
    __syncthreads();
    for (int i = 0; i < each; i++) out[i * blockDim.x + threadIdx.x] = make_uint4(r, r, r, r);
    __syncthreads();
    if (threadIdx.x == 0) { __threadfence_system(); *t = r; }
  }
  if (threadIdx.x == 0) { ns[blockIdx.x] = late ? -1 : (float)(now() - a) / (rounds - 10); sm[blockIdx.x] = smid(); }
}
int main() {
  int n = 0; CK(cudaGetDeviceCount(&n));
  cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); printf("# %s x %d\n", p.name, n);
  printf("what,from,to,blocks,threads,each,block_min,block_mean,block_max,values\n");
  std::vector<uint4*> buf(n); std::vector<unsigned*> flag(n), sm(n); std::vector<float*> ns(n); std::vector<cudaStream_t> s(n);
  for (int g = 0; g < n; g++) {
    CK(cudaSetDevice(g));
    for (int h = 0; h < n; h++) if (h != g) CK(cudaDeviceEnablePeerAccess(h, 0));
    CK(cudaMalloc(&buf[g], 24 * 65536 * sizeof(uint4))); CK(cudaMalloc(&flag[g], 24 * 64 * 4)); CK(cudaMalloc(&sm[g], 24 * 4)); CK(cudaMalloc(&ns[g], 24 * 4)); CK(cudaStreamCreate(&s[g]));
  }
  float v[24]; unsigned m[24];
  auto show = [&](const char* what, int a, int b, int B, int T, int e, float unit) {
    CK(cudaMemcpy(v, ns[a], B * 4, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(m, sm[a], B * 4, cudaMemcpyDeviceToHost));
    float lo = 1e30, hi = 0, sum = 0; for (int i = 0; i < B; i++) { v[i] *= unit; lo = std::min(lo, v[i]); hi = std::max(hi, v[i]); sum += v[i]; }
    printf("%s,%d,%d,%d,%d,%d,%.0f,%.0f,%.0f,", what, a, b, B, T, e, lo, sum / B, hi);
    for (int i = 0; i < B; i++) printf("%s%u:%.0f", i ? " " : "", m[i], v[i]); printf("\n"); return 0;
  };
  for (int a = 0; a < 2; a++) for (int b = 0; b < n; b++) if (a != b)
  for (int e : {0, 1, 4}) for (int B : {1, 2, 4, 8, 16, 24}) {
    CK(cudaSetDevice(a)); fence<<<B, 512, 0, s[a]>>>(buf[b], e, 200, ns[a], sm[a]); CK(cudaStreamSynchronize(s[a]));
    fence<<<B, 512, 0, s[a]>>>(buf[b], e, 400, ns[a], sm[a]); CK(cudaStreamSynchronize(s[a]));
    if (show("fence_ns", a, b, B, 512, e, 1e9f / 1.98e9f)) return 1;
    for (int g : {a, b}) { CK(cudaSetDevice(g)); CK(cudaMemset(flag[g], 0, 24 * 64 * 4)); CK(cudaDeviceSynchronize()); }
    CK(cudaSetDevice(a)); pong<<<B, 512, 0, s[a]>>>(flag[a], flag[b], buf[b], e, 400, 1, ns[a], sm[a]);
    CK(cudaSetDevice(b)); pong<<<B, 512, 0, s[b]>>>(flag[b], flag[a], buf[a], e, 400, 0, ns[b], sm[b]);
    CK(cudaStreamSynchronize(s[b])); CK(cudaStreamSynchronize(s[a]));
    if (show("round_ns", a, b, B, 512, e, 1)) return 1;
  }
}
