//! How long will this GPU collective take on that machine, and is what was measured what it should be?
//!
//! Collcast forecasts NCCL's collectives: it executes their real schedules in simulated time on a graph of the machine,
//! with constants that were measured or cited. This crate answers questions; the command line `collcast` prints them.
//! Leave the command line out with `default-features = false`.
//!
//! # A tour
//!
//! A [`Site`] is a machine with its profile and what NCCL is told there. A [`Query`] is a call, and who decides how it
//! is done. [`forecast::forecast`] says how long it takes:
//!
//! ```
//! use collcast::forecast::{Request, forecast};
//! use collcast::sim::collective::Collective;
//! use collcast::sim::units::Bytes;
//! use collcast::{Query, SiteSpec};
//!
//! let site = SiteSpec::new("aws-p5").nodes(2).load()?;
//! let queries = vec![Query::new(&site, Collective::AllReduce, Bytes(64 << 20))];
//! let outcome = forecast(&site, &Request { queries, ..Request::default() })?;
//! let row = &outcome.rows[0];
//! println!("{}/{}: {:.0} us ({:.0} to {:.0})", row.algorithm, row.protocol, row.time_us, row.low_us, row.high_us);
//! # Ok::<(), collcast::Error>(())
//! ```
//!
//! Each question is a module. Its function takes a request and gives an outcome: typed, serialisable, with the notes and
//! warnings that belong to it. [`views`] turns outcomes into reports, which [`reports`] writes as a table, CSV, JSON,
//! Markdown, JUnit or GitHub annotations.
//!
//! | question | module |
//! |---|---|
//! | How long do these calls take? | [`mod@forecast`], [`forecast::group`] |
//! | How long does this training step take, and what of it does communication cost? | [`mod@step`] |
//! | Which layout trains a model fastest, and when is the run done? | [`mod@plan`] |
//! | Which machine, and how many GPUs of it? | [`plan::compare`] |
//! | How long does a transfer between two memories take, and by which way? | [`mod@transfer`] |
//! | How long do users of a served model wait, and who should prefill? | [`mod@serve`], [`serve::split`] |
//! | Is what was measured what it should be? | [`mod@validate`] |
//! | If it is not, which fault fits? | [`mod@diagnose`] |
//! | Which host is slow, and which sets of hosts to run next to know? | [`mod@next`] |
//! | What became slower between two sets of measurements? | [`mod@compare`] |
//! | Which algorithm and protocol beat NCCL's choice? | [`mod@tune`] |
//! | What does a recorded training step say, and which of its calls are slow? | [`mod@trace`] |
//! | What is wrong with the settings of a job, its host or its log? | [`mod@lint`] |
//! | Did a choice of NCCL or a forecast change since it was accepted, and why? | [`mod@check`] |
//! | Which constants explain measurements of my machine? | [`mod@calibrate`] |
//! | How long do a GPU's kernels take, by measurements and by the model? | [`mod@kernels`] |
//! | How long does a call take for real, here? | [`mod@bench`], [`mod@probe`] |
//! | Is this host fit for a job? | [`mod@guard`] |
//! | Which profiles are there, and which is taken for my machine? | [`mod@profiles`] |
//! | Which channels does NCCL find on a machine, and which way does data go? | [`mod@topo`] |
//! | What does an algorithm look like as MSCCL XML? | [`mod@convert`] |
//!
//! What takes long takes a [`Watch`], which tells progress and stops it. Errors say what is wrong, where, and the way out.
//! `examples/questions.rs` asks some of these in a few lines.
//!
//! `cli` is the command line, also for programs: `cli::ask` answers a command as data.
//!
//! Below stand the crates that this one is made of: [`sim`] (schedules, verifier, engine, models), [`topologies`]
//! (machines from files), [`scenarios`] (training steps), [`hwbackend`] (real runs, readers of measurements), [`reports`].

// The command line names the library as every program does.
#[cfg(feature = "cli")]
extern crate self as collcast;

pub mod bands;
pub mod bench;
pub mod calibrate;
pub mod check;
#[cfg(feature = "cli")]
pub mod cli;
pub mod compare;
pub mod confidence;
pub mod convert;
pub mod diagnose;
pub mod error;
pub mod files;
pub mod forecast;
pub mod guard;
pub mod health;
pub mod history;
pub mod kernels;
pub mod lint;
pub mod next;
pub mod noise;
mod own_tuner;
pub mod plan;
pub mod probe;
pub mod profiles;
pub mod query;
pub mod schema;
pub mod self_test;
pub mod serve;
pub mod shard;
pub mod site;
pub mod statistics;
pub mod step;
pub mod topo;
pub mod trace;
pub mod transfer;
pub mod tune;
pub mod validate;
pub mod values;
mod vary;
pub mod views;
pub mod watch;

pub use collcast_hwbackend as hwbackend;
pub use collcast_reports as reports;
pub use collcast_scenarios as scenarios;
pub use collcast_sim as sim;
pub use collcast_topologies as topologies;

pub use error::Error;
pub use query::Query;
pub use site::{Site, SiteSpec};
pub use watch::Watch;
