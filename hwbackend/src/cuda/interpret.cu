// Runs the records of one rank: a block for each channel or each lane, a group of warps a lane.
//
// A record names what is received, combined, stored and sent, and how many bytes; where they
// come from is the host's business. Compiled for one protocol, element type and reduction:
//   PROTOCOL 0 a flag beside every 4 bytes; 1 lines of 120 bytes and a flag; 2 plain slots
//   ELEMENT, REDUCE: see `element.cu`, which comes before this file
//   THREADS  threads of a block
//   CLUSTER  neighbouring blocks that share a part of the GPU (its GPC)
// Layouts are those of `flat.rs` and `cuda/mod.rs`. Every wait is bounded.

#define MAX_LANES 7
#define MAX_ENDS 24 // Receive and send ports of one record.
#define BATCH 64   // Records held in shared memory.
#define UNROLL 8   // 16-byte loads in flight a thread.
#define SIGNAL_STRIDE 16 // From one lane's counter of signals to the next: a cache line.

enum {
    HAS_SRC = 1,
    HAS_DST = 2,
    SRC_OUTPUT = 4,
    DST_OUTPUT = 8,
    SRC_SCRATCH = 16,
    DST_SCRATCH = 32,
    ACCUMULATE = 64, // The destination is a source too.
    SIGNAL = 128,    // Other lanes of the rank are told.
};

// One slice, or (`waits` is a port's index + 1) a wait until another lane has signalled `src` times.
struct Record {
    u64 src, dst; // Byte offsets in the buffers that `flags` name.
    u32 bytes;
    u8 receives, sends, flags, waits;
    u8 ports[MAX_ENDS]; // Receive ports, then send ports.
};

// One end of a FIFO. The memory and the counter waited for by the receiver are the receiver's;
// the counter waited for by the sender is the sender's. Or another lane's signals, to wait for.
struct Port {
    u8* fifo;
    u64* wait;
    u64* post;
    u64 step; // Slices handed over, or signals counted, before this run.
    u32 peer;
    u32 grows; // Signals of a run.
};

struct Report {
    u32 set, block, lane, record, peer;
    u32 what; // 0 data from the peer, 1 credit from it, 2 another lane's signal.
};

struct Args {
    u8* buffers[3];        // Input, output, scratch.
    const Record* records; // [block][lane][record_stride]
    const u32* counts;     // [block][lane]
    Port* ports;           // [block][lane][port_stride]
    u64* signals;          // [block][lane][SIGNAL_STRIDE]
    Report* report;
    u32* stop; // Set when a lane of this rank has given up.
    u64 patience_ns;
    u64 slot_bytes;
    u32 depth, record_stride, port_stride, lanes;
    u32 lane_threads[MAX_LANES + 1];
};

struct Live {
    u8* fifo;
    u64* wait;
    u64* post;
    u64 step, seen, posted;
    u32 slot, peer;
};

struct Lane {
    u8* src[MAX_ENDS + 2];
    u8* dst[MAX_ENDS + 1];
    u64 flag[MAX_ENDS + 1]; // What lines carry, by source, then by destination.
    u64 signals;            // So far, over all runs.
    volatile u32 stopped;   // Set when this lane gave up: see `gave_up`.
    __align__(16) Record batch[BATCH];
};

#define RECORD (sizeof(Record) / 16)

// The host sizes shared memory by these.
static_assert(sizeof(Record) == 48 && sizeof(Port) == 40 && sizeof(Args) == 136, "the host has another layout");
static_assert(sizeof(Lane) == 3696 && sizeof(Live) == 56, "the host has another layout");

// --- Memory and waiting

// Lines with flags must arrive as they are stored, and be looked at anew each time. Plain data
// may be gathered on its way, since a fence follows before a counter tells of it; its loads pass
// the first cache, which may hold what was in the slot before.
#if PROTOCOL == 2
#define LOAD "ld.relaxed.gpu.global"
#define STORE "st.global"
#else
#define LOAD "ld.volatile.global"
#define STORE "st.volatile.global"
#endif

template <class T> __device__ __forceinline__ T load(const u8* p);
template <> __device__ __forceinline__ uint4 load<uint4>(const u8* p) {
    uint4 v;
    asm volatile(LOAD ".v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
template <> __device__ __forceinline__ u32 load<u32>(const u8* p) {
    u32 v;
    asm volatile(LOAD ".u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
template <> __device__ __forceinline__ u16 load<u16>(const u8* p) {
    u16 v;
    asm volatile(LOAD ".u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
    return v;
}
template <class T> __device__ __forceinline__ void store(u8* p, T v);
template <> __device__ __forceinline__ void store<uint4>(u8* p, uint4 v) {
    asm volatile(STORE ".v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
template <> __device__ __forceinline__ void store<u32>(u8* p, u32 v) {
    asm volatile(STORE ".u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
template <> __device__ __forceinline__ void store<u16>(u8* p, u16 v) {
    asm volatile(STORE ".u16 [%0], %1;" ::"l"(p), "h"(v) : "memory");
}
__device__ __forceinline__ u64 load_counter(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_counter(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void barrier(u32 id, u32 threads) {
    __syncwarp();
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Bounds one wait: looks at the clock and at the rank's stop flag every 1024 polls.
struct Patience {
    const Args& args;
    u64 start;
    u32 polls;
    __device__ __forceinline__ Patience(const Args& a) : args(a), start(0), polls(0) {}
    // 0: go on; 1: too long; 2: another lane gave up.
    __device__ __forceinline__ u32 spent() {
        if (++polls % 1024) return 0;
        u64 now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (!start) start = now;
        if (*(volatile u32*)args.stop) return 2;
        return now - start > args.patience_ns;
    }
};

// Ends a lane that waited in vain: before it `moves` a record, or while it does.
__device__ __noinline__ void give_up(const Args& args, Lane& group, u32 lane, u32 record, u32 peer, u32 what, u32 why,
                                     u32 moves) {
    if (why == 1 && atomicCAS(&args.report->set, 0, 1) == 0) {
        args.report->block = blockIdx.x;
        args.report->lane = lane;
        args.report->record = record;
        args.report->peer = peer;
        args.report->what = what;
        __threadfence_system();
    }
    atomicExch(args.stop, 1);
    group.stopped = 2 * (record + 1) + moves;
}

// Whether the lane gave up at this record before it was moved, or until it was; asked after the
// barrier that ends the one or the other. What happens later does not count, so all threads get
// the same answer, however late some of them ask.
__device__ __forceinline__ bool gave_up(const Lane& group, u32 record, u32 moved) {
    const u32 stopped = group.stopped;
    return stopped && stopped <= 2 * (record + 1) + moved;
}

#if PROTOCOL == 2
// --- Plain slots

// `N` accesses a thread from byte `at` on, a warp's width apart, all in flight at once.
template <class T, u32 N, bool WHOLE>
__device__ __forceinline__ void round_of(const Lane& group, u32 sources, u32 targets, u32 at, u32 to) {
    const u32 stride = 32 * sizeof(T);
    T sum[N];
    const u8* src = group.src[0] + at;
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (WHOLE || at + u * stride < to) sum[u] = load<T>(src + u * stride);
    for (u32 s = 1; s < sources; ++s) {
        T more[N];
        src = group.src[s] + at;
#pragma unroll
        for (u32 u = 0; u < N; ++u)
            if (WHOLE || at + u * stride < to) more[u] = load<T>(src + u * stride);
#pragma unroll
        for (u32 u = 0; u < N; ++u)
            if (WHOLE || at + u * stride < to) sum[u] = combine(sum[u], more[u]);
    }
    for (u32 d = 0; d < targets; ++d) {
        u8* dst = group.dst[d] + at;
#pragma unroll
        for (u32 u = 0; u < N; ++u)
            if (WHOLE || at + u * stride < to) store<T>(dst + u * stride, sum[u]);
    }
}

// The bytes `from..to`, a multiple of the size of T.
template <class T>
__device__ __forceinline__ void span_of(const Lane& group, u32 sources, u32 targets, u32 from, u32 to, u32 tid, u32 threads) {
    const u32 within = tid % 32 * sizeof(T), warp = tid / 32 * 32 * sizeof(T);
    for (const u32 round = threads * sizeof(T) * UNROLL; to - from >= round; from += round)
        round_of<T, UNROLL, true>(group, sources, targets, from + warp * UNROLL + within, to);
    for (const u32 round = threads * sizeof(T) * 2; from < to; from += round)
        round_of<T, 2, false>(group, sources, targets, from + warp * 2 + within, to);
}

__device__ __forceinline__ void move(const Lane& group, const Record& record, u32 tid, u32 threads) {
    const u32 sources = record.receives + (record.flags & HAS_SRC ? 1 : 0) + (record.flags & ACCUMULATE ? 1 : 0);
    const u32 targets = record.sends + (record.flags & HAS_DST ? 1 : 0);
    const u32 bytes = record.bytes;
    if (!bytes) return;
    const u32 phase = (u32)(u64)group.src[0] % 16;
    bool even = true;
    for (u32 s = 1; s < sources; ++s) even &= (u32)(u64)group.src[s] % 16 == phase;
    for (u32 d = 0; d < targets; ++d) even &= (u32)(u64)group.dst[d] % 16 == phase;
    if (!even) return span_of<Element>(group, sources, targets, 0, bytes, tid, threads);
    const u32 head = min((16 - phase) % 16, bytes), body = (bytes - head) / 16 * 16;
    if (head) span_of<Element>(group, sources, targets, 0, head, tid, threads);
    span_of<uint4>(group, sources, targets, head, head + body, tid, threads);
    if (head + body < bytes) span_of<Element>(group, sources, targets, head + body, bytes, tid, threads);
}
#else
// --- Lines with flags

// Up to 8 bytes of a buffer of any alignment; what is missing is 0.
__device__ __forceinline__ uint2 load_pair(const u8* p, u32 bytes) {
    uint2 v = make_uint2(0, 0);
    if (bytes >= 8 && (u64)p % 8 == 0) {
        asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
        return v;
    }
    if (sizeof(Element) == 4) {
        if (bytes >= 4) v.x = load<u32>(p);
        if (bytes >= 8) v.y = load<u32>(p + 4);
        return v;
    }
    if (bytes >= 2) v.x = load<u16>(p);
    if (bytes >= 4) v.x |= (u32)load<u16>(p + 2) << 16;
    if (bytes >= 6) v.y = load<u16>(p + 4);
    if (bytes >= 8) v.y |= (u32)load<u16>(p + 6) << 16;
    return v;
}
__device__ __forceinline__ void store_pair(u8* p, u32 bytes, uint2 v) {
    if (bytes >= 8 && (u64)p % 8 == 0) {
        asm volatile("st.volatile.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
        return;
    }
    if (sizeof(Element) == 4) {
        if (bytes >= 4) store<u32>(p, v.x);
        if (bytes >= 8) store<u32>(p + 4, v.y);
        return;
    }
    if (bytes >= 2) store<u16>(p, (u16)v.x);
    if (bytes >= 4) store<u16>(p + 2, (u16)(v.x >> 16));
    if (bytes >= 6) store<u16>(p + 4, (u16)v.y);
    if (bytes >= 8) store<u16>(p + 6, (u16)(v.y >> 16));
}
#endif

#if PROTOCOL == 0
#define LINES 2 // Lines in flight a thread.
__device__ __forceinline__ void move(const Args& args, Lane& group, const Live* live, const Record& record, u32 lane, u32 index,
                                     u32 tid, u32 threads) {
    const u32 receives = record.receives, bytes = record.bytes, lines = (bytes + 7) / 8;
    const bool has_src = record.flags & HAS_SRC;
    for (u32 first = tid; first < lines; first += LINES * threads) {
        uint2 sum[LINES];
        if (has_src) {
#pragma unroll
            for (u32 u = 0; u < LINES; ++u) {
                const u32 line = first + u * threads;
                if (line < lines) sum[u] = load_pair(group.src[receives] + line * 8, bytes - line * 8);
            }
        }
        for (u32 s = 0; s < receives; ++s) {
            const u8* src = group.src[s];
            const u32 flag = (u32)group.flag[s];
            uint4 in[LINES];
#pragma unroll
            for (u32 u = 0; u < LINES; ++u)
                if (first + u * threads < lines) in[u] = load<uint4>(src + (u64)(first + u * threads) * 16);
            Patience patience(args);
#pragma unroll
            for (u32 u = 0; u < LINES; ++u) {
                const u32 line = first + u * threads;
                if (line >= lines) continue;
                while (in[u].y != flag || in[u].w != flag) {
                    if (u32 why = patience.spent()) {
                        give_up(args, group, lane, index, live[record.ports[s]].peer, 0, why, 1);
                        return;
                    }
                    in[u] = load<uint4>(src + (u64)line * 16);
                }
                const uint2 data = make_uint2(in[u].x, in[u].z);
                sum[u] = s == 0 && !has_src ? data : make_uint2(combine(sum[u].x, data.x), combine(sum[u].y, data.y));
            }
        }
        if (record.flags & ACCUMULATE) {
#pragma unroll
            for (u32 u = 0; u < LINES; ++u) {
                const u32 line = first + u * threads;
                if (line >= lines) continue;
                const uint2 data = load_pair(group.dst[record.sends] + line * 8, bytes - line * 8);
                sum[u] = make_uint2(combine(sum[u].x, data.x), combine(sum[u].y, data.y));
            }
        }
        for (u32 d = 0; d < record.sends; ++d) {
            const u32 flag = (u32)group.flag[receives + d];
#pragma unroll
            for (u32 u = 0; u < LINES; ++u) {
                const u32 line = first + u * threads;
                if (line < lines) store<uint4>(group.dst[d] + (u64)line * 16, make_uint4(sum[u].x, flag, sum[u].y, flag));
            }
        }
        if (record.flags & HAS_DST) {
#pragma unroll
            for (u32 u = 0; u < LINES; ++u) {
                const u32 line = first + u * threads;
                if (line < lines) store_pair(group.dst[record.sends] + line * 8, bytes - line * 8, sum[u]);
            }
        }
    }
}
#elif PROTOCOL == 1
#define WAVES 2 // Waves of four lines in flight a warp.
// Up to 16 bytes of a buffer; what is missing is 0.
__device__ __forceinline__ uint4 load_part(const u8* p, u32 bytes) {
    const uint2 low = load_pair(p, min(bytes, 8u));
    const uint2 high = bytes > 8 ? load_pair(p + 8, bytes - 8) : make_uint2(0, 0);
    return make_uint4(low.x, low.y, high.x, high.y);
}
// Eight threads hold a line: 16 bytes each, of which the last eight are the flag. The stores of
// one line leave in one instruction and so arrive together.
__device__ __forceinline__ void move(const Args& args, Lane& group, const Live* live, const Record& record, u32 lane, u32 index,
                                     u32 tid, u32 threads) {
    const u32 receives = record.receives, bytes = record.bytes;
    const u32 waves = (bytes + 479) / 480, warps = threads / 32, part = tid % 8;
    const bool has_src = record.flags & HAS_SRC, holds_flag = part == 7;
    for (u32 first = tid / 32; first < waves; first += WAVES * warps) {
        uint4 sum[WAVES];
        u32 at[WAVES], here[WAVES];
#pragma unroll
        for (u32 u = 0; u < WAVES; ++u) {
            at[u] = (first + u * warps) * 480 + tid % 32 / 8 * 120 + part * 16;
            here[u] = at[u] < bytes ? min(bytes - at[u], holds_flag ? 8u : 16u) : 0;
            sum[u] = make_uint4(0, 0, 0, 0);
            if (has_src && here[u]) sum[u] = load_part(group.src[receives] + at[u], here[u]);
        }
        for (u32 s = 0; s < receives; ++s) {
            const u8* src = group.src[s] + tid % 32 * 16;
            const u64 flag = group.flag[s];
            uint4 in[WAVES];
            Patience patience(args);
            bool late;
            do {
                late = false;
#pragma unroll
                for (u32 u = 0; u < WAVES; ++u) {
                    if (first + u * warps >= waves) continue;
                    in[u] = load<uint4>(src + (u64)(first + u * warps) * 512);
                    late |= holds_flag && (in[u].z != (u32)flag || in[u].w != (u32)(flag >> 32));
                }
                u32 why = patience.spent();
                if (late && why) {
                    give_up(args, group, lane, index, live[record.ports[s]].peer, 0, why, 1);
                }
                if (__any_sync(~0u, late && why)) return;
            } while (__any_sync(~0u, late));
#pragma unroll
            for (u32 u = 0; u < WAVES; ++u) sum[u] = s == 0 && !has_src ? in[u] : combine(sum[u], in[u]);
        }
        if (record.flags & ACCUMULATE) {
#pragma unroll
            for (u32 u = 0; u < WAVES; ++u)
                if (here[u]) sum[u] = combine(sum[u], load_part(group.dst[record.sends] + at[u], here[u]));
        }
        for (u32 d = 0; d < record.sends; ++d) {
            const u64 flag = group.flag[receives + d];
#pragma unroll
            for (u32 u = 0; u < WAVES; ++u) {
                if (first + u * warps >= waves) continue;
                uint4 line = sum[u];
                if (holds_flag) line.z = (u32)flag, line.w = (u32)(flag >> 32);
                store<uint4>(group.dst[d] + (u64)(first + u * warps) * 512 + tid % 32 * 16, line);
            }
        }
        if (record.flags & HAS_DST) {
#pragma unroll
            for (u32 u = 0; u < WAVES; ++u) {
                u8* dst = group.dst[record.sends] + at[u];
                if (here[u]) store_pair(dst, min(here[u], 8u), make_uint2(sum[u].x, sum[u].y));
                if (here[u] > 8) store_pair(dst + 8, here[u] - 8, make_uint2(sum[u].z, sum[u].w));
            }
        }
    }
}
#endif

// --- The interpreter

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
    interpret(const __grid_constant__ Args args) {
    extern __shared__ __align__(16) u8 shared[];
    u32 lane = 0, tid = threadIdx.x;
    while (lane < args.lanes && tid >= args.lane_threads[lane]) tid -= args.lane_threads[lane++];
    if (lane >= args.lanes) return;
    Lane& group = ((Lane*)shared)[lane];
    Live* live = (Live*)(shared + args.lanes * sizeof(Lane)) + lane * args.port_stride;
    // Plain slots have one warp more, which tells peers while the others go on.
    const u32 all = args.lane_threads[lane], workers = PROTOCOL == 2 ? all - 32 : all;
    const u32 work_barrier = 1 + 2 * lane, lane_barrier = 2 + 2 * lane;
    const u32 place = blockIdx.x * args.lanes + lane;
    const u32 count = args.counts[place];
    const uint4* records = (const uint4*)(args.records + (u64)place * args.record_stride);
    Port* ports = args.ports + (u64)place * args.port_stride;
    u64* signals = args.signals + place * SIGNAL_STRIDE;
    for (u32 i = tid; i < BATCH * RECORD && i < count * RECORD; i += all) ((uint4*)group.batch)[i] = records[i];
    for (u32 i = tid; i < args.port_stride; i += all) {
        const Port port = ports[i];
        live[i].fifo = port.fifo;
        live[i].wait = port.wait;
        live[i].post = port.post;
        live[i].step = live[i].posted = port.step;
        live[i].seen = 0;
        live[i].slot = (u32)port.step % args.depth;
        live[i].peer = port.peer;
        // No load at the end, where all wait for it.
        if (port.grows) ports[i].step = port.step + port.grows;
    }
    if (tid == 0) group.stopped = 0;
    if (tid == all - 1) group.signals = *signals;
    barrier(lane_barrier, all);

    for (u32 index = 0; index < count; ++index) {
        if (index && index % BATCH == 0) {
            barrier(lane_barrier, all);
            for (u32 i = tid; i < BATCH * RECORD && index * RECORD + i < count * RECORD; i += all)
                ((uint4*)group.batch)[i] = records[index * RECORD + i];
            barrier(lane_barrier, all);
        }
        const Record& record = group.batch[index % BATCH];
        const u32 ends = record.receives + record.sends;
        if (tid < workers) {
            if (tid < ends) {
                const bool sends = tid >= record.receives;
                Live& port = live[record.ports[tid]];
                u8* slot = port.fifo + port.slot * args.slot_bytes;
                if (sends) group.dst[tid - record.receives] = slot;
                else group.src[tid] = slot;
                port.slot = port.slot + 1 == args.depth ? 0 : port.slot + 1;
                group.flag[tid] = ++port.step;
                // A sender needs a free slot; a receiver of plain slots needs the data.
                const u64 need = !sends ? (PROTOCOL == 2 ? port.step : 0) : port.step > args.depth ? port.step - args.depth : 0;
                Patience patience(args);
                while (port.seen < need) {
                    port.seen = load_counter(port.wait);
                    if (port.seen >= need) break;
                    if (u32 why = patience.spent()) {
                        give_up(args, group, lane, index, port.peer, sends, why, 0);
                        break;
                    }
                }
            } else if (tid == ends) {
                const u8 flags = record.flags;
                if (record.waits) {
                    Live& port = live[record.waits - 1];
                    Patience patience(args);
                    while (load_counter(port.wait) < port.step + record.src) {
                        if (u32 why = patience.spent()) {
                            give_up(args, group, lane, index, port.peer, 2, why, 0);
                            break;
                        }
                    }
                }
                u8** src = group.src + record.receives;
                if (flags & HAS_SRC) *src++ = args.buffers[flags & SRC_OUTPUT ? 1 : flags & SRC_SCRATCH ? 2 : 0] + record.src;
                if (flags & HAS_DST) {
                    u8* dst = args.buffers[flags & DST_OUTPUT ? 1 : flags & DST_SCRATCH ? 2 : 0] + record.dst;
                    group.dst[record.sends] = dst;
                    if (flags & ACCUMULATE) *src = dst;
                }
            }
            barrier(work_barrier, workers);
#if PROTOCOL == 2
            if (!gave_up(group, index, 0)) move(group, record, tid, workers);
            barrier(lane_barrier, all);
            if (gave_up(group, index, 0)) return;
#else
            if (gave_up(group, index, 0)) return;
            move(args, group, live, record, lane, index, tid, workers);
            barrier(work_barrier, workers);
            if (gave_up(group, index, 1)) return;
            if (tid < record.receives) {
                Live& port = live[record.ports[tid]];
                store_counter(port.post, port.step);
            } else if (tid == record.receives && record.flags & SIGNAL) {
                fence();
                store_counter(signals, ++group.signals);
            }
#endif
        } else {
            barrier(lane_barrier, all);
            if (gave_up(group, index, 0)) return;
            if (tid - workers < ends) {
                Live& port = live[record.ports[tid - workers]];
                if (tid - workers >= record.receives) fence();
                store_counter(port.post, ++port.posted);
            } else if (tid - workers == ends && record.flags & SIGNAL) {
                fence();
                store_counter(signals, ++group.signals);
            }
            __syncwarp();
        }
    }
    barrier(lane_barrier, all);
    for (u32 i = tid; i < args.port_stride; i += all)
        if (live[i].fifo) ports[i].step = live[i].step;
}
