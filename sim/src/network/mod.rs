//! From schedule to machine: the order of ranks, routes between them, and laying a schedule on both.

mod alike;
mod ground;
mod hosts;
mod incast;
mod join;
mod laid;
mod lay;
mod layer;
mod order;
mod place;
mod point;
mod route;
mod row;
mod switches;
mod ways;

pub use ground::Grounds;
pub use join::join;
pub use laid::{Laid, LayError, ResourceName};
pub use lay::{lay, lay_known, lay_one_of_each, smallest_latency};
pub use order::{order, order_by};
pub use place::{HOPPER, out_of_clusters};
pub use point::Across;
pub(crate) use route::is_arm;
pub use route::{Hop, Leg, Route, Router};
pub use row::first_unlike;
pub(crate) use row::{Row, row};
pub use switches::{check_multicast, check_sharp};
