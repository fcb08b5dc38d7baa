// How the blocks of a kernel share a full link: each of two GPUs sends 16 times 1 MiB from each block to the other, in three
// ways, from blocks in clusters of 4 and without clusters. nvcc -O3 -arch=sm_90 full_link.cu -o full_link; every wait is bounded.
#include <cstdio>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s: %s\n", #x, cudaGetErrorString(e)); return 1; } } while (0)
__device__ unsigned long long now() { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ void copy(const int4* src, int4* d0, int4* d1, size_t n) {
  for (size_t i = threadIdx.x; i + 7 * 512 < n; i += 8 * 512) {
    int4 v[8];
#pragma unroll
    for (int u = 0; u < 8; u++) v[u] = __ldcv(src + i + u * 512);
#pragma unroll
    for (int u = 0; u < 8; u++) { __stwt(d0 + i + u * 512, v[u]); if (d1) __stwt(d1 + i + u * 512, v[u]); }
  }
}
// mode 0: sends alone; 1: sends and keeps; 2: sends and keeps, then takes what came
__global__ void __launch_bounds__(512, 1) turns(const int4* src, int4* peer, const int4* fifo, int4* own, size_t n, size_t slots, int mode, int rounds, unsigned long long start, unsigned long long* took, unsigned* sms) {
  if (threadIdx.x == 0) {
    unsigned me; asm volatile("mov.u32 %0, %%smid;" : "=r"(me)); sms[blockIdx.x] = me;
    unsigned long long t = now(); if (t + 5000000 > start) while (now() < start); took[(size_t)blockIdx.x * (2 * rounds + 1)] = now();
  }
  __syncthreads();
  size_t base = (size_t)blockIdx.x * slots * n;
  for (int r = 0; r < rounds; r++) {
    size_t at = base + (r % slots) * n, far = ((size_t)blockIdx.x * rounds + r) * n;
    copy(src + far, peer + at, mode ? own + far : nullptr, n);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) took[(size_t)blockIdx.x * (2 * rounds + 1) + 2 * r + 1] = now();
    if (mode == 2) copy(fifo + at, own + (size_t)gridDim.x * rounds * n + far, nullptr, n);
    __syncthreads();
    if (threadIdx.x == 0) took[(size_t)blockIdx.x * (2 * rounds + 1) + 2 * r + 2] = now();
  }
}
__global__ void clock0(unsigned long long* t) { *t = now(); }

int main() {
  const int rounds = 16; const size_t n = 65536 /* 1 MiB */, slots = 4; const int most = 32;
  int4 *src[2], *fifo[2], *own[2]; unsigned long long *t[2], *c[2]; unsigned* s[2]; cudaStream_t st[2];
  for (int g = 0; g < 2; g++) {
    CHECK(cudaSetDevice(g)); CHECK(cudaDeviceEnablePeerAccess(1 - g, 0));
    CHECK(cudaMalloc(&src[g], most * rounds * n * 16)); CHECK(cudaMalloc(&own[g], 2 * most * rounds * n * 16)); CHECK(cudaMalloc(&fifo[g], most * slots * n * 16));
    CHECK(cudaMemset(src[g], 1, most * rounds * n * 16));
    CHECK(cudaMallocHost(&t[g], most * (2 * rounds + 1) * 8)); CHECK(cudaMallocHost(&c[g], 8)); CHECK(cudaMallocHost(&s[g], most * 4)); CHECK(cudaStreamCreate(&st[g]));
  }
  printf("cluster,mode,blocks,pass,gpu,block,sm,first_us,eight_us,all_us,send_us\n");
  for (int cluster : {1, 4}) for (int mode = 0; mode < 3; mode++) for (int blocks : {4, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32}) for (int pass = 0; pass < 3; pass++) {
    if (blocks % cluster) continue;
    unsigned long long start[2];
    for (int g = 0; g < 2; g++) { CHECK(cudaSetDevice(g)); clock0<<<1, 1, 0, st[g]>>>(c[g]); }
    for (int g = 0; g < 2; g++) { CHECK(cudaSetDevice(g)); CHECK(cudaDeviceSynchronize()); start[g] = *c[g] + 200000; }
    for (int g = 0; g < 2; g++) {
      CHECK(cudaSetDevice(g));
      cudaLaunchConfig_t cfg = {}; cfg.gridDim = dim3(blocks); cfg.blockDim = dim3(512); cfg.dynamicSmemBytes = 80000; cfg.stream = st[g];
      cudaLaunchAttribute a[2]; a[0].id = cudaLaunchAttributeClusterDimension; a[0].val.clusterDim.x = cluster; a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
      a[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference; a[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
      cfg.attrs = a; cfg.numAttrs = cluster > 1 ? 2 : 0;
      CHECK(cudaFuncSetAttribute(turns, cudaFuncAttributeMaxDynamicSharedMemorySize, 80000));
      CHECK(cudaLaunchKernelEx(&cfg, turns, (const int4*)src[g], fifo[1 - g], (const int4*)fifo[g], own[g], n, slots, mode, rounds, start[g], t[g], s[g]));
    }
    for (int g = 0; g < 2; g++) { CHECK(cudaSetDevice(g)); CHECK(cudaDeviceSynchronize()); }
    if (pass == 2) for (int g = 0; g < 1; g++) for (int b = 0; b < blocks; b++) {
      auto* p = t[g] + (size_t)b * (2 * rounds + 1);
      double send = 0; for (int r = 0; r < 8; r++) send += (p[2 * r + 1] - p[2 * r]) / 8e3;
      printf("%d,%d,%d,%d,%d,%d,%u,%.2f,%.2f,%.2f,%.2f\n", cluster, mode, blocks, pass, g, b, s[g][b], (p[2] - p[0]) / 1e3, (p[16] - p[0]) / 1e3, (p[2 * rounds] - p[0]) / 1e3, send);
    }
  }
}
