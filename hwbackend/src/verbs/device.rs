//! What is used of libibverbs, with owners that free what they hold: NICs, registered memory, completion queues.

use std::ffi::{CStr, c_int, c_void};
use std::io::Error as Os;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::ibverbs::{
    Calls, Channel, Completion, Context, Device, DeviceAttributes, Domain, GID_TYPE_ROCE_V2, GidEntry,
    LINK_LAYER_ETHERNET, PortAttributes, Queue, RECEIVED, RawRegion, SUCCESS, access, calls, poll_cq, port_state,
    req_notify_cq,
};
use crate::exec::ExecError;

/// Ports are numbered from 1; of a NIC with several this one is used.
pub(super) const PORT: u8 = 1;

/// A call that failed, with what the system says.
pub(super) fn failed(call: &'static str, error: &Os) -> ExecError {
    ExecError::Library { call, message: error.to_string() }
}

/// The same of a call that returns an error's number.
pub(super) fn check(call: &'static str, code: c_int) -> Result<(), ExecError> {
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
    calls: &'static Calls,
    list: *mut *mut Device,
    count: usize,
}

impl Devices {
    fn find() -> Result<Self, ExecError> {
        let calls = calls().map_err(|error| missing(format!("RDMA takes libibverbs.so.1: {error}")))?;
        let mut count = 0;
        // SAFETY: a place for the number of devices.
        let list = unsafe { (calls.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = Os::last_os_error();
            return Err(missing(match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOSYS) => "this host has no RDMA: its kernel has no module for it loaded".to_owned(),
                _ => format!("no RDMA device can be asked for: {error}"),
            }));
        }
        Ok(Self { calls, list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn named(&self) -> impl Iterator<Item = (String, *mut Device)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has `count` devices, whose names are strings that live as long as it does.
            unsafe {
                let device = *self.list.add(index);
                (CStr::from_ptr((self.calls.get_device_name)(device)).to_string_lossy().into_owned(), device)
            }
        })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: a list that `ibv_get_device_list` made.
        unsafe { (self.calls.free_device_list)(self.list) };
    }
}

/// A NIC with a port that is up.
#[derive(Debug)]
pub(crate) struct Nic {
    /// Its name, such as `mlx5_0`.
    pub(crate) name: String,
    pub(super) calls: &'static Calls,
    context: *mut Context,
    pub(super) domain: *mut Domain,
    pub(super) port: Port,
    /// Most entries of a completion queue, and work requests of a queue pair.
    pub(super) most: (u32, u32),
}

/// A port, as its peers address it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port {
    pub(super) ethernet: bool,
    pub(super) lid: u16,
    /// 1 to 5 for 256 B to 4096 B.
    pub(super) mtu: u32,
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
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
            match Self::of(devices.calls, name, device) {
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

    fn of(calls: &'static Calls, name: String, device: *mut Device) -> Result<Self, ExecError> {
        // SAFETY: a device of a list that still lives.
        let context = unsafe { (calls.open_device)(device) };
        if context.is_null() {
            return Err(missing(format!("RDMA device `{name}` cannot be opened: {}", Os::last_os_error())));
        }
        let mut nic = Self { name, calls, context, domain: null_mut(), port: Port::default(), most: (0, 0) };
        // SAFETY: a context that is open.
        nic.domain = unsafe { (calls.alloc_pd)(context) };
        if nic.domain.is_null() {
            return Err(failed("ibv_alloc_pd", &Os::last_os_error()));
        }
        // SAFETY: numbers and arrays of them, for which zeros are values.
        let mut limits: DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: a place for what the device can do.
        check("ibv_query_device", unsafe { (calls.query_device)(context, &raw mut limits) })?;
        nic.most = (limits.max_cqe.cast_unsigned(), limits.max_qp_wr.cast_unsigned());
        let attributes = nic.attributes()?;
        if attributes.state != port_state::ACTIVE {
            return Err(ExecError::Missing {
                what: format!("port {PORT} of RDMA device `{}` is {}", nic.name, state(attributes.state)),
                hint: "bring it up (`ip link set NETDEV up`, or the subnet manager), or name another NIC with --nics"
                    .to_owned(),
            });
        }
        nic.port = Port {
            ethernet: attributes.link_layer == LINK_LAYER_ETHERNET,
            lid: attributes.lid,
            mtu: attributes.active_mtu,
            ..Port::default()
        };
        (nic.port.gid, nic.port.gid_index) = nic.gid(attributes.gid_tbl_len)?;
        Ok(nic)
    }

    fn attributes(&self) -> Result<PortAttributes, ExecError> {
        // SAFETY: numbers alone.
        let mut attributes: PortAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: a context that is open, and a place for what its port is.
        check("ibv_query_port", unsafe { (self.calls.query_port)(self.context, PORT, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// What is wrong with the port now; nothing where it is up.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.attributes() {
            Ok(attributes) if attributes.state == port_state::ACTIVE => None,
            Ok(attributes) => Some(format!("port {PORT} of {} is {}", self.name, state(attributes.state))),
            Err(error) => Some(format!("{} does not answer: {error}", self.name)),
        }
    }

    /// The address that the port is reached by. On Ethernet one of RoCE v2, over IPv4 where there is one: it is
    /// routed, and NCCL takes it too.
    fn gid(&self, length: c_int) -> Result<([u8; 16], u8), ExecError> {
        let length = usize::try_from(length).unwrap_or(0).clamp(1, 256);
        // SAFETY: numbers alone.
        let mut entries: Vec<GidEntry> = vec![unsafe { std::mem::zeroed() }; length];
        // SAFETY: a context that is open.
        let found = unsafe { self.calls.gids(self.context, &mut entries) };
        entries.truncate(found.map_err(|error| failed("ibv_query_gid_table", &error))?);
        let rank = |entry: &&GidEntry| {
            let mapped = entry.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let routed = entry.kind == GID_TYPE_ROCE_V2;
            (self.port.ethernet && routed, mapped, std::cmp::Reverse(entry.index))
        };
        let entry = entries.iter().filter(|entry| entry.port == u32::from(PORT)).max_by_key(rank);
        let entry = entry.ok_or_else(|| missing(format!("port {PORT} of `{}` has no address (GID)", self.name)))?;
        Ok((entry.gid, u8::try_from(entry.index).unwrap_or(0)))
    }

    /// Registers memory that is at an address: of the host, or of a GPU where the kernel's peer memory knows it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn register(self: &Arc<Self>, address: u64, bytes: usize, order: Order) -> Result<Region, Os> {
        let base = address as *mut c_void;
        // SAFETY: memory that its owner frees after the region. The second call leaves out what a kernel does not know.
        let region = unsafe {
            match order {
                Order::Strict => self.calls.register(self.domain, base, bytes, order.access()),
                Order::Relaxed => self.calls.register_relaxed(self.domain, base, bytes, order.access()),
            }
        };
        Ok(Region { region: region?, nic: Arc::clone(self) })
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
        let region = unsafe {
            self.calls.register_shared(self.domain, descriptor.as_raw_fd(), (address, bytes), order.access())
        };
        Ok(Region { region: region?, nic: Arc::clone(self) })
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
                (self.calls.dealloc_pd)(self.domain);
            }
            (self.calls.close_device)(self.context);
        }
    }
}

fn state(state: u32) -> &'static str {
    match state {
        port_state::DOWN => "down",
        port_state::INIT => "not set up yet",
        port_state::ARMED => "armed, and not active",
        port_state::ACTIVE => "active",
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
    fn access(self) -> u32 {
        let access = access::LOCAL_WRITE | access::REMOTE_WRITE;
        match self {
            Self::Strict => access,
            Self::Relaxed => access | access::RELAXED_ORDERING,
        }
    }
}

/// Memory that a NIC may read and write, until dropped.
#[derive(Debug)]
pub(crate) struct Region {
    region: *mut RawRegion,
    nic: Arc<Nic>,
}

// SAFETY: as for NICs.
unsafe impl Send for Region {}
// SAFETY: as for NICs.
unsafe impl Sync for Region {}

impl Region {
    /// The keys of work requests of ours, and of those of peers.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: a region that is registered.
        unsafe { ((*self.region).lkey, (*self.region).rkey) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: a region that is registered; queue pairs that use it are gone, or fail.
        unsafe { (self.nic.calls.dereg_mr)(self.region) };
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
    pub(super) queue: *mut Queue,
    channel: *mut Channel,
    pub(super) nic: Arc<Nic>,
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
        let channel = unsafe { (nic.calls.create_comp_channel)(nic.context) };
        if channel.is_null() {
            return Err(failed("ibv_create_comp_channel", &Os::last_os_error()));
        }
        let mut queue = Self { queue: null_mut(), channel, nic: Arc::clone(nic) };
        // SAFETY: a context and a channel that are open; no context of ours.
        queue.queue =
            unsafe { (nic.calls.create_cq)(nic.context, entries.max(1).cast_signed(), null_mut(), channel, 0) };
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
        let mut entries: [Completion; MOST] = unsafe { std::mem::zeroed() };
        // SAFETY: place for so many.
        let found = unsafe { poll_cq(self.queue, MOST as i32, entries.as_mut_ptr()) };
        let found = usize::try_from(found).map_err(|_| failed("ibv_poll_cq", &Os::from_raw_os_error(-found)))?;
        done.extend(entries[..found].iter().map(|entry| {
            let what = if entry.status != SUCCESS {
                // SAFETY: any status has a string.
                let words = unsafe { CStr::from_ptr((self.nic.calls.wc_status_str)(entry.status)) };
                Done::Failed(words.to_str().unwrap_or("unknown status"), entry.vendor_err)
            } else if entry.opcode & RECEIVED != 0 {
                Done::Arrived(u32::from_be(entry.immediate), entry.byte_len)
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
        check("ibv_req_notify_cq", unsafe { req_notify_cq(self.queue, 0) })
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
            if (self.nic.calls.get_cq_event)(self.channel, &raw mut queue, &raw mut context) == 0 {
                (self.nic.calls.ack_cq_events)(queue, 1);
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
                (self.nic.calls.destroy_cq)(self.queue);
            }
            (self.nic.calls.destroy_comp_channel)(self.channel);
        }
    }
}
