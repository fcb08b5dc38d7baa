//! Processes of one job find each other: rank and world size from the launcher's environment,
//! then a star of TCP connections around rank 0 for a few small messages.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use collcast_topologies::hostlist;

use crate::exec::ExecError;

/// Port where no launcher names one: PyTorch's default, and one beside it for us.
const PORT: u16 = 29_500;
/// Longest message: results of a sweep are far below.
const MESSAGE_MAX: u32 = 64 << 20;
/// What a connection starts with; then 4 bytes of rank, 4 of size and 8 of job, little end first.
const HELLO: &[u8; 12] = b"collcast/2\r\n";
const HELLO_BYTES: usize = HELLO.len() + 16;
/// Most ranks that an error names.
const NAMED: usize = 8;
/// Connections that are taken before time is looked at.
const AT_ONCE: usize = 128;
/// How long a connection may take to say all that.
const HELLO_TIME: Duration = Duration::from_secs(2);

/// A process's place in its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct World {
    /// Rank of this process.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// Index among the processes of this host: which GPU it uses.
    pub local: u32,
    /// Host of rank 0.
    pub address: String,
    /// Port that rank 0 listens on.
    pub port: u16,
    /// Whose environment said so.
    pub launcher: &'static str,
    /// The launcher's name of the job, in 64 bits: processes of other jobs are sent away.
    pub job: u64,
}

impl World {
    /// The place that a launcher's environment gives; `None` outside of any.
    ///
    /// torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (its own store may hold
    /// that port, so the next one is used). mpirun of Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK.
    /// srun: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST. mpiexec of MPICH and Intel MPI:
    /// PMI_RANK, PMI_SIZE, MPI_LOCALRANKID. The last three take
    /// MASTER_ADDR and MASTER_PORT where set. COLLCAST_PORT names the port in every case.
    ///
    /// The job is TORCHELASTIC_RUN_ID of torchrun, PMIX_NAMESPACE of Open MPI, SLURM_JOB_ID with SLURM_STEP_ID of srun, and
    /// PMI_JOBID; all processes of a job have the same, and those of a launcher that names none have nothing.
    ///
    /// # Errors
    /// Numbers that are none, a rank outside the world, or no way to find rank 0.
    pub fn from_env(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, ExecError> {
        let launchers = [
            ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", &["TORCHELASTIC_RUN_ID"][..]),
            (
                "mpirun",
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                &["PMIX_NAMESPACE"][..],
            ),
            ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", &["SLURM_JOB_ID", "SLURM_STEP_ID"][..]),
            // Inside of a job of Slurm its own variables say more, so this comes last.
            ("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", &["PMI_JOBID"][..]),
        ];
        // The shell of a Slurm batch job has rank and size too, but no step.
        let in_step = |launcher: &str| launcher != "srun" || get("SLURM_STEP_NODELIST").is_some();
        let Some(&(launcher, rank, size, local, names)) =
            launchers.iter().find(|l| get(l.1).is_some() && get(l.2).is_some() && in_step(l.0))
        else {
            return Ok(None);
        };
        let number = |name: &str| -> Result<u32, ExecError> {
            let text = get(name).ok_or_else(|| misset(format!("{launcher} set {rank} but not {name}")))?;
            text.trim().parse().map_err(|_| misset(format!("{name}=`{text}` is not a number")))
        };
        let world = (number(rank)?, number(size)?, number(local)?);
        if world.0 >= world.1 {
            return Err(misset(format!("{rank}={} is not below {size}={}", world.0, world.1)));
        }
        let nodes = get("SLURM_STEP_NODELIST");
        let first = || nodes.as_deref().and_then(|list| hostlist::expand(list).ok()?.into_iter().next());
        let local_sizes = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];
        let one_host = local_sizes.iter().any(|name| get(name).as_deref() == Some(world.1.to_string().as_str()));
        let address = match get("MASTER_ADDR").or_else(|| (launcher == "srun").then(first)?) {
            Some(address) => address,
            None if world.1 == 1 || one_host => "127.0.0.1".to_owned(),
            None => {
                return Err(misset(format!("{launcher} does not say where rank 0 is; set MASTER_ADDR to its host")));
            }
        };
        let port = match (get("COLLCAST_PORT"), get("MASTER_PORT")) {
            (Some(text), _) => parse_port("COLLCAST_PORT", &text)?,
            (None, Some(text)) => parse_port("MASTER_PORT", &text)?.checked_add(1).unwrap_or(PORT),
            (None, None) => PORT + 1,
        };
        let job = job(names.iter().map(|name| get(name).unwrap_or_default()));
        Ok(Some(Self { rank: world.0, size: world.1, local: world.2, address, port, launcher, job }))
    }
}

/// The names of a job in 64 bits (FNV-1a), the same in every process and release.
fn job(names: impl Iterator<Item = String>) -> u64 {
    let bytes = names.flat_map(|name| name.into_bytes().into_iter().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn parse_port(name: &str, text: &str) -> Result<u16, ExecError> {
    text.trim().parse().ok().filter(|&p| p > 0).ok_or_else(|| misset(format!("{name}=`{text}` is not a port")))
}

/// Variables that say of no job which ranks it has.
fn misset(what: String) -> ExecError {
    ExecError::Refused {
        what,
        hint: "set what is missing, or start the command under torchrun, mpirun or srun; for this host alone unset RANK and \
               WORLD_SIZE",
    }
}

fn bad(message: String) -> ExecError {
    ExecError::Rendezvous(message)
}

/// The processes of a job, connected.
#[derive(Debug)]
pub struct Group {
    /// Rank of this process.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// To rank 0; at rank 0 to each of the others, by rank from 1.
    peers: Vec<TcpStream>,
}

impl Group {
    /// Connects all processes of a world; every later message waits `patience` at most.
    ///
    /// # Errors
    /// Who did not come, or who is not one of us.
    pub fn join(world: &World, patience: Duration) -> Result<Self, ExecError> {
        let deadline = Instant::now() + patience;
        let at = format!("{}:{}", world.address, world.port);
        let mut group = Self { rank: world.rank, size: world.size, peers: Vec::new() };
        if world.size == 1 {
            return Ok(group);
        }
        if world.rank == 0 {
            group.peers = accept(world, deadline)?;
        } else {
            let mut stream = loop {
                match connect(&at) {
                    Ok(stream) => break stream,
                    Err(error) if Instant::now() >= deadline => {
                        return Err(bad(format!("rank {} cannot reach rank 0 at {at}: {error}", world.rank)));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            };
            let numbers = [world.rank.to_le_bytes(), world.size.to_le_bytes()].concat();
            let hello = [&HELLO[..], &numbers, &world.job.to_le_bytes()].concat();
            stream.write_all(&hello).map_err(|e| bad(format!("rank 0 at {at} hung up: {e}")))?;
            group.peers.push(stream);
        }
        for peer in &group.peers {
            let set = peer.set_read_timeout(Some(patience)).and_then(|()| peer.set_write_timeout(Some(patience)));
            set.and_then(|()| peer.set_nodelay(true)).map_err(|e| bad(e.to_string()))?;
        }
        Ok(group)
    }

    /// Rank 0's message, at every rank.
    ///
    /// # Errors
    /// A peer that is gone or late.
    pub fn broadcast(&mut self, message: Vec<u8>) -> Result<Vec<u8>, ExecError> {
        if self.rank != 0 {
            return receive(&mut self.peers[0], 0);
        }
        for (peer, stream) in self.peers.iter_mut().enumerate() {
            send(stream, &message, peer + 1)?;
        }
        Ok(message)
    }

    /// The messages of all ranks, by rank; at rank 0 only.
    ///
    /// # Errors
    /// A peer that is gone or late.
    pub fn gather(&mut self, message: &[u8]) -> Result<Option<Vec<Vec<u8>>>, ExecError> {
        if self.rank != 0 {
            send(&mut self.peers[0], message, 0)?;
            return Ok(None);
        }
        let mut all = vec![message.to_vec()];
        for (peer, stream) in self.peers.iter_mut().enumerate() {
            all.push(receive(stream, peer + 1)?);
        }
        Ok(Some(all))
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// A peer that is gone or late.
    pub fn barrier(&mut self) -> Result<(), ExecError> {
        self.gather(&[])?;
        self.broadcast(Vec::new()).map(|_| ())
    }

    /// The sum of all ranks' numbers; an error of any rank is an error of all. A rank that is gone is named
    /// before what others suffered by it.
    ///
    /// # Errors
    /// Our own where it explains all, else what happened to whom.
    pub fn agreed(&mut self, mine: Result<u64, ExecError>) -> Result<u64, ExecError> {
        let said = match &mine {
            Ok(number) => format!("+{number}"),
            Err(error) => error.to_string(),
        };
        let verdict = if self.rank == 0 {
            let verdict = self.verdict(said.clone());
            for (peer, stream) in self.peers.iter_mut().enumerate() {
                // One that is gone is in the verdict already.
                let _ = send(stream, verdict.as_bytes(), peer + 1);
            }
            verdict
        } else {
            let told = send(&mut self.peers[0], said.as_bytes(), 0).and_then(|()| receive(&mut self.peers[0], 0));
            match (told, &mine) {
                (Ok(verdict), _) => String::from_utf8_lossy(&verdict).into_owned(),
                (Err(gone), Ok(_)) => return Err(gone),
                (Err(gone), Err(own)) => format!("{gone}; {own}"),
            }
        };
        match (verdict.strip_prefix('+').and_then(|v| v.parse().ok()), mine) {
            (Some(sum), Ok(_)) => Ok(sum),
            (_, Err(own)) if verdict == said => Err(own),
            _ => Err(bad(verdict)),
        }
    }

    /// The sum of all ranks' numbers, or all that went wrong: who is gone first.
    fn verdict(&mut self, mine: String) -> String {
        let (mut gone, mut wrong, mut sum) = (Vec::new(), Vec::new(), 0_u64);
        let mut hear = |said: String| match said.strip_prefix('+').and_then(|v| v.parse::<u64>().ok()) {
            Some(number) => sum += number,
            None if wrong.contains(&said) => {}
            None => wrong.push(said),
        };
        hear(mine);
        for (peer, stream) in self.peers.iter_mut().enumerate() {
            match receive(stream, peer + 1) {
                Ok(message) => hear(String::from_utf8_lossy(&message).into_owned()),
                Err(error) => gone.push(error.to_string()),
            }
        }
        gone.append(&mut wrong);
        if gone.is_empty() { format!("+{sum}") } else { gone.join("; ") }
    }

    /// The largest of each value over all ranks.
    ///
    /// # Errors
    /// A peer that is gone or late, or that has another number of values.
    pub fn slowest(&mut self, mine: &[f64]) -> Result<Vec<f64>, ExecError> {
        let numbers = |bytes: &[u8]| -> Vec<f64> {
            bytes.chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap_or_default())).collect()
        };
        let bytes = |values: &[f64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let all = self.gather(&bytes(mine))?.map(|all| {
            let all: Vec<Vec<f64>> = all.iter().map(|b| numbers(b)).collect();
            let shortest = all.iter().map(Vec::len).min().unwrap_or(0);
            let most = |i: usize| all.iter().map(|v| v[i]).fold(f64::MIN, f64::max);
            bytes(&(0..shortest).map(most).collect::<Vec<_>>())
        });
        let agreed = numbers(&self.broadcast(all.unwrap_or_default())?);
        if agreed.len() == mine.len() {
            Ok(agreed)
        } else {
            Err(bad("processes ran different numbers of batches".to_owned()))
        }
    }
}

/// A connection that has not yet said who it is.
struct Caller {
    stream: TcpStream,
    from: SocketAddr,
    hello: [u8; HELLO_BYTES],
    heard: usize,
    until: Instant,
}

impl Caller {
    fn new(stream: TcpStream, from: SocketAddr) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, from, hello: [0; HELLO_BYTES], heard: 0, until: Instant::now() + HELLO_TIME })
    }

    /// Hears what there is; whether more may come of it.
    fn hear(&mut self) -> bool {
        while self.heard < HELLO_BYTES {
            match self.stream.read(&mut self.hello[self.heard..]) {
                Ok(0) => return false,
                Ok(bytes) => self.heard += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock && Instant::now() < self.until,
            }
        }
        true
    }

    /// Its rank; nothing where it is none of us: a port scanner, say, or a process of another job.
    fn rank(&self, world: &World) -> Result<Option<u32>, ExecError> {
        let number = |at: usize| -> [u8; 4] { self.hello[at..at + 4].try_into().unwrap_or_default() };
        let at = HELLO.len();
        let job = [number(at + 8), number(at + 12)].concat().try_into().map_or(0, u64::from_le_bytes);
        if !self.hello.starts_with(HELLO) || job != world.job {
            return Ok(None);
        }
        let (rank, size) = (u32::from_le_bytes(number(at)), u32::from_le_bytes(number(at + 4)));
        if size != world.size || rank == 0 || rank >= size {
            let from = self.from;
            return Err(bad(format!("{from} says it is rank {rank} of {size}; this is a job of {}", world.size)));
        }
        Ok(Some(rank))
    }
}

/// Listens on all addresses: the name of this host may resolve to one that others cannot reach.
fn listen(world: &World) -> Result<Vec<TcpListener>, ExecError> {
    // By default a listener of IPv6 takes IPv4 too, and the second finds the port taken.
    let hosts: &[&str] = match world.address.as_str() {
        "127.0.0.1" | "localhost" => &["127.0.0.1"],
        "::1" => &["::1"],
        _ => &["::", "0.0.0.0"],
    };
    let bind = |&host: &&str| {
        let listener = TcpListener::bind((host, world.port))?;
        listener.set_nonblocking(true).map(|()| listener)
    };
    let (listeners, errors): (Vec<_>, Vec<_>) = hosts.iter().map(bind).partition(Result::is_ok);
    let listeners: Vec<_> = listeners.into_iter().flatten().collect();
    match errors.into_iter().find_map(Result::err) {
        Some(error) if listeners.is_empty() => {
            Err(bad(format!("rank 0 cannot listen on port {}: {error}; COLLCAST_PORT names another", world.port)))
        }
        _ => Ok(listeners),
    }
}

fn accept(world: &World, deadline: Instant) -> Result<Vec<TcpStream>, ExecError> {
    let listeners = listen(world)?;
    let mut callers: Vec<Caller> = Vec::new();
    let mut peers: Vec<Option<TcpStream>> = (1..world.size).map(|_| None).collect();
    while peers.iter().any(Option::is_none) {
        if Instant::now() >= deadline {
            let missing: Vec<u32> = (1..world.size).filter(|&r| peers[r as usize - 1].is_none()).collect();
            let named: Vec<String> = missing.iter().take(NAMED).map(u32::to_string).collect();
            let more = missing.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(bad(format!("rank {}{more} of {} did not come in time", named.join(", "), world.size)));
        }
        let came = listeners.iter().flat_map(|listener| std::iter::from_fn(|| listener.accept().ok()).take(AT_ONCE));
        callers.extend(came.filter_map(|(stream, from)| Caller::new(stream, from).ok()));
        callers.retain_mut(Caller::hear);
        let (told, waiting): (Vec<_>, _) = callers.into_iter().partition(|caller| caller.heard == HELLO_BYTES);
        callers = waiting;
        if told.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        for caller in told {
            let Some(rank) = caller.rank(world)? else { continue };
            caller.stream.set_nonblocking(false).map_err(|e| bad(e.to_string()))?;
            if peers[rank as usize - 1].replace(caller.stream).is_some() {
                return Err(bad(format!("two processes say they are rank {rank}")));
            }
        }
    }
    Ok(peers.into_iter().flatten().collect())
}

fn connect(at: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in at.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn send(stream: &mut TcpStream, message: &[u8], peer: usize) -> Result<(), ExecError> {
    let length = u32::try_from(message.len()).ok().filter(|&l| l <= MESSAGE_MAX);
    let length = length.ok_or_else(|| bad(format!("a message of {} bytes is too long", message.len())))?;
    let sent = stream.write_all(&length.to_le_bytes()).and_then(|()| stream.write_all(message));
    sent.map_err(|e| bad(format!("rank {peer} is gone: {e}")))
}

fn receive(stream: &mut TcpStream, peer: usize) -> Result<Vec<u8>, ExecError> {
    let gone = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            bad(format!("rank {peer} did not answer in time"))
        }
        std::io::ErrorKind::UnexpectedEof => bad(format!("rank {peer} is gone: its process has ended")),
        _ => bad(format!("rank {peer} is gone: {e}")),
    };
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(gone)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_MAX {
        return Err(bad(format!("rank {peer} announces {length} bytes; at most {MESSAGE_MAX} are read")));
    }
    let mut message = vec![0; length as usize];
    stream.read_exact(&mut message).map_err(gone)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(variables: &[(&str, &str)]) -> Result<Option<World>, String> {
        let world = World::from_env(&|name| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()));
        world.map_err(|error| error.to_string())
    }

    /// Goal: the environment of each launcher is understood.
    #[test]
    fn launchers_are_understood() {
        assert_eq!(world(&[]), Ok(None));
        assert_eq!(world(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16")]), Ok(None));
        let expect = |rank, size, local, address: &str, port, launcher, names: &[&str]| {
            let job = job(names.iter().map(|&name| name.to_owned()));
            Ok(Some(World { rank, size, local, address: address.to_owned(), port, launcher, job }))
        };
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "1234"),
            ("TORCHELASTIC_RUN_ID", "one"),
        ];
        assert_eq!(world(&torchrun), expect(3, 8, 1, "a", 1235, "torchrun", &["one"]));
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(world(&mpirun), expect(1, 2, 1, "127.0.0.1", 29_501, "mpirun", &[""]));
        let srun = [
            ("SLURM_PROCID", "9"),
            ("SLURM_NTASKS", "16"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NODELIST", "gpu[007-008]"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "1"),
            ("COLLCAST_PORT", "4000"),
        ];
        assert_eq!(world(&srun), expect(9, 16, 1, "gpu007", 4000, "srun", &["77", "1"]));
        assert_ne!(job(["77", "1"].map(str::to_owned).into_iter()), job(["7", "71"].map(str::to_owned).into_iter()));
    }

    /// Goal: bad environments are refused by name.
    #[test]
    fn bad_environments_are_refused() {
        for (variables, says) in [
            (vec![("RANK", "x"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], "RANK=`x`"),
            (vec![("RANK", "2"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], "not below"),
            (vec![("RANK", "0"), ("WORLD_SIZE", "2")], "LOCAL_RANK"),
            (vec![("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], "MASTER_ADDR"),
        ] {
            let error = world(&variables).err().unwrap_or_default();
            assert!(error.contains(says), "{error}");
        }
    }

    /// Goal: what goes wrong at one rank is known at all; who is gone is named first; numbers are summed, and the
    /// slowest of each is taken.
    #[test]
    fn ranks_agree_also_on_failure() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let run = move |rank| {
            let address = "127.0.0.1".to_owned();
            let world = World { rank, size: 3, local: rank, address, port, launcher: "test", job: 0 };
            let mut group = Group::join(&world, Duration::from_secs(20)).unwrap();
            let sum = group.agreed(Ok(u64::from(rank) + 1)).unwrap();
            let slowest = group.slowest(&[f64::from(rank), 5.0 - f64::from(rank)]).unwrap();
            assert_eq!((sum, slowest), (6, vec![2.0, 5.0]));
            let one = group.agreed(if rank == 1 { Err(bad("no luck".to_owned())) } else { Ok(0) });
            assert_eq!(one.unwrap_err().to_string(), "no luck");
            if rank == 2 {
                return String::new();
            }
            group.agreed(if rank == 1 { Err(bad("alone".to_owned())) } else { Ok(0) }).unwrap_err().to_string()
        };
        let ranks: Vec<_> = (0..3).map(|rank| std::thread::spawn(move || run(rank))).collect();
        let said: Vec<String> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        for error in &said[..2] {
            assert!(error.starts_with("rank 2 is gone") && error.ends_with("; alone"), "{error}");
        }
    }

    /// Goal: a rank that does not come ends in an error that names it, at both ends.
    #[test]
    fn a_missing_rank_is_named() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = "127.0.0.1".to_owned();
        let at =
            move |rank, size| World { rank, size, local: 0, address: address.clone(), port, launcher: "test", job: 0 };
        let one = at(1, 3);
        let zero = std::thread::spawn(move || Group::join(&at(0, 3), Duration::from_millis(700)));
        let one = Group::join(&one, Duration::from_secs(20));
        assert!(zero.join().unwrap().unwrap_err().to_string().contains("rank 2 of 3"));
        assert!(one.unwrap().barrier().is_err());
    }
}
