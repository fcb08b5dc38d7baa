//! Tests of the readers.
