//! Which NICs a process uses, and how.

/// How to use NICs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Names of the NICs of this process, such as `mlx5_0`, which its queue pairs get in turn. Where none is
    /// named: one of those whose port is up, by the index of the process on its host.
    pub nics: Vec<String>,
    /// Queue pairs of a connection; its slices go over them in turn.
    pub qps: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { nics: Vec::new(), qps: 1 }
    }
}
