//! The engine in process.

use super::{Open, Setup, Source, make_with};
use crate::target::{Engine, Target};
use extant_blocks::{BlockDevice, SparseDevice};
use extant_engine::mkfs::{self, Zeroing};
use extant_engine::{Fs, OpenOptions};
use extant_measure::scratch::Scratch;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

enum Image {
    File(PathBuf, #[expect(dead_code, reason = "kept while the image is in use")] Scratch),
    Memory(Arc<SparseDevice>),
}

/// An image that the engine opens.
pub struct InProcess {
    image: Image,
    setup: Setup,
}

impl InProcess {
    pub fn over_file(setup: &Setup) -> io::Result<InProcess> {
        let scratch = Scratch::new()?;
        Ok(InProcess { image: Image::File(make_with(&scratch, setup)?, scratch), setup: *setup })
    }

    pub fn over_memory(setup: &Setup) -> io::Result<InProcess> {
        Ok(InProcess { image: Image::Memory(Arc::new(make_device(setup)?)), setup: *setup })
    }
}

/// Makes a file system of so many bytes with this project's mkfs, on a device that keeps no zeroes.
pub fn make_sparse(bytes: u64, write_backups: bool) -> io::Result<SparseDevice> {
    let device = SparseDevice::new(bytes);
    let options = mkfs::Options { zeroing: Zeroing::Known, write_backups, ..Default::default() };
    mkfs::make(&device, &options).map_err(io::Error::other)?;
    Ok(device)
}

/// Makes a fresh image in memory.
pub fn make_device(setup: &Setup) -> io::Result<SparseDevice> {
    let scratch = Scratch::new()?;
    let spec = extant_blocks::parse_image_spec(&make_with(&scratch, setup)?.to_string_lossy());
    SparseDevice::copy_of(&extant_blocks::OpenOptions::from_spec(&spec).open()?)
}

impl Source for InProcess {
    fn open(&mut self) -> io::Result<Box<dyn Open>> {
        let usual = OpenOptions::new().shards(self.setup.shards);
        let options = self.setup.memory.map_or(usual.clone(), |bytes| usual.memory(bytes));
        let fs = match &self.image {
            Image::File(path, _) => Fs::open(path, &options),
            Image::Memory(device) => {
                Fs::open_device(device.clone() as Arc<dyn BlockDevice>, &options)
            }
        };
        Ok(Box::new(fs.map(Engine::new)?))
    }
}

impl Open for Engine {
    fn target(&self) -> &dyn Target {
        self
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.unmount()
    }
}
