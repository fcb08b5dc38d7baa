//! Queue pairs of reliable connections.

use std::ffi::c_int;
use std::io::Error as Os;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::acknowledgement::{RETRIES, timeout};
use super::device::{Completions, Nic, PORT, check, failed};
use super::ibverbs::{
    PairAttributes, PairWanted, Piece, RELIABLE_CONNECTION, RawPair, ReceiveRequest, SendRequest, access, mask,
    pair_state, post_recv, post_send, request, send,
};
use super::memory::Memory;
use crate::exec::ExecError;

/// Where packets of a connection begin to count. Any number does, as long as both ends know it.
const FIRST_PACKET: u32 = 0;
/// Hops that packets may take through routers.
const HOPS: u8 = 64;
/// How often a NIC sends again what finds no receive posted; 7 would be for ever.
const RETRIES_UNREADY: u8 = 6;
/// Wait of a sender that found no receive posted: 0.64 ms (InfiniBand specification, volume 1, RNR NAK timer field).
const UNREADY: u8 = 12;

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
    pair: *mut RawPair,
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
            let mut wanted: PairWanted = unsafe { std::mem::zeroed() };
            (wanted.send_cq, wanted.recv_cq) = (queue.queue, queue.queue);
            wanted.qp_type = RELIABLE_CONNECTION;
            (wanted.cap.max_send_wr, wanted.cap.max_recv_wr) = (depths.sends.max(1), depths.receives.max(1));
            (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
            wanted.cap.max_inline_data = inline;
            // SAFETY: a domain and queues that live as long as the pair: it holds their NIC, and whoever made it them.
            let pair = unsafe { (nic.calls.create_qp)(nic.domain, &raw mut wanted) };
            if !pair.is_null() {
                let pair = Self { pair, nic: Arc::clone(nic), place, inline: wanted.cap.max_inline_data };
                pair.initialise()?;
                return Ok(pair);
            }
        }
        Err(failed("ibv_create_qp", &Os::last_os_error()))
    }

    fn modify(&self, mut to: PairAttributes, mask: u32) -> Result<(), ExecError> {
        // SAFETY: a pair that lives, and attributes that the mask names.
        let code = unsafe { (self.nic.calls.modify_qp)(self.pair, &raw mut to, mask.cast_signed()) };
        check("ibv_modify_qp", code).map_err(|error| match error {
            ExecError::Library { call, message } => {
                ExecError::Library { call, message: format!("{message} (state {}, {})", to.qp_state, self.nic.name) }
            }
            other => other,
        })
    }

    fn initialise(&self) -> Result<(), ExecError> {
        let mut to = attributes(pair_state::INIT);
        to.port_num = PORT;
        to.qp_access_flags = access::LOCAL_WRITE | access::REMOTE_WRITE;
        self.modify(to, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)
    }

    /// How peers reach it.
    pub(crate) fn address(&self) -> Address {
        let port = &self.nic.port;
        // SAFETY: a pair that lives.
        let number = unsafe { (*self.pair).number };
        Address { number, lid: port.lid, mtu: port.mtu, gid: port.gid }
    }

    /// Connects to a peer; it can be sent to once it has done the same. The NIC gives up on a peer that does not
    /// acknowledge about when `patience` is over.
    ///
    /// # Errors
    /// An address that cannot be reached.
    pub(crate) fn connect(&self, peer: &Address, patience: Duration) -> Result<(), ExecError> {
        let port = &self.nic.port;
        let mut ready = attributes(pair_state::READY_TO_RECEIVE);
        ready.path_mtu = port.mtu.min(peer.mtu);
        (ready.dest_qp_num, ready.rq_psn) = (peer.number, FIRST_PACKET);
        (ready.max_dest_rd_atomic, ready.min_rnr_timer) = (1, UNREADY);
        (ready.path.dlid, ready.path.port_num) = (peer.lid, PORT);
        if port.ethernet {
            ready.path.is_global = 1;
            ready.path.dgid = peer.gid;
            (ready.path.sgid_index, ready.path.hop_limit) = (port.gid_index, HOPS);
        }
        let path = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        self.modify(ready, path | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)?;
        let mut send = attributes(pair_state::READY_TO_SEND);
        (send.timeout, send.retry_cnt, send.rnr_retry) = (timeout(patience), RETRIES, RETRIES_UNREADY);
        (send.sq_psn, send.max_rd_atomic) = (FIRST_PACKET, 1);
        let times = mask::STATE | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
        self.modify(send, times | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC)
    }

    /// Puts it into error, as a NIC does that gave up; for tests of what then happens.
    pub(crate) fn fail(&self) -> Result<(), ExecError> {
        self.modify(attributes(pair_state::ERROR), mask::STATE)
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
        let mut piece = Piece { address: memory.address() + at as u64, length, lkey: memory.keys(self.place).0 };
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut posted: SendRequest = unsafe { std::mem::zeroed() };
        posted.wr_id = number;
        (posted.sg_list, posted.num_sge) = (&raw mut piece, c_int::from(length > 0));
        let (remote, immediate) = match verb {
            Verb::Write(remote) => {
                posted.opcode = request::RDMA_WRITE;
                (remote, 0)
            }
            Verb::WriteImmediate(remote, immediate) => {
                posted.opcode = request::RDMA_WRITE_WITH_IMM;
                (remote, immediate)
            }
            Verb::Send => {
                posted.opcode = request::SEND;
                (Remote::default(), 0)
            }
        };
        posted.immediate = immediate.to_be();
        (posted.remote_address, posted.rkey) = (remote.address, remote.key);
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        posted.flags = flag(signalled, send::SIGNALED)
            | flag(length > 0 && memory.on_host() && self.inlines(length), send::INLINE);
        let mut bad = null_mut();
        // SAFETY: a pair that lives; memory that is registered, and stays until the pair is gone.
        check("ibv_post_send", unsafe { post_send(self.pair, &raw mut posted, &raw mut bad) })
    }

    /// Posts a receive, of a message into the memory where one is named.
    ///
    /// # Errors
    /// A queue that is full, or in error.
    pub(crate) fn post_receive(&self, number: u64, into: Option<(&Memory, usize, u32)>) -> Result<(), ExecError> {
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut request: ReceiveRequest = unsafe { std::mem::zeroed() };
        let mut piece = into.map(|(memory, at, length)| {
            assert!(at + length as usize <= memory.bytes(), "{at} + {length} bytes of {}", memory.bytes());
            Piece { address: memory.address() + at as u64, length, lkey: memory.keys(self.place).0 }
        });
        if let Some(piece) = &mut piece {
            (request.sg_list, request.num_sge) = (&raw mut *piece, 1);
        }
        request.wr_id = number;
        let mut bad = null_mut();
        // SAFETY: a pair that lives; memory that is registered, and stays until the pair is gone.
        check("ibv_post_recv", unsafe { post_recv(self.pair, &raw mut request, &raw mut bad) })
    }

    /// Its NIC.
    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: a pair that lives. Nothing can be done where the call fails.
        unsafe { (self.nic.calls.destroy_qp)(self.pair) };
    }
}

fn attributes(state: u32) -> PairAttributes {
    // SAFETY: numbers alone.
    let mut attributes: PairAttributes = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}
