//! Goal: what passes the border between C and Rust is used as the interfaces v2 to v6 allow: no pointer is read or written
//! beyond what NCCL gives, nothing is freed twice or left, and two threads may ask at once.
//! Method: this program plays NCCL through the symbols that it looks for. `tests/miri.rs` runs it in an interpreter that sees
//! every access; here it runs as it is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use collcast_tuner::abi::{Get4, Init2, Init5, SUCCESS};
use collcast_tuner::entry::{
    ncclTunerPlugin_v2, ncclTunerPlugin_v3, ncclTunerPlugin_v4, ncclTunerPlugin_v5, ncclTunerPlugin_v6,
};

const TABLE: &str = "allreduce,0,65535,ring,ll,4,1,8,-1,-1\n\
    allreduce,65536,18446744073709551615,nvls,simple,16,1,8,-1,-1\n\
    allgather,0,18446744073709551615,pat,simple,-1,1,8\n";

/// The table's file, which a variable names to the plugin.
fn table() -> &'static PathBuf {
    static TABLE_FILE: OnceLock<PathBuf> = OnceLock::new();
    TABLE_FILE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("collcast-border-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tuner.csv");
        std::fs::write(&path, TABLE).unwrap();
        // SAFETY: every test asks for the table before it calls the plugin, and this is done once.
        unsafe { std::env::set_var("COLLCAST_TUNER_TABLE", &path) };
        path
    })
}

fn make2(init: Init2) -> *mut c_void {
    table();
    let mut context = ptr::null_mut();
    // SAFETY: as NCCL calls it, without a logger.
    assert_eq!(unsafe { init(8, 1, None, &raw mut context) }, SUCCESS);
    assert!(!context.is_null());
    context
}

fn make5(init: Init5) -> *mut c_void {
    table();
    let mut context = ptr::null_mut();
    let none = ptr::null_mut();
    // SAFETY: as NCCL calls it, without a logger, domains and constants.
    assert_eq!(unsafe { init(&raw mut context, 7, 8, 1, None, none, none) }, SUCCESS);
    assert!(!context.is_null());
    context
}

/// Costs as NCCL has them, but for a guard after the last, and the channels.
struct Costs {
    cells: [f32; 22],
    channels: c_int,
}

impl Costs {
    fn new() -> Self {
        let mut cells = [1.0; 22];
        // PAT cannot be done here.
        (cells[20], cells[21]) = (-1.0, 77.0);
        Self { cells, channels: 0 }
    }

    fn changed(&self) -> Vec<usize> {
        assert_eq!((self.cells[20], self.cells[21]), (-1.0, 77.0), "a closed cell or the guard was written");
        (0..20).filter(|&at| self.cells[at] != 1.0).collect()
    }
}

fn ask(get: Get4, context: *mut c_void, collective: c_int, bytes: usize) -> (Vec<usize>, c_int) {
    let mut costs = Costs::new();
    let table = costs.cells.as_mut_ptr().cast();
    // SAFETY: 7 x 3 costs and a number, as NCCL gives them.
    let code = unsafe { get(context, collective, bytes, 1, table, 7, 3, 0, &raw mut costs.channels) };
    assert_eq!(code, SUCCESS);
    (costs.changed(), costs.channels)
}

/// Goal: v3 to v6 answer by the table, leave closed cells and what lies behind the costs alone, and take null where NCCL may
/// give it.
#[test]
fn costs_stay_within_their_array() {
    let get = ncclTunerPlugin_v4.get.unwrap();
    let made = [
        (make2(ncclTunerPlugin_v4.init.unwrap()), ncclTunerPlugin_v4.end),
        (make5(ncclTunerPlugin_v5.init.unwrap()), ncclTunerPlugin_v5.end),
        (make5(ncclTunerPlugin_v6.base.init.unwrap()), ncclTunerPlugin_v6.base.end),
    ];
    for (context, end) in made {
        assert_eq!(ask(get, context, 4, 100), (vec![3], 4));
        assert_eq!(ask(get, context, 4, 1 << 20), (vec![14], 16));
        // PAT is closed; other collectives have no line, and some do not exist.
        for collective in [2, 0, -1, 99, c_int::MIN, c_int::MAX] {
            assert_eq!(ask(get, context, collective, 100), (vec![], 0), "{collective}");
        }
        let mut number = 0;
        // SAFETY: null and sizes that are none are what this checks.
        unsafe {
            let nothing = ptr::null_mut();
            assert_eq!(get(context, 4, 1, 1, nothing, 7, 3, 0, &raw mut number), SUCCESS);
            let mut costs = Costs::new();
            for (rows, columns) in [(0, 3), (7, 0), (-1, -1), (65, 3), (1, 1)] {
                let table = costs.cells.as_mut_ptr().cast();
                assert_eq!(get(context, 4, 1, 1, table, rows, columns, 0, ptr::null_mut()), SUCCESS);
                assert_eq!(get(ptr::null_mut(), 4, 1, 1, table, 7, 3, 0, &raw mut number), SUCCESS);
            }
            assert_eq!((costs.changed(), number), (vec![], 0));
            assert_eq!(end.unwrap()(context), SUCCESS);
            assert_eq!(end.unwrap()(ptr::null_mut()), SUCCESS);
        }
    }
    let context = make2(ncclTunerPlugin_v3.init.unwrap());
    let mut costs = Costs::new();
    // SAFETY: as v3 has it.
    unsafe {
        let table = costs.cells.as_mut_ptr().cast();
        let get = ncclTunerPlugin_v3.get.unwrap();
        assert_eq!(get(context, 4, 100, 1, table, 7, 3, &raw mut costs.channels), SUCCESS);
        assert_eq!((costs.changed(), costs.channels), (vec![3], 4));
        let mut chunk = 4096;
        assert_eq!(ncclTunerPlugin_v6.chunk.unwrap()(context, 4, 1, 1, 2, 8, &raw mut chunk), SUCCESS);
        assert_eq!((chunk, ncclTunerPlugin_v3.end.unwrap()(context)), (4096, SUCCESS));
    }
}

/// Goal: v2 writes its three numbers where it has an answer, and nowhere else.
#[test]
fn three_numbers_are_written() {
    let (context, get) = (make2(ncclTunerPlugin_v2.init.unwrap()), ncclTunerPlugin_v2.get.unwrap());
    let ask = |collective, bytes, nvls| {
        let (mut algorithm, mut protocol, mut channels) = (-1, -1, 0);
        // SAFETY: as v2 has it.
        let code = unsafe {
            get(context, collective, bytes, 0, nvls, 1, &raw mut algorithm, &raw mut protocol, &raw mut channels)
        };
        assert_eq!(code, SUCCESS);
        (algorithm, protocol, channels)
    };
    assert_eq!((ask(4, 100, 0), ask(4, 1 << 20, 1)), ((1, 0, 4), (4, 2, 16)));
    assert_eq!([ask(4, 1 << 20, 0), ask(2, 100, 1), ask(-5, 100, 1)], [(-1, -1, 0); 3]);
    let null = ptr::null_mut();
    // SAFETY: null is what this checks.
    unsafe {
        assert_eq!(get(context, 4, 100, 0, 1, 1, null, null, null), SUCCESS);
        assert_eq!(ncclTunerPlugin_v2.end.unwrap()(context), SUCCESS);
    }
}

/// A pointer that threads share, as NCCL's do.
#[derive(Clone, Copy)]
struct Shared(*mut c_void);
// SAFETY: a context is only read once it is made.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Goal: threads that ask at once get the same answers: nothing is written to what they share.
#[test]
fn threads_ask_at_once() {
    let context = Shared(make5(ncclTunerPlugin_v5.init.unwrap()));
    let get = ncclTunerPlugin_v5.get.unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                let Shared(context) = { context };
                for _ in 0..5 {
                    assert_eq!(ask(get, context, 4, 100), (vec![3], 4));
                }
            });
        }
    });
    // SAFETY: it ends once.
    assert_eq!(unsafe { ncclTunerPlugin_v5.end.unwrap()(context.0) }, SUCCESS);
}

/// Goal: a context that could not be given back is none that is left: `init` without a place for it makes nothing.
#[test]
fn no_place_is_no_context() {
    table();
    let null = ptr::null_mut();
    // SAFETY: null is what this checks.
    unsafe {
        assert_eq!(ncclTunerPlugin_v2.init.unwrap()(8, 1, None, ptr::null_mut()), SUCCESS);
        assert_eq!(ncclTunerPlugin_v6.base.init.unwrap()(ptr::null_mut(), 1, 8, 1, None, null, null), SUCCESS);
    }
}
