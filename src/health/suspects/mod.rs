//! Which host, GPU, NIC or link is slow, by runs over different sets of them, and which sets tell most when run next.
//!
//! A run takes as long as its slowest member lets it: ln(measured / expected) is what runs of its kind share, plus the
//! slowness of its slowest member, plus noise. [`infer()`] weighs every answer to "who is sick" by how well it explains
//! all runs; [`next_round`] looks for the sets of hosts whose times would tell the answers that are left apart.

mod infer;
mod member;
mod plan;

pub use infer::{Answer, Belief, Class, HOSTS_DIFFER, Suspect, Trial, infer};
pub use member::{Member, Used};
pub use plan::{KNOWN, Pace, Plan, Round, next_round};
