//! How a NIC reaches the memory of a GPU (GPUDirect RDMA).

use crate::exec::ExecError;

/// A way, the better one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
    /// A descriptor that the GPU's driver hands out (dma-buf).
    DmaBuf,
    /// Its address, which a module of the kernel knows (peer memory).
    Peer,
}

impl Way {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DmaBuf => "dma-buf",
            Self::Peer => "peer memory",
        }
    }
}

/// What may register memory of a GPU with a NIC. Each says why it cannot.
pub(crate) trait Registers {
    /// Memory that is registered.
    type Region;

    /// By a descriptor.
    fn dma_buf(&self) -> Result<Self::Region, String>;

    /// By its address.
    fn peer(&self) -> Result<Self::Region, String>;
}

/// Why neither way works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unreached {
    dma_buf: String,
    peer: String,
}

impl Unreached {
    /// For whoever asked.
    pub(crate) fn error(&self, gpu: i32, nic: &str) -> ExecError {
        let Self { dma_buf, peer } = self;
        ExecError::Missing {
            what: format!("{nic} cannot reach the memory of GPU {gpu}: by dma-buf: {dma_buf}; by peer memory: {peer}"),
            hint: "dma-buf takes the driver's open kernel modules, Linux 5.12 and rdma-core 34; peer memory takes the \
                   module nvidia-peermem (`modprobe nvidia-peermem`); leave --memory out to measure host memory"
                .to_owned(),
        }
    }
}

/// Registers by the better way that works.
///
/// # Errors
/// What each of them lacks.
pub(crate) fn register<R: Registers>(with: &R) -> Result<(R::Region, Way), Unreached> {
    let dma_buf = match with.dma_buf() {
        Ok(region) => return Ok((region, Way::DmaBuf)),
        Err(why) => why,
    };
    match with.peer() {
        Ok(region) => Ok((region, Way::Peer)),
        Err(peer) => Err(Unreached { dma_buf, peer }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that knows some of the ways.
    struct Host(Option<u8>, Option<u8>);

    impl Registers for Host {
        type Region = u8;

        fn dma_buf(&self) -> Result<u8, String> {
            self.0.ok_or_else(|| "no descriptor".to_owned())
        }

        fn peer(&self) -> Result<u8, String> {
            self.1.ok_or_else(|| "Bad address".to_owned())
        }
    }

    /// Goal: the better way that works is taken; where none does, the error has both reasons and both ways out.
    #[test]
    fn the_better_way_is_taken() {
        assert_eq!(register(&Host(Some(1), Some(2))), Ok((1, Way::DmaBuf)));
        assert_eq!(register(&Host(None, Some(2))), Ok((2, Way::Peer)));
        let ExecError::Missing { what, hint } = register(&Host(None, None)).unwrap_err().error(3, "mlx5_0") else {
            panic!("what lacks is missing");
        };
        for part in ["mlx5_0", "GPU 3", "by dma-buf: no descriptor", "by peer memory: Bad address"] {
            assert!(what.contains(part), "{part}: {what}");
        }
        assert!(hint.contains("nvidia-peermem") && hint.contains("open kernel modules"), "{hint}");
        assert!(Way::DmaBuf < Way::Peer && Way::Peer.name() == "peer memory");
    }
}
