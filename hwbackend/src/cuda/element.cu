// Elements and how they are combined, for the files of device code that come after this one.
//   ELEMENT  0 float, 1 half, 2 bfloat, 3 int
//   REDUCE   0 sum, 1 max, 2 min

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 combine(u32 a, u32 b) {
#if ELEMENT == 0
    float x = __uint_as_float(a), y = __uint_as_float(b);
    return __float_as_uint(REDUCE == 0 ? x + y : REDUCE == 1 ? fmaxf(x, y) : fminf(x, y));
#elif ELEMENT == 3
    int x = (int)a, y = (int)b;
    return REDUCE == 0 ? a + b : (u32)(REDUCE == 1 ? max(x, y) : min(x, y));
#else
    u32 r;
#if ELEMENT == 1 && REDUCE == 0
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#elif ELEMENT == 1 && REDUCE == 1
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#elif ELEMENT == 1
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#elif REDUCE == 0
    asm("fma.rn.bf16x2 %0, %1, %3, %2;" : "=r"(r) : "r"(a), "r"(b), "r"(0x3f803f80));
#elif REDUCE == 1
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
    asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#endif
    return r;
#endif
}
__device__ __forceinline__ u16 combine(u16 a, u16 b) { return (u16)combine((u32)a, (u32)b); }
__device__ __forceinline__ uint4 combine(uint4 a, uint4 b) {
    return make_uint4(combine(a.x, b.x), combine(a.y, b.y), combine(a.z, b.z), combine(a.w, b.w));
}

#if ELEMENT == 1 || ELEMENT == 2
typedef u16 Element;
#else
typedef u32 Element;
#endif
