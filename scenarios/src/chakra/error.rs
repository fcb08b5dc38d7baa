//! Why a trace cannot be read or written.

use collcast_sim::collective::Collective;
use thiserror::Error;

/// Why a trace cannot be read or written: what, where and the way out.
#[derive(Debug, Error)]
pub enum ChakraError {
    /// The bytes are none of Chakra's.
    #[error(
        "`{file}`, message {message}: {reason}. A file has Chakra's messages (et_def.proto), each after its length; one that \
         ends early was cut while it was written or copied"
    )]
    Broken {
        /// The file.
        file: String,
        /// Number of the message, from 0.
        message: u64,
        /// What is wrong.
        reason: String,
    },
    /// More than is read.
    #[error("`{file}` has more than {limit}, the most that is read: record fewer steps")]
    TooLarge {
        /// The file.
        file: String,
        /// The limit.
        limit: String,
    },
    /// A node that cannot be right.
    #[error("`{file}`, node {id} (`{name}`): {reason}")]
    Node {
        /// The file.
        file: String,
        /// Its id.
        id: u64,
        /// Its name.
        name: String,
        /// What is wrong, and the way out.
        reason: String,
    },
    /// A group that cannot be right.
    #[error("group `{group}`: {reason}")]
    Group {
        /// Its name.
        group: String,
        /// What is wrong, and the way out.
        reason: String,
    },
    /// A graph that names what is not there.
    #[error("rank {rank} of the step: {what} is not there")]
    Graph {
        /// The rank.
        rank: u32,
        /// What is missing.
        what: &'static str,
    },
    /// A collective that Chakra has no number for.
    #[error("Chakra has no {collective}")]
    NoCollective {
        /// Which.
        collective: Collective,
    },
}
