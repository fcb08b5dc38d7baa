//! Which NICs a process uses, and how.

/// Where the memory lies that NICs read and write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// On the host.
    #[default]
    Host,
    /// On the GPU of the process: the one with its index on its host, where there are as many.
    Gpu,
}

/// How to use NICs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Names of the NICs of this process, such as `mlx5_0`, which its queue pairs get in turn. Where none is
    /// named: one of those whose port is up, by the index of the process on its host.
    pub nics: Vec<String>,
    /// Queue pairs of a connection; its slices go over them in turn.
    pub qps: u32,
    /// Where memory lies; schedules run in memory of the host alone.
    pub memory: Place,
}

impl Default for Options {
    fn default() -> Self {
        Self { nics: Vec::new(), qps: 1, memory: Place::Host }
    }
}
