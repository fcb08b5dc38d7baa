// Fills buffers with values whose exact combination is known, and compares every element.
// Compiled for one element type and reduction, as `interpret.cu`; `value` is that of `check.rs`.
//   ELEMENT  as in `element.cu`; 4 8-bit integer, 5 and 6 8-bit float of 4 and 5 bits of exponent

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// `count` elements of the output from `at` hold the combination of the inputs of `ranks` ranks
// from `first`, each from its element `from`.
struct Part {
    u64 at, count, from;
    u32 first, ranks;
};

// How many elements are wrong, and the complement of the first of them: memory of zeros says none.
struct Verdict {
    u64 wrong, not_first;
};

__device__ __forceinline__ u32 value(u32 rank, u64 element, u32 range) {
    u64 x = element + (u64)rank * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (u32)((x >> 33) % range);
}

#if ELEMENT == 1 || ELEMENT == 2
typedef u16 Element;
#elif ELEMENT >= 4
typedef u8 Element;
#else
typedef u32 Element;
#endif

__device__ __forceinline__ Element bits(u32 v) {
#if ELEMENT == 0
    return __float_as_uint((float)v);
#elif ELEMENT == 1
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"((float)v));
    return h;
#elif ELEMENT == 2
    return (u16)(__float_as_uint((float)v) >> 16);
#elif ELEMENT >= 5
    // The upper bits of a float, with another bias of the exponent: every value is exact.
    const u32 significand = ELEMENT == 5 ? 3 : 2, bias = ELEMENT == 5 ? 7 : 15;
    return v ? (u8)((__float_as_uint((float)v) >> (23 - significand)) - ((127 - bias) << significand)) : 0;
#else
    return (Element)v;
#endif
}

extern "C" __global__ void fill(Element* to, u64 count, u32 rank, u32 range) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
        to[i] = bits(value(rank, i, range));
}

extern "C" __global__ void check(const Element* out, const Part* parts, u32 count, u32 range, Verdict* verdict) {
    for (u32 p = 0; p < count; ++p) {
        const Part part = parts[p];
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < part.count; i += (u64)gridDim.x * blockDim.x) {
            u32 want = value(part.first, part.from + i, range);
            for (u32 r = 1; r < part.ranks; ++r) {
                const u32 other = value(part.first + r, part.from + i, range);
                want = REDUCE == 0 ? want + other : REDUCE == 1 ? max(want, other) : min(want, other);
            }
            const Element found = out[part.at + i], expected = bits(want);
            if (found != expected) {
                atomicAdd(&verdict->wrong, 1ull);
                atomicMax(&verdict->not_first, ~(part.at + i));
            }
        }
    }
}
