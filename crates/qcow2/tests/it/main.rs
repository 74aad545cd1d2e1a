//! Images in the format qcow2, beside `qemu-img`.

mod cuts;
mod failing;
mod full;
mod hostile;
mod images;
mod mutations;
mod reading;
mod writing;
