//! Identities, each its own type: a rank is not a channel is not a link.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into a slice.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A participant of a collective, from 0.
    Rank
);
id!(
    /// One of the parallel copies of a communication pattern.
    ChannelId
);
id!(
    /// A concurrent warp group inside one thread block.
    Lane
);
id!(
    /// A machine, from 0.
    HostId
);
id!(
    /// An element of a topology graph.
    VertexId
);
id!(
    /// One direction of a link of a topology graph.
    LinkId
);
id!(
    /// Something shared with a capacity, in the engine.
    ResourceId
);
