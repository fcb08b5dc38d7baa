//! One [`Report`], many writers.
//!
//! A command fills a [`Report`] once; every format is a view of it, so that a table on the
//! terminal, a CSV file and a JSON result cannot disagree. A writer never computes a result:
//! it rounds, aligns and draws lengths, nothing more. All output is deterministic: the same report gives the
//! same bytes, with no date, path or hash order in it.
//!
//! - [`terminal`], [`csv`], [`json`], [`markdown`]: any report;
//! - [`junit`], [`github`]: its cases, for continuous integration;
//! - [`sarif`]: findings in files, for code scanning;
//! - [`nccl_tests`]: the table that nccl-tests prints;
//! - [`perfetto`]: traces for ui.perfetto.dev;
//! - [`html`]: one page with pictures: [`figure`] is what they show, `svg` draws them, in colours of [`palette`];
//! - [`read`]: a result in JSON, as a report again;
//! - [`chart`]: curves over sizes, measured and predicted;
//! - [`draw`], [`describe`]: a machine as a picture and as one screen of facts; [`ports`]: which of its NICs are odd.

pub mod chart;
pub mod csv;
pub mod describe;
pub mod draw;
pub mod figure;
pub mod github;
pub mod html;
pub mod json;
pub mod junit;
mod machine;
pub mod markdown;
pub mod model;
pub mod nccl_tests;
pub mod palette;
pub mod perfetto;
pub mod ports;
pub mod read;
pub mod sarif;
mod svg;
pub mod terminal;

pub use model::{Align, Bar, CaseOutcome, Cell, Column, Input, Report, Status, Table, TestCase, Verdict};
