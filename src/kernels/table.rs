//! Tables of measured kernels: which there are, and what a row of each says.

use collcast_sim::collective::nearest;
use collcast_sim::compute::fit::{Issue, Sample, Timing};
use collcast_sim::compute::{
    Attention, Backend, HostCopy, Kernel, Memory, MemoryKind, Optimizer, Pass, Precision, Product, ProductPass, Tokens,
};
use collcast_sim::hash::fnv1a;

/// A table, known by its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// Products, calls back to back.
    Products,
    /// Products of experts.
    Grouped,
    /// One product over and over for some seconds.
    Sustained,
    /// Attention, forward and backward.
    Attention,
    /// Kernels bound by memory.
    MemoryBound,
    /// Steps of optimisers.
    Optimizer,
    /// Copies between host and GPU.
    HostCopy,
    /// Products of several GPUs, as NVIDIA's AIConfigurator publishes them.
    PublishedProducts,
    /// Attention of several GPUs, likewise.
    PublishedAttention,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Products,
        Self::Grouped,
        Self::Sustained,
        Self::Attention,
        Self::MemoryBound,
        Self::Optimizer,
        Self::HostCopy,
        Self::PublishedProducts,
        Self::PublishedAttention,
    ];

    /// Columns that it has; there may be more.
    pub const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Products => &["dtype", "kind", "m", "n", "k", "batch", "us"],
            Self::Grouped => &["dtype", "experts", "tokens", "n", "k", "us"],
            Self::Sustained => &["dtype", "kernel", "m", "n", "k", "seconds", "us"],
            Self::Attention => {
                &["backend", "pass", "batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "causal", "us"]
            }
            Self::MemoryBound => &["kernel", "rows", "width", "us"],
            Self::Optimizer => &["kind", "state_dtype", "elements", "tensors", "us"],
            Self::HostCopy => &["way", "memory", "bytes", "us"],
            Self::PublishedProducts => &["gpu", "gemm_dtype", "m", "n", "k", "us"],
            Self::PublishedAttention => &["gpu", "batch_size", "isl", "num_heads", "num_key_value_heads", "us"],
        }
    }

    /// The table of a header.
    pub fn of_header(header: &[&str]) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.columns().iter().all(|column| header.contains(column)))
    }

    /// Whether its rows name their GPU.
    pub const fn names_gpus(self) -> bool {
        matches!(self, Self::PublishedProducts | Self::PublishedAttention)
    }
}

/// One row: its cells by the columns of its table.
pub(super) struct Cells<'a> {
    pub(super) header: &'a [&'a str],
    pub(super) cells: Vec<&'a str>,
}

/// What is wrong with a cell.
pub(super) type Wrong = String;

impl<'a> Cells<'a> {
    /// The text of a column that the table has.
    pub(super) fn text(&self, column: &str) -> &'a str {
        let at = self.header.iter().position(|name| *name == column);
        at.and_then(|at| self.cells.get(at)).copied().unwrap_or_default()
    }

    pub(super) fn count(&self, column: &str) -> Result<u64, Wrong> {
        let text = self.text(column);
        text.parse().map_err(|_| format!("`{column}` is `{text}`, expected a whole number"))
    }

    /// A number of things that a kernel has at least one of.
    pub(super) fn some(&self, column: &str) -> Result<u64, Wrong> {
        match self.count(column)? {
            0 => Err(format!("`{column}` is 0, expected a whole number from 1")),
            count => Ok(count),
        }
    }

    pub(super) fn positive(&self, column: &str) -> Result<f64, Wrong> {
        let text = self.text(column);
        let number = text.parse::<f64>().ok().filter(|v| v.is_finite() && *v > 0.0);
        number.ok_or_else(|| format!("`{column}` is `{text}`, expected a number above 0"))
    }

    pub(super) fn named<T: Copy>(&self, column: &str, known: &[(&'static str, T)]) -> Result<T, Wrong> {
        let text = self.text(column);
        if let Some((_, value)) = known.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let names = || known.iter().map(|(name, _)| *name);
        let meant = nearest(text, names()).map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
        Err(format!("`{column}` is `{text}`{meant}; known: {}", names().collect::<Vec<_>>().join(" ")))
    }

    fn precision(&self, column: &str) -> Result<Precision, Wrong> {
        let known = [
            ("bf16", Precision::Bf16),
            ("bfloat16", Precision::Bf16),
            ("float16", Precision::Bf16),
            ("fp8_e4m3", Precision::Fp8),
            ("fp8", Precision::Fp8),
            ("nvfp4", Precision::Fp4),
        ];
        self.named(column, &known)
    }
}

/// What a row measured; nothing where it is of no kernel.
pub(super) fn sample(table: Table, row: &Cells<'_>) -> Result<Option<Sample>, Wrong> {
    if table == Table::HostCopy && !is_one_copy(row)? {
        return Ok(None);
    }
    let us = row.positive("us")?;
    let sizes = table.columns().iter().filter(|&&column| column != "us").map(|column| row.text(column));
    let sizes: Vec<&str> = sizes.filter(|cell| cell.parse::<f64>().is_ok()).collect();
    let shape = match table {
        // Few sizes, of which every second power of four is left out.
        Table::HostCopy => u64::from((row.count("bytes")?.max(1).ilog2() / 2).is_multiple_of(2)),
        _ => fnv1a(sizes.join(",").as_bytes()),
    };
    Ok(Some(Sample { shape, ..measured(table, row, us)? }))
}

fn measured(table: Table, row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    match table {
        Table::Products => product(row, us),
        Table::Grouped => grouped(row, us),
        Table::Sustained => sustained(row, us),
        Table::Attention => attention(row, us),
        Table::MemoryBound => memory_bound(row, us),
        Table::Optimizer => optimizer(row, us),
        Table::HostCopy => host_copy(row, us),
        Table::PublishedProducts => published_product(row, us),
        Table::PublishedAttention => published_attention(row, us),
    }
}

/// Whether a row of `bench --backend transfer` is one copy between GPU and host memory: others, of drives, of two GPUs, in
/// chunks, are no kernels of a GPU.
fn is_one_copy(row: &Cells<'_>) -> Result<bool, Wrong> {
    let others = ["both_ways", "peer", "file_read", "file_write", "file_to_device"];
    if others.contains(&row.text("way")) {
        return Ok(false);
    }
    Ok(row.text("chunk").is_empty() || row.count("chunk")? == row.count("bytes")?)
}

/// Rows of our own measurements: calls back to back from PyTorch, one shape after another.
fn settled(group: String, kernel: Kernel, issue: Issue, us: f64) -> Sample {
    Sample { group, shape: 0, kernels: vec![kernel], timing: Timing::Settled, issue, us }
}

fn issue_of(precision: Precision) -> Issue {
    if precision == Precision::Bf16 { Issue::Product } else { Issue::Scaled }
}

fn layer(row: &Cells<'_>, precision: Precision) -> Result<Product, Wrong> {
    Ok(Product::forward(precision, row.some("m")?, row.some("n")?, row.some("k")?))
}

fn product(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    let passes = [
        ("forward", ProductPass::Forward),
        ("grad_input", ProductPass::GradInput),
        ("grad_weight", ProductPass::GradWeight),
    ];
    let precision = row.precision("dtype")?;
    let mut product = layer(row, precision)?.of_pass(row.named("kind", &passes)?);
    let (batch, tokens) = (row.some("batch")?, row.some("m")?);
    if batch > 1 {
        product.tokens = Tokens::Even { total: tokens.saturating_mul(batch), groups: batch };
    }
    let group = format!("product {} {}", precision.name(), row.text("kind"));
    Ok(settled(group, Kernel::Product(product), issue_of(precision), us))
}

fn grouped(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    let precision = row.precision("dtype")?;
    let tokens = Tokens::Even { total: row.count("tokens")?, groups: row.some("experts")? };
    let product = Product { tokens, ..Product::forward(precision, 0, row.some("n")?, row.some("k")?) };
    let group = format!("experts {}", precision.name());
    Ok(settled(group, Kernel::Product(product), issue_of(precision), us))
}

fn sustained(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    let precision = row.precision("dtype")?;
    row.named("kernel", &[("product", ())])?;
    let timing = Timing::Seconds(row.positive("seconds")?);
    let group = format!("sustained {}", precision.name());
    Ok(Sample { timing, ..settled(group, Kernel::Product(layer(row, precision)?), issue_of(precision), us) })
}

fn attention(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    let backends = [
        ("flash", Backend::Flash2),
        ("flash1", Backend::Flash1),
        ("flash2", Backend::Flash2),
        ("flash3", Backend::Flash3),
        ("cudnn", Backend::Cudnn),
        ("trtllm", Backend::TrtLlm),
    ];
    let passes = [("forward", Pass::Forward), ("backward", Pass::Backward)];
    let (backend, pass) = (row.named("backend", &backends)?, row.named("pass", &passes)?);
    let head_dim = row.some("head_dim")?;
    let attention = Attention {
        backend,
        pass,
        batch: row.some("batch")?,
        heads: row.some("heads")?,
        kv_heads: row.some("kv_heads")?,
        queries: row.some("seq_q")?,
        keys: row.some("seq_kv")?,
        head_dim,
        value_dim: head_dim,
        causal: row.named("causal", &[("1", true), ("0", false)])?,
        latent: false,
    };
    let (kind, issue) = match (attention.queries, pass) {
        // Decodes run in CUDA graphs, as engines have them.
        (1, Pass::Forward) => ("decode", Issue::Free),
        (_, Pass::Forward) => ("attention", Issue::Attention),
        (_, Pass::Backward) => ("attention", Issue::Backward),
    };
    let group = format!("{kind} {} {}", backend.name(), row.text("pass"));
    Ok(settled(group, Kernel::Attention(attention), issue, us))
}

/// Operators of PyTorch over rows x width elements of BF16: kernels with bytes read and written of each element.
fn memory_bound(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    use MemoryKind as K;
    /// Kind of work, bytes read and written of an element.
    type Kernels = &'static [(MemoryKind, u64, u64)];
    let known: [(&'static str, Kernels); 10] = [
        ("copy", &[(K::Copy, 2, 2)]),
        ("add", &[(K::Copy, 4, 2)]),
        ("gelu", &[(K::Activation, 2, 2)]),
        // The few instructions of SiLU hide behind its bytes, as those of a copy do.
        ("silu_mul", &[(K::Copy, 2, 2), (K::Copy, 4, 2)]),
        ("rms_norm", &[(K::Norm, 2, 2)]),
        ("layer_norm", &[(K::LayerNorm, 2, 2)]),
        // One kernel for the gradient of the input, one that sums over rows for that of the weight.
        ("rms_norm_backward", &[(K::Norm, 4, 2), (K::Copy, 4, 0)]),
        // FP32 logits: log-softmax, the gradient of its choice, that of log-softmax.
        ("cross_entropy", &[(K::Softmax, 4, 4), (K::Fill, 0, 4), (K::Softmax, 8, 4)]),
        ("device_copy_bytes", &[(K::Copy, 1, 1)]),
        ("memset_bytes", &[(K::Fill, 0, 1)]),
    ];
    let known = row.named("kernel", &known)?;
    let (rows, width) = (row.count("rows")?, row.count("width")?);
    let elements = rows.saturating_mul(width);
    let kernel = |&(kind, reads, writes): &(MemoryKind, u64, u64)| {
        let (reads, writes) = (elements.saturating_mul(reads), elements.saturating_mul(writes));
        Kernel::Memory(Memory { kind, reads, writes, rows, width, kernels: 1 })
    };
    let name = row.text("kernel");
    let issue = match name {
        "rms_norm_backward" => Issue::Backward,
        "rms_norm" | "layer_norm" => Issue::Norm,
        _ => Issue::Elements(known.len() as u32),
    };
    let kernels = known.iter().map(kernel).collect();
    Ok(Sample { group: format!("memory {name}"), shape: 0, kernels, timing: Timing::Settled, issue, us })
}

fn optimizer(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    row.named("kind", &[("adamw_fused", ())])?;
    // Parameter, gradient and both moments in, all but the gradient out.
    let bytes = row.named("state_dtype", &[("fp32", 4), ("bf16", 2)])?;
    let (elements, tensors) = (row.count("elements")?, row.count("tensors")?);
    let step = Optimizer { elements, reads: 4 * bytes, writes: 3 * bytes, tensors };
    Ok(settled("optimizer".to_owned(), Kernel::Optimizer(step), Issue::Elements(1), us))
}

/// Copies of one size, each issued once the host thread has issued the one before.
fn host_copy(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    let to_host = row.named("way", &[("host_to_device", false), ("device_to_host", true)])?;
    let pinned = row.named("memory", &[("pinned", true), ("pageable", false)])?;
    let copy = HostCopy { bytes: row.count("bytes")?, to_host, pinned };
    let group = format!("copy {} {}", row.text("memory"), row.text("way"));
    Ok(settled(group, Kernel::HostCopy(copy), caller(row)?, us))
}

/// Who issues the copies of a table: PyTorch, or a program that calls the driver, as `bench --backend transfer`. Its tables say
/// so, and those of older versions have the bytes that were compared.
fn caller(row: &Cells<'_>) -> Result<Issue, Wrong> {
    if !row.text("caller").is_empty() {
        return row.named("caller", &[("pytorch", Issue::Copy), ("driver", Issue::Free)]);
    }
    Ok(if row.header.contains(&"checked") { Issue::Free } else { Issue::Copy })
}

/// Calls that its collector makes of each shape before those it times, and those.
const COLLECTED: Timing = Timing::Calls { warmup: 3, timed: 30 };

fn published_product(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    let precision = row.precision("gemm_dtype")?;
    let (tokens, inputs) = (row.count("m")?, row.count("k")?);
    let product = Kernel::Product(layer(row, precision)?);
    // The call stores its activation in fewer bits: in FP8 with one scale, which it finds first, in FP4 with one a block.
    let elements = tokens.saturating_mul(inputs);
    let pass = |kind, writes| {
        let reads = elements.saturating_mul(2);
        Kernel::Memory(Memory { kind, reads, writes, rows: tokens, width: inputs, kernels: 1 })
    };
    let kernels = match precision {
        Precision::Bf16 => vec![product],
        Precision::Fp8 => vec![pass(MemoryKind::Scale, 0), pass(MemoryKind::Quantize, elements), product],
        Precision::Fp4 => vec![pass(MemoryKind::Quantize, elements / 16 * 9), product],
    };
    let group = format!("published product {}", precision.name());
    Ok(Sample { group, shape: 0, kernels, timing: COLLECTED, issue: Issue::Free, us })
}

fn published_attention(row: &Cells<'_>, us: f64) -> Result<Sample, Wrong> {
    /// Width of all heads of these files.
    const HEAD: u64 = 128;
    let (batch, heads, kv_heads) =
        (row.count("batch_size")?, row.count("num_heads")?, row.count("num_key_value_heads")?);
    let tokens = row.count("isl")?;
    let attention = Attention {
        backend: Backend::TrtLlm,
        pass: Pass::Forward,
        batch,
        heads,
        kv_heads,
        queries: tokens,
        keys: tokens,
        head_dim: HEAD,
        value_dim: HEAD,
        causal: true,
        latent: false,
    };
    // Before it, a kernel rotates queries and keys and stores keys and values in their cache.
    let of = |heads: u64| 2_u64.saturating_mul(HEAD).saturating_mul(batch).saturating_mul(tokens).saturating_mul(heads);
    let stored = kv_heads.saturating_mul(2);
    let (reads, writes) = (of(heads.saturating_add(stored)), of(heads.saturating_add(stored)));
    let rotate = Memory { kind: MemoryKind::Copy, reads, writes, rows: 0, width: 0, kernels: 1 };
    let kernels = vec![Kernel::Memory(rotate), Kernel::Attention(attention)];
    let group = "published attention".to_owned();
    Ok(Sample { group, shape: 0, kernels, timing: COLLECTED, issue: Issue::Free, us })
}
