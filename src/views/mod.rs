//! Outcomes as reports: tables and a verdict, for any writer. Nothing is computed here.

pub mod calibrate;
pub mod tune;
