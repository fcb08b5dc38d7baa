//! A machine as a picture (stub, replaced below).
