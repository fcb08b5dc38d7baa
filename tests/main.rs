//! What users meet, one file a subject: the program is run as they run it, or the library is called. One crate, as each
//! would be built and linked by itself, and waited for by the next.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;
#[path = "common/random.rs"]
mod random;

mod accuracy;
mod calibrate;
mod check;
mod cli;
mod compare;
mod confidence;
mod config;
mod docs;
mod doctor;
mod edge;
mod examples;
mod flags;
mod graphs;
mod guard;
mod history;
mod hosts;
mod kernels;
mod licences;
mod lint;
mod logs;
mod nccl_choices;
mod next_runs;
mod nightly;
mod packages;
mod plan;
mod plan_options;
mod profiles;
mod published;
mod rdma;
mod regret;
mod report;
mod schemas;
mod serve;
mod setup;
mod shards;
mod steps;
mod terminal;
mod trace;
mod transfer;
mod tune;
mod tuner_table;
mod tuning;
mod validate;
mod verdicts;
