//! Connections: the FIFOs between workers.

use crate::ids::{ChannelId, Rank};

/// Who is at one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum End {
    /// One worker, of this rank.
    One(Rank),
    /// All workers that list the connection, at least one; the number tells groups apart.
    Group(u32),
}

/// A one-way FIFO between workers.
///
/// Between two ranks it carries slices from one to the other. With a group at an end, a switch
/// does the rest: the slices of all senders are combined element by element, and every receiver
/// gets the result. A slot is full when all senders have posted it, and free again when all
/// receivers are done with it. So `Group -> One` is a reduction (`multimem.ld_reduce`, SHARP
/// reduce), `One -> Group` a multicast, `Group -> Group` an all-reduce of the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conn {
    /// Who sends.
    pub src: End,
    /// Who receives.
    pub dst: End,
    /// The channel of all.
    pub channel: ChannelId,
    /// Tells several connections of the same ends and channel apart.
    pub stream: u32,
}

impl Conn {
    /// From one rank to another.
    pub fn pair(src: Rank, dst: Rank, channel: ChannelId, stream: u32) -> Self {
        Self { src: End::One(src), dst: End::One(dst), channel, stream }
    }

    /// Both ranks, where no group is at an end.
    pub fn ranks(self) -> Option<(Rank, Rank)> {
        match (self.src, self.dst) {
            (End::One(src), End::One(dst)) => Some((src, dst)),
            _ => None,
        }
    }
}
