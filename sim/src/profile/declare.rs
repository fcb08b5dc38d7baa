//! How constants are declared: one line each, from which their type and all that is known of them follow.

/// What a constant is part of: who changes a machine, or scales a profile to another one, does so by roles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// What a link carries, of its nominal rate.
    LinkRate,
    /// How long news takes over a link.
    LinkLatency,
    /// Work of a host's proxy threads for the network.
    Proxy,
    /// Memory of a host.
    HostMemory,
    /// Drives of a host.
    Storage,
    /// Time that a block's own instructions take, whatever it moves.
    BlockTime,
    /// Rate at which a block's own instructions move data.
    BlockRate,
    /// How the instructions of a send compare: its store, its load, those of what is received and kept.
    Access,
    /// Instructions of a block beside those of sends, compared with them.
    Copy,
    /// Start and end of a kernel on a GPU.
    Kernel,
    /// Starting of kernels by a host, and of what waits on a stream.
    Launch,
    /// Memory of a GPU, and who shares it.
    GpuMemory,
    /// Power of a GPU.
    Power,
    /// Copy engines of a GPU.
    CopyEngine,
    /// Work of a training framework.
    Framework,
    /// What a GPU is: its data sheet.
    Hardware,
    /// Matrix products.
    Product,
    /// Kernels of attention.
    Attention,
    /// Instructions of kernels that memory mostly bounds.
    Arithmetic,
}

impl Role {
    /// Whether constants of this role go with the clock of a GPU's multiprocessors.
    pub fn is_of_blocks(self) -> bool {
        matches!(self, Self::BlockTime | Self::BlockRate | Self::Kernel)
    }
}

/// What is known of a constant without its value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spec {
    /// Its name in files.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Least and most that physics allows, or that the model can use.
    pub bounds: [f64; 2],
    /// What it is part of.
    pub role: Role,
    /// What it is.
    pub meaning: &'static str,
}

/// Declares an enum of constants: variant, name in files, unit, bounds, role, then what it means.
macro_rules! constants {
    ($(#[$doc:meta])* $type:ident;
     $($constant:ident $name:literal $unit:literal $bounds:ident $role:ident $meaning:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $type {
            $(#[doc = concat!("`", $name, "` (", $unit, "): ", $meaning, ".")] $constant),+
        }

        impl $type {
            /// All there are, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$constant),+];

            /// What is known of it without its value.
            pub const fn spec(self) -> $crate::profile::Spec {
                match self {
                    $(Self::$constant => $crate::profile::Spec {
                        name: $name,
                        unit: $unit,
                        bounds: $bounds,
                        role: $crate::profile::Role::$role,
                        meaning: $meaning,
                    }),+
                }
            }

            /// Its name in files.
            pub const fn name(self) -> &'static str {
                self.spec().name
            }

            /// What it is part of.
            pub const fn role(self) -> $crate::profile::Role {
                self.spec().role
            }

            /// The one of this name in files.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|constant| constant.name() == name)
            }

            /// The name of a constant that is likely meant by `name`.
            pub fn near(name: &str) -> Option<&'static str> {
                $crate::collective::nearest(name, Self::ALL.iter().map(|constant| constant.name()))
            }

            /// The value nearest to this one that it may have.
            pub fn bounded(self, value: f64) -> f64 {
                let [least, most] = self.spec().bounds;
                value.clamp(least, most)
            }
        }

        /// By name, as files list them.
        impl Ord for $type {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.name().cmp(other.name())
            }
        }

        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use constants;
