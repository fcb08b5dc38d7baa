//! Machines as data: built-ins, importers, generators of fabrics.

pub mod host;
