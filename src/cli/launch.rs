//! Starts this command once a rank, on this host, as a launcher of processes would.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use collcast::Error;
use collcast::bench::Children;

use super::call::{self, Code};

/// Most processes: each has the machine's model and its FIFOs in memory.
const MOST: u32 = 256;
/// How long the others may take to end after rank 0 has: they hear from it that it is over.
const GRACE: Duration = Duration::from_secs(5);

/// Starts the command once for each rank; rank 0 speaks for all, and its exit code is that of the command.
pub(crate) fn processes(ranks: u32) -> Result<Code, Error> {
    if ranks > MOST {
        return Err(Error::usage(
            format!("{ranks} processes are more than are started on one host ({MOST})"),
            "take fewer --nodes, --gpus or --ranks, or start the command under torchrun, mpirun or srun",
        ));
    }
    let file = |what: &'static str, path: &str| {
        let path = path.into();
        move |source| Error::File { what, path, source }
    };
    let program = call::program().map_err(file("find", "this program"))?;
    // Free now; should another program take it before rank 0 does, the run ends in an error.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let port = port.map_err(file("find a free port on", "127.0.0.1"))?.port();
    // Ctrl-C reaches all; rank 0 keeps its rows and says how it ended.
    let _ = ctrlc::set_handler(|| {});
    let mut children = Children(Vec::new());
    for rank in 0..ranks {
        let mut command = Command::new(&program);
        command.args(call::words().into_iter().skip(1)).env("MASTER_ADDR", "127.0.0.1");
        command.envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())]);
        command.envs([("WORLD_SIZE", ranks.to_string()), ("COLLCAST_PORT", port.to_string())]);
        if rank > 0 {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        }
        children.0.push(command.spawn().map_err(file("start", "this program"))?);
    }
    let first = children.0[0].wait().map_err(file("wait for", "rank 0"))?;
    let begin = Instant::now();
    while begin.elapsed() < GRACE && children.0.iter_mut().any(|rank| matches!(rank.try_wait(), Ok(None))) {
        std::thread::sleep(Duration::from_millis(10));
    }
    match first.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(Code(code)),
        None => Err(Error::Exec { code: 1, message: format!("rank 0 ended with {first}"), hint: None }),
    }
}
