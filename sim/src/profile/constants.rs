//! All constants of the model: one declaration each says what it is called, measured in and may be, what it is part of
//! and what it means.

use super::declare::constants;

/// Of something nominal: a part, and not none of it, since rates divide by it.
const SHARE: [f64; 2] = [1e-3, 1.0];
/// Of a link, what some pattern gets of it; below a tenth it would be another mechanism.
const TURNS: [f64; 2] = [0.1, 1.0];
/// Of a whole, a part of it.
const PART: [f64; 2] = [0.0, 1.0];
/// Of a send, instructions that compare with it.
const WEIGHT: [f64; 2] = [0.0, 4.0];
/// Times in us: below a second.
const TIME: [f64; 2] = [0.0, 1e6];
/// Rates in GB/s: from 1 MB/s, since times divide by it, to 1 PB/s.
const RATE: [f64; 2] = [1e-3, 1e6];
/// Any other number: within two orders of magnitude.
const FACTOR: [f64; 2] = [0.0, 100.0];

// Variant, name in files, unit, bounds, role; then what it means.
constants! {
    /// A constant of the model.
    Constant;
    EfficiencyNvlink "efficiency.nvlink" "of nominal" SHARE LinkRate
        "payload that stores of SMs get through NVLink at best",
    EfficiencyNvlinkCopyEngine "efficiency.nvlink_copy_engine" "of nominal" SHARE LinkRate
        "the same by copy engines",
    EfficiencyNvlinkMultimem "efficiency.nvlink_multimem" "of nominal" SHARE LinkRate
        "the same by multicast stores and by loads that NVSwitch reduces",
    TurnsLl "turns.ll" "of a link" TURNS LinkRate
        "what stores of LL get of NVLink where a GPU sends to several peers through an NVSwitch",
    TurnsLl128 "turns.ll128" "of a link" TURNS LinkRate
        "the same with LL128",
    TurnsSimple "turns.simple" "of a link" TURNS LinkRate
        "the same with Simple",
    EfficiencyC2c "efficiency.c2c" "of nominal" SHARE LinkRate
        "payload through NVLink-C2C",
    EfficiencyPcie "efficiency.pcie" "of nominal" SHARE LinkRate
        "payload through PCIe, of the rate NCCL assigns to it",
    EfficiencyCpuInterconnect "efficiency.cpu_interconnect" "of nominal" SHARE LinkRate
        "payload between CPU sockets, of the rate NCCL assigns to it",
    EfficiencyInfiniband "efficiency.infiniband" "of nominal" SHARE LinkRate
        "payload through an InfiniBand port",
    EfficiencySharp "efficiency.sharp" "of nominal" SHARE LinkRate
        "payload through a port whose switch reduces",
    EfficiencyRoce "efficiency.roce" "of nominal" SHARE LinkRate
        "payload through a RoCE or Slingshot port",
    EfficiencyEfa "efficiency.efa" "of nominal" SHARE LinkRate
        "payload through an EFA port",
    EfficiencyEthernet "efficiency.ethernet" "of nominal" SHARE LinkRate
        "payload of TCP through an Ethernet port",
    LatencyNvlinkLl "latency.nvlink.ll" "us" TIME LinkLatency
        "from a line's store to its sight by the peer, over NVLink",
    LatencyNvlinkLl128 "latency.nvlink.ll128" "us" TIME LinkLatency
        "the same for a line of LL128",
    LatencyNvlinkSimple "latency.nvlink.simple" "us" TIME LinkLatency
        "from the fence after a slice to the peer's sight of the counter, over NVLink",
    LatencyNvlinkMultimem "latency.nvlink.multimem" "us" TIME LinkLatency
        "as of Simple, through an NVSwitch that reduces or multicasts",
    LatencyPcieLl "latency.pcie.ll" "us" TIME LinkLatency
        "as over NVLink, through PCIe",
    LatencyPcieLl128 "latency.pcie.ll128" "us" TIME LinkLatency
        "as over NVLink, through PCIe",
    LatencyPcieSimple "latency.pcie.simple" "us" TIME LinkLatency
        "as over NVLink, through PCIe",
    LatencyPcieRead "latency.pcie.read" "us" TIME LinkLatency
        "of a load from host memory by a block: over PCIe there and back",
    LatencyNetworkLl "latency.network.ll" "us" TIME LinkLatency
        "from the proxy's post to the peer's sight, per slice",
    LatencyNetworkLl128 "latency.network.ll128" "us" TIME LinkLatency
        "from the proxy's post to the peer's sight, per slice",
    LatencyNetworkSimple "latency.network.simple" "us" TIME LinkLatency
        "from the proxy's post to the peer's sight, per slice",
    LatencyNetworkControl "latency.network.control" "us" TIME LinkLatency
        "of a word between proxies: an empty place, the end of a transfer",
    LatencyNetworkEfaControl "latency.network_efa.control" "us" TIME LinkLatency
        "the same through EFA",
    LatencyNetworkEfa "latency.network_efa" "us" TIME LinkLatency
        "the same through EFA, whatever the protocol",
    LatencyNetworkSharp "latency.network_sharp" "us" TIME LinkLatency
        "from the last proxy's post to the sight of the result, per slice that switches reduce",
    LatencyNetworkTcp "latency.network_tcp" "us" TIME LinkLatency
        "what TCP adds to a slice's network latency",
    NetworkFlush "network.flush" "us" TIME LinkLatency
        "of the read that flushes data which RDMA wrote into the memory of a GPU before Hopper, with Simple",
    NetworkProxy "network.proxy" "us" TIME Proxy
        "work of a rank's proxy thread to post a slice with RDMA",
    NetworkReceive "network.receive" "us" TIME Proxy
        "work of a rank's proxy thread on a slice that RDMA brought, its post and its word to the block",
    ProxyLines "proxy.lines" "GB/s" RATE Proxy
        "lines of LL that a proxy thread checks in host memory before it sends them, flags included",
    ProxyLinesAmd "proxy.lines_amd" "GB/s" RATE Proxy
        "the same on CPUs of AMD",
    TcpMessage "tcp.message" "us" TIME Proxy
        "work of a proxy thread on a slice that it sends or receives through sockets",
    TcpThread "tcp.thread" "GB/s" RATE Proxy
        "what one thread copies into or out of sockets",
    TransferRequest "transfer.request" "us" TIME Proxy
        "between hosts, from the wish for a cache of keys and values until its first bytes are posted: descriptors and word between two processes",
    TransferDescriptor "transfer.descriptor" "us" TIME Proxy
        "work of a NIC and who posts to it on each contiguous piece of a transfer",
    TransferRegister "transfer.register" "GB/s" RATE Proxy
        "memory that a host registers with its NICs",
    DriveRate "drive.rate" "GB/s" RATE Storage
        "what an NVMe drive reads, where a topology does not say",
    DriveWrite "drive.write" "GB/s" RATE Storage
        "what an NVMe drive writes, where a topology does not say",
    DriveLatency "drive.latency" "us" TIME Storage
        "from a request to an NVMe drive to its first byte",
    FileThread "file.thread" "GB/s" RATE Storage
        "what one thread copies between page cache and a buffer",
    StoreRequest "store.request" "GB/s" RATE Storage
        "what one request to an object store carries",
    StoreLatency "store.latency" "us" TIME Storage
        "from a request to an object store to its first byte",
    HostMemory "host.memory" "GB/s" RATE HostMemory
        "what a CPU socket's memory reads and writes together",
    HostMemoryArm "host.memory_arm" "GB/s" RATE HostMemory
        "the same of Arm CPUs beside GPUs, which are Grace",
    SyncSimple "sync.simple" "us" TIME BlockTime
        "a block's own synchronisation before a slice moves: barriers, fence, counter",
    BothSimple "both.simple" "us" TIME BlockTime
        "what of a block's synchronisation comes on top where a slice is kept as well as sent: two stores to be through",
    AfterLl "after.ll" "us" TIME BlockTime
        "a block's own bookkeeping after a slice of LL has left, before the next",
    AfterLl128 "after.ll128" "us" TIME BlockTime
        "the same with LL128",
    BlockLl "block.ll" "GB/s" RATE BlockRate
        "what 512 threads of a block send from memory with LL",
    BlockLl128 "block.ll128" "GB/s" RATE BlockRate
        "what 640 threads of a block send from memory with LL128",
    BlockSimple "block.simple" "GB/s" RATE BlockRate
        "what the instructions of a block send with Simple, were its loads there at once",
    StoreLl "store.ll" "of a send" PART Access
        "what of a send the store to the peer takes with LL, whatever the threads; the rest is a load from memory, of which each thread has as much on its way",
    StoreLl128 "store.ll128" "of a send" PART Access
        "the same with LL128",
    StoreSimple "store.simple" "of a send" PART Access
        "what of the instructions of a send the store takes with Simple; the rest are those of its load",
    FetchLl "fetch.ll" "of a send" WEIGHT Access
        "loads of what was received with LL, of all threads",
    FetchLl128 "fetch.ll128" "of a send" WEIGHT Access
        "the same with LL128",
    WaitSimple "wait.simple" "of a send" WEIGHT Access
        "what 512 threads wait for loads from memory with Simple, while others of their block issue",
    FetchSimple "fetch.simple" "of a send" WEIGHT Access
        "what they wait for loads of what was received",
    FetchMissed "fetch.missed" "of a fetch" WEIGHT Access
        "what loads of what was received take longer with LL and LL128 once L2 no longer holds it",
    WaitMissed "wait.missed" "of a fetch" WEIGHT Access
        "the same of their wait with Simple",
    KeepLl "keep.ll" "of a send" WEIGHT Access
        "instructions to store what is kept in memory with LL",
    KeepLlUnaligned "keep.ll_unaligned" "of a send" WEIGHT Access
        "the same, more, where what is kept with LL begins inside a line of memory: stores of a warp touch three lines, not two",
    KeepLl128 "keep.ll128" "of a send" WEIGHT Access
        "the same with LL128",
    KeepSimple "keep.simple" "of a send" WEIGHT Access
        "the same with Simple",
    CopySimple "copy.simple" "of a send" FACTOR Copy
        "instructions of a copy inside one memory with Simple: what a switch is to combine, or has multicast",
    ReduceFp16 "reduce.fp16" "copies" FACTOR Copy
        "instruction weight of combining 16-bit floats beyond fp32",
    ReduceInt8 "reduce.int8" "copies" FACTOR Copy
        "instruction weight of combining 8-bit integers beyond fp32",
    KernelLl "kernel.ll" "us" TIME Kernel
        "start and end of a kernel, back to back on one stream",
    KernelLl128 "kernel.ll128" "us" TIME Kernel
        "start and end of a kernel, back to back on one stream",
    KernelSimple "kernel.simple" "us" TIME Kernel
        "start and end of a kernel, back to back on one stream",
    KernelWarpLl "kernel_warp.ll" "us" TIME Kernel
        "the same, more for every warp of a block",
    KernelWarpLl128 "kernel_warp.ll128" "us" TIME Kernel
        "the same, more for every warp of a block",
    KernelWarpSimple "kernel_warp.simple" "us" TIME Kernel
        "the same, more for every warp of a block",
    KernelDirect "kernel.direct" "us" TIME Kernel
        "what the kernel of sends and receives takes longer than that of LL: its warps find out whom each serves",
    KernelBlock "kernel.block" "us" TIME Kernel
        "from the start of a kernel's block to that of the next: channels do not run in step",
    KernelFetch "kernel.fetch" "us" TIME LinkLatency
        "one way over PCIe where blocks fetch what they are to do from host memory (NCCL 2.8)",
    LaunchSingleThread "launch.single_thread" "us" TIME Launch
        "issue interval of one thread, per GPU it serves",
    LaunchThreads "launch.threads" "us" TIME Launch
        "issue interval of a thread per GPU",
    LaunchProcesses "launch.processes" "us" TIME Launch
        "issue interval of a process per GPU",
    LaunchGraph "launch.graph" "us" TIME Launch
        "issue interval inside a CUDA graph",
    LaunchChannel "launch.channel" "us" TIME Launch
        "what a host takes longer to issue an operation for each of its channels, per GPU it serves",
    LaunchGap "launch.gap" "us" TIME Launch
        "between kernels that a stream is given one by one, above that between those of a graph",
    EfficiencyMemory "efficiency.memory" "of nominal" SHARE GpuMemory
        "what kernels that only copy read and write of a GPU's memory together",
    InterferenceMemory "interference.memory" "bytes" FACTOR GpuMemory
        "memory traffic that a byte sent by blocks costs the kernels beside them",
    InterferenceBlocks "interference.blocks" "times" FACTOR GpuMemory
        "how much longer a block of a communication kernel takes for a byte beside kernels that keep memory busy",
    GemmMemory "gemm.memory" "of nominal" SHARE GpuMemory
        "part of the memory system that a large matrix product keeps busy, by what it slows blocks beside it",
    PowerSpeed "power.speed" "exponent" FACTOR Power
        "how the speed of a product follows its power where the power limit sets the clock",
    PowerTraffic "power.traffic" "of the limit" FACTOR Power
        "power that a communication kernel takes from products, of what they have alone, for each TB/s that it sends",
    EfficiencyStridedCopy "efficiency.strided_copy" "of nominal" SHARE Framework
        "of what plain copies get, what frameworks get that copy many tensors into or out of one buffer",
    CopyEngineStart "copy_engine.start" "us" TIME CopyEngine
        "of a copy by a copy engine, from its turn to its first byte",
    StreamEvent "stream.event" "us" TIME Launch
        "from the end of an operation to the start of one of another stream that waits for it",
    LaunchKernel "launch.kernel" "us" TIME Framework
        "work of the host thread of a framework to launch one kernel",
    LaunchCollective "launch.collective" "us" TIME Framework
        "work of the host thread of a framework to launch one collective",
    LaunchFirst "launch.first" "us" TIME Launch
        "from the call to the kernel's start when nothing is queued",
    KernelEvent "kernel.event" "us" TIME Launch
        "what NCCL's event after each call in a CUDA graph takes, a part of `kernel.*` (`NCCL_GRAPH_MIXING_SUPPORT`)",
}
