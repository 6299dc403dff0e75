//! Something between flannel and the API server that can be slow, break off, or let nothing through.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    closed: AtomicBool,
    over: AtomicBool,
    delay_micros: AtomicU64,
    /// A connection ends after so many bytes of answers; 0: none does.
    most_bytes: AtomicUsize,
    connections: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Listens on `at` (a port of 0: on any), for who is at `to`. To be called where both are reached.
    pub fn start(at: SocketAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).expect("an address to listen on");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_thread.over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                of_thread.connections.fetch_add(1, Ordering::SeqCst);
                if !of_thread.closed.load(Ordering::SeqCst) {
                    of_thread.join(stream, to);
                }
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Every piece of an answer comes so much later.
    pub fn delay(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.shared.delay_micros.store(micros, Ordering::SeqCst);
    }

    /// Every connection ends after so many bytes of answers.
    pub fn break_after(&self, bytes: usize) {
        self.shared.most_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Ends all connections and accepts no more.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.end_all();
    }

    pub fn open(&self) {
        self.shared.closed.store(false, Ordering::SeqCst);
    }

    /// Ends the connections that there are.
    pub fn interrupt(&self) {
        self.shared.end_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.close();
    }
}

impl Shared {
    fn join(self: &Arc<Self>, near: TcpStream, to: SocketAddr) {
        let Ok(far) = TcpStream::connect_timeout(&to, Duration::from_secs(2)) else { return };
        let copy = |stream: &TcpStream| stream.try_clone().expect("a handle on a socket");
        let (near_too, far_too) = (copy(&near), copy(&far));
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.extend([copy(&near), copy(&far)]);
        }
        let (there, back) = (self.clone(), self.clone());
        std::thread::spawn(move || there.copy(near, far_too, false));
        std::thread::spawn(move || back.copy(far, near_too, true));
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, answers: bool) {
        let (mut buffer, mut sent) = ([0; 16 << 10], 0);
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if answers {
                let delay = self.delay_micros.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(delay));
                sent += length;
                let most = self.most_bytes.load(Ordering::SeqCst);
                if most > 0 && sent > most {
                    break;
                }
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    fn end_all(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
