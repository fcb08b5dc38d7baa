// Combines buffers element by element: one operation a column of blocks.

#define MAX_ENDS 26

struct Combine {
    const u8* from[MAX_ENDS];
    u8* to[MAX_ENDS];
    u64 bytes;
    u32 sources, targets;
};
static_assert(sizeof(Combine) == 432, "the host has another layout");

extern "C" __global__ void __launch_bounds__(512) combine_all(const Combine* operations) {
    const Combine& op = operations[blockIdx.y];
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < op.bytes / sizeof(Element); i += (u64)gridDim.x * blockDim.x) {
        Element sum = ((const Element*)op.from[0])[i];
        for (u32 s = 1; s < op.sources; ++s) sum = combine(sum, ((const Element*)op.from[s])[i]);
        for (u32 t = 0; t < op.targets; ++t) ((Element*)op.to[t])[i] = sum;
    }
}
