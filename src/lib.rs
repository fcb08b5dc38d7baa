//! Forecasts of GPU collectives, held against measurements.

pub mod bands;
pub mod bench;
pub mod diagnose;
pub mod error;
pub mod files;
pub mod noise;
pub mod probe;
pub mod query;
pub mod site;
pub mod validate;
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
