//! Prints the endpoint of a run's runtime.

use crib_base::args::Output;
use crib_base::report::print_stderr;

use crate::args::RunArgs;
use crate::processes::root::Root;

/// Prints the endpoint, unless `--quiet` or `--output json` is given.
pub(crate) fn announce(args: &RunArgs, root: &Root) {
    if !args.quiet && args.output == Output::Text {
        let socket = root.socket();
        print_stderr(&format!("runtime endpoint: unix://{}", socket.display()));
    }
}
