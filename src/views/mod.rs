//! Answers as reports: tables, notes and a verdict for people and files. They round and word; they compute no result.

pub mod bench;
pub mod probe;
pub mod validate;
