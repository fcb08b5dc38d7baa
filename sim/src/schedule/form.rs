//! How patterns go on: what tells how much of a schedule shows all of it.

/// How a generator's pattern goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    /// Channels after which patterns repeat.
    pub channels: u32,
    /// Chunks of a channel that one round of its loop moves.
    pub chunks: u64,
    /// Chunks that a rank sends in a round, about.
    pub sends: u64,
    /// Those of them that go over one connection, at least.
    pub each: u64,
}
