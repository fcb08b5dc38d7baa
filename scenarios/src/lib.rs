//! Workloads and what-ifs as data: builds operation graphs for the engine of `collcast-sim`.
//!
//! Empty so far: the workload engine comes after the collectives. The crate is here so that
//! the arrows between crates are fixed from the start.
