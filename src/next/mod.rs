//! Which sets of hosts to run next, so that their times say who is slow: what is known, and scripts that run the rest.

mod ask;
mod failing;
mod names;
mod scripts;

pub use ask::{GPUS, Next, Request, USUAL_ROUNDS, USUAL_RUNS, next, short};
pub use failing::Failing;
pub use names::{HOSTS_MAX, read as host_names};
pub use scripts::{Script, log_name, scripts};
