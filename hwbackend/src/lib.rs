//! The real world: executors that run schedules, and readers of what others measured.

pub mod host;
