//! What is used of libibverbs, with owners that free what they hold: NICs, registered memory, completion
//! queues, queue pairs of reliable connections.
//!
//! The library is looked for when the program starts, by `rdma-mummy-sys`; where it is not there, its
//! calls say so.

use std::ffi::{CStr, c_int, c_uint};
use std::io::Error as Os;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use rdma_mummy_sys::{
    IBV_LINK_LAYER_ETHERNET, ibv_access_flags, ibv_ack_cq_events, ibv_alloc_pd, ibv_close_device, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_dealloc_pd, ibv_dereg_mr,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp, ibv_device, ibv_device_attr, ibv_free_device_list,
    ibv_get_cq_event, ibv_get_device_list, ibv_get_device_name, ibv_gid_entry, ibv_modify_qp, ibv_mr, ibv_open_device,
    ibv_pd, ibv_poll_cq, ibv_port_attr, ibv_port_state, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_query_device, ibv_query_gid_table,
    ibv_query_port, ibv_recv_wr, ibv_reg_dmabuf_mr, ibv_reg_mr, ibv_reg_mr_iova2, ibv_req_notify_cq, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wc_status_str, ibv_wr_opcode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::acknowledgement::{RETRIES, timeout};
use super::memory::Memory;
use crate::exec::ExecError;

/// Ports are numbered from 1; of a NIC with several this one is used.
const PORT: u8 = 1;
/// Where packets of a connection begin to count. Any number does, as long as both ends know it.
const FIRST_PACKET: u32 = 0;
/// Hops that packets may take through routers.
const HOPS: u8 = 64;
/// How often a NIC sends again what finds no receive posted; 7 would be for ever.
const RETRIES_UNREADY: u8 = 6;
/// Wait of a sender that found no receive posted: 0.64 ms (InfiniBand specification, volume 1, RNR NAK timer field).
const UNREADY: u8 = 12;

/// A call that failed, with what the system says.
fn failed(call: &'static str, error: &Os) -> ExecError {
    ExecError::Library { call, message: error.to_string() }
}

/// The same of a call that returns an error's number.
fn check(call: &'static str, code: c_int) -> Result<(), ExecError> {
    if code == 0 { Ok(()) } else { Err(failed(call, &Os::from_raw_os_error(code.abs()))) }
}

fn missing(what: String) -> ExecError {
    ExecError::Missing {
        what,
        hint: "verbs want rdma-core (Debian: libibverbs1, ibverbs-providers) and a NIC that `ibv_devinfo` shows; \
               `rdma link add rxe0 type rxe netdev eth0` makes one of any Ethernet port; --backend host runs \
               schedules on this CPU"
            .to_owned(),
    }
}

/// The devices of this host; freed together.
struct Devices {
    list: *mut *mut ibv_device,
    count: usize,
}

impl Devices {
    fn find() -> Result<Self, ExecError> {
        let mut count = 0;
        // SAFETY: a place for the number of devices.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            let error = Os::last_os_error();
            return Err(missing(match error.raw_os_error().map(Errno::from_raw_os_error) {
                // So say the bindings where they have not found the library.
                Some(Errno::OPNOTSUPP) => "RDMA takes libibverbs.so.1, which this host has not".to_owned(),
                Some(Errno::NOSYS) => "this host has no RDMA: its kernel has no module for it loaded".to_owned(),
                _ => format!("no RDMA device can be asked for: {error}"),
            }));
        }
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn named(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has `count` devices, whose names are strings that live as long as it does.
            unsafe {
                let device = *self.list.add(index);
                (CStr::from_ptr(ibv_get_device_name(device)).to_string_lossy().into_owned(), device)
            }
        })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: a list that `ibv_get_device_list` made.
        unsafe { ibv_free_device_list(self.list) };
    }
}

/// A NIC with a port that is up.
#[derive(Debug)]
pub(crate) struct Nic {
    /// Its name, such as `mlx5_0`.
    pub(crate) name: String,
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    port: Port,
    /// Most entries of a completion queue, and work requests of a queue pair.
    most: (u32, u32),
}

/// A port, as its peers address it.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    ethernet: bool,
    lid: u16,
    /// 1 to 5 for 256 B to 4096 B.
    mtu: u32,
    gid: [u8; 16],
    gid_index: u8,
}

// SAFETY: libibverbs allows its objects to be used from any thread; those of one NIC are used by one at a time.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

impl Nic {
    /// Opens NICs by their names, or all whose port is up.
    ///
    /// # Errors
    /// No library, no device, a name that no device has, a port that is down.
    pub(crate) fn open(names: &[String]) -> Result<Vec<Arc<Self>>, ExecError> {
        let devices = Devices::find()?;
        let known: Vec<String> = devices.named().map(|(name, _)| name).collect();
        if known.is_empty() {
            return Err(missing("this host has no RDMA device".to_owned()));
        }
        if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
            return Err(missing(format!("no RDMA device `{unknown}`; there are {}", known.join(", "))));
        }
        let mut nics = Vec::new();
        let mut down = None;
        let wanted = if names.is_empty() { &known } else { names };
        for (name, device) in wanted.iter().filter_map(|want| devices.named().find(|(name, _)| name == want)) {
            match Self::of(name, device) {
                Ok(nic) => nics.push(Arc::new(nic)),
                Err(error) if names.is_empty() => down = Some(error),
                Err(error) => return Err(error),
            }
        }
        match down {
            Some(error) if nics.is_empty() => Err(error),
            _ => Ok(nics),
        }
    }

    fn of(name: String, device: *mut ibv_device) -> Result<Self, ExecError> {
        // SAFETY: a device of a list that still lives.
        let context = unsafe { ibv_open_device(device) };
        if context.is_null() {
            return Err(missing(format!("RDMA device `{name}` cannot be opened: {}", Os::last_os_error())));
        }
        let mut nic = Self { name, context, domain: null_mut(), port: Port::default(), most: (0, 0) };
        // SAFETY: a context that is open.
        nic.domain = unsafe { ibv_alloc_pd(context) };
        if nic.domain.is_null() {
            return Err(failed("ibv_alloc_pd", &Os::last_os_error()));
        }
        // SAFETY: numbers and arrays of them, for which zeros are values.
        let mut limits: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: a place for what the device can do.
        check("ibv_query_device", unsafe { ibv_query_device(context, &raw mut limits) })?;
        nic.most = (limits.max_cqe.cast_unsigned(), limits.max_qp_wr.cast_unsigned());
        let attributes = nic.attributes()?;
        if attributes.state != ibv_port_state::IBV_PORT_ACTIVE {
            return Err(ExecError::Missing {
                what: format!("port {PORT} of RDMA device `{}` is {}", nic.name, state(attributes.state)),
                hint: "bring it up (`ip link set NETDEV up`, or the subnet manager), or name another NIC with --nics"
                    .to_owned(),
            });
        }
        nic.port = Port {
            ethernet: attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
            lid: attributes.lid,
            mtu: attributes.active_mtu,
            ..Port::default()
        };
        (nic.port.gid, nic.port.gid_index) = nic.gid(attributes.gid_tbl_len)?;
        Ok(nic)
    }

    fn attributes(&self) -> Result<ibv_port_attr, ExecError> {
        // SAFETY: numbers alone.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: a context that is open, and a place for what its port is.
        check("ibv_query_port", unsafe { ibv_query_port(self.context, PORT, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// What is wrong with the port now; nothing where it is up.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.attributes() {
            Ok(attributes) if attributes.state == ibv_port_state::IBV_PORT_ACTIVE => None,
            Ok(attributes) => Some(format!("port {PORT} of {} is {}", self.name, state(attributes.state))),
            Err(error) => Some(format!("{} does not answer: {error}", self.name)),
        }
    }

    /// The address that the port is reached by. On Ethernet one of RoCE v2, over IPv4 where there is one: it is
    /// routed, and NCCL takes it too.
    fn gid(&self, length: c_int) -> Result<([u8; 16], u8), ExecError> {
        /// `IBV_GID_TYPE_ROCE_V2`.
        const ROCE_V2: u32 = 2;
        let length = usize::try_from(length).unwrap_or(0).clamp(1, 256);
        // SAFETY: numbers alone.
        let mut entries: Vec<ibv_gid_entry> = vec![unsafe { std::mem::zeroed() }; length];
        // SAFETY: place for `length` entries.
        let found = unsafe { ibv_query_gid_table(self.context, entries.as_mut_ptr(), length, 0) };
        entries.truncate(usize::try_from(found).map_err(|_| failed("ibv_query_gid_table", &Os::last_os_error()))?);
        // SAFETY: every bit pattern is an address.
        let raw = |entry: &ibv_gid_entry| unsafe { entry.gid.raw };
        let rank = |entry: &&ibv_gid_entry| {
            let mapped = raw(entry)[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let routed = entry.gid_type == ROCE_V2;
            (self.port.ethernet && routed, mapped, std::cmp::Reverse(entry.gid_index))
        };
        let entry = entries.iter().filter(|entry| entry.port_num == u32::from(PORT)).max_by_key(rank);
        let entry = entry.ok_or_else(|| missing(format!("port {PORT} of `{}` has no address (GID)", self.name)))?;
        Ok((raw(entry), u8::try_from(entry.gid_index).unwrap_or(0)))
    }

    /// Registers memory that is at an address: of the host, or of a GPU where the kernel's peer memory knows it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn register(self: &Arc<Self>, address: u64, bytes: usize, order: Order) -> Result<Region, Os> {
        let base = address as *mut std::ffi::c_void;
        // SAFETY: memory that its owner frees after the region. The second call leaves out what a kernel does not know.
        let region = unsafe {
            match order {
                Order::Strict => ibv_reg_mr(self.domain, base, bytes, order.access()),
                Order::Relaxed => ibv_reg_mr_iova2(self.domain, base, bytes, address, order.access().cast_unsigned()),
            }
        };
        Region::of(region, self)
    }

    /// The same of memory of a device, which a descriptor stands for.
    ///
    /// # Errors
    /// What the system says; `EOPNOTSUPP` where the library, the kernel or the NIC does not know such descriptors.
    pub(crate) fn register_shared(
        self: &Arc<Self>,
        descriptor: &OwnedFd,
        address: u64,
        bytes: usize,
        order: Order,
    ) -> Result<Region, Os> {
        // SAFETY: a descriptor that is open. The region keeps what it stands for.
        let region =
            unsafe { ibv_reg_dmabuf_mr(self.domain, 0, bytes, address, descriptor.as_raw_fd(), order.access()) };
        Region::of(region, self)
    }

    /// What it is, in words.
    pub(crate) fn words(&self) -> String {
        let layer = if self.port.ethernet { "RoCE" } else { "InfiniBand" };
        format!("{} ({layer}, MTU {} B)", self.name, self.mtu())
    }

    fn mtu(&self) -> u32 {
        128_u32 << self.port.mtu.clamp(1, 5)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: all that was made of them holds this NIC, so it is gone. Nothing can be done where a call fails.
        unsafe {
            if !self.domain.is_null() {
                ibv_dealloc_pd(self.domain);
            }
            ibv_close_device(self.context);
        }
    }
}

fn state(state: c_uint) -> &'static str {
    match state {
        ibv_port_state::IBV_PORT_DOWN => "down",
        ibv_port_state::IBV_PORT_INIT => "not set up yet",
        ibv_port_state::IBV_PORT_ARMED => "armed, and not active",
        ibv_port_state::IBV_PORT_ACTIVE => "active",
        _ => "in an unknown state",
    }
}

/// Whether writes of NICs may reach memory in another order than they were sent in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// As they were sent.
    Strict,
    /// In any; a completion still follows all that it tells of (PCIe's relaxed ordering).
    Relaxed,
}

impl Order {
    fn access(self) -> c_int {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        match self {
            Self::Strict => access.0.cast_signed(),
            Self::Relaxed => (access | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING).0.cast_signed(),
        }
    }
}

/// Memory that a NIC may read and write, until dropped.
#[derive(Debug)]
pub(crate) struct Region {
    region: *mut ibv_mr,
    _nic: Arc<Nic>,
}

// SAFETY: as for NICs.
unsafe impl Send for Region {}
// SAFETY: as for NICs.
unsafe impl Sync for Region {}

impl Region {
    fn of(region: *mut ibv_mr, nic: &Arc<Nic>) -> Result<Self, Os> {
        if region.is_null() { Err(Os::last_os_error()) } else { Ok(Self { region, _nic: Arc::clone(nic) }) }
    }

    /// The keys of work requests of ours, and of those of peers.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: a region that is registered.
        unsafe { ((*self.region).lkey, (*self.region).rkey) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: a region that is registered; queue pairs that use it are gone, or fail.
        unsafe { ibv_dereg_mr(self.region) };
    }
}

/// What happened to a work request of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// All up to this one have been sent and acknowledged.
    Sent,
    /// A message with this immediate value and so many bytes arrived.
    Arrived(u32, u32),
    /// The queue pair is in error: the status and the vendor's code.
    Failed(&'static str, u32),
}

/// A completion queue with the channel that wakes who waits for it.
#[derive(Debug)]
pub(crate) struct Completions {
    queue: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    nic: Arc<Nic>,
}

// SAFETY: as for NICs.
unsafe impl Send for Completions {}
// SAFETY: as for NICs.
unsafe impl Sync for Completions {}

impl Completions {
    /// A queue with room for so many.
    ///
    /// # Errors
    /// More than the NIC has.
    pub(crate) fn new(nic: &Arc<Nic>, entries: u32) -> Result<Self, ExecError> {
        if entries > nic.most.0 {
            return Err(ExecError::Refused {
                what: format!("{entries} completions may be under way, and {} keeps {}", nic.name, nic.most.0),
                hint: "take fewer --channels or --qps",
            });
        }
        // SAFETY: a context that is open.
        let channel = unsafe { ibv_create_comp_channel(nic.context) };
        if channel.is_null() {
            return Err(failed("ibv_create_comp_channel", &Os::last_os_error()));
        }
        let mut queue = Self { queue: null_mut(), channel, nic: Arc::clone(nic) };
        // SAFETY: a context and a channel that are open; no context of ours.
        queue.queue = unsafe { ibv_create_cq(nic.context, entries.max(1).cast_signed(), null_mut(), channel, 0) };
        if queue.queue.is_null() {
            return Err(failed("ibv_create_cq", &Os::last_os_error()));
        }
        Ok(queue)
    }

    /// Takes what is there: the number that a work request was posted with, and what happened.
    ///
    /// # Errors
    /// The queue overflowed.
    pub(crate) fn poll(&self, done: &mut Vec<(u64, Done)>) -> Result<(), ExecError> {
        /// Taken at once.
        const MOST: usize = 16;
        // SAFETY: numbers alone.
        let mut entries: [ibv_wc; MOST] = unsafe { std::mem::zeroed() };
        // SAFETY: place for so many.
        let found = unsafe { ibv_poll_cq(self.queue, MOST as i32, entries.as_mut_ptr()) };
        let found = usize::try_from(found).map_err(|_| failed("ibv_poll_cq", &Os::from_raw_os_error(-found)))?;
        done.extend(entries[..found].iter().map(|entry| {
            let what = if entry.status != ibv_wc_status::IBV_WC_SUCCESS {
                // SAFETY: any status has a string.
                let words = unsafe { CStr::from_ptr(ibv_wc_status_str(entry.status)) };
                Done::Failed(words.to_str().unwrap_or("unknown status"), entry.vendor_err)
            } else if entry.opcode & ibv_wc_opcode::IBV_WC_RECV != 0 {
                // SAFETY: a number, whichever of the two it is.
                let immediate = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
                Done::Arrived(u32::from_be(immediate), entry.byte_len)
            } else {
                Done::Sent
            };
            (entry.wr_id, what)
        }));
        Ok(())
    }

    /// Asks to be woken by the next completion; those that are there already do not count.
    pub(crate) fn arm(&self) -> Result<(), ExecError> {
        // SAFETY: a queue that lives.
        check("ibv_req_notify_cq", unsafe { ibv_req_notify_cq(self.queue, 0) })
    }

    fn descriptor(&self) -> RawFd {
        // SAFETY: a channel that lives.
        unsafe { (*self.channel).fd }
    }

    /// Takes the event that woke us.
    fn acknowledge(&self) {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: an event is there, so the call does not block.
        unsafe {
            if ibv_get_cq_event(self.channel, &raw mut queue, &raw mut context) == 0 {
                ibv_ack_cq_events(queue, 1);
            }
        }
    }
}

/// Sleeps until a completion of an armed queue is there, or for so long.
///
/// # Errors
/// What the system says.
pub(crate) fn sleep(queues: &[Completions], longest: Duration) -> Result<(), ExecError> {
    // SAFETY: descriptors of channels that live as long as the slice is borrowed.
    let descriptors: Vec<_> = queues.iter().map(|q| unsafe { BorrowedFd::borrow_raw(q.descriptor()) }).collect();
    let mut polled: Vec<_> = descriptors.iter().map(|d| PollFd::new(d, PollFlags::IN)).collect();
    let limit = Timespec::try_from(longest).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(ExecError::Library { call: "poll", message: error.to_string() }),
    }
    let woken = polled.iter().map(|p| p.revents().contains(PollFlags::IN)).collect::<Vec<_>>();
    queues.iter().zip(woken).filter(|(_, woken)| *woken).for_each(|(queue, _)| queue.acknowledge());
    Ok(())
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: all queue pairs that use them hold them, so they are gone.
        unsafe {
            if !self.queue.is_null() {
                ibv_destroy_cq(self.queue);
            }
            ibv_destroy_comp_channel(self.channel);
        }
    }
}

/// How a queue pair is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    number: u32,
    lid: u16,
    mtu: u32,
    gid: [u8; 16],
}

/// Bytes at a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// What a work request carries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    /// RDMA write.
    Write(Remote),
    /// RDMA write with an immediate value, which the peer's posted receive takes.
    WriteImmediate(Remote, u32),
    /// A message that goes where the peer's posted receive says.
    Send,
}

/// A queue pair of a reliable connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pair: *mut ibv_qp,
    nic: Arc<Nic>,
    /// Index of the NIC among those that memory is registered with.
    pub(crate) place: usize,
    /// Bytes that a work request can carry itself.
    inline: u32,
}

// SAFETY: as for NICs.
unsafe impl Send for Pair {}

/// Depths of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depths {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
}

impl Pair {
    /// A queue pair whose completions come by one queue, that of the same NIC.
    ///
    /// # Errors
    /// More work requests or queue pairs than the NIC has.
    pub(crate) fn new(queue: &Completions, place: usize, depths: Depths) -> Result<Self, ExecError> {
        let nic = &queue.nic;
        if depths.sends.max(depths.receives) > nic.most.1 {
            return Err(ExecError::Refused {
                what: format!("a queue pair of {depths:?}, and {} has {}", nic.name, nic.most.1),
                hint: "take a protocol with fewer slices",
            });
        }
        // What NICs commonly carry inline at least (mlx5, rxe); asked for less where it is too much.
        let asked = [64, 0];
        for inline in asked {
            // SAFETY: numbers and pointers, for which zeros are values.
            let mut wanted: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
            (wanted.send_cq, wanted.recv_cq) = (queue.queue, queue.queue);
            wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
            (wanted.cap.max_send_wr, wanted.cap.max_recv_wr) = (depths.sends.max(1), depths.receives.max(1));
            (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
            wanted.cap.max_inline_data = inline;
            // SAFETY: a domain and queues that live as long as the pair: it holds their NIC, and whoever made it them.
            let pair = unsafe { ibv_create_qp(nic.domain, &raw mut wanted) };
            if !pair.is_null() {
                let pair = Self { pair, nic: Arc::clone(nic), place, inline: wanted.cap.max_inline_data };
                pair.initialise()?;
                return Ok(pair);
            }
        }
        Err(failed("ibv_create_qp", &Os::last_os_error()))
    }

    fn modify(&self, mut to: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), ExecError> {
        // SAFETY: a pair that lives, and attributes that the mask names.
        let code = unsafe { ibv_modify_qp(self.pair, &raw mut to, mask.0.cast_signed()) };
        check("ibv_modify_qp", code).map_err(|error| match error {
            ExecError::Library { call, message } => {
                ExecError::Library { call, message: format!("{message} (state {}, {})", to.qp_state, self.nic.name) }
            }
            other => other,
        })
    }

    fn initialise(&self) -> Result<(), ExecError> {
        use ibv_qp_attr_mask as M;
        let mut to = attributes(ibv_qp_state::IBV_QPS_INIT);
        to.port_num = PORT;
        to.qp_access_flags = (ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE).0;
        self.modify(to, M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS)
    }

    /// How peers reach it.
    pub(crate) fn address(&self) -> Address {
        let port = &self.nic.port;
        // SAFETY: a pair that lives.
        let number = unsafe { (*self.pair).qp_num };
        Address { number, lid: port.lid, mtu: port.mtu, gid: port.gid }
    }

    /// Connects to a peer; it can be sent to once it has done the same. The NIC gives up on a peer that does not
    /// acknowledge about when `patience` is over.
    ///
    /// # Errors
    /// An address that cannot be reached.
    pub(crate) fn connect(&self, peer: &Address, patience: Duration) -> Result<(), ExecError> {
        use ibv_qp_attr_mask as M;
        let port = &self.nic.port;
        let mut ready = attributes(ibv_qp_state::IBV_QPS_RTR);
        ready.path_mtu = port.mtu.min(peer.mtu);
        (ready.dest_qp_num, ready.rq_psn) = (peer.number, FIRST_PACKET);
        (ready.max_dest_rd_atomic, ready.min_rnr_timer) = (1, UNREADY);
        (ready.ah_attr.dlid, ready.ah_attr.port_num) = (peer.lid, PORT);
        if port.ethernet {
            ready.ah_attr.is_global = 1;
            ready.ah_attr.grh.dgid.raw = peer.gid;
            (ready.ah_attr.grh.sgid_index, ready.ah_attr.grh.hop_limit) = (port.gid_index, HOPS);
        }
        let path = M::IBV_QP_STATE | M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        self.modify(ready, path | M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER)?;
        let mut send = attributes(ibv_qp_state::IBV_QPS_RTS);
        (send.timeout, send.retry_cnt, send.rnr_retry) = (timeout(patience), RETRIES, RETRIES_UNREADY);
        (send.sq_psn, send.max_rd_atomic) = (FIRST_PACKET, 1);
        let times = M::IBV_QP_STATE | M::IBV_QP_TIMEOUT | M::IBV_QP_RETRY_CNT | M::IBV_QP_RNR_RETRY;
        self.modify(send, times | M::IBV_QP_SQ_PSN | M::IBV_QP_MAX_QP_RD_ATOMIC)
    }

    /// Puts it into error, as a NIC does that gave up; for tests of what then happens.
    pub(crate) fn fail(&self) -> Result<(), ExecError> {
        self.modify(attributes(ibv_qp_state::IBV_QPS_ERR), ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// Whether a work request of so many bytes carries them itself: their memory is free once it is posted.
    pub(crate) fn inlines(&self, length: u32) -> bool {
        length <= self.inline
    }

    /// Posts a work request of `length` bytes of the memory from `at`; whether its completion is told.
    ///
    /// # Errors
    /// A queue that is full, or in error.
    pub(crate) fn post(
        &self,
        verb: Verb,
        (memory, at, length): (&Memory, usize, u32),
        number: u64,
        signalled: bool,
    ) -> Result<(), ExecError> {
        assert!(at + length as usize <= memory.bytes(), "{at} + {length} bytes of {}", memory.bytes());
        let mut piece = ibv_sge { addr: memory.address() + at as u64, length, lkey: memory.keys(self.place).0 };
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = number;
        (request.sg_list, request.num_sge) = (&raw mut piece, c_int::from(length > 0));
        let (remote, immediate) = match verb {
            Verb::Write(remote) => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                (remote, 0)
            }
            Verb::WriteImmediate(remote, immediate) => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                (remote, immediate)
            }
            Verb::Send => {
                request.opcode = ibv_wr_opcode::IBV_WR_SEND;
                (Remote::default(), 0)
            }
        };
        request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
        (request.wr.rdma.remote_addr, request.wr.rdma.rkey) = (remote.address, remote.key);
        let flag = |set: bool, flag: ibv_send_flags| if set { flag.0 } else { 0 };
        request.send_flags = flag(signalled, ibv_send_flags::IBV_SEND_SIGNALED)
            | flag(length > 0 && memory.on_host() && self.inlines(length), ibv_send_flags::IBV_SEND_INLINE);
        let mut bad = null_mut();
        // SAFETY: a pair that lives; memory that is registered, and stays until the pair is gone.
        check("ibv_post_send", unsafe { ibv_post_send(self.pair, &raw mut request, &raw mut bad) })
    }

    /// Posts a receive, of a message into the memory where one is named.
    ///
    /// # Errors
    /// A queue that is full, or in error.
    pub(crate) fn post_receive(&self, number: u64, into: Option<(&Memory, usize, u32)>) -> Result<(), ExecError> {
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut request: ibv_recv_wr = unsafe { std::mem::zeroed() };
        let mut piece = into.map(|(memory, at, length)| {
            assert!(at + length as usize <= memory.bytes(), "{at} + {length} bytes of {}", memory.bytes());
            ibv_sge { addr: memory.address() + at as u64, length, lkey: memory.keys(self.place).0 }
        });
        if let Some(piece) = &mut piece {
            (request.sg_list, request.num_sge) = (&raw mut *piece, 1);
        }
        request.wr_id = number;
        let mut bad = null_mut();
        // SAFETY: a pair that lives; memory that is registered, and stays until the pair is gone.
        check("ibv_post_recv", unsafe { ibv_post_recv(self.pair, &raw mut request, &raw mut bad) })
    }

    /// Its NIC.
    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: a pair that lives. Nothing can be done where the call fails.
        unsafe { ibv_destroy_qp(self.pair) };
    }
}

fn attributes(state: c_uint) -> ibv_qp_attr {
    // SAFETY: numbers alone.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}
