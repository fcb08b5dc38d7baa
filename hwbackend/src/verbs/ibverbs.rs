//! libibverbs, bound by hand and found at run time: types and numbers of its `verbs.h`, which are the same since version 1.1.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::Error as Os;
use std::mem::offset_of;
use std::sync::LazyLock;

use libloading::Library;
use rustix::io::Errno;

/// Handles of which nothing is read here.
pub(super) type Device = c_void;
pub(super) type Domain = c_void;

/// `IBV_LINK_LAYER_ETHERNET`.
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_GID_TYPE_ROCE_V2`, as the table of addresses has it.
pub(super) const GID_TYPE_ROCE_V2: u32 = 2;

/// `enum ibv_port_state`.
pub(super) mod port_state {
    pub(crate) const DOWN: u32 = 1;
    pub(crate) const INIT: u32 = 2;
    pub(crate) const ARMED: u32 = 3;
    pub(crate) const ACTIVE: u32 = 4;
}

/// `enum ibv_access_flags`.
pub(super) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
}

/// `enum ibv_qp_state`.
pub(super) mod pair_state {
    pub(crate) const INIT: u32 = 1;
    pub(crate) const READY_TO_RECEIVE: u32 = 2;
    pub(crate) const READY_TO_SEND: u32 = 3;
    pub(crate) const ERROR: u32 = 6;
}

/// `enum ibv_qp_attr_mask`.
pub(super) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
}

/// `IBV_QPT_RC`.
pub(super) const RELIABLE_CONNECTION: u32 = 2;

/// `enum ibv_wr_opcode`.
pub(super) mod request {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
}

/// `enum ibv_send_flags`.
pub(super) mod send {
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const INLINE: u32 = 1 << 3;
}

/// `IBV_WC_SUCCESS`, and the bit that opcodes of receives have, `IBV_WC_RECV`.
pub(super) const SUCCESS: u32 = 0;
pub(super) const RECEIVED: u32 = 1 << 7;

/// `struct ibv_context`, up to the calls that `verbs.h` has no symbols for: a driver puts them there.
#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    others: [*const c_void; 11],
    poll_cq: unsafe extern "C" fn(*mut Queue, c_int, *mut Completion) -> c_int,
    req_notify_cq: unsafe extern "C" fn(*mut Queue, c_int) -> c_int,
    more: [*const c_void; 12],
    post_send: unsafe extern "C" fn(*mut RawPair, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    post_recv: unsafe extern "C" fn(*mut RawPair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int,
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub(super) struct DeviceAttributes {
    firmware: [u8; 64],
    numbers: [u64; 4],
    ids: [u32; 3],
    max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    flags_and_pieces: [c_int; 3],
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    others: [c_int; 24],
}

/// `struct ibv_port_attr`.
#[repr(C)]
pub(super) struct PortAttributes {
    pub(super) state: u32,
    max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    flags_and_counts: [u32; 4],
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    others: [u8; 8],
    pub(super) link_layer: u8,
    flags: u8,
    more_flags: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C, align(8))]
#[derive(Clone)]
pub(super) struct GidEntry {
    pub(super) gid: [u8; 16],
    pub(super) index: u32,
    pub(super) port: u32,
    pub(super) kind: u32,
    interface: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct RawRegion {
    handles: [*mut c_void; 3],
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct Channel {
    context: *mut Context,
    pub(super) fd: c_int,
    references: c_int,
}

/// `struct ibv_cq`, up to what is read here.
#[repr(C)]
pub(super) struct Queue {
    context: *mut Context,
}

/// `struct ibv_wc`.
#[repr(C)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In the network's order.
    pub(super) immediate: u32,
    numbers: [u32; 3],
    ids: [u16; 2],
    bits: [u8; 2],
}

/// `struct ibv_qp`, up to what is read here.
#[repr(C)]
pub(super) struct RawPair {
    context: *mut Context,
    handles: [*mut c_void; 5],
    handle: u32,
    pub(super) number: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
pub(super) struct Capacity {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct PairWanted {
    context: *mut c_void,
    pub(super) send_cq: *mut Queue,
    pub(super) recv_cq: *mut Queue,
    shared: *mut c_void,
    pub(super) cap: Capacity,
    pub(super) qp_type: u32,
    signal_all: c_int,
}

/// `struct ibv_ah_attr`, with the fields of `struct ibv_global_route` in front.
#[repr(C, align(8))]
pub(super) struct Path {
    pub(super) dgid: [u8; 16],
    flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    traffic_class: u8,
    pub(super) dlid: u16,
    others: [u8; 3],
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
pub(super) struct PairAttributes {
    pub(super) qp_state: u32,
    now: u32,
    pub(super) path_mtu: u32,
    migration: u32,
    qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    cap: Capacity,
    pub(super) path: Path,
    other_path: Path,
    pkey_indices: [u16; 2],
    draining: [u8; 2],
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    others: [u8; 2],
    rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    next: *mut SendRequest,
    pub(super) sg_list: *mut Piece,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    /// In the network's order.
    pub(super) immediate: u32,
    pub(super) remote_address: u64,
    pub(super) rkey: u32,
    others: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct ReceiveRequest {
    pub(super) wr_id: u64,
    next: *mut ReceiveRequest,
    pub(super) sg_list: *mut Piece,
    pub(super) num_sge: c_int,
}

// As a C compiler lays them out, where pointers have 64 bits.
const _: () = {
    assert!(offset_of!(Context, poll_cq) == 96 && offset_of!(Context, post_send) == 208);
    assert!(offset_of!(DeviceAttributes, max_qp_wr) == 112 && offset_of!(DeviceAttributes, max_cqe) == 132);
    assert!(size_of::<DeviceAttributes>() == 232);
    assert!(offset_of!(PortAttributes, lid) == 34 && offset_of!(PortAttributes, link_layer) == 46);
    assert!(size_of::<PortAttributes>() == 52);
    assert!(offset_of!(GidEntry, kind) == 24 && size_of::<GidEntry>() == 32);
    assert!(offset_of!(RawRegion, rkey) == 40 && offset_of!(Channel, fd) == 8 && offset_of!(RawPair, number) == 52);
    assert!(offset_of!(Completion, immediate) == 24 && size_of::<Completion>() == 48);
    assert!(offset_of!(PairWanted, qp_type) == 52 && size_of::<PairWanted>() == 64);
    assert!(offset_of!(Path, sgid_index) == 20 && offset_of!(Path, dlid) == 24 && offset_of!(Path, port_num) == 30);
    assert!(offset_of!(PairAttributes, path) == 56 && offset_of!(PairAttributes, max_rd_atomic) == 126);
    assert!(offset_of!(PairAttributes, rnr_retry) == 132 && size_of::<PairAttributes>() == 144);
    assert!(offset_of!(SendRequest, immediate) == 36 && offset_of!(SendRequest, rkey) == 48);
    assert!(size_of::<SendRequest>() == 128 && size_of::<ReceiveRequest>() == 32 && size_of::<Piece>() == 16);
};

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty,)+) => {
        /// Its calls.
        #[derive(Debug)]
        pub(super) struct Calls {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)+
            reg_mr_iova2: Option<unsafe extern "C" fn(*mut Domain, *mut c_void, usize, u64, c_uint) -> *mut RawRegion>,
            reg_dmabuf_mr: Option<unsafe extern "C" fn(*mut Domain, u64, usize, u64, c_int, c_int) -> *mut RawRegion>,
            query_gid_table: Option<unsafe extern "C" fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize>,
        }

        impl Calls {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of `verbs.h`. The calls that may be missing came with rdma-core 28 to 34.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(concat!("ibv_", stringify!($name), "\0").as_bytes())?,)+
                        reg_mr_iova2: library.get(b"ibv_reg_mr_iova2\0").ok().map(|call| *call),
                        reg_dmabuf_mr: library.get(b"ibv_reg_dmabuf_mr\0").ok().map(|call| *call),
                        query_gid_table: library.get(b"_ibv_query_gid_table\0").ok().map(|call| *call),
                    })
                }
            }
        }
    };
}

functions! {
    get_device_list: fn(*mut c_int) -> *mut *mut Device,
    free_device_list: fn(*mut *mut Device) -> (),
    get_device_name: fn(*mut Device) -> *const c_char,
    open_device: fn(*mut Device) -> *mut Context,
    close_device: fn(*mut Context) -> c_int,
    query_device: fn(*mut Context, *mut DeviceAttributes) -> c_int,
    query_port: fn(*mut Context, u8, *mut PortAttributes) -> c_int,
    alloc_pd: fn(*mut Context) -> *mut Domain,
    dealloc_pd: fn(*mut Domain) -> c_int,
    reg_mr: fn(*mut Domain, *mut c_void, usize, c_int) -> *mut RawRegion,
    dereg_mr: fn(*mut RawRegion) -> c_int,
    create_comp_channel: fn(*mut Context) -> *mut Channel,
    destroy_comp_channel: fn(*mut Channel) -> c_int,
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Queue,
    destroy_cq: fn(*mut Queue) -> c_int,
    get_cq_event: fn(*mut Channel, *mut *mut Queue, *mut *mut c_void) -> c_int,
    ack_cq_events: fn(*mut Queue, c_uint) -> (),
    create_qp: fn(*mut Domain, *mut PairWanted) -> *mut RawPair,
    modify_qp: fn(*mut RawPair, *mut PairAttributes, c_int) -> c_int,
    destroy_qp: fn(*mut RawPair) -> c_int,
    wc_status_str: fn(u32) -> *const c_char,
}

/// The library, looked for once; what the loader says where it is not there.
pub(super) fn calls() -> Result<&'static Calls, &'static str> {
    static CALLS: LazyLock<Result<Calls, String>> = LazyLock::new(|| {
        // SAFETY: rdma-core's own library, whose initialisers have no conditions.
        let library = unsafe { Library::new("libibverbs.so.1") }.map_err(|error| error.to_string())?;
        let calls = Calls::load(&library).map_err(|error| error.to_string());
        std::mem::forget(library); // The calls are used as long as the program runs.
        calls
    });
    CALLS.as_ref().map_err(String::as_str)
}

/// What a library says that does not have a call.
fn unknown() -> Os {
    Errno::OPNOTSUPP.into()
}

fn region(region: *mut RawRegion) -> Result<*mut RawRegion, Os> {
    if region.is_null() { Err(Os::last_os_error()) } else { Ok(region) }
}

impl Calls {
    /// Registers memory with flags that an older kernel may not know.
    ///
    /// # Safety
    /// A domain that lives; memory that outlives the region.
    pub(super) unsafe fn register_relaxed(
        &self,
        domain: *mut Domain,
        base: *mut c_void,
        bytes: usize,
        access: u32,
    ) -> Result<*mut RawRegion, Os> {
        let call = self.reg_mr_iova2.ok_or_else(unknown)?;
        // SAFETY: as the caller says.
        region(unsafe { call(domain, base, bytes, base as u64, access) })
    }

    /// Registers memory.
    ///
    /// # Safety
    /// As of [`Self::register_relaxed`].
    pub(super) unsafe fn register(
        &self,
        domain: *mut Domain,
        base: *mut c_void,
        bytes: usize,
        access: u32,
    ) -> Result<*mut RawRegion, Os> {
        // SAFETY: as the caller says.
        region(unsafe { (self.reg_mr)(domain, base, bytes, access.cast_signed()) })
    }

    /// Registers memory of a device, from its start.
    ///
    /// # Safety
    /// A domain that lives, a descriptor that is open.
    pub(super) unsafe fn register_shared(
        &self,
        domain: *mut Domain,
        descriptor: c_int,
        (address, bytes): (u64, usize),
        access: u32,
    ) -> Result<*mut RawRegion, Os> {
        let call = self.reg_dmabuf_mr.ok_or_else(unknown)?;
        // SAFETY: as the caller says.
        region(unsafe { call(domain, 0, bytes, address, descriptor, access.cast_signed()) })
    }

    /// Fills in addresses of a device; how many.
    ///
    /// # Safety
    /// A context that is open.
    pub(super) unsafe fn gids(&self, context: *mut Context, entries: &mut [GidEntry]) -> Result<usize, Os> {
        let call = self.query_gid_table.ok_or_else(unknown)?;
        // SAFETY: as the caller says, and place for as many entries.
        let found = unsafe { call(context, entries.as_mut_ptr(), entries.len(), 0, size_of::<GidEntry>()) };
        usize::try_from(found).map_err(|_| Os::from_raw_os_error(i32::try_from(-found).unwrap_or(0)))
    }
}

/// # Safety
/// A queue that lives, and place for so many completions.
pub(super) unsafe fn poll_cq(queue: *mut Queue, most: c_int, into: *mut Completion) -> c_int {
    // SAFETY: as the caller says; its driver has filled in the call.
    unsafe { ((*(*queue).context).poll_cq)(queue, most, into) }
}

/// # Safety
/// A queue that lives.
pub(super) unsafe fn req_notify_cq(queue: *mut Queue, solicited: c_int) -> c_int {
    // SAFETY: as of `poll_cq`.
    unsafe { ((*(*queue).context).req_notify_cq)(queue, solicited) }
}

/// # Safety
/// A pair that lives; memory that is registered, and stays until the request is done.
pub(super) unsafe fn post_send(pair: *mut RawPair, request: *mut SendRequest, bad: *mut *mut SendRequest) -> c_int {
    // SAFETY: as of `poll_cq`.
    unsafe { ((*(*pair).context).post_send)(pair, request, bad) }
}

/// # Safety
/// As of [`post_send`].
pub(super) unsafe fn post_recv(
    pair: *mut RawPair,
    request: *mut ReceiveRequest,
    bad: *mut *mut ReceiveRequest,
) -> c_int {
    // SAFETY: as of `poll_cq`.
    unsafe { ((*(*pair).context).post_recv)(pair, request, bad) }
}
