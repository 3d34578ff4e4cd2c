//! The files of `dist/`. Written by the test `the_list_of_files_is_complete`.

use crate::File;

pub(crate) static FILES: [File; 1] = [File::new(
    "index.html",
    "text/html; charset=utf-8",
    include_bytes!("../dist/index.html"),
)];
