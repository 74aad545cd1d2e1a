//! A front-end and its guest: messages set memory and rings up, and start and stop the rings.
//!
//! A ring runs while it is enabled and has a kick. Memory changes only while no ring runs: they are
//! stopped, and go on after it.

use crate::disk::Disk;
use crate::memory::{MAX_REGIONS, Place, Regions};
use crate::ring::{MAX_MORE_THREADS, Parts, Ring, Setup};
use crate::settings::{CONFIG_LEN, Choices, WRITEBACK, feature, protocol};
use crate::wire::{self, Fields, Message, invalid, message};
use extant_sync::atomic::AtomicUsize;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How long a front-end may take until its first message.
const PATIENCE: Duration = Duration::from_secs(30);

/// The flag of a kick or call without a descriptor, beside the number of its ring.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// Bytes of the head of a message about the configuration: place, length and flags.
const CONFIG_HEAD: usize = 12;

/// A ring as it is set up.
#[derive(Debug, Default)]
struct RingState {
    size: u16,
    base: u16,
    /// Descriptors, available and used chains, by addresses of the front-end.
    parts: Option<[u64; 3]>,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    enabled: bool,
    running: Option<Ring>,
}

impl RingState {
    fn stop(&mut self) {
        if let Some(ring) = self.running.take() {
            self.base = ring.stop();
        }
    }
}

/// A front-end.
pub struct Session<'s> {
    socket: &'s UnixStream,
    disk: &'s Arc<Disk>,
    choices: Arc<Choices>,
    threads: Arc<AtomicUsize>,
    regions: Regions,
    rings: Vec<RingState>,
    features: u64,
    protocol: u64,
    served: bool,
}

/// The answer to a message.
enum Answer {
    /// A reply, always.
    Reply(Vec<u8>),
    /// An acknowledgment, if it is asked for.
    Done,
}

impl Session<'_> {
    /// Serves a front-end until it ends the connection. Returns whether a ring was started.
    ///
    /// # Errors
    /// Those of the socket, and `InvalidData` for a wrong message without a way to tell it.
    pub fn run(socket: &UnixStream, disk: &Arc<Disk>) -> (bool, io::Result<()>) {
        let rings = (0..disk.offer.queues).map(|_| RingState::default()).collect();
        let mut session = Session {
            socket,
            disk,
            choices: Arc::new(Choices::new()),
            threads: Arc::new(AtomicUsize::new(MAX_MORE_THREADS)),
            regions: Regions::default(),
            rings,
            features: 0,
            protocol: 0,
            served: false,
        };
        let done = session.serve();
        (session.served, done)
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut patience = Some(PATIENCE);
        while let Some(message) = wire::receive(self.socket, patience)? {
            // From here on it may be idle for any time.
            patience = None;
            let (request, need_reply) = (message.request, message.need_reply);
            let acknowledges = self.protocol & protocol::REPLY_ACK != 0 && need_reply;
            match self.answer(message) {
                Ok(Answer::Reply(body)) => wire::reply(self.socket, request, &body)?,
                Ok(Answer::Done) if acknowledges => {
                    wire::reply(self.socket, request, &wire::long(0))?;
                }
                Ok(Answer::Done) => {}
                Err(error) if acknowledges => {
                    tracing::warn!("message {request} of a front-end is refused: {error}");
                    wire::reply(self.socket, request, &wire::long(1))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn answer(&mut self, message: Message) -> io::Result<Answer> {
        let short = || invalid(format!("message {} is short", message.request));
        let mut fields = Fields(&message.body);
        match message.request {
            message::GET_FEATURES => return Ok(reply(self.disk.offer.features())),
            message::GET_PROTOCOL_FEATURES => return Ok(reply(protocol::ALL)),
            message::GET_QUEUE_NUM => return Ok(reply(self.rings.len() as u64)),
            message::GET_MAX_MEM_SLOTS => return Ok(reply(MAX_REGIONS as u64)),
            message::GET_CONFIG => return Ok(self.config(&message.body)),
            message::GET_VRING_BASE => {
                let index = fields.native().ok_or_else(short)?;
                return self.end_ring(index);
            }
            message::SET_FEATURES => self.set_features(fields.native_long().ok_or_else(short)?)?,
            message::SET_PROTOCOL_FEATURES => {
                let chosen = fields.native_long().ok_or_else(short)?;
                if chosen & !protocol::ALL != 0 {
                    return Err(invalid(format!("unknown features of the protocol: {chosen:#x}")));
                }
                self.protocol = chosen;
            }
            // Nothing depends on an owner, and a reset of it has no common meaning.
            message::SET_OWNER | message::RESET_OWNER => {}
            message::RESET_DEVICE => self.reset(),
            message::SET_CONFIG => self.set_config(&message.body)?,
            message::SET_MEM_TABLE | message::ADD_MEM_REG | message::REM_MEM_REG => {
                self.change_memory(message)?;
            }
            message::SET_VRING_KICK | message::SET_VRING_CALL | message::SET_VRING_ERR => {
                self.set_event(message)?;
            }
            _ => self.set_up(message.request, &mut fields)?,
        }
        Ok(Answer::Done)
    }

    fn set_features(&mut self, chosen: u64) -> io::Result<()> {
        if chosen & !self.disk.offer.features() != 0 {
            return Err(invalid(format!("unknown features: {chosen:#x}")));
        }
        self.features = chosen;
        self.choices.take_features(chosen);
        Ok(())
    }

    fn reset(&mut self) {
        for ring in &mut self.rings {
            ring.stop();
            ring.enabled = false;
        }
        self.choices.set_writeback(true);
    }

    /// Returns a part of the configuration; an empty one is an error.
    fn config(&self, body: &[u8]) -> Answer {
        let mut fields = Fields(body);
        let head =
            [fields.native(), fields.native(), fields.native()].map(Option::unwrap_or_default);
        let [offset, len, flags] = head;
        let end = offset.saturating_add(len) as usize;
        let space = self.disk.offer.config(self.choices.writeback());
        if body.len() != CONFIG_HEAD + len as usize || end > CONFIG_LEN {
            return Answer::Reply(wire::words(&[offset, 0, flags]));
        }
        let part = &space[offset as usize..end];
        Answer::Reply([&wire::words(&head), part].concat())
    }

    fn set_config(&mut self, body: &[u8]) -> io::Result<()> {
        let mut fields = Fields(body);
        let place = (fields.native(), fields.native(), fields.native());
        match (place, fields.0) {
            ((Some(offset), Some(1), Some(_)), [on @ (0 | 1)])
                if offset as usize == WRITEBACK && self.features & feature::CONFIG_WCE != 0 =>
            {
                self.choices.set_writeback(*on == 1);
                // Writes before have no flush of the guest behind them any more.
                if *on == 0 { self.disk.device.flush() } else { Ok(()) }
            }
            _ => Err(invalid("a change of the configuration that is not allowed")),
        }
    }

    /// Changes the regions while no ring runs. Nothing has changed after an error.
    fn change_memory(&mut self, message: Message) -> io::Result<()> {
        let running: Vec<bool> = self.rings.iter().map(|ring| ring.running.is_some()).collect();
        self.rings.iter_mut().for_each(RingState::stop);
        let changed = match message.request {
            message::SET_MEM_TABLE => all_regions(message).map(|regions| self.regions = regions),
            _ => one_region(&mut self.regions, message),
        };
        for (index, _) in running.into_iter().enumerate().filter(|(_, ran)| *ran) {
            self.start(index)?;
        }
        changed
    }

    fn ring(&mut self, index: u32) -> io::Result<(usize, &mut RingState)> {
        let ring = self.rings.get_mut(index as usize);
        Ok((index as usize, ring.ok_or_else(|| invalid(format!("there is no ring {index}")))?))
    }

    /// Stops a ring. Returns the next available chain.
    fn end_ring(&mut self, index: u32) -> io::Result<Answer> {
        let (_, ring) = self.ring(index)?;
        ring.stop();
        ring.kick = None;
        Ok(Answer::Reply(wire::words(&[index, ring.base.into()])))
    }

    /// Executes a message that sets a ring up.
    fn set_up(&mut self, request: u32, fields: &mut Fields<'_>) -> io::Result<()> {
        let short = || invalid(format!("message {request} is unknown or short"));
        let number = fields.native().ok_or_else(short)?;
        let value = fields.native().ok_or_else(short)?;
        let is_running = self.rings.get(number as usize).is_some_and(|ring| ring.running.is_some());
        let (index, ring) = self.ring(number)?;
        match request {
            message::SET_VRING_ENABLE if value <= 1 => {
                ring.enabled = value == 1;
                if !ring.enabled {
                    ring.stop();
                    return Ok(());
                }
                return self.start(index);
            }
            _ if is_running => return Err(invalid(format!("ring {number} runs"))),
            message::SET_VRING_NUM => {
                ring.size = u16::try_from(value).map_err(|_| invalid("a ring that is too long"))?;
            }
            message::SET_VRING_BASE => {
                ring.base = u16::try_from(value).map_err(|_| invalid("a chain beyond all"))?;
            }
            message::SET_VRING_ADDR => {
                let mut next = || fields.native_long().ok_or_else(short);
                let (descriptors, used, available) = (next()?, next()?, next()?);
                ring.parts = Some([descriptors, available, used]);
            }
            _ => return Err(short()),
        }
        Ok(())
    }

    /// Takes the event of a kick, which starts the ring, or of a call.
    fn set_event(&mut self, message: Message) -> io::Result<()> {
        let value = Fields(&message.body).native_long().ok_or_else(|| invalid("no ring"))?;
        let starts = self.features & feature::PROTOCOL == 0;
        let (index, ring) = self.ring((value & 0xff) as u32)?;
        let event = match (value & NO_DESCRIPTOR != 0, message.descriptors.len()) {
            (true, 0) => None,
            (false, 1) => message.descriptors.into_iter().next().map(Arc::new),
            _ => return Err(invalid("an event without its descriptor")),
        };
        match message.request {
            message::SET_VRING_KICK => {
                let event = event.ok_or_else(|| invalid("a ring without a kick"))?;
                ring.stop();
                ring.kick = Some(event);
                ring.enabled |= starts;
                self.start(index)
            }
            message::SET_VRING_CALL => {
                if let Some(event) = &event {
                    // A full event, or another file, must not stop a thread.
                    fcntl_setfl(event, fcntl_getfl(event)? | OFlags::NONBLOCK)?;
                }
                ring.call.clone_from(&event);
                if let Some(running) = &ring.running {
                    running.set_call(event);
                }
                Ok(())
            }
            // Errors are in the status of each request.
            _ => Ok(()),
        }
    }

    /// Starts a ring if it has all that it needs, and does not run.
    fn start(&mut self, index: usize) -> io::Result<()> {
        let Some(ring) = self.rings.get_mut(index) else { return Ok(()) };
        let (true, Some(kick), None) = (ring.enabled, &ring.kick, &ring.running) else {
            return Ok(());
        };
        let parts = ring.parts.ok_or_else(|| invalid(format!("ring {index} has no place")))?;
        let [descriptors, available, used] = parts.map(|user| self.regions.guest_address(user));
        let (Some(descriptors), Some(available), Some(used)) = (descriptors, available, used)
        else {
            return Err(invalid(format!("ring {index} lies outside of memory: {parts:x?}")));
        };
        let setup = Setup {
            disk: self.disk.clone(),
            choices: self.choices.clone(),
            threads: self.threads.clone(),
            memory: self.regions.memory()?,
            parts: Parts { descriptors, available, used },
            size: ring.size,
            base: ring.base,
            event_idx: self.features & feature::EVENT_IDX != 0,
            kick: kick.clone(),
            call: ring.call.clone(),
        };
        ring.running = Some(Ring::start(setup)?);
        self.served = true;
        Ok(())
    }
}

fn reply(value: u64) -> Answer {
    Answer::Reply(wire::long(value))
}

/// Returns the regions of a message that replaces all.
fn all_regions(message: Message) -> io::Result<Regions> {
    let mut fields = Fields(&message.body);
    let (count, _) = (fields.native(), fields.native());
    if count.map(|count| count as usize) != Some(message.descriptors.len()) {
        return Err(invalid("regions without their descriptors"));
    }
    let mut regions = Regions::default();
    for file in message.descriptors {
        let place = Place::take(&mut fields).ok_or_else(|| invalid("a short list of regions"))?;
        regions.add(place, file)?;
    }
    Ok(regions)
}

/// Adds or removes the region of a message.
fn one_region(regions: &mut Regions, message: Message) -> io::Result<()> {
    let mut fields = Fields(&message.body);
    // The first field is padding.
    let place = fields.native_long().and_then(|_| Place::take(&mut fields));
    let place = place.ok_or_else(|| invalid("a short region"))?;
    if message.request == message::REM_MEM_REG {
        return regions.remove(place);
    }
    let file = message.descriptors.into_iter().next();
    regions.add(place, file.ok_or_else(|| invalid("a region without its descriptor"))?)
}
