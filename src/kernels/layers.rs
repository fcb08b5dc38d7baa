//! Tables of layers and of whole models on one GPU: their times, and the bytes that they keep.

use std::path::{Path, PathBuf};

use collcast_scenarios::memory::{self, Framework, Software};
use collcast_scenarios::parallel::{Parallel, Recompute};
use collcast_scenarios::transformer::{Activation, Attention, Biases, LayerKind, Norm, Transformer};
use collcast_scenarios::work::single;
use collcast_sim::compute::Compute;
use collcast_sim::hash::fnv1a;

use super::columns::{LAYERS, MODELS, tables_in};
use super::read::{cells, headed};
use super::row::KernelRow;
use super::table::{Cells, Wrong};
use crate::error::Error;
use crate::files::read_text;

/// A table of layers or models, judged.
pub(super) struct Judged {
    /// Its path.
    pub(super) file: String,
    /// Hash of its content.
    pub(super) hash: String,
    /// Its rows: several of a line, each a figure of its own.
    pub(super) rows: Vec<KernelRow>,
    /// Lines that say compiled and kept the bytes of eager layers.
    pub(super) eager: Vec<u64>,
}

/// Takes tables of layers and models out of `paths` and judges them; leaves the other files, and folders.
///
/// # Errors
/// A file that cannot be read; a row that is wrong.
pub(super) fn judge(paths: &mut Vec<PathBuf>, gpu: &Compute) -> Result<Vec<Judged>, Error> {
    let mut judged = Vec::new();
    for path in std::mem::take(paths) {
        if path.is_dir() {
            for file in tables_in(&path)? {
                judged.extend(table(&file, gpu)?);
            }
            paths.push(path);
        } else if let Some(table) = table(&path, gpu)? {
            judged.push(table);
        } else {
            paths.push(path);
        }
    }
    Ok(judged)
}

/// One file; none where it is another table.
fn table(path: &Path, gpu: &Compute) -> Result<Option<Judged>, Error> {
    let text = read_text("read the measurements", path)?;
    let (header, lines) = headed(&text);
    let has = |columns: &[&str]| columns.iter().all(|column| header.contains(column));
    let (layers, models) = (has(LAYERS), has(MODELS));
    if !layers && !models {
        return Ok(None);
    }
    let file = path.display().to_string();
    let compiled = path.file_stem().is_some_and(|stem| stem.to_string_lossy().contains("compiled"));
    let mut judged =
        Judged { hash: format!("{:016x}", fnv1a(text.as_bytes())), rows: Vec::new(), eager: Vec::new(), file };
    for (line, text) in lines {
        let cells = cells(text);
        let figures = if cells.len() == header.len() {
            let row = Cells { header: &header, cells };
            if layers { layer(&row, gpu) } else { model(&row, compiled, gpu).map(|figures| (figures, false)) }
        } else {
            Err(format!("{} cells, but the header has {}", cells.len(), header.len()))
        };
        let (figures, eager) = figures.map_err(|message| {
            Error::usage(format!("{}:{line}: {message}", judged.file), "docs/formats.md says what each column has")
        })?;
        judged.eager.extend(eager.then_some(line));
        judged.rows.extend(figures.into_iter().map(|figure| figure.row(&judged.file, line)));
    }
    Ok(Some(judged))
}

/// One figure of a line.
struct Figure {
    group: String,
    unit: &'static str,
    measured: f64,
    predicted: f64,
}

impl Figure {
    fn row(self, file: &str, line: u64) -> KernelRow {
        let Self { group, unit, measured, predicted } = self;
        let error = predicted / measured - 1.0;
        KernelRow { file: file.to_owned(), line, group, left_out: false, unit, measured, predicted, error }
    }
}

/// Llama's layer in any shape, on one of `tensor` ranks.
fn llama(row: &Cells<'_>, tensor: u64, layers: u64, vocabulary: u64) -> Result<Transformer, Wrong> {
    let hidden = row.count("hidden")?;
    let whole = |column| Ok::<u64, Wrong>(row.count(column)?.saturating_mul(tensor));
    let heads = whole("heads")?;
    let model = Transformer {
        name: row.text("name").to_owned(),
        layers,
        hidden,
        vocabulary,
        sequence: row.count("seq")?,
        tied: false,
        norm: Norm::Rms,
        biases: Biases::None,
        learned_positions: 0,
        rotary: true,
        dropout: false,
        attention: Attention::Gqa {
            heads,
            kv_heads: whole("kv_heads")?,
            head_dim: hidden / heads.max(1),
            head_norm: false,
        },
        width: whole("ffn")?,
        activation: Activation::SwiGlu,
        experts: None,
        predictions: 0,
    };
    model.check().map_err(|(_, message)| message)?;
    Ok(model)
}

fn small(row: &Cells<'_>, column: &str) -> Result<u32, Wrong> {
    let count = row.count(column)?;
    u32::try_from(count).ok().filter(|&count| count > 0).ok_or_else(|| format!("`{column}` is {count}"))
}

/// Times of a layer and what it keeps, and whether a row that says compiled ran eager: its bytes are nearer to those.
fn layer(row: &Cells<'_>, gpu: &Compute) -> Result<(Vec<Figure>, bool), Wrong> {
    let tensor = small(row, "tp")?;
    let model = llama(row, tensor.into(), 1, 1)?;
    let micro_batch = small(row, "micro_batch")?;
    let parallel = Parallel { tensor, micro_batch, global_batch: micro_batch.into(), ..Parallel::default() };
    parallel.check(&model).map_err(|refused| refused.to_string())?;
    let saved = row.positive("saved_bytes")?;
    let kept = |software: &Software| {
        let lines = memory::layer(&model, LayerKind::Dense, &parallel, software);
        lines.iter().map(|line| line.bytes).sum::<f64>() * parallel.tokens(&model)
    };
    let [eager, compiled] = [Framework::Eager, Framework::Compiled].map(Framework::software);
    let says = row.named("compiled", &[("0", false), ("1", true)])?;
    let near = |software: &Software| (kept(software) / saved).ln().abs();
    let is = says && near(&compiled) <= near(&eager);
    let (software, kind) = if is { (compiled, "compiled") } else { (eager, "eager") };
    let block = single::block(&model, LayerKind::Dense, &parallel, &software, gpu).map_err(|e| e.to_string())?;
    let time = |what: &str, column, time: single::Time| {
        let (measured, predicted) = (row.positive(column)?, time.total().as_us());
        Ok::<Figure, Wrong>(Figure { group: format!("layer {kind} {what}"), unit: "us", measured, predicted })
    };
    let bytes =
        Figure { group: format!("layer {kind} saved bytes"), unit: "B", measured: saved, predicted: kept(&software) };
    let times = [time("forward", "fwd_us", block.forward)?, time("forward and backward", "fwd_bwd_us", block.both)?];
    Ok((times.into_iter().chain([bytes]).collect(), says && !is))
}

/// Time of a step, what it holds before and at its peak.
fn model(row: &Cells<'_>, compiled: bool, gpu: &Compute) -> Result<Vec<Figure>, Wrong> {
    let model = llama(row, 1, row.count("layers")?, row.count("vocab")?)?;
    let micro_batch = small(row, "micro_batch")?;
    let recompute = row.named("recompute", &[("0", Recompute::None), ("1", Recompute::Full)])?;
    let global_batch = u64::from(micro_batch) * u64::from(small(row, "accumulate")?);
    let parallel = Parallel { micro_batch, global_batch, recompute, ..Parallel::default() };
    let (software, kind) =
        if compiled { (Framework::Compiled.software(), "compiled") } else { (Framework::Eager.software(), "eager") };
    let stage = memory::plan(&model, &parallel, &software).map_err(|refused| refused.to_string())?.worst();
    let time = single::step(&model, &parallel, &software, gpu).map_err(|e| e.to_string())?;
    let held = stage.weights.saturating_add(stage.optimizer);
    let figures = [
        ("step", "us", "step_us", time.total().as_us()),
        ("step peak bytes", "B", "peak_bytes", stage.allocated() as f64),
        ("step static bytes", "B", "static_bytes", held as f64),
    ];
    let figure = |(what, unit, column, predicted): (&str, _, _, _)| {
        Ok(Figure { group: format!("model {kind} {what}"), unit, measured: row.positive(column)?, predicted })
    };
    figures.into_iter().map(figure).collect()
}
