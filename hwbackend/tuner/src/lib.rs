//! Collcast's tuner plugin: NCCL asks it for each call, and it answers from the table that `collcast tune --output` wrote.
//!
//! NCCL 2.21 to 2.30 load it by `NCCL_TUNER_PLUGIN`. When a communicator is made, the lines of its number of ranks and
//! hosts become one sorted list for each collective ([`table`]); a call is then a binary search: no allocation, no lock.
//! Where no line matches, the tuner that was there before is asked (`COLLCAST_TUNER_NEXT`), else NCCL decides. Whatever
//! is wrong with a table, the job runs as without it, and one line of `NCCL_DEBUG=INFO` says why.
//!
//! | variable | what it names |
//! |---|---|
//! | `COLLCAST_TUNER_TABLE` | the table; several are separated by `:`, and of two lines for a call the first holds |
//! | `COLLCAST_TUNER_NEXT` | the library of another tuner |
//! | `COLLCAST_TUNER_RECORD` | a file that gets a line for each call: what was asked and chosen |
//!
//! [`abi`] is NCCL's side of the border, written from its documentation; [`entry`] holds the symbols that NCCL looks for.

pub mod abi;
pub mod context;
pub mod entry;
pub mod host;
pub mod next;
pub mod record;
pub mod table;
