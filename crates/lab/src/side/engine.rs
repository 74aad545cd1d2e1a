//! The engine in process.

use super::image::{self, Medium, Setup};
use crate::scratch::Scratch;
use crate::target::{Engine, Target, io_error};
use extant_blocks::{BlockDevice, SparseDevice};
use extant_engine::{Fs, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

enum Source {
    File(PathBuf, #[expect(dead_code, reason = "kept while the image is in use")] Scratch),
    Memory(Arc<SparseDevice>),
}

/// An open image.
pub struct Running {
    // Closed before its image goes.
    engine: Option<Engine>,
    source: Source,
    setup: Setup,
}

impl Running {
    /// Makes and opens one.
    pub fn start(medium: Medium, setup: &Setup) -> io::Result<Running> {
        let scratch = Scratch::new()?;
        let path = image::make_with(&scratch, setup)?;
        let source = match medium {
            Medium::File => Source::File(path, scratch),
            Medium::Memory => Source::Memory(Arc::new(copy(&path)?)),
        };
        let engine = Some(open(&source, setup)?);
        Ok(Running { engine, source, setup: *setup })
    }
}

/// Makes a fresh image in memory.
pub fn make_device(setup: &Setup) -> io::Result<SparseDevice> {
    let scratch = Scratch::new()?;
    copy(&image::make_with(&scratch, setup)?)
}

fn copy(path: &std::path::Path) -> io::Result<SparseDevice> {
    let file = extant_blocks::OpenOptions::from_spec(&extant_blocks::parse_image_spec(
        &path.to_string_lossy(),
    ));
    SparseDevice::copy_of(&file.open()?)
}

fn open(source: &Source, setup: &Setup) -> io::Result<Engine> {
    let usual = OpenOptions::new();
    let options = setup.memory.map_or(usual.clone(), |bytes| usual.memory(bytes));
    let fs = match source {
        Source::File(path, _) => Fs::open(path, &options),
        Source::Memory(device) => Fs::open_device(device.clone() as Arc<dyn BlockDevice>, &options),
    };
    fs.map(Engine::new).map_err(io_error)
}

impl super::Running for Running {
    fn target(&self) -> &dyn Target {
        // Only `cold` takes it out, and puts it back unless it fails.
        self.engine.as_ref().expect("it is open")
    }

    fn cold(&mut self) -> io::Result<()> {
        if let Some(engine) = self.engine.take() {
            engine.unmount()?;
        }
        self.engine = Some(open(&self.source, &self.setup)?);
        Ok(())
    }

    fn stop(mut self: Box<Self>) -> io::Result<()> {
        self.engine.take().map_or(Ok(()), Engine::unmount)
    }
}
