//! How long do kernels of a GPU take, by measurements and by the model of kernels?
//!
//! Tables of measured kernels ([`Table`]) are told apart by their header. [`judge()`] holds their rows against a GPU's
//! profile; tables of layers and whole models too, by what they run. [`fit()`] makes a profile of the rows,
//! [`fit_peers()`] one of copies between two GPUs, [`fit_network()`] one of NICs between two hosts. A GPU is one that the
//! program knows, or a file ([`gpu`]).

mod columns;
mod fitted;
mod judge;
mod layers;
mod load;
mod network;
mod peers;
mod probed;
mod read;
mod row;
mod table;

pub use fitted::{FitRequest, Fitted, Of, fit};
pub use judge::{Group, Outcome, Request, judge};
pub use load::{gpu, gpu_of};
pub use network::{NetworkFitRequest, fit_network};
pub(crate) use network::{NetworkRow, constants};
pub use peers::{PeerRequest, fit_peers};
pub use probed::Probed;
pub use read::{Read, Trouble, read};
pub use row::KernelRow;
pub use table::Table;

pub use crate::statistics::Stats;
