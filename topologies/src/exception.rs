//! What of a machine is not as drawn: NICs, and cables above switches, that are slow or down.

use std::ops::Range;

use collcast_sim::units::Bandwidth;

/// What is not as drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deviation {
    /// The port runs at a lower rate.
    Rate(Bandwidth),
    /// The port is down.
    Down,
}

/// Whose ports an exception is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The NICs of a host, management ones not counted.
    Host,
    /// The cables of a switch to those above it.
    Switch,
}

/// One exception: a NIC of a host or an uplink of a switch that is not as drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exception {
    /// Whether it is about a host or a switch.
    pub owner: Owner,
    /// Name of the host or the switch.
    pub name: String,
    /// Which of its NICs or uplinks, from 0; all where absent.
    pub port: Option<u32>,
    /// What is different.
    pub deviation: Deviation,
    /// Where it was written.
    pub places: ExceptionPlaces,
}

/// Where the parts of an exception were written, in bytes of [`ClusterSpec::text`](crate::cluster::ClusterSpec::text); none of one that no file gives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExceptionPlaces {
    /// The name.
    pub name: Option<Range<usize>>,
    /// `nic` or `uplink`.
    pub port: Option<Range<usize>>,
    /// `rate` or `state`.
    pub deviation: Option<Range<usize>>,
}

impl Exception {
    /// One about a NIC that no file gives.
    pub fn of_nic(host: &str, nic: u32, deviation: Deviation) -> Self {
        let places = ExceptionPlaces::default();
        Self { owner: Owner::Host, name: host.to_owned(), port: Some(nic), deviation, places }
    }

    /// Whether all of the host or switch is down.
    pub fn is_whole(&self) -> bool {
        self.port.is_none() && self.deviation == Deviation::Down
    }
}
