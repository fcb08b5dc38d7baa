//! Collcast's tuner plugin: NCCL asks it for each call, and it answers from the table that `collcast tune --output` wrote.
//!
//! NCCL 2.21 to 2.30 load it by `NCCL_TUNER_PLUGIN`. When a communicator is made, the lines of its number of ranks and
//! hosts become one sorted list for each collective ([`table`]); a call is then a binary search: no allocation, no lock.
//! Where no line matches, the tuner that was there before is asked (`COLLCAST_TUNER_NEXT`), else NCCL decides.
//!
//! NCCL does not compare what its ranks answer: every host needs the same table, and lines for registered buffers need the same
//! registration on every rank. A rank that refuses its table leaves calls to
//! NCCL, and one line of `NCCL_DEBUG=WARN` says why; where others use theirs the job hangs. `COLLCAST_TUNER_STRICT=1` makes
//! `init` fail instead. A line of `NCCL_DEBUG=INFO` has a hash of the lines in use, by which hosts can be compared.
//!
//! | variable | what it names |
//! |---|---|
//! | `COLLCAST_TUNER_TABLE` | the table; several are separated by `:`, and of two lines for a call the first holds, also where it leaves it to NCCL |
//! | `COLLCAST_TUNER_STRICT` | `1`: no communicator is made where a table cannot be used |
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
